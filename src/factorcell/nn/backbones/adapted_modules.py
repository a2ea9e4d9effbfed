"""Linear maps of any PyTorch model as `AdaptedLinear` maps, whose weights the context changes.

The modules of a model such as a Transformer do not pass additional arguments to their linear maps. Therefore a variable
of each thread holds the `Adaptation` of the pass that the thread computes, and each map reads its change from there.
(`torch.compile` can trace a `threading.local`, but not a `ContextVar`.) The context vector ends with a constant 1, so a
part of every change is the same in all contexts. All changes are zero before training, which starts at the model.

Shapes: B contexts, N rows of inputs, K context, D inputs, O outputs of a map, R rows of each context.
"""

import contextlib
import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import (
    UNCHANGED,
    AdaptedLinear,
    Adapter,
    LayerSizes,
    LinearAdapter,
    Shift,
    new_adapters,
    normal,
)
from factorcell.errors import UserError
from factorcell.nn.backbones.backbone import BackboneSizes

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of weights that can be adapted

OUTSIDE = (
    "an adapted map has no context here; call the model that get_context_model returned, not its base or a part of it, "
    "also for activation_checkpointing_enable (in `with model.disable_adapter():`, the base computes unadapted)"
)

# Largest number of contexts of one product of a group on a processor. With more, separate products are faster: they
# stay in the cache, and the values of a map are consecutive in memory. (The adapters of an attention layer took 44
# instead of 58 ms of a training step with 400 texts of 8 tokens in bfloat16.)
MAX_CONTEXTS = 32

_THREAD = threading.local()  # `adaptations` are those of the current passes, that of the innermost pass first


class Adaptation:
    """The contexts of one pass through the adapted modules `maps` of a model.

    The inputs of a map may have N = n B rows: n consecutive rows then have the same context. A beam search reads each
    text n times, and some layers join the texts and their tokens to one dimension.

    Args:
        contexts: Context vectors with their constant (B, K + 1), from which each group of maps computes its changes
            when its first map is called; or the shifts of all maps in B contexts; without shifts, all maps compute as
            unadapted.
        is_disabled: Whether the adapters are switched off, also for passes with contexts inside this one.
    """

    def __init__(
        self,
        maps: "AdaptedModules",
        contexts: Tensor | tuple[Shift, ...] = (),
        is_disabled: bool = False,
    ) -> None:
        self.maps, self.contexts, self.is_disabled = maps, contexts, is_disabled
        counts = [len(contexts)] if isinstance(contexts, Tensor) else [shift.context_count() for shift in contexts]
        self.count = max([1, *counts])  # the number of contexts, B
        self._latest: tuple[MapGroup, list[Shift]] | None = None  # the group that has computed its shifts last

    def shift(self, projection: "Projection") -> Shift:
        """Return the change of a map."""
        group = projection.group
        if not isinstance(self.contexts, Tensor):
            return self.contexts[projection.number] if self.contexts else UNCHANGED
        if self._latest is None or self._latest[0] is not group:
            self._latest = group, group.condition(self.contexts)
        return self._latest[1][projection.number - group.projections[0].number]


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


def checkpoint_contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Return the blocks in which PyTorch computes a layer, in the forward pass and again in the backward pass.

    The adaptation has no shifts at the beginning of a block, so that both blocks compute and store the same tensors.
    """
    forward, backward = (
        applied(*(Adaptation(each.maps, each.contexts, each.is_disabled) for each in _current_adaptations()))
        for _ in range(2)
    )
    return forward, backward


class Projection(AdaptedLinear):
    """A linear map of a model, which reads its change from the `Adaptation` of the current pass.

    The first map of a group has the adapters of the group as `adapters`; those of the others are empty. `weight` has
    the layout of the model: a transposed copy would need memory, and a transposed view cannot be divided among
    processes (FSDP).

    Attributes:
        number: The index of this map in the shifts of a pass.
        path: The name of the map in its model, such as `model.layers.0.self_attn.q_proj`.
    """

    group: "MapGroup"
    is_quantized = False

    def __init__(self, linear: nn.Module, *, number: int, path: str) -> None:
        weight = cast(nn.Parameter, linear.weight)
        self._is_transposed = isinstance(linear, nn.Linear)  # W is (O, D) in `nn.Linear`, and (D, O) in Conv1D
        inputs, outputs = weight.shape[::-1] if self._is_transposed else weight.shape
        super().__init__(inputs, outputs, 0, adapt=(), bias=False, weight=weight)
        # The parameters themselves: that of an output layer may also be the table of embeddings.
        self.weight, self.bias = weight, cast(nn.Parameter | None, linear.bias)
        self.number, self.path = number, path
        self.train(linear.training)

    def shape(self) -> tuple[int, int]:
        """Return the number of inputs D and of outputs O."""
        return self.matrix().shape[0], self.matrix().shape[1]

    def matrix(self, shift: Shift = UNCHANGED) -> Tensor:
        """Return the matrix (B, D, O) or (D, O) of a folded shift, or W (D, O) if `shift` is not folded."""
        return self.weight.T if shift.matrix is None and self._is_transposed else super().matrix(shift)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        adaptation = find_adaptation(self.group.maps)
        if adaptation is None:
            raise UserError(OUTSIDE)
        count = adaptation.count
        if len(x) % count:
            raise UserError(f"context: expected one, or one for each of {len(x):,} rows, got {count:,}")
        rows_by_context = x.reshape(count, x.shape[:-1].numel() // count, x.shape[-1])
        shift = adaptation.shift(self)
        y = super().forward(rows_by_context, shift.to(x.dtype) if self.is_quantized else shift)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    @torch.no_grad()
    def plain_linear(self, shift: Shift) -> nn.Module:
        """Return a plain linear map with the folded `shift`."""
        weight: Tensor
        matrix, bias = self.matrix(shift).detach(), self.shifted_bias(shift)
        inputs, outputs = matrix.shape
        linear: Any
        if self._is_transposed:
            linear, weight = nn.Linear(inputs, outputs, bias=bias is not None, device="meta"), matrix.T
        else:
            from transformers.pytorch_utils import Conv1D

            linear, weight = Conv1D(outputs, inputs), matrix
        linear.weight = self.weight if shift is UNCHANGED else nn.Parameter(weight.contiguous(), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().reshape(-1).clone(), requires_grad=False)
        return cast(nn.Module, linear.train(self.training))


class QuantizedProjection(Projection):
    """A linear map with quantized weights, which computes its own product as `linear`; no change is folded into it."""

    is_quantized = True

    def __init__(self, linear: nn.Module, *, number: int, path: str) -> None:
        nn.Module.__init__(self)
        self.linear, self.adapters = cast(nn.Linear, linear), nn.ModuleDict()
        self.number, self.path = number, path

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        """The quantized weights."""
        return cast(nn.Parameter, self.linear.weight)

    def shape(self) -> tuple[int, int]:
        """Return the number of inputs D and of outputs O."""
        return self.linear.in_features, self.linear.out_features

    def product(self, inputs: Tensor, shift: Shift) -> tuple[Tensor, Tensor | None]:
        """Return the product that the map computes, and the bias that must be added to it."""
        y = self.linear(inputs).clone()  # bitsandbytes returns a view, to which nothing can be added in place
        bias = cast(Tensor | None, self.linear.bias)
        if bias is None or shift.scale is None:
            return y, shift.bias
        return y - bias, bias if shift.bias is None else bias + shift.bias

    def fold(self, shift: Shift, shared: bool = False) -> Shift:
        """Return the shift itself."""
        return shift

    def plain_linear(self, shift: Shift) -> nn.Module:
        """Return the map without a change."""
        return self.linear


class AdapterGroup(nn.Module):
    """The adapters of several linear maps, whose linear adapters compute their changes in one product c [P_1 ... P_n].

    PyTorch starts 300 operations for the 210 maps of SmolLM2-135M in a training step on a GPU instead of 1,700 (rank
    4). The group takes the values of the parameters of linear adapters, and the `others` themselves. All contexts share
    a further change P Q of each map, with D inputs and O outputs (`shapes`), of rank S, a LoRA; it is zero before
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
        products: Sequence[Tensor] = ()  # (B, ...), of the context vectors and each parameter of the linear adapters
        if self.weight is not None and vector.device.type == "cpu" and len(vector) > MAX_CONTEXTS:
            parameters = torch.split(self.weight, self._column_counts, dim=1)
            products = [(vector @ columns).to(dtype) for columns in parameters]
        elif self.weight is not None:
            products = torch.split((vector @ self.weight).to(dtype), self._column_counts, dim=1)
        next_product, others = iter(products), iter(self.others)
        shifts = []
        shared = itertools.zip_longest(self._adapters, self.shared_left, self.shared_right)
        for adapters_of_map, left, right in shared:
            parts: list[Shift] = []
            for adapter in adapters_of_map:
                if adapter is None:
                    parts.append(next(others)(vector).to(dtype))
                else:
                    cls, shapes = adapter
                    parts.append(cls.shift(*(next(next_product).view(-1, *shape) for shape in shapes)))
            shift = Shift.sum(parts)
            if left is not None:
                shift = replace(shift, shared_left=left.to(dtype), shared_right=right.to(dtype))
            shifts.append(shift)
        return shifts


@dataclass(eq=False)
class MapGroup:
    """The adapted maps of a module `parent`, such as an attention layer, whose changes are computed in one product."""

    maps: "AdaptedModules"
    parent: nn.Module
    projections: list[Projection]
    adapters: AdapterGroup

    def condition(self, vector: Tensor) -> list[Shift]:
        """Compute the change of each map in B contexts, in the number type of its weights and on their device."""
        dtypes = (map_.weight.dtype for map_ in self.projections if not map_.is_quantized)
        device = self.projections[0].weight.device
        return cast(list[Shift], self.adapters(vector.to(device), next(dtypes, torch.float32)))


class AdaptedModules:
    """The adapted linear maps of a model, in the order of its modules; the model does not change before `attach`.

    Args:
        model: The model, in which a `Projection` will replace each adapted map.
        sizes: Size of the context with its constant, the adapters and the rank.
        targets: The maps to adapt (`target_paths`); empty: all maps.
        layers: The numbers of the layers to adapt; None: all layers.
        prefix: The name of `model` in a larger model, before the paths of the maps.
        excluded: Modules whose maps are not adapted.
        shared_rank: The rank of a LoRA that all contexts share; 0: none.

    Raises:
        UserError: The model has no linear map, or `targets` and `layers` select none.
    """

    def __init__(
        self,
        model: nn.Module,
        sizes: BackboneSizes,
        *,
        targets: str | Sequence[str] = (),
        layers: Sequence[int] | None = None,
        prefix: str = "",
        excluded: Iterable[nn.Module] = (),
        shared_rank: int = 0,
    ) -> None:
        not_adapted = {part for module in excluded for part in module.modules()}
        maps = [row for row in linear_maps(model, prefix) if row[2] not in not_adapted]
        if not maps:
            raise UserError(f"model: expected linear maps (nn.Linear or Conv1D), got none in {type(model).__name__}")
        self.projections: list[Projection] = []
        self._groups: list[MapGroup] = []
        paths = target_paths([path for _, path, _ in maps], targets, layers)
        adapted = [row for row in maps if row[1] in paths]
        for parent, rows in itertools.groupby(adapted, key=lambda row: row[0]):
            projections = [
                (QuantizedProjection if has_quantized_values(cast(Tensor, linear.weight)) else Projection)(
                    linear, number=number, path=path
                )
                for number, (_, path, linear) in enumerate(rows, len(self.projections))
            ]
            shapes = [projection.shape() for projection in projections]
            adapters = [
                list(new_adapters(sizes.adapt, LayerSizes(sizes.context, inputs, outputs, sizes.rank)).values())
                for inputs, outputs in shapes
            ]
            for adapter in itertools.chain.from_iterable(adapters):
                adapter.start_unadapted()
            # A model may be divided among several devices.
            adapter_group = AdapterGroup(adapters, shapes, shared_rank).to(projections[0].weight.device)
            group = MapGroup(self, parent, projections, adapter_group)
            for projection in projections:
                projection.group = group
            self._groups.append(group)
            self.projections += projections

    def attach(self) -> "AdaptedModules":
        """Replace the maps of the model by their projections with the adapters, and return this object."""
        for group in self._groups:
            group.projections[0].adapters = group.adapters  # type: ignore[assignment]
            for projection in group.projections:
                setattr(group.parent, _name(projection.path), projection)
        return self

    def adapter_tensors(self) -> dict[str, Tensor]:
        """Return the parameters of all adapters by their names in the model."""
        return {
            f"{group.projections[0].path}.adapters.{name}": values
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
        quantized = (projection.path for projection in self.projections if projection.is_quantized)
        if shifts is not None and (path := next(quantized, None)):
            problem = "expected weights of floating-point numbers to merge, got quantized weights"
            raise UserError(f"{path}: {problem}; load the base without quantization")
        folded = [UNCHANGED] * len(self.projections) if shifts is None else self.fold(shifts)
        for group in self._groups:
            for projection in group.projections:
                setattr(group.parent, _name(projection.path), projection.plain_linear(folded[projection.number]))


def _name(path: str) -> str:
    """Return the last part of a path, such as `q_proj`."""
    return path.rpartition(".")[2]


def has_name(path: str, name: str) -> bool:
    """Return whether a path ends with a name or with several, such as `q_proj` or `self_attn.q_proj`."""
    return f".{path}".endswith(f".{name}")


def target_paths(paths: Sequence[str], targets: str | Sequence[str], layers: Sequence[int] | None) -> set[str]:
    """Return the paths that end with one of the names in `targets`, or that match this expression; empty: all paths.

    The first number in a path must be one of `layers`, unless this is None. Raise `UserError` if there is no such path.
    """
    if isinstance(targets, str):
        selected = {path for path in paths if re.fullmatch(targets, path)}
    else:
        for name in targets:
            if not any(has_name(path, name) for path in paths):
                names = ", ".join(sorted(set(map(_name, paths))))
                raise UserError(f"target_modules: expected some of {names}, got {name}")
        selected = {path for path in paths if not targets or any(has_name(path, name) for name in targets)}
    if layers is not None:
        numbers = {path: int(layer[1]) for path in paths if (layer := re.search(r"(?:^|\.)(\d+)\.", path))}
        if unknown := sorted(set(layers) - set(numbers.values())):
            last = max(numbers.values(), default=0)
            raise UserError(f"layers_to_transform: expected numbers from 0 to {last}, got {unknown[0]}")
        selected = {path for path in selected if numbers.get(path) in layers}
    if not selected:
        raise UserError(f"target_modules: expected paths such as {paths[-1]} in these layers, got {targets!r}")
    return selected


def has_quantized_values(weight: Tensor) -> bool:
    """Return whether a weight has values that are not floating-point numbers; those of torchao claim to be."""
    return weight.dtype not in FLOAT_TYPES or type(weight).__module__.startswith("torchao.")


def with_constant(vector: Tensor) -> Tensor:
    """Return context vectors (B, K) followed by the constant 1 (B, K + 1)."""
    return torch.cat([vector, vector.new_ones(len(vector), 1)], dim=1)


def linear_maps(model: nn.Module, prefix: str = "") -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the parent, the path and the module of each linear map: `nn.Linear` and GPT-2's `Conv1D`.

    A subclass that computes something else, such as a router of experts, is left out, unless its weights are quantized.

    Raises:
        UserError: A map has quantized weights, and no method to compute with them.
    """
    from transformers.pytorch_utils import Conv1D

    functions = nn.Linear.forward, Conv1D.forward
    for parent_path, parent in list(model.named_modules(prefix=prefix)):
        for name, child in list(parent.named_children()):
            if not isinstance(child, (nn.Linear, Conv1D)):
                continue
            path, weight = f"{parent_path}.{name}" if parent_path else name, cast(nn.Parameter, child.weight)
            is_plain = type(child).forward in functions
            if is_plain and (weight.dtype not in FLOAT_TYPES or weight.dim() != 2):
                problem = f"got quantized weights ({weight.dtype})"
                raise UserError(f"{path}: expected weights of floating-point numbers, {problem}")
            if is_plain or has_quantized_values(weight):
                yield parent, path, child
