"""The fused cross-entropy for GPUs against all logits in double precision: on a GPU if there is one, or interpreted."""

import logging

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from factorcell.model.kernels import gpu, gpu_softmax, softmax

pytestmark = [pytest.mark.slow, pytest.mark.skipif(gpu.triton is None, reason="Triton is not installed")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def arrays(tokens: int, vocabulary: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, a table, a bias with a token that is never predicted (unless it is the only one), and targets."""
    random = torch.Generator().manual_seed(seed)
    bias = torch.randn(vocabulary, generator=random)
    bias[1:2] = -torch.inf
    targets = torch.randint(vocabulary, (tokens,), generator=random)
    targets[targets == 1] = 0
    table = torch.randn(vocabulary, width, generator=random) * 2 * width**-0.5
    return torch.randn(tokens, width, generator=random), table, bias, targets


def slow(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The nats of each token, with all logits written out."""
    logits = values @ table.T + bias
    return torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None])[:, 0]


def check(given: tuple[Tensor, ...], kind: torch.dtype = torch.float32, gradient: float = 1e-4) -> None:
    """Nats and the gradients of values, table and bias."""
    targets = given[3]
    low = [x.to(kind) for x in given[:2]] + [given[2]]
    fast = values, table, bias = [x.to(DEVICE).clone().requires_grad_() for x in low]
    got = gpu_softmax.nats(values, table, bias, targets.to(DEVICE))
    plain = values, table, bias = [x.double().clone().requires_grad_() for x in low]
    expected = slow(values, table, bias, targets)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    factor = torch.linspace(-1, 2, len(targets), dtype=torch.double)
    (got * factor.to(DEVICE)).sum().backward()  # type: ignore[no-untyped-call]
    (expected * factor).sum().backward()  # type: ignore[no-untyped-call]
    for name, x, y in zip(("values", "table", "bias"), fast, plain, strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert x.grad.dtype == x.dtype
        assert float((x.grad.cpu().double() - y.grad).norm()) < gradient * max(float(y.grad.norm()), 1e-3), name


@settings(max_examples=5)
@given(tokens=st.integers(1, 80), vocabulary=st.integers(1, 150), width=st.integers(1, 80), seed=st.integers(0, 99))
@example(tokens=1, vocabulary=1, width=1, seed=0)
@example(tokens=1, vocabulary=1000, width=3, seed=0)  # shares of the vocabulary
@example(tokens=1000, vocabulary=5, width=3, seed=0)  # shares of the tokens
def test_any_shape(tokens: int, vocabulary: int, width: int, seed: int) -> None:
    check(arrays(tokens, vocabulary, width, seed))


@pytest.mark.parametrize("width", [40, 256, pytest.param(300, marks=pytest.mark.slow)])
def test_bfloat16(width: int) -> None:
    """Logits are sums in float32 of exact products; gradients of logits are rounded before they are multiplied."""
    check(arrays(70, 150, width), torch.bfloat16, gradient=1e-2)


def test_many_tokens_that_are_never_predicted() -> None:
    """Whole tiles, and a whole share, without a logit."""
    values, table, bias, targets = arrays(5, 700, 6)
    bias[:650] = -torch.inf
    check((values, table, bias, targets % 50 + 650))


def test_a_target_that_is_never_predicted_costs_infinity() -> None:
    """In its own text only; where its nats do not count, it has no gradient."""
    values, table, bias, targets = (x.to(DEVICE) for x in arrays(4, 9, 5))
    targets[2] = 1
    values.requires_grad_()
    nats = gpu_softmax.nats(values, table, bias, targets)
    assert nats[2] == torch.inf
    assert nats[[0, 1, 3]].isfinite().all()
    nats.backward(torch.tensor([1.0, 1.0, 0.0, 1.0], device=DEVICE))  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.isfinite().all()
    assert (values.grad[2] == 0).all()


def test_large_logits_do_not_overflow() -> None:
    values, table, bias, targets = arrays(9, 150, 4)
    check((values * 1000, table, bias, targets))


def test_a_bias_of_a_context_is_more_columns() -> None:
    values, table, bias, targets = arrays(7, 30, 5)
    context, shift = torch.randn(7, 3), torch.randn(30, 3)
    joined = torch.cat([values, context], dim=1).to(DEVICE), torch.cat([table, shift], dim=1).to(DEVICE)
    logits = values @ table.T + bias + context @ shift.T
    expected = torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None])[:, 0]
    got = gpu_softmax.nats(*joined, bias.to(DEVICE), targets.to(DEVICE))
    torch.testing.assert_close(got.cpu(), expected, atol=1e-5, rtol=1e-5)


def test_a_result_repeats_exactly() -> None:
    """Sums have one order, whichever program is first."""
    given, results = arrays(200, 300, 20), []
    for _ in range(2):
        fast = values, table, bias = [x.to(DEVICE).clone().requires_grad_() for x in given[:3]]
        nats = gpu_softmax.nats(values, table, bias, given[3].to(DEVICE))
        nats.sum().backward()  # type: ignore[no-untyped-call]
        results.append([nats, *(x.grad for x in fast)])
    for got, expected in zip(*results, strict=True):
        assert got is not None
        assert expected is not None
        assert torch.equal(got, expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 1000), (63, 65), (5000, 40), (129, 128)])
def test_shares_cover_every_column_once(rows: int, columns: int) -> None:
    count, each = gpu_softmax._shares(rows, columns, 64, torch.device("cpu"))
    assert each % 64 == 0
    assert (count - 1) * each < columns <= count * each


def test_the_operator_keeps_the_rules_of_operators() -> None:
    """Its shapes without data, its gradient and its aliasing, as PyTorch's own check has them."""
    *floats, targets = (x.to(DEVICE) for x in arrays(3, 9, 5))
    torch.library.opcheck(gpu_softmax._forward, (*(x.requires_grad_() for x in floats), targets))


def test_exact_nats_take_the_kernel_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same nats and gradients as in chunks."""
    results = []
    start = [torch.randn(5, 3), torch.randn(9, 3), torch.randn(9)]
    targets = torch.randint(9, (5,), device=DEVICE)
    for kernel in ("off", "triton"):
        monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
        values, table, bias = leaves = [x.to(DEVICE).clone().requires_grad_() for x in start]
        nats = softmax.nats(values, table, bias, targets)
        nats.sum().backward()  # type: ignore[no-untyped-call]
        results.append([nats.detach(), *(x.grad for x in leaves)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_what_the_kernel_cannot_do_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubles, two types at a time; kernels switched off; Triton missing."""
    values, table = torch.randn(2, 3, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    gpu._refused.cache_clear()
    gpu._installed.cache_clear()
    monkeypatch.setenv("FACTORCELL_KERNEL", "triton")
    with caplog.at_level(logging.WARNING):
        assert gpu_softmax.usable(values, table)
        assert not gpu_softmax.usable(values[:0], table)
        assert caplog.messages == []
        for _ in range(3):
            assert not gpu_softmax.usable(values, table.bfloat16())
            assert not gpu_softmax.usable(values.double(), table.double())
        assert len(caplog.messages) == 2
        assert "bfloat16, float32" in caplog.messages[0]
        monkeypatch.setenv("FACTORCELL_KERNEL", "off")
        assert not gpu_softmax.usable(values, table)
        monkeypatch.setenv("FACTORCELL_KERNEL", "triton")
        monkeypatch.setattr(gpu, "triton", None)
        gpu._installed.cache_clear()
        assert [gpu_softmax.usable(values, table) for _ in range(3)] == [False] * 3
        gpu._installed.cache_clear()
    assert len(caplog.messages) == 3
    assert "Triton is not installed" in caplog.messages[2]
