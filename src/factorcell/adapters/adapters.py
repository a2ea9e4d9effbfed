"""Linear maps that a context vector c changes, and the adapters that compute the change.

    y = s(c) * (x W + (x L(c)) R(c)) + V c + b

L(c) R(c) is a change of W of low rank, V c a change of b, and s(c) a factor on each output. L, R and V are from
equations 2 to 4 of Jaech and Ostendorf (TACL 2018). s(c) is from equation 3.2 of Jaech's thesis (2018); the thesis
scales rows of W, because W in the thesis is the transpose of W in this code. In a frozen pretrained model, W + P Q
takes the place of W. P Q is a LoRA (Hu et al. 2021), which all contexts share.

Shapes: B contexts, T steps, D inputs, O outputs, K context, R rank, S rank of the LoRA.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from factorcell.config import EXTENSIBLE, INPUT_ADAPTERS, ModelConfig
from factorcell.errors import UserError

FULL_RATE_RANK = 12  # with a higher rank, L and R have a lower learning rate
PARTS_BY_CONTEXT = ("left", "right", "bias", "scale")  # parts of a shift that adapters compute for each context


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
        mixing: c (B, K, R), each number R times. The last K R columns of P are then the L of each number of c, and the
            last rows of Q its R, so that the change is P_0 Q_0 + L(c) R(c), with the other columns P_0 and rows Q_0.
        matrix: A matrix (B, D, O), or (D, O) for all contexts, that replaces W. `AdaptedLinear` sets it; adapters do
            not.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    shared_left: Tensor | None = None
    shared_right: Tensor | None = None
    mixing: Tensor | None = None
    matrix: Tensor | None = None

    @classmethod
    def sum(cls, shifts: Sequence["Shift"]) -> "Shift":
        """Combine the shifts of several adapters: concatenate L and R along the rank, add biases, multiply scales."""
        if len(shifts) == 1:
            return shifts[0]
        parts = ([getattr(shift, name) for shift in shifts] for name in PARTS_BY_CONTEXT)
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
        is_shared = self.matrix is not None and self.matrix.dim() == 2
        names = [*PARTS_BY_CONTEXT, "mixing", *([] if is_shared else ["matrix"])]
        parts = [(name, getattr(self, name)) for name in names]
        return replace(self, **{name: part[rows] for name, part in parts if part is not None})

    def low_rank_factors(self) -> tuple[Tensor, Tensor] | None:
        """Return [P L] (D, S + R) and [Q; R] (S + R, O) of the first context; None if no part has a low rank."""
        lefts = (self.shared_left, None if self.left is None else self.left[0])
        rights = (self.shared_right, None if self.right is None else self.right[0])
        left, right = ([part for part in parts if part is not None] for parts in (lefts, rights))
        return (torch.cat(left, dim=1), torch.cat(right, dim=0)) if left else None

    def context_count(self) -> int:
        """Return the number of contexts, B; 1 if all inputs share the shift."""
        if self.matrix is not None and self.matrix.dim() > 2:
            return len(self.matrix)
        parts = (getattr(self, name) for name in (*PARTS_BY_CONTEXT, "mixing"))
        return next((len(part) for part in parts if part is not None), 1)

    def to(self, dtype: torch.dtype) -> "Shift":
        """Return this shift with all parts in `dtype`."""
        return Shift(**{name: None if part is None else part.to(dtype) for name, part in vars(self).items()})

    def values_per_context(self) -> int:
        """Return the number of values in the shift of one context, without those that all contexts share."""
        parts = (getattr(self, name) for name in PARTS_BY_CONTEXT)
        return sum(part[0].numel() for part in parts if part is not None)


UNCHANGED = Shift()


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of the linear map that an adapter modifies.

    Attributes:
        context: Size of a context vector, K.
        inputs: Number of inputs, D.
        outputs: Number of outputs, O.
        rank: Rank of the change of W, R; 0 for no such change.
        is_embedding: Whether W is a table of embeddings, whose inputs are the ids of rows.
    """

    context: int
    inputs: int
    outputs: int
    rank: int
    is_embedding: bool = False


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
        self.is_embedding = sizes.is_embedding

    def start_unadapted(self) -> None:
        """Set R to zero, or L in a table of embeddings, whose rows that training does not read then never change."""
        nn.init.zeros_(self.left if self.is_embedding else self.right)

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


class AdaptedLinear(nn.Module):
    """A linear map y = x W + b whose weights a context changes.

    The change is computed once per context and then applied to any number of inputs:

        linear = AdaptedLinear(64, 128, context=16, rank=4)
        shift = linear.condition(vector)     # (B, 16): once per context
        y = linear(x, shift)                 # (B, 64) -> (B, 128), or (B, T, 64) -> (B, T, 128)

    With the built-in adapters, a context vector of zeros gives the map y = x W + b.

    Attributes:
        weight: W (D, O).
        bias: b (O,), or None.
        adapters: The adapters by name.
        scaling: A factor on L R.
        dropout: The dropout rate of the inputs of changes of low rank, in training.

    References:
        Jaech and Ostendorf, Low-Rank RNN Adaptation for Context-Aware Language Modeling, TACL 2018, equations 2 to 4.
    """

    scaling: float = 1.0
    dropout: float = 0.0

    def __init__(
        self,
        inputs: int,
        outputs: int,
        context: int,
        *,
        adapt: Sequence[str] = ("concat", "factor"),
        rank: int = 0,
        bias: bool = True,
        weight: Tensor | None = None,
    ) -> None:
        """Create the map.

        Args:
            inputs: Number of inputs, D.
            outputs: Number of outputs, O.
            context: K, the size of context vectors.
            adapt: Names of adapters: concat, factor, scale, and those that `register_adapter` has added.
            rank: Rank of the change of W, R; if it is 0, adapters that need a rank are omitted.
            bias: Whether there is a bias b, which starts at zero.
            weight: Initial W (D, O), such as that of a pretrained layer; default: uniform (Glorot and Bengio 2010).
        """
        super().__init__()
        self.weight = nn.Parameter(
            uniform((inputs, outputs), (6 / (inputs + outputs)) ** 0.5) if weight is None else weight
        )
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.adapters = nn.ModuleDict(new_adapters(adapt, LayerSizes(context, inputs, outputs, rank)))

    def condition(self, vector: Tensor) -> Shift:
        """Compute the change of this map in B contexts.

        Args:
            vector: Context vectors (B, K).

        Returns:
            The combined shift of all adapters.
        """
        return Shift.sum([adapter(vector) for adapter in self.adapters.values()])

    def forward(self, x: Tensor, shift: Shift = UNCHANGED) -> Tensor:
        """Apply the map in B contexts.

        Args:
            x: Inputs (B, D), (B, T, D), or with more dimensions after B.
            shift: The result of `condition` or `fold`, for B contexts or for one context that all inputs share.
                Default: no change.

        Returns:
            Outputs (B, O), (B, T, O), or with the other dimensions of x.
        """
        inputs = x[:, None] if x.dim() == 2 else x.flatten(1, -2)  # (B, T, D)
        y, bias = self.product(inputs, shift)
        if self.dropout and self.training and shift is not UNCHANGED:
            inputs = nn.functional.dropout(inputs, self.dropout)
        if shift.shared_left is not None and shift.shared_right is not None:
            rows = self.times(inputs, shift.shared_left)
            rows = rows if shift.mixing is None else _mixed(rows, shift.mixing)
            y = _add_product(y, rows, shift.shared_right, self.scaling)
        if shift.left is not None and shift.right is not None:
            if len(shift.left) == 1:  # all inputs share the change: products of matrices are faster than of batches
                y = _add_product(y, self.times(inputs, shift.left[0]), shift.right[0], self.scaling)
            else:  # in place, because PyTorch would copy y before it adds the product; autocast does not cast for it
                rows = self.times(inputs, shift.left).to(y.dtype)
                y = y.baddbmm_(rows, shift.right.to(y.dtype), alpha=self.scaling)
        if shift.scale is not None:
            y = y * shift.scale[:, None]
        if bias is not None:
            y = y + (bias[:, None] if bias.dim() == 2 else bias)
        return y if x.dim() == 3 else y.reshape(*x.shape[:-1], y.shape[-1])

    def product(self, inputs: Tensor, shift: Shift) -> tuple[Tensor, Tensor | None]:
        """Return W times inputs (B, T, D), which may have b already, and the bias that must be added to it, or None."""
        matrix = self.matrix(shift)
        if self.bias is not None and matrix.dim() == 2 and shift.scale is None:
            # In bfloat16, this product with the bias is rounded once, as that of a linear map of PyTorch.
            y = torch.addmm(self.bias, inputs.flatten(0, 1), matrix).reshape(*inputs.shape[:2], matrix.shape[1])
            return y, shift.bias
        return self.times(inputs, matrix), self.shifted_bias(shift)

    def times(self, inputs: Tensor, matrix: Tensor) -> Tensor:
        """Return the product of inputs (B, T, D) and a matrix (D, ...) or a matrix of each context (B, D, ...)."""
        return inputs @ matrix

    def fold(self, shift: Shift, shared: bool = False) -> Shift:
        """Multiply W and its changes into a matrix per context, so that applying the map takes no longer than x W + b.

        Args:
            shift: The shift of B contexts.
            shared: Whether `shift` belongs to one context. The resulting matrix (D, O) applies to any number of inputs.

        Returns:
            A shift with a `matrix` (B, D, O), or (D, O) if `shared`.
        """
        matrix = self.matrix(shift)
        if shift.shared_left is not None and shift.shared_right is not None:
            matrix = torch.add(matrix, shift.shared_left @ shift.shared_right, alpha=self.scaling)
        if shift.left is not None and shift.right is not None:
            matrix = torch.add(matrix, shift.left @ shift.right, alpha=self.scaling)
        if shift.scale is not None:
            matrix = matrix * shift.scale[:, None]
        return Shift(bias=shift.bias, matrix=matrix.view(matrix.shape[-2:]) if shared else matrix)

    def split(self, shift: Shift, inputs: int) -> tuple[Shift, Shift]:
        """Split W into its first `inputs` rows and the others; return the shift of each part, with its `matrix`.

        Call it once per forward pass rather than once per step, because the backward pass joins the gradients of the
        parts to a gradient of the size of W.
        """
        matrix = self.matrix(shift)
        sizes = [inputs, matrix.shape[-2] - inputs]
        matrices = torch.split(matrix, sizes, dim=-2)
        left_factors = (None, None) if shift.left is None else torch.split(shift.left, sizes, dim=1)
        # Each part has its own view of s: the backward pass adds up the gradients of the part, then adds them to s.
        of_first_rows, of_other_rows = (
            replace(shift, left=left, scale=None if shift.scale is None else shift.scale[:], matrix=part)
            for left, part in zip(left_factors, matrices, strict=True)
        )
        return of_first_rows, of_other_rows

    def matrix(self, shift: Shift) -> Tensor:
        """Return the matrix (B, D, O) or (D, O) of a folded shift, or W (D, O) if `shift` is not folded."""
        return self.weight if shift.matrix is None else shift.matrix

    def shifted_bias(self, shift: Shift) -> Tensor | None:
        """Return b + V c (B, O), or b (O,) if the shift has no bias; None if the map has no bias either."""
        if shift.bias is None or self.bias is None:
            return self.bias if shift.bias is None else shift.bias
        return shift.bias + self.bias


def _add_product(y: Tensor, rows: Tensor, matrix: Tensor, scaling: float) -> Tensor:
    """Return y (B, T, O) plus the product of rows (B, T, S) and a matrix (S, O); without gradients, y is changed."""
    flat, rows, matrix = y.reshape(-1, y.shape[-1]), rows.flatten(0, 1).to(y.dtype), matrix.to(y.dtype)
    out = None if torch.is_grad_enabled() else flat  # in place, which writes no separate product or sum
    return torch.addmm(flat, rows, matrix, alpha=scaling, out=out).view_as(y)


def _mixed(rows: Tensor, mixing: Tensor) -> Tensor:
    """Return [z_0, c_1 z, ..., c_K z] (B, T, S) of rows [z_0, z_1, ..., z_K], where z is the sum of all c_k z_k."""
    of_basis = mixing[0].numel()
    weights = mixing[:, None]  # (B, 1, K, R)
    basis = rows[..., -of_basis:].reshape(*rows.shape[:-1], *mixing.shape[1:])
    combined = (basis * weights).sum(2, keepdim=True)
    mixed = (combined * weights).flatten(-2)
    return mixed if rows.shape[-1] == of_basis else torch.cat([rows[..., :-of_basis], mixed], dim=-1)
