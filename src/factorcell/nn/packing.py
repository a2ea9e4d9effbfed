"""Packing of a model's weights, and of the weights that one context determines, into the form for the compiled code.

Shapes: V vocabulary, E embedding, H hidden, R rank, N rows and M columns of a matrix.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from factorcell.adapters.adapters import Shift
from factorcell.data.tokenizers.tokenizer import Specials
from factorcell.nn.backbones.recurrent import RecurrentBackbone, RecurrentConditions, RecurrentState
from factorcell.nn.kernels import library
from factorcell.nn.language_model import Conditioning, LanguageModel
from factorcell.nn.output import SoftmaxHead

GATES = 3  # of the coupled cell
PANEL = 3  # SIMD vectors in a row of a panel; a packed matrix is stored in panels of adjacent columns
PRODUCT_TYPES = ("float32", "bfloat16")  # precisions of products in the search, in the order of native/kernels.h


@dataclass(frozen=True)
class Layout:
    """The sizes, instruction set and precision that determine the shapes of packed arrays."""

    vocabulary_size: int
    embedding_size: int
    hidden_size: int
    rank: int
    variant: str  # the instruction set
    products: str  # the precision of products, one of `PRODUCT_TYPES`

    @property
    def is_bfloat16(self) -> bool:
        """Whether products are computed in bfloat16."""
        return self.products == "bfloat16"


class PackedArrays:
    """Arrays by their names in native/kernels.h, with their addresses; callers must not replace them afterwards."""

    def __init__(self, layout: Layout, arrays: Mapping[str, Tensor]) -> None:
        self.layout, self.arrays = layout, dict(arrays)
        self.addresses = {name: array.data_ptr() for name, array in self.arrays.items()}


class PackedContext(PackedArrays):
    """The packed weights that one context determines."""


class PackedModel(PackedArrays):
    """The packed weights of a model.

    A search with products in bfloat16 also reads the weights in float32, to score its results again in float32.
    """

    def __init__(self, layout: Layout, arrays: Mapping[str, Tensor], specials: Specials) -> None:
        super().__init__(layout, arrays)
        self.specials = specials

    @classmethod
    def from_model(cls, model: LanguageModel, products: str = "float32") -> "PackedModel | None":
        """Pack the current weights; None unless the model has one coupled layer in float32 without `scale`."""
        variant, shift = library.variant(), sample_shift(model)
        if shift is None or shift.scale is not None or variant is None:
            return None
        lanes, embedding = library.LANES[variant], model.embedding.detach()
        cell, head = cast(RecurrentBackbone, model.backbone).layers[0], cast(SoftmaxHead, model.head)
        inputs, weight = _reorder_gates(cell.linear.weight.detach(), lanes).split_with_sizes(
            [cell.input_size, cell.hidden_size]
        )
        arrays = {
            "embedding": embedding.clone(),
            "inputs": _pack(inputs, lanes),
            "weight": _pack(weight, lanes),
            "projection": _pack(cast(Tensor, head.projection).detach(), lanes),
            "table": _pack(embedding.T, lanes),
        }
        if cell.gain is not None and cell.offset is not None:
            arrays["norm"] = torch.cat([cell.gain, cell.offset]).detach().view(8, -1)
        if products == "bfloat16":
            arrays["short_weight"] = _pack_bfloat16(weight, lanes)
        rank = 0 if shift.left is None else shift.left.shape[2]
        vocabulary_size, embedding_size = embedding.shape
        return cls(
            Layout(vocabulary_size, embedding_size, cell.hidden_size, rank, variant, products), arrays, model.specials
        )

    def pack_context(self, model: LanguageModel, conditioning: Conditioning) -> PackedContext:
        """Pack the weights of `model` that one context determines, from the `conditioning` of this context."""
        layout, (shift,) = self.layout, cast(RecurrentConditions, conditioning.conditions).shifts
        linear = cast(RecurrentBackbone, model.backbone).layers[0].linear
        lanes = library.LANES[layout.variant]
        bias = model.head.fold(conditioning.head).bias
        assert bias is not None
        arrays = {
            "gate_bias": _reorder_gates(cast(Tensor, linear.shifted_bias(shift)).view(1, -1), lanes)[0],
            "bias": F.pad(bias[0], (0, -layout.vocabulary_size % (PANEL * lanes)), value=-math.inf),
        }
        if shift.left is not None and shift.right is not None:
            inputs, left = shift.left[0].split_with_sizes([layout.embedding_size, layout.hidden_size])
            right = _reorder_gates(shift.right[0], lanes)
            sizes = (left.shape[1], *shift.right.shape[1:])
            if sizes != (layout.rank, layout.rank, GATES * layout.hidden_size):  # of an adapter of another package
                raise ValueError(f"shift: expected the sizes of {layout}, got {sizes}")
            factors = {"left_inputs": inputs, "left": left, "right": right}
            arrays |= {name: _pack(factor, lanes) for name, factor in factors.items()}
            if layout.is_bfloat16:
                arrays |= {"short_left": _pack_bfloat16(left, lanes), "short_right": _pack_bfloat16(right, lanes)}
        return PackedContext(layout, arrays)

    def pack_start(self, conditioning: Conditioning) -> Tensor:
        """Return the state (2H + V) before the start token in one context: h, m, and V unused values."""
        (layer_state,) = cast(RecurrentState, conditioning.start)
        return F.pad(torch.cat([layer_state.hidden[0], layer_state.memory[0]]), (0, self.layout.vocabulary_size))


def sample_shift(model: LanguageModel) -> Shift | None:
    """Return the shift of the only layer for a context vector of zeros; None if compiled code does not support it.

    All contexts change the same parts of the layer, so this shift shows which parts the adapters change.
    """
    is_supported = (
        isinstance(model.backbone, RecurrentBackbone)
        and isinstance(model.head, SoftmaxHead)
        and [cell.is_coupled for cell in model.backbone.layers] == [True]
        and all(parameter.dtype == torch.float32 for parameter in model.parameters())
        and library.supports(model.embedding)
    )
    if not is_supported:
        return None
    context_size = model.config.context_size if model.encoder else 0
    (shift,) = model.backbone.condition(model.embedding.new_zeros(1, context_size)).shifts
    return cast(Shift, shift)


def _reorder_gates(matrix: Tensor, lanes: int) -> Tensor:
    """Reorder the columns of three gates (N, 3H) to [group of `lanes` hidden units][gate][unit], padded with zeros."""
    row_count, hidden_size = len(matrix), matrix.shape[1] // GATES
    padded = F.pad(matrix.reshape(row_count, GATES, hidden_size), (0, -hidden_size % lanes))
    return padded.view(row_count, GATES, -1, lanes).transpose(1, 2).reshape(row_count, -1)


def _pack(matrix: Tensor, lanes: int) -> Tensor:
    """Pack a matrix (N, M) in panels of columns, [panel][row][column], padded with zeros."""
    padded = F.pad(matrix, (0, -matrix.shape[1] % (PANEL * lanes)))
    return padded.view(len(matrix), -1, PANEL * lanes).transpose(0, 1).contiguous()


def _pack_bfloat16(matrix: Tensor, lanes: int) -> Tensor:
    """Pack a matrix in bfloat16, [panel][pair of rows][column] as 32-bit words, padded with zeros."""
    padded = F.pad(matrix, (0, -matrix.shape[1] % (PANEL * lanes), 0, len(matrix) % 2)).bfloat16()
    pairs = padded.view(len(padded) // 2, 2, -1, PANEL * lanes).permute(2, 0, 3, 1)
    return pairs.contiguous().view(torch.int32).squeeze(3)
