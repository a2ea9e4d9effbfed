"""Initial values of parameters. On PyTorch's meta device only their shapes are computed."""

import torch
from torch import Tensor


def normal(shape: tuple[int, ...], *factors: float) -> Tensor:
    """Return random numbers of the standard normal distribution, multiplied by each of the `factors`."""
    values = torch.empty(shape)
    if not values.is_meta:
        values.normal_()
        for factor in factors:
            values *= factor
    return values


def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
    """Return random numbers of the uniform distribution on [-`bound`, `bound`)."""
    values = torch.empty(shape)
    return values if values.is_meta else values.uniform_().mul_(2).sub_(1).mul_(bound)
