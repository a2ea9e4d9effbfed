"""The options of context adapters (`context_model`)."""

from dataclasses import dataclass

from factorcell.errors import UserError
from factorcell.options.limits import MAX_FLOAT, Limits, is_names, make_plain
from factorcell.options.option_fields import INPUT_ADAPTERS, MAX_SIZE

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
        make_plain(self)
        if not is_names(self.adapt):
            raise UserError(f"adapt: expected a list of names, got {self.adapt!r}")
        if not is_names(self.target_modules) and self.target_modules != ALL_LINEAR:
            raise UserError(f"target_modules: expected {ALL_LINEAR} or a list of names, got {self.target_modules!r}")
        if not self.target_modules:
            raise UserError(f"target_modules: expected {ALL_LINEAR} or at least one name, got none")
        for name, low in {"rank": 1, "shared_rank": 0, "context_size": 1, "variable_size": 1}.items():
            Limits(low, MAX_SIZE).check(name, getattr(self, name))
        Limits(0, MAX_FLOAT, whole=False, above=True).check("alpha", self.alpha)
        if not isinstance(self.output_bias, bool):
            raise UserError(f"output_bias: expected True or False, got {self.output_bias!r}")
        for name in INPUT_ADAPTERS:
            if name in self.adapt:
                expected = "expected adapters that change weights, such as factor"
                raise UserError(f"adapt: {expected}, got {name}; put what is read before a text into the input tokens")
