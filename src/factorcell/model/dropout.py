"""Masks of dropout, scaled to keep the mean: drawn by NumPy, whose numbers cost a fifth of PyTorch's on a processor."""

import numpy as np
import torch
from torch import Tensor


def apply_dropout(values: Tensor, rate: float, together: bool, *, whole: bool = False) -> Tensor:
    """`values` (B, T, .) times a dropout mask: a number each, or one that all steps of a text have `together`.

    With `whole` vectors are dropped as wholes, and what is kept is not scaled.
    """
    if not rate:
        return values
    batch, steps, width = values.shape
    if whole:
        return values * dropout_mask((batch, steps, 1), rate, values) * (1 - rate)
    return values * dropout_mask((batch, 1 if together else steps, width), rate, values)


def dropout_mask(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """0 with probability `rate`, else 1 / (1 - rate), of the type of `like`; seeded from PyTorch's random state."""
    if like.device.type != "cpu":
        return like.new_empty(shape).bernoulli_(1 - rate).div_(1 - rate)
    seed = int(torch.randint(1 << 62, (1,)))
    drawn = np.random.Generator(np.random.SFC64(seed)).random(shape, dtype=np.float32)
    kept = torch.from_numpy((drawn >= rate).astype(np.float32)).to(like.dtype)
    return kept.mul_(1 / (1 - rate))
