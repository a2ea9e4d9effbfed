"""The options of context adapters (`context_model`)."""

from dataclasses import dataclass

from factorcell.config import UserError
from factorcell.option_fields import INPUT_ADAPTERS

ALL_LINEAR = "all-linear"


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
        if not self.target_modules:
            raise UserError(f"target_modules: expected {ALL_LINEAR} or at least one name, got none")
        for name in ("rank", "context_size", "variable_size"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) > 0):
                raise UserError(f"{name}: expected a whole number above 0, got {getattr(self, name)!r}")
        if not (isinstance(self.shared_rank, int) and self.shared_rank >= 0):
            raise UserError(f"shared_rank: expected a whole number from 0, got {self.shared_rank!r}")
        if not (isinstance(self.alpha, int | float) and self.alpha > 0):
            raise UserError(f"alpha: expected a number above 0, got {self.alpha!r}")
        for name in ("target_modules", "adapt"):  # lists, as in JSON, become tuples
            value = getattr(self, name)
            object.__setattr__(self, name, value if isinstance(value, str) else tuple(value))
        for name in INPUT_ADAPTERS:
            if name in self.adapt:
                expected = "expected adapters that change weights, such as factor"
                raise UserError(f"adapt: {expected}, got {name}; put what is read before a text into the input tokens")
