"""Linear maps of any PyTorch model as `AdaptedLinear` maps, whose weights the context changes.

The modules of a model such as a Transformer do not pass additional arguments to their linear maps. Therefore a variable
of each thread holds the `Adaptation` of the pass that the thread computes, and each map reads its change from there.
Passes of several threads through the same modules do not affect each other. (`torch.compile` can trace a
`threading.local`, but not a `ContextVar`.)

The context vector of these maps ends with a constant 1, so a change that all contexts share (a LoRA, Hu et al. 2021) is
part of every change. All changes are zero before training; therefore training starts exactly at the model.

Shapes: B contexts, N rows of inputs, K context, D inputs, O outputs of a map.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from factorcell.config import UserError
from factorcell.model.adapted_linear import UNCHANGED, AdaptedLinear
from factorcell.model.adapters import Adapter, Shift
from factorcell.model.backbone import BackboneSizes

_THREAD = threading.local()


class Adaptation:
    """The contexts of one pass through adapted modules.

    The inputs of a map may have N = n B rows, as in a beam search, which reads each text n times: then n consecutive
    rows have the same context.

    Args:
        contexts: Context vectors with their constant (B, K + 1), from which each map computes its change when it is
            called; or the shifts of all maps in B contexts.
        count: The number of contexts, B.
        output_bias: A change (B, V) of the logits, or None.
    """

    def __init__(self, contexts: Tensor | tuple[Shift, ...], count: int, output_bias: Tensor | None = None) -> None:
        self.contexts, self.count, self.output_bias = contexts, count, output_bias
        self._repeated: dict[int, Adaptation] = {1: self}

    @classmethod
    def of_shifts(cls, shifts: tuple[Shift, ...], output_bias: Tensor | None = None) -> "Adaptation":
        """Return the adaptation with the shifts of all maps."""
        return cls(shifts, max(shift.context_count() for shift in shifts), output_bias)

    def shift(self, projection: "Projection", rows: int) -> Shift:
        """Return the change of a map whose inputs have `rows` rows."""
        contexts = self.for_rows(rows).contexts
        return projection.condition(contexts) if isinstance(contexts, Tensor) else contexts[projection.number]

    def for_rows(self, rows: int) -> "Adaptation":
        """Return this adaptation with each context repeated, so that it has `rows` contexts; one context fits all."""
        times, remainder = divmod(rows, self.count)
        if remainder:
            raise UserError(f"context: expected one, or one for each of {rows:,} rows, got {self.count:,}")
        if self.count == 1:
            return self
        if times not in self._repeated:
            indices = torch.arange(self.count).repeat_interleave(times)
            contexts: Any = self.contexts
            if isinstance(contexts, Tensor):
                contexts = contexts[indices]
            else:
                contexts = tuple(shift.select(indices) for shift in contexts)
            bias = None if self.output_bias is None else self.output_bias[indices]
            self._repeated[times] = Adaptation(contexts, rows, bias)
        return self._repeated[times]


class applied:  # noqa: N801, used like a function
    """Apply `adaptation` to the adapted modules in a `with` block, in this thread; None: they compute as unadapted.

    The object may be used for several blocks, also one within the other.
    """

    def __init__(self, adaptation: Adaptation | None) -> None:
        self.adaptation = adaptation
        self._outer: list[Adaptation | None] = []  # the adaptations outside the blocks

    def __enter__(self) -> None:
        self._outer.append(current_adaptation())
        _THREAD.adaptation = self.adaptation

    def __exit__(self, *exception: object) -> None:
        _THREAD.adaptation = self._outer.pop()


def current_adaptation() -> Adaptation | None:
    """Return the adaptation that `applied` has set in this thread, or None."""
    return getattr(_THREAD, "adaptation", None)


class Projection(AdaptedLinear):
    """A linear map of a model, which reads its change from the `Adaptation` of the current pass.

    Attributes:
        number: The index of this map in the shifts of a pass.
        path: The name of the map in its model, such as `model.layers.0.self_attn.q_proj`.
        weight: The weights in the layout of the model, which `matrix` returns as W (D, O). A transposed copy would need
            memory, and a transposed view cannot be divided among processes (FSDP).

    Args:
        linear: The map of the model, whose weights become those of this map.
        sizes: Size of the context with its constant, and the adapters.
        scaling: A factor on the change of W of the adapters that need a rank.
    """

    def __init__(self, linear: nn.Module, sizes: BackboneSizes, *, number: int, path: str, scaling: float) -> None:
        weight, bias = _weight_of(linear, path), cast(nn.Parameter | None, linear.bias)
        self._is_transposed = isinstance(linear, nn.Linear)  # W is (O, D) in `nn.Linear`, and (D, O) in Conv1D
        inputs, outputs = weight.shape[::-1] if self._is_transposed else weight.shape
        super().__init__(
            inputs, outputs, sizes.context, adapt=sizes.adapt, rank=sizes.rank, bias=bias is not None, weight=weight
        )
        if bias is not None:
            self.bias = nn.Parameter(bias.data)
        self.number, self.path, self.scaling = number, path, scaling
        for adapter in self.adapters.values():
            cast(Adapter, adapter).start_unadapted()

    def condition(self, vector: Tensor) -> Shift:
        """Compute the change of this map in B contexts, in the number type of its weights and on their device."""
        shift = super().condition(vector.to(self.weight.device))
        if self.scaling != 1 and shift.left is not None:
            shift = Shift(shift.left * self.scaling, shift.right, shift.bias, shift.scale)
        return shift.to(self.weight.dtype)

    def matrix(self, shift: Shift = UNCHANGED) -> Tensor:
        """Return the matrix (B, D, O) or (D, O) of a folded shift, or W (D, O) if `shift` is not folded."""
        return self.weight.T if shift.matrix is None and self._is_transposed else super().matrix(shift)

    def forward(self, x: Tensor, shift: Shift | None = None) -> Tensor:
        if shift is None:
            adaptation = current_adaptation()
            shift = UNCHANGED if adaptation is None else adaptation.shift(self, len(x))
        return super().forward(x, shift)


class AdaptedModules:
    """The adapted linear maps of a model, in the order of its modules.

    Args:
        model: The model, in which a `Projection` replaces each adapted map.
        sizes: Size of the context with its constant, the adapters and the rank.
        targets: Names of the maps to adapt, such as `q_proj`; empty: all maps.
        prefix: The name of `model` in a larger model, before the paths of the maps.
        scaling: A factor on the change of W.

    Raises:
        UserError: The model has no map with one of the names.
    """

    def __init__(
        self,
        model: nn.Module,
        sizes: BackboneSizes,
        *,
        targets: Sequence[str] = (),
        prefix: str = "",
        scaling: float = 1.0,
    ) -> None:
        maps = list(linear_maps(model, prefix))
        names = sorted({path.rpartition(".")[2] for _, path, _ in maps})
        if unknown := sorted(set(targets) - set(names)):
            raise UserError(f"target_modules: expected some of {', '.join(names)}, got {unknown[0]}")
        self.projections: list[Projection] = []
        self._parents: list[tuple[nn.Module, type[nn.Module]]] = []
        for parent, path, linear in maps:
            name = path.rpartition(".")[2]
            if not targets or name in targets:
                projection = Projection(linear, sizes, number=len(self.projections), path=path, scaling=scaling)
                projection.train(linear.training)
                setattr(parent, name, projection)
                self.projections.append(projection)
                self._parents.append((parent, type(linear)))

    def place_adapters(self) -> None:
        """Move the adapters of each map to the device of its weights; a model may be divided among several devices."""
        for projection in self.projections:
            projection.adapters.to(projection.weight.device)

    def freeze(self) -> None:
        """Exclude W and b of all maps from training."""
        for projection in self.projections:
            for parameter in (projection.weight, projection.bias):
                if parameter is not None:
                    parameter.requires_grad_(False)

    def condition(self, vector: Tensor) -> tuple[Shift, ...]:
        """Return the shifts of all maps from context vectors with their constant (B, K + 1)."""
        return tuple(projection.condition(vector) for projection in self.projections)

    def fold(self, shifts: Sequence[Shift]) -> tuple[Shift, ...]:
        """Return the shifts of one context multiplied into the weights, so that passes take as long as unadapted."""
        return tuple(
            projection.fold(shift, shared=True) for projection, shift in zip(self.projections, shifts, strict=True)
        )

    @torch.no_grad()
    def restore(self, shifts: Sequence[Shift]) -> None:
        """Replace all projections by plain linear maps of their former class, with the shifts of one context folded in.

        A map without a bias gets one if its shift has a bias.
        """
        for projection, (parent, kind), shift in zip(self.projections, self._parents, self.fold(shifts), strict=True):
            matrix, bias = projection.matrix(shift).detach(), projection.shifted_bias(shift)
            inputs, outputs = matrix.shape
            linear: Any
            if issubclass(kind, nn.Linear):
                linear = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
                linear.weight = nn.Parameter(matrix.T.contiguous(), requires_grad=False)
            else:
                linear = cast(Any, kind)(outputs, inputs)
                linear.weight = nn.Parameter(matrix.contiguous(), requires_grad=False)
            if bias is not None:
                linear.bias = nn.Parameter(bias.detach().reshape(-1).clone(), requires_grad=False)
            setattr(parent, projection.path.rpartition(".")[2], linear.train(projection.training))


def with_constant(vector: Tensor) -> Tensor:
    """Return context vectors (B, K) followed by the constant 1 (B, K + 1)."""
    return torch.cat([vector, vector.new_ones(len(vector), 1)], dim=1)


def linear_maps(model: nn.Module, prefix: str = "") -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the parent, the path and the module of each linear map: `nn.Linear` and GPT-2's `Conv1D`."""
    from transformers.pytorch_utils import Conv1D

    for parent_path, parent in list(model.named_modules(prefix=prefix)):
        for name, child in list(parent.named_children()):
            if isinstance(child, (nn.Linear, Conv1D)):
                yield parent, f"{parent_path}.{name}" if parent_path else name, child


def _weight_of(linear: nn.Module, path: str) -> Tensor:
    """Return the weights of a linear map in their layout."""
    weight = cast(nn.Parameter, linear.weight)
    if not weight.is_floating_point() or weight.dim() != 2:
        raise UserError(f"{path}: expected weights of floating-point numbers, got quantized weights ({weight.dtype})")
    return weight.data
