"""Linear maps of any PyTorch model as `AdaptedLinear` maps, whose weights the context changes.

The modules of a model such as a Transformer do not pass additional arguments to their linear maps. Therefore a variable
of each thread holds the `Adaptation` of the pass that the thread computes, and each map reads its change from there. A
map that is called outside of a pass through its model has no context and raises an error. Passes of several threads
through the same modules do not affect each other. (`torch.compile` can trace a `threading.local`, but not a
`ContextVar`.)

The context vector of these maps ends with a constant 1, so a part of every change is the same in all contexts. A LoRA
(Hu et al. 2021), which all contexts share, can have a higher rank. All changes are zero before training; therefore
training starts exactly at the model.

Shapes: B contexts, N rows of inputs, K context, D inputs, O outputs of a map, R rows of each context.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from factorcell.adapters.adapted_linear import UNCHANGED, AdaptedLinear
from factorcell.adapters.adapters import AdapterGroup, LayerSizes, Shift, new_adapters
from factorcell.errors import UserError
from factorcell.nn.backbones.backbone import BackboneSizes

# A module of these classes calls or lists its children, so that no other module can be added to it.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of weights that can be adapted

OUTSIDE = (
    "an adapted map has no context here; call the model that get_context_model returned, not its base or a part of it, "
    "also for activation_checkpointing_enable (in `with model.disable_adapter():`, the base computes unadapted)"
)

_THREAD = threading.local()  # `adaptations` are those of the current passes, that of the innermost pass first


class Adaptation:
    """The contexts of one pass through the adapted modules `maps` of a model.

    The inputs of a map may have N = n B rows: n consecutive rows then have the same context. A beam search reads each
    text n times, and some layers join the texts and their tokens to one dimension.

    Args:
        contexts: Context vectors with their constant (B, K + 1), from which each group of maps computes its changes
            when its first map is called; or the shifts of all maps in B contexts; without shifts, all maps compute as
            unadapted.
        output_bias: A change (B, V) of the logits, or None.
        is_disabled: Whether the adapters are switched off, also for passes with contexts inside this one.
    """

    def __init__(
        self,
        maps: "AdaptedModules",
        contexts: Tensor | tuple[Shift, ...] = (),
        output_bias: Tensor | None = None,
        is_disabled: bool = False,
    ) -> None:
        self.maps, self.contexts, self.output_bias, self.is_disabled = maps, contexts, output_bias, is_disabled
        counts = [len(contexts)] if isinstance(contexts, Tensor) else [shift.context_count() for shift in contexts]
        self.count = max([*counts, 1 if output_bias is None else len(output_bias)])  # the number of contexts, B
        self._latest: tuple[MapGroup, list[Shift]] | None = None  # the group that has computed its shifts last

    def shift(self, projection: "Projection") -> Shift:
        """Return the change of a map."""
        group = projection.group
        if not isinstance(self.contexts, Tensor):
            return self.contexts[projection.number] if self.contexts else UNCHANGED
        if self._latest is None or self._latest[0] is not group:
            self._latest = group, group.condition(self.contexts)
        return self._latest[1][projection.number - group.projections[0].number]

    def restarted(self) -> "Adaptation":
        """Return this adaptation without the shifts that a group has computed."""
        return Adaptation(self.maps, self.contexts, self.output_bias, self.is_disabled)

    def by_context(self, x: Tensor) -> Tensor:
        """Return inputs (N, ..., D) with one dimension for the contexts, and one for the rows of each: (B, R, D)."""
        if len(x) % self.count:
            raise UserError(f"context: expected one, or one for each of {len(x):,} rows, got {self.count:,}")
        return x.reshape(self.count, x.shape[:-1].numel() // self.count, x.shape[-1])


class applied:  # noqa: N801, used like a function
    """Apply `adaptations` in a `with` block, in this thread; also in several blocks, or one within the other."""

    def __init__(self, *adaptations: Adaptation) -> None:
        self.adaptations = adaptations
        self._outer: list[tuple[Adaptation, ...]] = []  # the adaptations outside the blocks

    def __enter__(self) -> None:
        outer = _current_adaptations()
        self._outer.append(outer)
        _THREAD.adaptations = (*self.adaptations, *outer)

    def __exit__(self, *exception: object) -> None:
        _THREAD.adaptations = self._outer.pop()


def _current_adaptations() -> tuple[Adaptation, ...]:
    return getattr(_THREAD, "adaptations", ())


def find_adaptation(maps: "AdaptedModules") -> Adaptation | None:
    """Return the adaptation of the current pass through the model of `maps`, or None."""
    return next((adaptation for adaptation in _current_adaptations() if adaptation.maps is maps), None)


def current_adaptation(maps: "AdaptedModules") -> Adaptation:
    """Return the adaptation of the current pass through the model of `maps`; raise `UserError` if there is none."""
    adaptation = find_adaptation(maps)
    if adaptation is None:
        raise UserError(OUTSIDE)
    return adaptation


def add_output_bias(maps: "AdaptedModules", head: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
    """Return logits (N, T, V) with the bias that the context of each row adds; a forward hook of the output layer."""
    adaptation = current_adaptation(maps)
    if adaptation.output_bias is None:
        return logits
    bias = adaptation.output_bias.to(logits.dtype)[:, None]
    return (adaptation.by_context(logits) + bias).reshape(logits.shape)


def checkpoint_contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Return the blocks in which PyTorch computes a layer, in the forward pass and again in the backward pass.

    The adaptation has no shifts at the beginning of a block, so that both blocks compute and store the same tensors.
    """
    adaptations = _current_adaptations()
    forward, backward = (applied(*(adaptation.restarted() for adaptation in adaptations)) for _ in range(2))
    return forward, backward


class Projection(AdaptedLinear):
    """A linear map of a model, which reads its change from the `Adaptation` of the current pass.

    Its adapters are those of its group; `AdaptedLinear.adapters` is empty. Its `weight` has the layout of the model:
    a transposed copy would need memory, and a transposed view cannot be divided among processes (FSDP).

    Attributes:
        number: The index of this map in the shifts of a pass.
        path: The name of the map in its model, such as `model.layers.0.self_attn.q_proj`.
    """

    group: "MapGroup"

    def __init__(self, linear: nn.Module, *, number: int, path: str, scaling: float) -> None:
        weight, bias = cast(nn.Parameter, linear.weight).data, cast(nn.Parameter | None, linear.bias)
        self._is_transposed = isinstance(linear, nn.Linear)  # W is (O, D) in `nn.Linear`, and (D, O) in Conv1D
        inputs, outputs = weight.shape[::-1] if self._is_transposed else weight.shape
        super().__init__(inputs, outputs, 0, adapt=(), bias=bias is not None, weight=weight)
        if bias is not None:
            self.bias = nn.Parameter(bias.data)
        self.number, self.path, self.scaling = number, path, scaling
        self.requires_grad_(cast(nn.Parameter, linear.weight).requires_grad).train(linear.training)

    def matrix(self, shift: Shift = UNCHANGED) -> Tensor:
        """Return the matrix (B, D, O) or (D, O) of a folded shift, or W (D, O) if `shift` is not folded."""
        return self.weight.T if shift.matrix is None and self._is_transposed else super().matrix(shift)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        adaptation = current_adaptation(self.group.maps)
        y = super().forward(adaptation.by_context(x), adaptation.shift(self))
        return y.reshape(*x.shape[:-1], y.shape[-1])

    @torch.no_grad()
    def plain_linear(self, shift: Shift) -> nn.Module:
        """Return a plain linear map with the folded `shift`."""
        matrix, bias = self.matrix(shift).detach(), self.shifted_bias(shift)
        inputs, outputs = matrix.shape
        linear: Any
        if self._is_transposed:
            linear, weight = nn.Linear(inputs, outputs, bias=bias is not None, device="meta"), matrix.T
        else:
            from transformers.pytorch_utils import Conv1D

            linear, weight = Conv1D(outputs, inputs), matrix
        linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().reshape(-1).clone(), requires_grad=False)
        return cast(nn.Module, linear.train(self.training))


@dataclass(eq=False)
class MapGroup:
    """The adapted maps of a module `parent`, such as an attention layer, whose changes are computed in one product.

    The adapters become a part of the module under the name `adapters`; in a container, a part of the first map.
    """

    maps: "AdaptedModules"
    parent: nn.Module
    projections: list[Projection]
    adapters: AdapterGroup

    def condition(self, vector: Tensor) -> list[Shift]:
        """Compute the change of each map in B contexts, in the number type of its weights and on their device."""
        weight = self.projections[0].weight
        return cast(list[Shift], self.adapters(vector.to(weight.device), weight.dtype))

    @property
    def path(self) -> str:
        """The name of the adapters in the model."""
        first_path = self.projections[0].path
        if isinstance(self.parent, CONTAINERS):
            return f"{first_path}.group_adapters"
        parent_path = first_path.rpartition(".")[0]
        return f"{parent_path}.adapters" if parent_path else "adapters"


class AdaptedModules:
    """The adapted linear maps of a model, in the order of its modules; the model does not change before `attach`.

    Args:
        model: The model, in which a `Projection` will replace each adapted map.
        sizes: Size of the context with its constant, the adapters and the rank.
        targets: Names of the maps to adapt, such as `q_proj`; empty: all maps.
        prefix: The name of `model` in a larger model, before the paths of the maps.
        head: The output layer, which is not adapted; some models have it among their layers.
        shared_rank: The rank of a LoRA that all contexts share; 0: none.
        scaling: A factor on the changes of W.

    Raises:
        UserError: The model has no linear map, or no map with one of the names in `targets`.
    """

    def __init__(
        self,
        model: nn.Module,
        sizes: BackboneSizes,
        *,
        targets: Sequence[str] = (),
        prefix: str = "",
        head: nn.Module | None = None,
        shared_rank: int = 0,
        scaling: float = 1.0,
    ) -> None:
        maps = [row for row in linear_maps(model, prefix) if row[2] is not head]
        if not maps:
            raise UserError(f"model: expected linear maps (nn.Linear or Conv1D), got none in {type(model).__name__}")
        names = sorted({_name(path) for _, path, _ in maps})
        if unknown := sorted(set(targets) - set(names)):
            raise UserError(f"target_modules: expected some of {', '.join(names)}, got {unknown[0]}")
        self.projections: list[Projection] = []
        self._groups: list[MapGroup] = []
        adapted = [row for row in maps if not targets or _name(row[1]) in targets]
        for parent, rows in itertools.groupby(adapted, key=lambda row: row[0]):
            projections = [
                Projection(linear, number=number, path=path, scaling=scaling)
                for number, (_, path, linear) in enumerate(rows, len(self.projections))
            ]
            group = MapGroup(self, parent, projections, _new_group(projections, sizes, shared_rank))
            for projection in projections:
                projection.group = group
            self._groups.append(group)
            self.projections += projections

    def attach(self) -> "AdaptedModules":
        """Replace the maps of the model by their projections, add the adapters, and return this object."""
        for group in self._groups:
            for projection in group.projections:
                setattr(group.parent, _name(projection.path), projection)
            if isinstance(group.parent, CONTAINERS):
                group.projections[0].group_adapters = group.adapters
            else:
                group.parent.adapters = group.adapters
        return self

    def adapter_tensors(self) -> dict[str, Tensor]:
        """Return the parameters of all adapters by their names in the model."""
        return {
            f"{group.path}.{name}": values
            for group in self._groups
            for name, values in group.adapters.named_parameters()
        }

    def condition(self, vector: Tensor) -> tuple[Shift, ...]:
        """Return the shifts of all maps from context vectors with their constant (B, K + 1)."""
        return tuple(shift for group in self._groups for shift in group.condition(vector))

    def fold(self, shifts: Sequence[Shift]) -> tuple[Shift, ...]:
        """Return the shifts of one context multiplied into the weights, so that passes take as long as unadapted."""
        return tuple(
            projection.fold(shift, shared=True) for projection, shift in zip(self.projections, shifts, strict=True)
        )

    def restore(self, shifts: Sequence[Shift] | None = None) -> None:
        """Replace all projections by plain linear maps, with the shifts of one context folded in; None: unadapted."""
        folded = [UNCHANGED] * len(self.projections) if shifts is None else self.fold(shifts)
        for group in self._groups:
            for projection in group.projections:
                setattr(group.parent, _name(projection.path), projection.plain_linear(folded[projection.number]))
            if not isinstance(group.parent, CONTAINERS):
                del group.parent.adapters


def _name(path: str) -> str:
    """Return the last part of a path, such as `q_proj`."""
    return path.rpartition(".")[2]


def _new_group(projections: Sequence[Projection], sizes: BackboneSizes, shared_rank: int) -> AdapterGroup:
    """Return new adapters of these maps, which change nothing before training."""
    shapes = [(projection.matrix().shape[0], projection.matrix().shape[1]) for projection in projections]
    adapters = [
        list(new_adapters(sizes.adapt, LayerSizes(sizes.context, inputs, outputs, sizes.rank)).values())
        for inputs, outputs in shapes
    ]
    for adapter in itertools.chain.from_iterable(adapters):
        adapter.start_unadapted()
    # A model may be divided among several devices.
    return AdapterGroup(adapters, shapes, shared_rank).to(projections[0].weight.device)


def with_constant(vector: Tensor) -> Tensor:
    """Return context vectors (B, K) followed by the constant 1 (B, K + 1)."""
    return torch.cat([vector, vector.new_ones(len(vector), 1)], dim=1)


def linear_maps(model: nn.Module, prefix: str = "") -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the parent, the path and the module of each linear map: `nn.Linear` and GPT-2's `Conv1D`.

    A subclass that computes something else, such as a router of experts, is left out.

    Raises:
        UserError: A map has quantized weights.
    """
    from transformers.pytorch_utils import Conv1D

    functions = nn.Linear.forward, Conv1D.forward
    for parent_path, parent in list(model.named_modules(prefix=prefix)):
        for name, child in list(parent.named_children()):
            if not isinstance(child, (nn.Linear, Conv1D)):
                continue
            path, weight = f"{parent_path}.{name}" if parent_path else name, cast(nn.Parameter, child.weight)
            if weight.dtype not in FLOAT_TYPES or weight.dim() != 2:
                problem = f"got quantized weights ({weight.dtype})"
                raise UserError(f"{path}: expected weights of floating-point numbers, {problem}")
            if type(child).forward in functions:
                yield parent, path, child
