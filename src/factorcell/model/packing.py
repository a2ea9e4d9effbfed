"""Packing of a model's weights, and of what one context changes in them, into the form that the compiled search reads.

Shapes: V vocabulary, E embedding, H hidden, R rank, N rows and M columns of a matrix.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from factorcell.data.vocabulary import Specials
from factorcell.model.adapters import Shift
from factorcell.model.kernels import library
from factorcell.model.kernels.signature import Signature
from factorcell.model.kernels.signatures import CONTEXT, MODEL
from factorcell.model.language_model import Conditioning, LanguageModel
from factorcell.model.output import SoftmaxHead
from factorcell.model.recurrent import RecurrentBackbone, RecurrentConditions

PANEL = 3  # a packed matrix is stored in panels of adjacent columns; width of a panel in SIMD vectors
PRODUCT_TYPES = ("float32", "bfloat16")  # precisions of products in the search, in the order of native/kernels.h


@dataclass(frozen=True)
class Layout:
    """The sizes, instruction set and precision that determine the shapes of packed arrays.

    Attributes:
        vocabulary_size: V.
        embedding_size: E.
        hidden: H.
        rank: R.
        variant: The instruction set.
        products: The precision of products, one of `PRODUCT_TYPES`.
    """

    vocabulary_size: int
    embedding_size: int
    hidden: int
    rank: int
    variant: str
    products: str

    @property
    def is_bfloat16(self) -> bool:
        """Whether products are computed in bfloat16."""
        return self.products == "bfloat16"

    @property
    def state_values(self) -> int:
        """The number of values in the state after a token: h, m, and the log probabilities of the next token."""
        return 2 * self.hidden + self.vocabulary_size

    @property
    def dimensions(self) -> tuple[int, int, int, int]:
        """V, E, H and R."""
        return self.vocabulary_size, self.embedding_size, self.hidden, self.rank

    def letters(self) -> tuple[tuple[str, int], ...]:
        """Return the values of the letters in the shapes of `signatures.MODEL` and `signatures.CONTEXT`."""
        lanes = library.LANES[self.variant]
        panel, gates = PANEL * lanes, PANEL * (self.hidden + -self.hidden % lanes)
        columns = {"V": self.vocabulary_size, "E": self.embedding_size, "G": gates, "R": self.rank}
        words = {"sH": -(-self.hidden // 2), "wR": -(-self.rank // 2)}
        panels = {f"p{letter}": -(-count // panel) for letter, count in columns.items()}
        others = {"P": panel, "H": self.hidden, "W": panels["pV"] * panel}
        return tuple({**columns, **words, **panels, **others}.items())


class CheckedArrays:
    """Arrays by their names in native/kernels.h, checked against a `layout`, with their addresses.

    The constructor checks the arrays once, because checking them takes longer than a search. Callers must not replace
    them afterwards.
    """

    def __init__(self, layout: Layout, arrays: Mapping[str, Tensor], signature: Signature, *cases: str) -> None:
        self.layout, self.arrays = layout, MappingProxyType(dict(arrays))
        self.addresses = tuple(
            signature.checked_addresses(signature.expected((), layout.letters()), self.arrays, *cases)
        )


class PackedContext(CheckedArrays):
    """The packed weights that one context determines."""

    def __init__(self, layout: Layout, arrays: Mapping[str, Tensor]) -> None:
        ranks = ["a rank"] * (layout.rank > 0) + ["a short rank"] * (layout.rank > 0 and layout.is_bfloat16)
        super().__init__(layout, arrays, CONTEXT, "a context", *ranks)


class PackedModel(CheckedArrays):
    """The packed weights of a model.

    If the search computes products in bfloat16, it scores its results again in float32.
    """

    def __init__(self, layout: Layout, arrays: Mapping[str, Tensor], specials: Specials) -> None:
        super().__init__(layout, arrays, MODEL, "a model", *["short products"] * layout.is_bfloat16)
        self.specials = specials

    @classmethod
    def from_model(cls, model: LanguageModel, products: str = "float32") -> "PackedModel | None":
        """Pack the current weights for the current instruction set.

        Returns:
            The packed weights, or None if the compiled search does not support `model`. The search supports models in
            float32 on the CPU with one coupled layer, without the adapters `scale` and `prefix`.
        """
        variant, shift = library.variant(), _supported_shift(model)
        if shift is None or shift.scale is not None or variant is None:
            return None
        lanes, embedding = library.LANES[variant], model.embedding.detach()
        cell, head = cast(RecurrentBackbone, model.backbone).layers[0], cast(SoftmaxHead, model.head)
        inputs, weight = _gates(cell.linear.weight.detach(), lanes).split_with_sizes(
            [cell.embedding_size, cell.hidden_size]
        )
        arrays = {
            "embedding": embedding.clone(),
            "inputs": _packed(inputs, lanes),
            "weight": _packed(weight, lanes),
            "projection": _packed(head.projection.detach(), lanes),
            "table": _packed(embedding.T, lanes),
        }
        if cell.gain is not None and cell.offset is not None:
            arrays["norm"] = torch.cat([cell.gain, cell.offset]).detach().view(8, -1)
        if products == "bfloat16":
            arrays["short_weight"] = _packed_bfloat16(weight, lanes)
        rank = 0 if shift.left is None else shift.left.shape[2]
        vocabulary_size, embedding_size = embedding.shape
        return cls(
            Layout(vocabulary_size, embedding_size, cell.hidden_size, rank, variant, products), arrays, model.specials
        )

    def context(self, model: LanguageModel, conditioning: Conditioning) -> PackedContext:
        """Pack what one context determines in `model`, from its `conditioning`."""
        layout, (shift,) = self.layout, cast(RecurrentConditions, conditioning.conditions).shifts
        linear = cast(RecurrentBackbone, model.backbone).layers[0].linear
        lanes = library.LANES[layout.variant]
        bias = model.head.fold(conditioning.head).bias
        assert bias is not None
        arrays = {
            "gate_bias": _gates(cast(Tensor, linear.shifted_bias(shift)).view(1, -1), lanes)[0],
            "bias": F.pad(bias[0], (0, -layout.vocabulary_size % (PANEL * lanes)), value=-math.inf),
        }
        if shift.left is not None and shift.right is not None:
            inputs, left = shift.left[0].split_with_sizes([layout.embedding_size, layout.hidden])
            right = _gates(shift.right[0], lanes)
            factors = {"left_inputs": inputs, "left": left, "right": right}
            arrays |= {name: _packed(factor, lanes) for name, factor in factors.items()}
            if layout.is_bfloat16:
                arrays |= {"short_left": _packed_bfloat16(left, lanes), "short_right": _packed_bfloat16(right, lanes)}
        return PackedContext(layout, arrays)


def _supported_shift(model: LanguageModel) -> Shift | None:
    """Return the shift of the only layer for a context vector of zeros, or None if `model` is not supported.

    All contexts change the same parts of the layer, so this one shift shows which parts the model has.
    """
    is_supported = (
        isinstance(model.backbone, RecurrentBackbone)
        and isinstance(model.head, SoftmaxHead)
        and [cell.compiled for cell in model.backbone.layers] == [True]
        and model.prefix is None
        and all(parameter.dtype == torch.float32 for parameter in model.parameters())
        and library.usable(model.embedding)
    )
    if not is_supported:
        return None
    context_size = model.config.context_size if model.encoder else 0
    (shift,) = model.backbone.condition(model.embedding.new_zeros(1, context_size)).shifts
    return cast(Shift, shift)


def _gates(matrix: Tensor, lanes: int) -> Tensor:
    """Reorder the columns of three gates (N, 3H) to [group of `lanes` hidden units][gate][unit], padded with zeros."""
    rows, hidden = len(matrix), matrix.shape[1] // 3
    padded = F.pad(matrix.reshape(rows, 3, hidden), (0, -hidden % lanes))
    return padded.view(rows, 3, -1, lanes).transpose(1, 2).reshape(rows, -1)


def _packed(matrix: Tensor, lanes: int) -> Tensor:
    """Pack a matrix (N, M) in panels of columns, [panel][row][column], padded with zeros."""
    padded = F.pad(matrix, (0, -matrix.shape[1] % (PANEL * lanes)))
    return padded.view(len(matrix), -1, PANEL * lanes).transpose(0, 1).contiguous()


def _packed_bfloat16(matrix: Tensor, lanes: int) -> Tensor:
    """Pack a matrix in bfloat16, [panel][pair of rows][column] as 32-bit words, padded with zeros."""
    padded = F.pad(matrix, (0, -matrix.shape[1] % (PANEL * lanes), 0, len(matrix) % 2)).bfloat16()
    pairs = padded.view(len(padded) // 2, 2, -1, PANEL * lanes).permute(2, 0, 3, 1)
    return pairs.contiguous().view(torch.int32).squeeze(3)
