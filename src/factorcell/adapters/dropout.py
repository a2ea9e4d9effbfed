"""Dropout with scaled masks: a value is set to 0 with probability p, and otherwise multiplied by 1 / (1 - p).

On the CPU, NumPy draws the masks, which takes a fifth of the time of PyTorch's generator.
"""

import numpy as np
import torch
from torch import Tensor


def apply_dropout(values: Tensor, rate: float, shared_by_steps: bool) -> Tensor:
    """Multiply `values` (B, T, N) by a dropout mask.

    With `shared_by_steps`, one mask (B, 1, N) applies to all steps of a text.
    """
    if not rate:
        return values
    batch, steps, width = values.shape
    return values * dropout_mask((batch, 1 if shared_by_steps else steps, width), rate, values)


def dropout_mask(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """Draw a mask: 0 with probability `rate`, otherwise 1 / (1 - rate), in the dtype and on the device of `like`.

    The random numbers depend on PyTorch's random state.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)
    seed = int(torch.randint(1 << 62, (1,)))
    uniform = np.random.Generator(np.random.SFC64(seed)).random(shape, dtype=np.float32)
    mask = torch.from_numpy((uniform >= rate).astype(np.float32)).to(like.dtype)
    return mask.mul_(1 / (1 - rate))
