"""The GPU kernel of a step of the coupled cell, compared with PyTorch in double precision."""

import pytest
import torch
from torch import Tensor

from factorcell.nn.backbones.cells import CellState, Coupled, update_state
from factorcell.nn.kernels import gpu, gpu_step

pytestmark = [pytest.mark.slow, pytest.mark.skipif(gpu.triton is None, reason="Triton is not installed")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("gates", "product", "hidden", "memory", "norm", "keep", "inside")

Arrays = dict[str, Tensor | None]


def arrays(batch: int, hidden: int, has_norm: bool, has_dropout: bool, is_ragged: bool) -> Arrays:
    """Return random arguments; the gates are a step of a longer array, as in the loop."""
    generator = torch.Generator().manual_seed(hidden)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "gates": new(batch, 3, 3 * hidden)[:, 1],
        "product": new(batch, 3 * hidden),
        "hidden": new(batch, hidden),
        "memory": new(batch, hidden),
        "norm": 1 + 0.3 * new(8, hidden) if has_norm else None,
        "keep": (torch.rand(batch, hidden, generator=generator) < 0.7) / 0.7 if has_dropout else None,
        "inside": (torch.arange(2 * batch) % 3 > 0).view(batch, 2)[:, 1] if is_ragged else None,
    }


def leaves(source: Arrays, device: str, dtype: torch.dtype, product_type: torch.dtype) -> list[Tensor | None]:
    result: list[Tensor | None] = []
    for name, array in source.items():
        if array is None or array.dtype == torch.bool:
            result.append(array if array is None else array.to(device))
            continue
        moved = array.to(device, product_type if name == "product" else dtype)  # keeps the strides
        result.append(moved.detach().requires_grad_(name != "keep"))
    return result


def compare(source: Arrays, product_type: torch.dtype = torch.float32, tolerance: float = 1e-5) -> None:
    rounded = {**source, "product": source["product"].to(product_type)}  # type: ignore[union-attr]
    fast = leaves(rounded, DEVICE, torch.float32, product_type)
    exact = leaves(rounded, "cpu", torch.double, torch.double)
    results = gpu_step.run(*fast)  # type: ignore[arg-type]
    gates, product, hidden, memory, norm, keep, inside = exact
    assert gates is not None
    assert product is not None
    assert hidden is not None
    assert memory is not None
    state = update_state(Coupled(), gates, product, CellState(hidden, memory), norm, keep, inside)
    for h, m in (results, (state.hidden, state.memory)):
        factor = torch.linspace(-1, 1, h.numel(), dtype=h.dtype, device=h.device).view_as(h)
        ((h * factor).sum() + (m.square() * factor).sum()).backward()  # type: ignore[no-untyped-call]
    for result, expected in zip(results, (state.hidden, state.memory), strict=True):
        torch.testing.assert_close(result.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    for name, array, leaf in zip(NAMES, fast, exact, strict=True):
        if array is not None and leaf is not None and leaf.grad is not None:
            assert array.grad is not None, name
            assert array.grad.dtype == array.dtype
            error = (array.grad.cpu().double() - leaf.grad).norm()
            assert error <= (5e-3 if name == "product" and product_type != torch.float32 else tolerance) * (
                1 + leaf.grad.norm()
            ), name


@pytest.mark.parametrize("hidden", [1, 5, 16, 37])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("has_dropout", "is_ragged"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_step_and_its_gradients(hidden: int, has_norm: bool, has_dropout: bool, is_ragged: bool) -> None:
    compare(arrays(4, hidden, has_norm, has_dropout, is_ragged))


def test_products_in_bfloat16() -> None:
    compare(arrays(5, 20, has_norm=True, has_dropout=True, is_ragged=True), torch.bfloat16)
