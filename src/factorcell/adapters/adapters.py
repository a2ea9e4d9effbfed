"""The change that a context vector c makes to a linear map y = x W + b, and the adapters that compute the change.

    y = s(c) * (x W + (x L(c)) R(c)) + V c + b

L(c) R(c) is a change of W of low rank, V c a change of b, and s(c) a factor on each output. L, R and V are from
equations 2 to 4 of Jaech and Ostendorf (TACL 2018). s(c) is from equation 3.2 of Jaech's thesis (2018); the thesis
scales rows of W, because W in the thesis is the transpose of W in this code. `AdaptedLinear` (`adapted_linear`) has W
and b and applies the change.

In a frozen pretrained model, W + P Q takes the place of W. P Q is a LoRA (Hu et al. 2021), which all contexts share.

The parameters P of the built-in adapters are only multiplied with c. Therefore an `AdapterGroup` stores the parameters
of several maps in the columns of one matrix, and computes c [P_1 ... P_n]: PyTorch starts 300 operations for the 210
maps of SmolLM2-135M in a training step on a GPU instead of 1,700 (rank 4).

Shapes: B contexts, D inputs, O outputs, K context, R rank, S rank of the LoRA, N values of the changes of all maps.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from factorcell.config import EXTENSIBLE, INPUT_ADAPTERS, ModelConfig
from factorcell.errors import UserError

FULL_RATE_RANK = 12  # with a higher rank, L and R have a lower learning rate
# Largest number of contexts of one product of a group on a processor. With more, separate products are faster: they
# stay in the cache, and the values of a map are consecutive in memory. (The adapters of an attention layer took 44
# instead of 58 ms of a training step with 400 texts of 8 tokens in bfloat16.)
MAX_CONTEXTS = 32


def normal(shape: tuple[int, ...], *factors: float) -> Tensor:
    """Return random numbers of the standard normal distribution, multiplied by each of the `factors`."""
    values = torch.empty(shape)
    if not values.is_meta:  # on PyTorch's meta device only shapes are computed
        values.normal_()
        for factor in factors:
            values *= factor
    return values


def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
    """Return random numbers of the uniform distribution on [-`bound`, `bound`)."""
    values = torch.empty(shape)
    return values if values.is_meta else values.uniform_().mul_(2).sub_(1).mul_(bound)


@dataclass(frozen=True)
class Shift:
    """The change of a linear map in B contexts; a part that is None changes nothing.

    Attributes:
        left: L (B, D, R).
        right: R (B, R, O); `left` times `right` is added to W.
        bias: V c (B, O), added to b.
        scale: s (B, O), a factor on the outputs before the bias.
        shared_left: P (D, S), which all contexts share.
        shared_right: Q (S, O); `shared_left` times `shared_right` is added to W.
        matrix: A matrix (B, D, O), or (D, O) for all contexts, that replaces W. `AdaptedLinear` sets it; adapters do
            not.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    shared_left: Tensor | None = None
    shared_right: Tensor | None = None
    matrix: Tensor | None = None

    @classmethod
    def sum(cls, shifts: Sequence["Shift"]) -> "Shift":
        """Combine the shifts of several adapters: concatenate L and R along the rank, add biases, multiply scales."""
        if len(shifts) == 1:
            return shifts[0]
        parts = ([getattr(shift, name) for shift in shifts] for name in ("left", "right", "bias", "scale"))
        lefts, rights, biases, scales = ([part for part in column if part is not None] for column in parts)
        # A single L or R, which may have a hundred megabytes, is not copied.
        return cls(
            left=lefts[0] if len(lefts) == 1 else torch.cat(lefts, 2) if lefts else None,
            right=rights[0] if len(rights) == 1 else torch.cat(rights, 1) if rights else None,
            bias=torch.stack(biases).sum(0) if biases else None,
            scale=scales[0] if len(scales) == 1 else torch.stack(scales).prod(0) if scales else None,
        )

    def select(self, rows: Tensor) -> "Shift":
        """Return a shift with only the contexts at the indices `rows` (B',); an index may occur more than once."""
        names = ["left", "right", "bias", "scale"]
        if self.matrix is not None and self.matrix.dim() == 3:
            names.append("matrix")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{name: None if part is None else part[rows] for name, part in parts.items()})

    def low_rank_factors(self) -> tuple[Tensor, Tensor] | None:
        """Return [P L] (D, S + R) and [Q; R] (S + R, O) of the first context; None if no part has a low rank."""
        pairs = [(self.shared_left, self.shared_right)]
        if self.left is not None and self.right is not None:
            pairs.append((self.left[0], self.right[0]))
        factors = [(left, right) for left, right in pairs if left is not None and right is not None]
        if not factors:
            return None
        return torch.cat([left for left, _ in factors], dim=1), torch.cat([right for _, right in factors], dim=0)

    def context_count(self) -> int:
        """Return the number of contexts, B; 1 if all inputs share the shift."""
        if self.matrix is not None:
            return 1 if self.matrix.dim() == 2 else len(self.matrix)
        return next((len(part) for part in (self.left, self.bias, self.scale) if part is not None), 1)

    def to(self, dtype: torch.dtype) -> "Shift":
        """Return this shift with all parts in `dtype`."""
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return Shift(**{name: None if part is None else part.to(dtype) for name, part in parts})

    def values_per_context(self) -> int:
        """Return the number of values in the shift of one context, without those that all contexts share."""
        return sum(part[0].numel() for part in (self.left, self.right, self.bias, self.scale) if part is not None)


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of the linear map that an adapter modifies.

    Attributes:
        context: Size of a context vector, K.
        inputs: Number of inputs, D.
        outputs: Number of outputs, O.
        rank: Rank of the change of W, R; 0 for no such change.
    """

    context: int
    inputs: int
    outputs: int
    rank: int


class Adapter(nn.Module):
    """Base class of adapters, which compute the `Shift` of a linear map from context vectors (B, K).

    Each linear map has its own adapters. An adapter must set the same parts of the shift for all contexts, with the
    same sizes except B, and the shift of a context must depend only on the vector of this context.

    Attributes:
        needs_rank: Whether the adapter needs a rank. Linear maps of rank 0 omit such an adapter.
        rate_factor: Factor on the learning rate of its parameters.

    Args:
        sizes: Sizes of the linear map.
    """

    needs_rank: ClassVar[bool] = False
    rate_factor = 1.0

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()

    def forward(self, vector: Tensor) -> Shift:
        """Return the shift of B contexts from their context vectors (B, K), in the dtype of `vector`."""
        raise NotImplementedError

    def start_unadapted(self) -> None:
        """Set parameters such that no context changes the map before training; by default do nothing.

        Transformers call it, so that their training starts at the pretrained model.
        """


class LinearAdapter(Adapter):
    """Base class of adapters whose parameters P (K, ...) are only multiplied with the context vector c.

    One product can therefore compute the changes of many maps (`AdapterGroup`).
    """

    def forward(self, vector: Tensor) -> Shift:
        """Return the shift of B contexts from their context vectors (B, K)."""
        return self.shift(
            *((vector @ parameter.flatten(1)).view(-1, *parameter.shape[1:]) for parameter in self.parameters())
        )

    @staticmethod
    def shift(*products: Tensor) -> Shift:
        """Return the shift of B contexts from the products c P (B, ...) of each parameter, in their order."""
        raise NotImplementedError

    def start_unadapted(self) -> None:
        """Set the last parameter (V, C or R) to zero."""
        nn.init.zeros_(list(self.parameters())[-1])


class Concat(LinearAdapter):
    """The ConcatCell: the context vector as an additional input, which shifts the bias (TACL 2018, equation 2)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(normal((sizes.context, sizes.outputs), sizes.context**-0.5))

    @staticmethod
    def shift(*products: Tensor) -> Shift:
        """Return the shift V c (B, O) of the bias."""
        (bias,) = products
        return Shift(bias=bias)


class Scale(LinearAdapter):
    """Rescaled outputs: s = 1 + C c (thesis 2018, equation 3.2). C starts small, so the map starts nearly unadapted."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(normal((sizes.context, sizes.outputs), 0.1, sizes.context**-0.5))

    @staticmethod
    def shift(*products: Tensor) -> Shift:
        """Return the factors s (B, O)."""
        (change,) = products
        return Shift(scale=1 + change)


class Factor(LinearAdapter):
    """The FactorCell: a change of W of rank R, from basis tensors (K, D, R) and (K, R, O) (TACL 2018, equation 3)."""

    needs_rank = True

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        # For a context vector of norm 1, each column of L has an expected norm of about 1. R starts small, so the map
        # starts nearly unadapted.
        self.left = nn.Parameter(normal((sizes.context, sizes.inputs, sizes.rank), sizes.inputs**-0.5))
        self.right = nn.Parameter(normal((sizes.context, sizes.rank, sizes.outputs), 0.1, sizes.rank**-0.5))
        # A step of Adam changes all rows of R alike, and the map by their sum. Without this factor, a training of
        # commit subjects with rank 50 ended with perplexity 5.6 instead of 4.2.
        self.rate_factor = min(1.0, FULL_RATE_RANK / sizes.rank)

    @staticmethod
    def shift(*products: Tensor) -> Shift:
        """Return L (B, D, R) and R (B, R, O)."""
        left, right = products
        return Shift(left, right)


ADAPTERS: dict[str, type[Adapter]] = {"concat": Concat, "scale": Scale, "factor": Factor}


def register_adapter(name: str, adapter: type[Adapter]) -> None:
    """Make an adapter available to the option `adapt` in this process.

    Args:
        name: Lower-case letters, digits and underscores.
        adapter: Class that extends `Adapter`.

    Raises:
        UserError: The name is taken, or the class does not extend `Adapter`.
    """
    EXTENSIBLE["adapt"].register(name, adapter, _check_adapter_class)


def find_adapter(name: str) -> type[Adapter]:
    """Return the class of the adapter called `name`: built in, registered, or from an installed package."""
    adapter: type[Adapter] = EXTENSIBLE["adapt"].find_class(name, ADAPTERS, _check_adapter_class)
    return adapter


def new_adapters(names: Sequence[str], sizes: LayerSizes) -> dict[str, Adapter]:
    """Return the adapters of a linear map by name; at rank 0, omit the adapters that need a rank."""
    classes = {name: find_adapter(name) for name in names}
    return {name: adapter(sizes) for name, adapter in classes.items() if sizes.rank or not adapter.needs_rank}


def weight_adapters(config: ModelConfig) -> tuple[str, ...]:
    """Return the adapters of `config` that change weights; at rank 0, omit the adapters that need a rank."""
    names = (name for name in config.adapt if name not in INPUT_ADAPTERS)
    return tuple(name for name in names if config.rank or not find_adapter(name).needs_rank)


def _check_adapter_class(name: str, adapter: type[Adapter]) -> None:
    """Raise `UserError` unless `adapter` extends `Adapter` and `name` is not an attribute of PyTorch's `ModuleDict`."""
    if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        expected = "expected a class that extends factorcell.nn.Adapter"
        raise UserError(f"adapter {name!r}: {expected}, got {adapter!r:.60}")
    if hasattr(nn.ModuleDict(), name):
        raise UserError(f"adapter {name!r}: PyTorch reserves this name; choose another")


class AdapterGroup(nn.Module):
    """The adapters of several linear maps, whose linear adapters compute their changes in one product.

    The group takes the values of the parameters of linear adapters, and the `others` themselves. All contexts share a
    further change P Q of each map, with D inputs and O outputs (`shapes`), of rank S, a LoRA; it is zero before
    training.

    Attributes:
        weight: The parameters of all linear adapters (K, N), each flattened, in the order of the maps; or None.
        shared_left: P (D, S) of each map; empty if S is 0.
        shared_right: Q (S, O) of each map.
    """

    def __init__(
        self, adapters: Sequence[Sequence[Adapter]], shapes: Sequence[tuple[int, int]] = (), shared_rank: int = 0
    ) -> None:
        super().__init__()
        self.others, columns = nn.ModuleList(), []
        # For each map, the class of each linear adapter and the shapes of its products; None is an adapter of `others`.
        self._adapters: list[list[tuple[type[LinearAdapter], list[torch.Size]] | None]] = []
        for adapters_of_map in adapters:
            self._adapters.append([])
            for adapter in adapters_of_map:
                if isinstance(adapter, LinearAdapter):
                    parameters = [parameter.detach() for parameter in adapter.parameters()]
                    columns += [parameter.flatten(1) for parameter in parameters]
                    self._adapters[-1].append((type(adapter), [parameter.shape[1:] for parameter in parameters]))
                else:
                    self.others.append(adapter)
                    self._adapters[-1].append(None)
        self._column_counts = [matrix.shape[1] for matrix in columns]
        self.weight = nn.Parameter(torch.cat(columns, dim=1)) if columns else None
        shapes = shapes if shared_rank else ()
        self.shared_left = nn.ParameterList(normal((inputs, shared_rank), inputs**-0.5) for inputs, _ in shapes)
        self.shared_right = nn.ParameterList(torch.zeros(shared_rank, outputs) for _, outputs in shapes)

    def forward(self, vector: Tensor, dtype: torch.dtype) -> list[Shift]:
        """Return the shift of each map in B contexts, with numbers of type `dtype`, from context vectors (B, K)."""
        products, others = iter(self._products(vector, dtype)), iter(self.others)
        shifts = []
        shared = itertools.zip_longest(self._adapters, self.shared_left, self.shared_right)
        for adapters_of_map, left, right in shared:
            parts: list[Shift] = []
            for adapter in adapters_of_map:
                if adapter is None:
                    parts.append(next(others)(vector).to(dtype))
                else:
                    cls, shapes = adapter
                    parts.append(cls.shift(*(next(products).view(-1, *shape) for shape in shapes)))
            shift = Shift.sum(parts)
            if left is not None:
                shift = replace(shift, shared_left=left.to(dtype), shared_right=right.to(dtype))
            shifts.append(shift)
        return shifts

    def _products(self, vector: Tensor, dtype: torch.dtype) -> Sequence[Tensor]:
        """Return the products (B, ...) of the context vectors and each parameter of the linear adapters."""
        if self.weight is None:
            return ()
        if vector.device.type == "cpu" and len(vector) > MAX_CONTEXTS:
            return [(vector @ columns).to(dtype) for columns in torch.split(self.weight, self._column_counts, dim=1)]
        return torch.split((vector @ self.weight).to(dtype), self._column_counts, dim=1)
