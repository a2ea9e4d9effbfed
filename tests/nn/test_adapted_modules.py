"""Tests of adapted linear maps in any PyTorch module, and of the context that each row of their inputs has.

Shapes: B contexts, T tokens, D inputs, G outputs, K context with its constant.
"""

import pytest
import torch
from torch import Tensor, nn

from factorcell import UserError
from factorcell.adapters.adapters import Shift
from factorcell.nn.backbones.adapted_modules import Adaptation, AdaptedModules, Projection, applied
from factorcell.nn.backbones.backbone import BackboneSizes

B, T, D, G, K = 3, 5, 4, 6, 2


def adapted_map() -> nn.Module:
    """Return a module whose only map (D, G) has adapters with random weights."""
    module = nn.Sequential(nn.Linear(D, G))
    AdaptedModules(module, BackboneSizes(0, K, ("factor", "concat", "scale"), 2), shared_rank=2).attach()
    for parameter in module.parameters():
        parameter.data.normal_()
    return module


def maps_of(module: nn.Module) -> AdaptedModules:
    return next(part.group.maps for part in module.modules() if isinstance(part, Projection))


def read(module: nn.Module, x: Tensor, contexts: Tensor) -> Tensor:
    with applied(Adaptation(maps_of(module), contexts)):
        return module(x)  # type: ignore[no-any-return]


def saved_values(module: nn.Module, x: Tensor, contexts: Tensor) -> int:
    """Return the number of values that a pass stores for the backward pass."""
    counts = []

    def store(values: Tensor) -> Tensor:
        counts.append(values.numel())
        return values

    with torch.autograd.graph.saved_tensors_hooks(store, lambda values: values):
        read(module, x, contexts)
    return sum(counts)


@pytest.mark.parametrize("rows_per_context", [1, 2, T])
def test_consecutive_rows_have_the_same_context(rows_per_context: int) -> None:
    module, contexts = adapted_map(), torch.randn(B, K)
    x = torch.randn(B * rows_per_context, T, D)
    repeated = contexts.repeat_interleave(rows_per_context, 0)
    expected = torch.cat([read(module, x[row : row + 1], repeated[row : row + 1]) for row in range(len(x))])
    torch.testing.assert_close(read(module, x, contexts), expected)
    single_tokens = read(module, x[:, 0], contexts)
    torch.testing.assert_close(single_tokens, expected[:, 0])


def test_texts_and_tokens_in_one_dimension_cost_no_more_than_in_two() -> None:
    """Some layers, as those of OPT, join both dimensions; then a change must not be stored for each token."""
    module, contexts, x = adapted_map(), torch.randn(B, K), torch.randn(B, T, D, requires_grad=True)
    joined = x.flatten(0, 1)
    torch.testing.assert_close(read(module, joined, contexts), read(module, x, contexts).flatten(0, 1))
    assert saved_values(module, joined, contexts) == saved_values(module, x, contexts)


@pytest.mark.parametrize(("dtype", "is_folded"), [(torch.float32, True), (torch.bfloat16, False)])
def test_passes_without_gradients_fold_the_shared_change_for_many_rows(dtype: torch.dtype, is_folded: bool) -> None:
    """The fold takes D O S products, and the product of N rows with P and Q takes N (D + O) S."""
    module, contexts, x = adapted_map().to(dtype), torch.randn(B, K, dtype=dtype), torch.randn(B, T, D, dtype=dtype)
    projection, expected = module[0], read(module, x, contexts)  # type: ignore[index]
    fold, folded = projection.fold_shared, list[Shift]()

    def fold_and_record(shift: Shift) -> Shift:
        folded.append(fold(shift))
        return folded[-1]

    projection.fold_shared = fold_and_record
    with torch.no_grad():
        torch.testing.assert_close(read(module, x, contexts), expected)
        assert [shift.shared_left is None for shift in folded] == [is_folded]
        read(module, x[:1, :2], contexts[:1])  # 2 rows, fewer than D G / (D + G) = 2.4
        projection.dropout = 0.5
        read(module, x, contexts)  # the inputs of P have dropout
    assert len(folded) == 1


def test_rows_that_contexts_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="one for each of 4 rows, got 3"):
        read(adapted_map(), torch.randn(4, T, D), torch.randn(B, K))


def test_no_rows_have_no_outputs() -> None:
    assert read(adapted_map(), torch.randn(0, T, D), torch.randn(B, K)).shape == (0, T, G)


def test_maps_of_a_container_have_adapters() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(5, 3)
    outputs = module(x)
    module.requires_grad_(False)
    maps = AdaptedModules(module, BackboneSizes(0, 3, ("factor",), 1), shared_rank=2).attach()
    for parameter in module.parameters():
        parameter.data.normal_()
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".adapters." in name for name in trained)
    with applied(Adaptation(maps)):
        changed = module(x)
    assert not torch.equal(changed, outputs)
    assert not torch.allclose(read(module, x, torch.ones(1, 3)), changed)
    maps.restore()
    assert [type(layer) for layer in module] == [torch.nn.Linear, torch.nn.Tanh, torch.nn.Linear]
    torch.testing.assert_close(module(x), changed, rtol=0, atol=0)
