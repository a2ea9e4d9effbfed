"""The base class of heads, which turn vectors of a backbone into nats of targets and log probabilities of tokens.

Shapes: B texts, T steps, V vocabulary, H size of a vector of the backbone, K context, C categorical variables,
N targets of training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from factorcell.config import EXTENSIBLE, KindOptions, ModelConfig, check_kind
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.tokenizers.tokenizer import Specials


@dataclass(frozen=True)
class HeadSizes:
    """Sizes, variables and special tokens that the rest of a model determines for its head.

    Attributes:
        vector_size: Size of the vectors of the backbone, H.
        model: The section `model` of the config, whose `output_bias` names the biases that depend on the context.
        schema: The context variables; empty if the head is not adapted.
        variable_sizes: Sizes of the embeddings of the context variables, in the order of the encoder.
        specials: The ids of special tokens. The start token is never predicted.
        is_pretrained: Whether the token embeddings are the output layer of a pretrained model, so that the logits are
            their products with the vectors.
        bias: The bias (V,) of that layer; None if it has none.
    """

    vector_size: int
    model: ModelConfig
    schema: ContextSchema
    variable_sizes: tuple[int, ...]
    specials: Specials
    is_pretrained: bool = False
    bias: Tensor | None = None


class Head(nn.Module):
    """Base class of heads.

    Args:
        options: An instance of `Options`, the options of this kind.
        embedding: The token embeddings (V, E) of the input layer, which a head may share; of a pretrained backbone,
            those of its output layer.
        sizes: Sizes, variables and special tokens that the rest of the model determines.
    """

    Options: ClassVar[type[KindOptions]] = KindOptions

    def __init__(self, options: Any, embedding: nn.Parameter, sizes: HeadSizes) -> None:
        super().__init__()

    def initialize(self, log_probs: Tensor) -> None:
        """Initialize the head from the log probabilities (V,) of the tokens; by default do nothing."""

    def observe(self, tokens: Any, categories: Any) -> None:
        """Receive the targets (N,) of training and the values (N, C) of their texts; by default do nothing."""

    def condition(self, vector: Tensor, parts: Sequence[Tensor], context: Context) -> Any:
        """Compute everything that B contexts determine in the head.

        Args:
            vector: Context vectors (B, K).
            parts: The embedding (B, size) of each variable.
            context: The values of the variables.

        Returns:
            `Conditions` of the head.
        """
        raise NotImplementedError

    def fold(self, conditions: Any) -> Any:
        """Return equivalent conditions with which scoring many tokens is faster; by default return `conditions`."""
        return conditions

    def nats(self, vectors: Tensor, targets: Tensor, conditions: Any) -> Tensor:
        """Return the exact nats (B, T) of `targets` (B, T), predicted by `vectors` (B, T, H)."""
        raise NotImplementedError

    def log_probabilities(self, vectors: Tensor, conditions: Any) -> Tensor:
        """Return log probabilities (B, V) of the next token, predicted by `vectors` (B, H)."""
        raise NotImplementedError

    def row_tables(self) -> list[list[nn.Parameter]]:
        """Return groups of tables of which a sampled loss reads some rows, the same in a group; by default none."""
        return []

    def pack(self) -> Any:
        """Return the weights in the form that compiled sampling reads; None if it does not support the head."""
        return None


def register_head(name: str, head: type[Head]) -> None:
    """Make a kind of head available to the option `head` in this process.

    Args:
        name: Kind of the head: lower-case letters, digits and underscores.
        head: Class that extends `Head` and has `Options` of this kind.

    Raises:
        UserError: The name is taken, or the class has no `Options` of this kind.
    """
    EXTENSIBLE["head"].register(name, head, check_kind)
