"""Linear maps of any PyTorch model as `AdaptedLinear` maps, whose weights the context changes.

The modules of a model such as a Transformer do not pass additional arguments to their linear maps. Therefore a variable
of each thread holds the `Adaptation` of the pass that the thread computes, and each map reads its change from there.
(`torch.compile` can trace a `threading.local`, but not a `ContextVar`.) The context vector ends with a constant 1, so a
part of every change is the same in all contexts. All changes are zero before training, which starts at the model.

Shapes: B contexts, N rows of inputs, K context, D inputs, O outputs of a map, R rows of each context.
"""

import contextlib
import copy
import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.adapters.adapters import (
    UNCHANGED,
    AdaptedLinear,
    Adapter,
    Factor,
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

    Attributes:
        count: The number of contexts, B.
        is_generation: Whether several passes have these contexts, so that their shifts are stored.
    """

    def __init__(
        self, maps: "AdaptedModules", contexts: Tensor | tuple[Shift, ...] = (), is_disabled: bool = False
    ) -> None:
        self.maps, self.contexts, self.is_disabled, self.is_generation = maps, contexts, is_disabled, False
        counts = [len(contexts)] if isinstance(contexts, Tensor) else [shift.context_count() for shift in contexts]
        self.count = max([1, *counts])
        self._latest: tuple[MapGroup, list[Shift]] | None = None  # the group that has computed its shifts last
        self._stored: dict[bool, tuple[Shift, ...]] = {}  # of all maps, mixed or not

    def shift(self, projection: "Projection", row_count: int) -> Shift:
        """Return the change of a map that reads `row_count` rows of inputs in each context."""
        group, contexts = projection.group, self.contexts
        if not isinstance(contexts, Tensor):
            return contexts[projection.number] if contexts else UNCHANGED
        if self.is_generation:
            # Products of a token with all basis tensors take less time than reading L and R of many contexts.
            is_mixed = row_count == 1 and contexts.device.type == "cpu" and len(contexts) > contexts.shape[1]
            if is_mixed not in self._stored:
                shifts = self.maps.condition(contexts, is_mixed)
                self._stored[is_mixed] = self.maps.fold_shared(shifts) if contexts.device.type == "cpu" else shifts
            return self._stored[is_mixed][projection.number]
        if self._latest is None or self._latest[0] is not group:
            self._latest = group, group.condition(contexts)
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
    is_quantized = is_embedding = False
    is_transposed = True  # whether the model stores W as (O, D), as `nn.Linear`, and not as (D, O)

    def __init__(self, linear: nn.Module, *, number: int, path: str) -> None:
        weight = cast(nn.Parameter, linear.weight)
        self.is_transposed = isinstance(linear, nn.Linear)
        inputs, outputs = weight.shape[::-1] if self.is_transposed else weight.shape
        super().__init__(inputs, outputs, 0, adapt=(), bias=False, weight=weight)
        # The parameters themselves: that of an output layer may also be the table of embeddings.
        self.weight, self.bias = weight, cast(nn.Parameter | None, getattr(linear, "bias", None))
        self.number, self.path = number, path
        memo = {id(values): nn.Parameter(values.detach().to("meta"), False) for values in linear.parameters()}
        self._module = (copy.deepcopy(linear, memo),)  # without values; a tuple hides it from `parameters`
        self.train(linear.training)

    def shape(self) -> tuple[int, int]:
        """Return the number of inputs D and of outputs O."""
        return self.matrix().shape[0], self.matrix().shape[1]

    def matrix(self, shift: Shift = UNCHANGED) -> Tensor:
        """Return the matrix (B, D, O) or (D, O) of a folded shift, or W (D, O) if `shift` is not folded."""
        return self.weight.T if shift.matrix is None and self.is_transposed else super().matrix(shift)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        adaptation = find_adaptation(self.group.maps)
        if adaptation is None:
            raise UserError(OUTSIDE)
        count = adaptation.count
        if len(x) % count:
            raise UserError(f"context: expected one, or one for each of {len(x):,} rows, got {count:,}")
        rows_by_context = x.to(self.weight.device).reshape(count, x.shape[:-1].numel() // count, x.shape[-1])
        shift = adaptation.shift(self, rows_by_context.shape[1])
        if self.is_folded_faster(shift, rows_by_context.shape[:2].numel()):
            shift = self.fold_shared(shift)
        y = super().forward(rows_by_context, shift.to(x.dtype) if self.is_quantized else shift)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def fold_shared(self, shift: Shift) -> Shift:
        """Add the change that all contexts share, P Q, to W, in a shift that keeps the other changes."""
        left, right, mixing = shift.shared_left, shift.shared_right, shift.mixing
        basis_rank = 0 if mixing is None else mixing[0].numel()
        if left is None or right is None or left.shape[1] == basis_rank:
            return shift
        if mixing is None and self.weight.dtype != torch.float32:  # the sum would lose small changes
            return shift
        sizes = [left.shape[1] - basis_rank, basis_rank]
        (left, basis_left), (right, basis_right) = torch.split(left, sizes, dim=1), torch.split(right, sizes)
        factors = (right.T, left.T) if self.is_transposed else (left, right)  # the layout of W, to copy W fast
        matrix = torch.addmm(self.weight, *factors, alpha=self.scaling)
        matrix = matrix.T if self.is_transposed else matrix
        basis = (None, None) if mixing is None else (basis_left, basis_right)
        return replace(shift, matrix=matrix, shared_left=basis[0], shared_right=basis[1])

    def is_folded_faster(self, shift: Shift, row_count: int) -> bool:
        """Return whether a pass multiplies `row_count` rows faster by W + P Q than by W, P and Q."""
        if torch.is_grad_enabled() or shift.shared_left is None or shift.matrix is not None:
            return False
        is_possible = self.weight.device.type == "cpu" and not (self.dropout and self.training)
        return is_possible and row_count * sum(self.weight.shape) > self.weight.numel()

    @torch.no_grad()
    def plain_linear(self, shift: Shift) -> nn.Module:
        """Return a module of the former class with the folded `shift`."""
        (module,), weight = copy.deepcopy(self._module), self.weight
        bias: Tensor | None = self.bias
        if shift is not UNCHANGED:
            folded = AdaptedLinear.fold(self, shift, shared=True)
            matrix, bias = self.matrix(folded), self.shifted_bias(folded)
            if self.is_embedding and bias is not None:
                matrix, bias = matrix + bias, None
            weight = nn.Parameter((matrix.T if self.is_transposed else matrix).contiguous(), requires_grad=False)
        module.weight = weight
        if bias is not None:
            module.bias = nn.Parameter(bias.detach().reshape(-1).clone(), requires_grad=False)
        return module.train(self.training)


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

    def fold_shared(self, shift: Shift) -> Shift:
        """Return the shift itself."""
        return shift

    def plain_linear(self, shift: Shift) -> nn.Module:
        """Return the map without a change."""
        return self.linear


class EmbeddingProjection(Projection):
    """A table of embeddings W (V, O) as a linear map of one-hot vectors, whose inputs are the ids of tokens (N, T).

    Some architectures multiply the embeddings by a number.
    """

    is_embedding = True

    def __init__(self, linear: nn.Module, *, number: int, path: str) -> None:
        super().__init__(linear, number=number, path=path)
        self._scale = input_scale(linear)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y = super().forward(x[..., None])
        return y if self._scale == 1 else y * y.new_tensor(self._scale)

    def times(self, inputs: Tensor, matrix: Tensor) -> Tensor:
        """Return the rows with the ids `inputs` (B, T, 1), of a matrix (V, ...) or one of each context (B, V, ...)."""
        ids = inputs[..., 0]
        if matrix.dim() == 2:
            return F.embedding(ids, matrix)
        return matrix[torch.arange(len(ids), device=ids.device)[:, None], ids]

    def fold(self, shift: Shift, shared: bool = False) -> Shift:
        """Return the shift itself: the change of the few rows that a pass reads takes less time than that of all."""
        return shift

    def fold_shared(self, shift: Shift) -> Shift:
        """Return the shift itself."""
        return shift


class AdapterGroup(nn.Module):
    """The adapters of several linear maps, whose linear adapters compute their changes in one product c [P_1 ... P_n].

    PyTorch starts 300 operations for the 210 maps of SmolLM2-135M in a training step on a GPU instead of 1,700 (rank
    4). The group takes the values of the parameters of linear adapters, and the `others` themselves. All contexts share
    a further change P Q of each map, with D inputs and O outputs (`sizes`), of rank S, a LoRA; it is zero before
    training, because Q is zero, or P if the map is a table of embeddings.

    Attributes:
        weight: The parameters of all linear adapters (K, N), each flattened, in the order of the maps; or None.
        shared_left: P (D, S) of each map; empty if S is 0.
        shared_right: Q (S, O) of each map.
    """

    def __init__(
        self, adapters: Sequence[Sequence[Adapter]], sizes: Sequence[LayerSizes] = (), shared_rank: int = 0
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
        self._has_embeddings = any(map_.is_embedding for map_ in sizes)
        self.shared_left, self.shared_right = nn.ParameterList(), nn.ParameterList()
        for map_ in sizes if shared_rank else ():
            left, right = (map_.inputs, shared_rank), (shared_rank, map_.outputs)
            self.shared_left.append(torch.zeros(left) if map_.is_embedding else normal(left, map_.inputs**-0.5))
            self.shared_right.append(normal(right, shared_rank**-0.5) if map_.is_embedding else torch.zeros(right))

    def forward(self, vector: Tensor, dtype: torch.dtype, is_mixed: bool = False) -> list[Shift]:
        """Return the shift of each map in B contexts.

        Args:
            vector: Context vectors (B, K).
            dtype: The number type of the shifts.
            is_mixed: Whether the basis tensors of `Factor` are in `shared_left` and `shared_right`, and c in `mixing`.
                Embeddings in several contexts always have this form, which needs no L (V, R) of each context.
        """
        is_mixed = is_mixed or (self._has_embeddings and len(vector) > 1)
        is_joint = not is_mixed and (vector.device.type != "cpu" or len(vector) <= MAX_CONTEXTS)
        columns: Iterator[Tensor] = iter(())  # of the context vectors and the parameters of the linear adapters
        if self.weight is not None:
            values = (vector @ self.weight).to(dtype) if is_joint else self.weight
            columns = iter(torch.split(values, self._column_counts, dim=1))
        others = iter(self.others)
        shifts: list[Shift] = []
        for adapters_of_map, left, right in itertools.zip_longest(self._adapters, self.shared_left, self.shared_right):
            parts: list[Shift] = []
            lefts, rights = ([] if part is None else [part.to(dtype)] for part in (left, right))
            mixing: Tensor | None = None
            for adapter in adapters_of_map:
                if adapter is None:
                    parts.append(next(others)(vector).to(dtype))
                    continue
                cls, shapes = adapter
                of_adapter = [next(columns) for _ in shapes]
                if is_mixed and cls is Factor:
                    bases = (part.view(-1, *shape).to(dtype) for part, shape in zip(of_adapter, shapes, strict=True))
                    lefts.append(next(bases).transpose(0, 1).flatten(1))
                    rights.append(next(bases).flatten(0, 1))
                    mixing = vector.to(dtype)[:, :, None].expand(-1, -1, shapes[0][1])
                    continue
                products = of_adapter if is_joint else [(vector @ part).to(dtype) for part in of_adapter]
                parts.append(cls.shift(*(part.view(-1, *shape) for part, shape in zip(products, shapes, strict=True))))
            shift = Shift.sum(parts)
            if lefts:
                shift = replace(shift, shared_left=_joined(lefts, 1), shared_right=_joined(rights, 0), mixing=mixing)
            shifts.append(shift)
        return shifts


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


@dataclass(eq=False)
class MapGroup:
    """The adapted maps of a module `parent`, such as an attention layer, whose changes are computed in one product."""

    maps: "AdaptedModules"
    parent: nn.Module
    projections: list[Projection]
    adapters: AdapterGroup

    def condition(self, vector: Tensor, is_mixed: bool = False) -> list[Shift]:
        """Compute the change of each map in B contexts, in the number type of its weights and on their device."""
        dtypes = (map_.weight.dtype for map_ in self.projections if not map_.is_quantized)
        device = self.projections[0].weight.device
        return cast(list[Shift], self.adapters(vector.to(device), next(dtypes, torch.float32), is_mixed))


class AdaptedModules:
    """The adapted linear maps of a model, in the order of its modules; the model does not change before `attach`.

    Args:
        model: The model, in which a `Projection` will replace each adapted map.
        sizes: Size of the context with its constant, the adapters and the rank.
        targets: The maps to adapt (`target_paths`), also input embeddings; empty: all linear maps.
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
        embeddings = getattr(model, "get_input_embeddings", lambda: None)() if targets else None
        all_maps = linear_maps(model, prefix, getattr(embeddings, "weight", None))
        maps = [row for row in all_maps if row[2] not in not_adapted]
        if not maps:
            raise UserError(f"model: expected linear maps (nn.Linear or Conv1D), got none in {type(model).__name__}")
        self.projections: list[Projection] = []
        self._groups: list[MapGroup] = []
        paths = target_paths([path for _, path, _ in maps], targets, layers)
        adapted = [row for row in maps if row[1] in paths]
        for parent, rows in itertools.groupby(adapted, key=lambda row: row[0]):
            projections = [
                projection_class(linear)(linear, number=number, path=path)
                for number, (_, path, linear) in enumerate(rows, len(self.projections))
            ]
            layers_sizes = [
                LayerSizes(sizes.context, *map_.shape(), sizes.rank, map_.is_embedding) for map_ in projections
            ]
            adapters = [list(new_adapters(sizes.adapt, layer_sizes).values()) for layer_sizes in layers_sizes]
            for adapter in itertools.chain.from_iterable(adapters):
                adapter.start_unadapted()
            # A model may be divided among several devices.
            adapter_group = AdapterGroup(adapters, layers_sizes, shared_rank).to(projections[0].weight.device)
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

    def condition(self, vector: Tensor, is_mixed: bool = False) -> tuple[Shift, ...]:
        """Return the shifts of all maps from context vectors with their constant (B, K + 1)."""
        return tuple(shift for group in self._groups for shift in group.condition(vector, is_mixed))

    def fold(self, shifts: Sequence[Shift]) -> tuple[Shift, ...]:
        """Return the shifts of one context multiplied into the weights, so that passes take as long as unadapted."""
        return tuple(
            projection.fold(shift, shared=True) for projection, shift in zip(self.projections, shifts, strict=True)
        )

    def fold_shared(self, shifts: Sequence[Shift]) -> tuple[Shift, ...]:
        """Return shifts in which the change that all contexts share is part of the weights."""
        return tuple(projection.fold_shared(shift) for projection, shift in zip(self.projections, shifts, strict=True))

    def restore(self, shifts: Sequence[Shift] | None = None) -> None:
        """Replace all projections by plain linear maps, with the shifts of one context folded in; None: unadapted."""
        quantized = (projection.path for projection in self.projections if projection.is_quantized)
        if shifts is not None and (path := next(quantized, None)):
            problem = "expected weights of floating-point numbers to merge, got quantized weights"
            raise UserError(f"{path}: {problem}; load the base without quantization")
        shifts = [UNCHANGED] * len(self.projections) if shifts is None else shifts
        for group in self._groups:
            for projection in group.projections:
                setattr(group.parent, _name(projection.path), projection.plain_linear(shifts[projection.number]))


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


def projection_class(module: nn.Module) -> type[Projection]:
    """Return the class that adapts a linear map or a table of embeddings."""
    if isinstance(module, nn.Embedding):
        return EmbeddingProjection
    return QuantizedProjection if has_quantized_values(cast(Tensor, module.weight)) else Projection


def input_scale(embeddings: Any) -> float:
    """Return the factor on the embeddings of tokens, as in Gemma; 1.0 in other models."""
    return float(getattr(embeddings, "scalar_embed_scale", getattr(embeddings, "embed_scale", 1.0)))


def with_constant(vector: Tensor) -> Tensor:
    """Return context vectors (B, K) followed by the constant 1 (B, K + 1)."""
    return torch.cat([vector, vector.new_ones(len(vector), 1)], dim=1)


def linear_maps(
    model: nn.Module, prefix: str = "", embeddings: Tensor | None = None
) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the parent, the path and the module of each linear map: `nn.Linear` and GPT-2's `Conv1D`.

    Modules with the weight `embeddings` are maps too. A subclass that computes something else, such as a router of
    experts, is left out, unless its weights are quantized.

    Raises:
        UserError: A map has quantized weights, and no method to compute with them.
    """
    from transformers.pytorch_utils import Conv1D

    functions = nn.Linear.forward, Conv1D.forward
    for parent_path, parent in list(model.named_modules(prefix=prefix)):
        for name, child in list(parent.named_children()):
            path = f"{parent_path}.{name}" if parent_path else name
            if isinstance(child, nn.Embedding) and child.weight is embeddings:
                is_scaled = type(child).__name__.endswith("ScaledWordEmbedding")
                if is_scaled or type(child).forward is nn.Embedding.forward:
                    yield parent, path, child
            if not isinstance(child, (nn.Linear, Conv1D)):
                continue
            weight = cast(nn.Parameter, child.weight)
            is_plain = type(child).forward in functions
            if is_plain and (weight.dtype not in FLOAT_TYPES or weight.dim() != 2):
                problem = f"got quantized weights ({weight.dtype})"
                raise UserError(f"{path}: expected weights of floating-point numbers, {problem}")
            if is_plain or has_quantized_values(weight):
                yield parent, path, child
