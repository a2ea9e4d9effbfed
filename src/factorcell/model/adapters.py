"""What a context does to the weights of a recurrent layer.

    W' = s (W + L(c) R(c))        b' = b + V c        s = 1 + C c

(TACL 2018, equations 2 to 4; s, a factor on every row of W as printed, on its columns here: thesis 2018, equation 3.2.)

Shapes: B texts, E inputs, H hidden, D = E + H, G gate columns, K context, R rank.
An adapter maps c to a `Shift`; `shifted` sums the shifts into `AdaptedWeights`. Both are values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from factorcell.config import EXTENSIBLE, ModelConfig, UserError
from factorcell.model.initial import normal
from factorcell.model.kernels.recurrence import Packed
from factorcell.option_fields import PREFIX


@dataclass(frozen=True)
class Shift:
    """What one adapter changes: `left` (B, D, R) times `right` (B, R, G) is added to W, `bias` (B, G) to b.

    `scale` (B, G) is added to a factor of one on W'.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None


@dataclass(frozen=True)
class AdaptedWeights:
    """The recurrent weights of B contexts: `matrix` (D, G), shared, or (B, D, G), folded; `bias` (G,) or (B, G).

    W' is `matrix` + `left` `right`, times `scale` (B, G). `packed` is the hidden part of `matrix` again.
    """

    matrix: Tensor
    bias: Tensor
    left: Tensor | None = None
    right: Tensor | None = None
    scale: Tensor | None = None
    packed: Packed | None = None

    @property
    def adapted(self) -> int:
        """So many numbers a context sets; of a matrix that is not folded."""
        own = [part for part in (self.left, self.right, self.scale) if part is not None]
        return sum(part[0].numel() for part in own) + (self.bias.shape[1] if self.bias.dim() == 2 else 0)

    def select(self, rows: Tensor) -> "AdaptedWeights":
        """The weights of `rows` (B',) of the contexts; what all contexts share stays shared."""
        return AdaptedWeights(
            self.matrix if self.matrix.dim() == 2 else self.matrix[rows],
            self.bias if self.bias.dim() == 1 else self.bias[rows],
            None if self.left is None else self.left[rows],
            None if self.right is None else self.right[rows],
            None if self.scale is None else self.scale[rows],
            self.packed,
        )

    def shared(self) -> "AdaptedWeights":
        """The folded weights of one context, its matrix (D, G) without a dimension for contexts."""
        return self if self.matrix.dim() == 2 else replace(self, matrix=self.matrix[0])

    def parts(self, inputs: int) -> tuple["AdaptedWeights", "AdaptedWeights"]:
        """The first `inputs` rows of W', and the others. Taken once: a slice's gradient is as large as the whole."""
        both = []
        for rows in (slice(inputs), slice(inputs, None)):
            left = None if self.left is None else self.left[:, rows]
            scale = None if self.scale is None else self.scale[:]  # a view: the gradients of each part are summed first
            both.append(replace(self, matrix=self.matrix[..., rows, :], left=left, scale=scale))
        return both[0], both[1]

    def fold(self) -> "AdaptedWeights":
        """The same weights with L, R and s multiplied into one matrix (B, D, G) per context."""
        if self.left is None and self.scale is None:
            return self
        matrix = self.matrix
        if self.left is not None and self.right is not None:
            matrix = matrix + self.left @ self.right
        if self.scale is not None:
            matrix = matrix * self.scale[:, None]
        return AdaptedWeights(matrix, self.bias)


def shifted(matrix: Tensor, bias: Tensor, shifts: Sequence[Shift]) -> AdaptedWeights:
    """W (D, G) and b (G,) with all `shifts`, W' still factored; the ranks of several lie side by side."""
    left = [shift.left for shift in shifts if shift.left is not None]
    right = [shift.right for shift in shifts if shift.right is not None]
    biases = [shift.bias for shift in shifts if shift.bias is not None]
    scales = [shift.scale for shift in shifts if shift.scale is not None]
    return AdaptedWeights(
        matrix,
        torch.stack(biases).sum(0) + bias if biases else bias,
        torch.cat(left, dim=2) if left else None,
        torch.cat(right, dim=1) if right else None,
        sum(scales, torch.ones_like(scales[0])) if scales else None,
    )


@dataclass(frozen=True)
class LayerSizes:
    """Of the layer that an adapter is made for: K `context`, E `inputs`, H `hidden`, how many `gates`, R `rank`."""

    context: int
    inputs: int
    hidden: int
    gates: int
    rank: int

    @property
    def rows(self) -> int:
        """Those of W: D = E + H."""
        return self.inputs + self.hidden

    @property
    def columns(self) -> int:
        """Those of W: G, first all H of one gate, then those of the next."""
        return self.gates * self.hidden


PROBE = LayerSizes(context=3, inputs=2, hidden=4, gates=3, rank=2)  # what an adapter is tried on


class Adapter(nn.Module):
    """What turns context vectors (B, K) into a `Shift`; made of `LayerSizes`, for every layer anew.

    Which parts of the `Shift` there are, and their sizes but for B, are the same for all vectors; each row follows from
    its own vector. One that is `ranked` changes nothing at a rank of 0, and is not made then.
    """

    ranked: ClassVar[bool] = False

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()

    def forward(self, vector: Tensor) -> Shift:
        """The `Shift` of B contexts `vector` (B, K), of floats of the same kind."""
        raise NotImplementedError


class Concat(Adapter):
    """ConcatCell: the context as one more input, which is a shifted bias (TACL 2018, equation 2)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(normal((sizes.context, sizes.columns), sizes.context**-0.5))

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> a shifted bias (B, G)."""
        return Shift(bias=vector @ self.weight)


class Scale(Adapter):
    """Row rescaling: W times 1 + C c (thesis 2018, equation 3.2, and the 1, with which it starts unadapted)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(normal((sizes.context, sizes.columns), 0.1, sizes.context**-0.5))

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> what is added to the factors of W (B, G)."""
        return Shift(scale=vector @ self.weight)


class Factor(Adapter):
    """FactorCell: a rank-r change of W by two basis tensors, (K, D, R) and (K, R, G) (TACL 2018, equation 3)."""

    ranked = True

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        # Left rows have unit expected norm; right starts small, so that training begins near the unadapted cell.
        self.left = nn.Parameter(normal((sizes.context, sizes.rows, sizes.rank), sizes.rows**-0.5))
        self.right = nn.Parameter(normal((sizes.context, sizes.rank, sizes.columns), 0.1, sizes.rank**-0.5))

    def forward(self, vector: Tensor) -> Shift:
        """`vector` (B, K) -> left (B, D, R) and right (B, R, G)."""
        left = vector @ self.left.flatten(1)
        right = vector @ self.right.flatten(1)
        return Shift(left.view(-1, *self.left.shape[1:]), right.view(-1, *self.right.shape[1:]))


ADAPTERS: dict[str, type[Adapter]] = {"concat": Concat, "scale": Scale, "factor": Factor}  # a prefix has no class


def register_adapter(name: str, made: type[Adapter]) -> None:
    """Let `adapt` have a `name` for the class `made`, in this process.

    `UserError` for a name that is taken, and for a class that does not keep to what `Adapter` says.
    """
    EXTENSIBLE["adapt"].register(name, made, _check)


def adapter(name: str) -> type[Adapter]:
    """The adapter called `name`: ours, one that was registered, or one that an installed package offers."""
    found: type[Adapter] = ADAPTERS[name] if name in ADAPTERS else EXTENSIBLE["adapt"].find(name, _check)
    return found


def shifting(config: ModelConfig) -> tuple[str, ...]:
    """The adapters of a config that change weights: no prefix, and none whose rank is 0."""
    return tuple(name for name in config.adapt if name != PREFIX and (config.rank > 0 or not adapter(name).ranked))


def ranked(config: ModelConfig) -> bool:
    """Whether an adapter of a config has a use for the rank."""
    return any(name != PREFIX and adapter(name).ranked for name in config.adapt)


def _check(name: str, made: type[Adapter]) -> None:
    """`UserError` unless `made` keeps to what `Adapter` says; it is tried on a layer of a few numbers."""
    if not (isinstance(made, type) and issubclass(made, Adapter)):
        raise UserError(f"adapter {name!r} is {made!r:.60}; it must be a class that extends factorcell.model.Adapter")
    if hasattr(nn.ModuleDict(), name):
        raise UserError(f"adapter {name!r}: PyTorch has that name for itself; choose another")
    for sizes in (PROBE, replace(PROBE, rank=0)):
        if sizes.rank or not made.ranked:
            try:
                fault = _fault(made, sizes)
            except Exception as error:  # whatever a class of somebody else raises
                fault = f"it fails ({type(error).__name__}: {error})".splitlines()[0]
                raise UserError(f"adapter {name!r} of {sizes}: {fault}") from error
            if fault:
                raise UserError(f"adapter {name!r} of {sizes}: {fault}")


def _fault(made: type[Adapter], sizes: LayerSizes) -> str:
    """What is wrong with an adapter of these sizes; empty if nothing is."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        vectors = torch.linspace(-1, 1, 5 * sizes.context).view(5, -1)
        own = made(sizes)
        shifts = [own(vectors), own(vectors[:1]), own(torch.zeros_like(vectors))]
    with torch.device("meta"):
        counted = made(sizes)
    if any(parameter.device.type != "meta" for parameter in counted.parameters()):
        return "its constructor allocates memory under torch.device('meta'), by which the size of a model is estimated"
    if not all(isinstance(shift, Shift) for shift in shifts):
        return f"it must return a factorcell.model.Shift, not {type(shifts[0]).__name__}"
    parts = [{part: value for part, value in vars(shift).items() if value is not None} for shift in shifts]
    if any(own.keys() != parts[0].keys() for own in parts):
        return "its shifts of two contexts have not the same parts"
    for part, value in parts[0].items():
        if not _fits(part, value, parts[0], sizes) or value.dtype != vectors.dtype:
            return f"the {part} of 5 contexts is {tuple(value.shape)} of {value.dtype}; see factorcell.model.Shift"
        if parts[1][part].shape != value[:1].shape or not torch.allclose(parts[1][part], value[:1], atol=1e-5):
            return f"the {part} of a context is another beside other contexts"
    return ""


def _fits(part: str, value: Tensor, shift: dict[str, Tensor], sizes: LayerSizes) -> bool:
    """Whether a part of the `shift` of 5 contexts has a shape that `Shift` allows."""
    if part in ("left", "right"):
        rank = shift["left"].shape[-1] if shift.keys() >= {"left", "right"} else None
        return tuple(value.shape) == ((5, sizes.rows, rank) if part == "left" else (5, rank, sizes.columns))
    return tuple(value.shape) == (5, sizes.columns)
