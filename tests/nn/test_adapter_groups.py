"""Tests of adapters that compute the changes of several maps in one product, against the adapters of each map."""

import copy
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import ADAPTERS, AdaptedLinear, Adapter, Factor, LayerSizes, Shift
from factorcell.nn.backbones import adapted_modules
from factorcell.nn.backbones.adapted_modules import AdapterGroup
from tests.adapter_plugins import Bottleneck, Everything

CLASSES: list[type[Adapter]] = [*ADAPTERS.values(), Bottleneck, Everything]
MAPS = [LayerSizes(context=3, inputs=4, outputs=5, rank=2), LayerSizes(context=3, inputs=5, outputs=7, rank=2)]


def parts(shifts: list[Shift]) -> list[Tensor]:
    """Return the parts of all shifts that are not None, in order; their number differs if the parts differ."""
    values = [getattr(shift, field.name) for shift in shifts for field in fields(Shift)]
    return [torch.zeros(0) if value is None else value for value in values]


def gradients(values: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a sum of the `values` with different weights."""
    total = torch.stack([(value * torch.arange(value.numel()).view(value.shape).cos()).sum() for value in values]).sum()
    return list(torch.autograd.grad(total, inputs))


@pytest.mark.parametrize("max_contexts", [0, 32])
@pytest.mark.parametrize(
    "classes", [*([cls] for cls in CLASSES), CLASSES], ids=[*ADAPTERS, "Bottleneck", "Everything", "all"]
)
def test_a_group_equals_the_adapters_of_each_map(
    classes: list[type[Adapter]], max_contexts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted_modules, "MAX_CONTEXTS", max_contexts)
    adapters = [[cls(sizes) for cls in classes] for sizes in MAPS]
    group, vector = AdapterGroup(copy.deepcopy(adapters)), torch.randn(6, 3, requires_grad=True)
    expected = parts([Shift.sum([adapter(vector) for adapter in of_map]) for of_map in adapters])
    results = parts(group(vector, torch.float32))
    for part, expected_part in zip(results, expected, strict=True):
        torch.testing.assert_close(part, expected_part)
    (expected_gradient,) = gradients(expected, [vector])
    (gradient,) = gradients(results, [vector])
    torch.testing.assert_close(gradient, expected_gradient)


def test_the_weights_of_a_group_are_those_of_its_maps_side_by_side() -> None:
    adapters = [[cls(sizes) for cls in ADAPTERS.values()] for sizes in MAPS]
    parameters = [value for of_map in adapters for adapter in of_map for value in adapter.parameters()]
    group, vector = AdapterGroup(copy.deepcopy(adapters)), torch.randn(6, 3)
    assert group.weight is not None
    assert sum(value.numel() for value in group.parameters()) == sum(value.numel() for value in parameters)
    expected = parts([Shift.sum([adapter(vector) for adapter in of_map]) for of_map in adapters])
    (gradient,) = gradients(parts(group(vector, torch.float32)), [group.weight])
    columns = torch.cat([value.flatten(1) for value in gradients(expected, parameters)], dim=1)
    torch.testing.assert_close(gradient, columns)


def test_shifts_have_the_requested_number_type() -> None:
    group = AdapterGroup([[cls(sizes) for cls in CLASSES] for sizes in MAPS])
    shifts = group(torch.randn(2, 3), torch.bfloat16)
    assert {part.dtype for part in parts(shifts) if part.numel()} == {torch.bfloat16}


@pytest.mark.parametrize("is_embedding", [False, True])
@pytest.mark.parametrize("shared_rank", [0, 3])
def test_shifts_with_basis_tensors_are_those_of_each_context(shared_rank: int, is_embedding: bool) -> None:
    sizes = [LayerSizes(3, 6, 5, 2, is_embedding), LayerSizes(3, 6, 7, 2, is_embedding)]
    adapters = [[cls(map_sizes) for cls in CLASSES] for map_sizes in sizes]
    mixed = AdapterGroup(adapters, sizes, shared_rank)
    separate = AdapterGroup(copy.deepcopy(adapters), [replace(size, is_embedding=False) for size in sizes], shared_rank)
    for parameter, other in zip(mixed.parameters(), separate.parameters(), strict=True):
        other.data = nn.init.normal_(parameter.data).clone()
    vector, x = torch.randn(4, 3, requires_grad=True), torch.randn(4, 1, 6)
    results = []
    for group, is_mixed in ((mixed, not is_embedding), (separate, False)):  # those of embeddings always are
        shifts = group(vector, torch.float32, is_mixed)
        assert {shift.mixing is not None for shift in shifts} == {group is mixed}
        assert {shift.context_count() for shift in shifts} == {4}
        outputs = [
            AdaptedLinear(6, size.outputs, 3, weight=torch.ones(6, size.outputs))(x, shift)
            for size, shift in zip(sizes, shifts, strict=True)
        ]
        results.append([*outputs, *gradients(outputs, [vector, *group.parameters()])])
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_all_contexts_share_a_change_of_another_rank() -> None:
    """W + P Q takes the place of W, also in a folded map, and P Q is zero before training."""
    inputs, outputs, contexts = 4, 5, torch.randn(3, 2)
    sizes = [LayerSizes(2, inputs, outputs, 1)] * 2
    group = AdapterGroup([[Factor(map_sizes)] for map_sizes in sizes], sizes, shared_rank=3)
    plain = AdaptedLinear(inputs, outputs, 2)
    plain.scaling = 2.0
    x = torch.randn(3, 6, inputs)
    for shift in group(contexts, torch.float32):
        torch.testing.assert_close(plain(x, shift), plain(x, replace(shift, shared_left=None, shared_right=None)))
    for right in group.shared_right:
        nn.init.normal_(right)
    adapted = AdaptedLinear(inputs, outputs, 2)
    adapted.scaling = 2.0
    for left, right, shift in zip(group.shared_left, group.shared_right, group(contexts, torch.float32), strict=True):
        adapted.weight.data = plain.weight + 2 * left @ right
        expected = adapted(x, replace(shift, shared_left=None, shared_right=None))
        torch.testing.assert_close(plain(x, shift), expected)
        torch.testing.assert_close(plain(x, plain.fold(shift)), expected)
        rows = torch.tensor([2, 0])
        torch.testing.assert_close(plain(x[rows], shift.select(rows)), expected[rows])
        factors = shift.select(rows[:1]).low_rank_factors()
        assert factors is not None
        torch.testing.assert_close(plain(x[2]) + 2 * x[2] @ factors[0] @ factors[1], expected[2])
