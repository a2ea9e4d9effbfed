"""The options of context adapters (`context_model`), and a check that adapters belong to a base.

Shapes: N values of a base.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factorcell.config import Notice, UserError
from factorcell.option_fields import INPUT_ADAPTERS

ALL_LINEAR = "all-linear"
VALUES_PER_TENSOR = 4  # values of each tensor of a base that identify it
TOLERANCE = 0.02  # relative difference of values that the number type of a base may cause


@dataclass(frozen=True)
class ContextConfig:
    """Sizes and options of context adapters.

    Attributes:
        rank: The rank of the change of each weight matrix that depends on the context.
        shared_rank: The rank of the change that all contexts share, a LoRA; 0: none.
        alpha: Both changes are multiplied by alpha / rank, as in LoRA.
        target_modules: Names of the linear maps to adapt, such as `q_proj`; `all-linear` adapts all maps of the layers.
        adapt: Names of the adapters of each map: factor, concat, scale, and those that `register_adapter` has added.
        context_size: The size of the context vector, K.
        variable_size: The size of the embedding of a context variable.
        output_bias: Whether the context also changes the bias of the output layer.
    """

    rank: int = 4
    shared_rank: int = 32
    alpha: float = 4.0
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    adapt: tuple[str, ...] = ("factor",)
    context_size: int = 8
    variable_size: int = 8
    output_bias: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.adapt, str):
            raise UserError(f"adapt: expected a list of names, got {self.adapt!r}")
        if isinstance(self.target_modules, str) and self.target_modules != ALL_LINEAR:
            raise UserError(f"target_modules: expected {ALL_LINEAR} or a list of names, got {self.target_modules!r}")
        for name in ("rank", "context_size", "variable_size"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) > 0):
                raise UserError(f"{name}: expected a whole number above 0, got {getattr(self, name)!r}")
        if not (isinstance(self.shared_rank, int) and self.shared_rank >= 0):
            raise UserError(f"shared_rank: expected a whole number from 0, got {self.shared_rank!r}")
        if not self.alpha > 0:
            raise UserError(f"alpha: expected a number above 0, got {self.alpha!r}")
        for name in ("target_modules", "adapt"):  # lists, as in JSON, become tuples
            value = getattr(self, name)
            object.__setattr__(self, name, value if isinstance(value, str) else tuple(value))
        for name in INPUT_ADAPTERS:
            if name in self.adapt:
                expected = "expected adapters that change weights, such as factor"
                raise UserError(f"adapt: {expected}, got {name}; put what is read before a text into the input tokens")


def base_values(base: Any) -> Tensor:
    """Return a few values (N,) of each tensor of a model, which identify its weights in any number type.

    Tensors that are not in memory, as in a model that will be loaded later, give NaN.
    """
    values = []
    for parameter in base.parameters():
        places = torch.linspace(0, parameter.numel() - 1, VALUES_PER_TENSOR).long()
        is_in_memory = not parameter.is_meta and parameter.numel() > 0
        flat = parameter.detach().reshape(-1)[places.to(parameter.device)] if is_in_memory else None
        values.append(torch.full((VALUES_PER_TENSOR,), torch.nan) if flat is None else flat.float().cpu())
    return torch.cat(values)


def warn_of_other_base(values: Tensor, expected: Tensor, folder: Path) -> None:
    """Emit a `Notice` if the values (N,) of a base are not those of the base that the adapters in `folder` had."""
    if not _are_equal(values, expected):
        problem = "expected the weights of the base with which the adapters were trained, got others"
        warnings.warn(Notice(f"{folder}: {problem}; predictions will be worse"), stacklevel=3)


def _are_equal(values: Tensor, expected: Tensor) -> bool:
    """Return whether the values (N,) of two bases are equal, up to the rounding of a number type."""
    if len(values) != len(expected):
        return False
    is_known = values.isfinite() & expected.isfinite()
    if not is_known.any():
        return True
    largest = float(expected[is_known].abs().max())
    return torch.allclose(values[is_known], expected[is_known], rtol=TOLERANCE, atol=TOLERANCE**2 * largest)
