"""The plug point for heads: what turns the vectors of a backbone into nats of targets and probabilities of tokens.

Shapes: B texts, T steps, V vocabulary, H size of a vector that predicts, K context, C categorical variables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from factorcell.config import ModelConfig, UserError
from factorcell.data.context import Context
from factorcell.data.schema import ContextSchema
from factorcell.data.vocabulary import Specials
from factorcell.option_fields import EXTENSIBLE, KindOptions, check_kind


@dataclass(frozen=True)
class HeadSizes:
    """What the rest of a model determines about its head.

    Attributes:
        vectors: Size of the vectors that predict, H.
        model: The section `model` of the config, whose `output_bias` names the biases that context adapts.
        schema: The context variables; empty if the head is not adapted.
        parts: Sizes of the embeddings of the context variables, in the order of `ContextEncoder.parts`.
        specials: The ids of special tokens. The start token is never predicted.
    """

    vector_size: int
    model: ModelConfig
    schema: ContextSchema
    variable_sizes: tuple[int, ...]
    specials: Specials


class Head(nn.Module):
    """Base of all heads.

    Args:
        options: An instance of `Options`, the options of this kind.
        embedding: The token embeddings (V, E) of the input layer, which a head may share.
        sizes: What the rest of the model determines.
    """

    Options: ClassVar[type[KindOptions]] = KindOptions
    has_sampled_loss: ClassVar[bool] = False  # whether `reads`, `sampled_nats` and `row_tables` are defined

    def __init__(self, options: Any, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__()

    def initialize(self, logs: Tensor) -> None:
        """Start training from the log probabilities (V,) of the tokens; by default without them."""

    def observe(self, tokens: Any, categories: Any) -> None:
        """See the targets (N,) of training and the values (N, C) of their texts; by default they are ignored."""

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Any:
        """Return the `Conditions` of B contexts: vectors (B, K), the embedding of each variable, the values."""
        raise NotImplementedError

    def fold(self, conditions: Any) -> Any:
        """Return the same conditions, prepared for many tokens; by default they are."""
        return conditions

    def nats(self, vectors: Tensor, targets: Tensor, conditions: Any) -> Tensor:
        """Return the exact nats (B, T) of `targets` (B, T), predicted by `vectors` (B, T, H)."""
        raise NotImplementedError

    def log_probabilities(self, vectors: Tensor, conditions: Any) -> Tensor:
        """Return log probabilities (B, V) of the next token, predicted by `vectors` (B, H)."""
        raise NotImplementedError

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Return the tables of which a sampled loss reads few rows, in groups of equal rows; by default none."""
        return []

    def sampled_rows(self, tokens: Tensor, samples: Any, categories: Tensor) -> Any:
        """Return which rows of the tables a step with a sampled loss reads.

        Raises:
            UserError: This kind of head has no sampled loss.
        """
        raise UserError(f"loss: the head {self.Options().kind!r} has no sampled loss; train with the full one")

    def sampled_nats(
        self, vectors: Tensor, targets: Tensor, conditions: Any, samples: Any, reads: Any, picked: Any
    ) -> Tensor:
        """Return nats (B, T) against sampled tokens only; see `SoftmaxHead`."""
        raise NotImplementedError

    def pack(self) -> Any:
        """Return what compiled sampling reads of the head; None where there is no such code."""
        return None


def register_head(name: str, head: type[Head]) -> None:
    """Make `made` the head of the kind `name`, in this process.

    Raises:
        UserError: The name is taken, or the class has no `Options` of this kind.
    """
    EXTENSIBLE["head"].register(name, head, check_kind)
