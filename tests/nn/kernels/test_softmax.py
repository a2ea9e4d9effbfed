"""The softmax over a large vocabulary: compiled sums, exact and sampled nats, and their gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from factorcell.nn.kernels import library, softmax
from tests.kernels import VARIANTS, compiled


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 300),
    size=st.integers(1, 400),
    width=st.integers(1, 40),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_log_sums_of_any_shape(variant: str, rows: int, size: int, width: int, half: bool, seed: int) -> None:
    """Compare with explicit logits, some of them -inf, and check that a row has the same bits alone and in a batch."""
    random = torch.Generator().manual_seed(seed)
    values, table = torch.randn(rows, width, generator=random), torch.randn(size, width, generator=random)
    if half:
        values, table = values.bfloat16().float(), table.bfloat16().float()
    bias = torch.randn(size, generator=random)
    bias[1:][torch.rand(size - 1, generator=random) < 0.2] = -torch.inf
    expected = (values.double() @ table.double().T + bias.double()).logsumexp(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_KERNEL", variant)
        patch.setattr(library, "uses_bfloat16", lambda: half)
        sums = softmax.log_sums(values, table, bias)
        assert torch.equal(sums[-1:], softmax.log_sums(values[-1:], table, bias))
    torch.testing.assert_close(sums.double(), expected, atol=2e-5, rtol=1e-5)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_log_sums_of_extreme_logits(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    values = torch.tensor([[1.0], [-1.0], [1000.0], [-1000.0], [torch.nan], [0.0]])
    table = torch.linspace(-50, 60, 3000)[:, None]
    bias = torch.zeros(3000)
    expected = (values.double() @ table.double().T).logsumexp(1)
    sums = softmax.log_sums(values, table, bias)
    torch.testing.assert_close(sums.double(), expected, rtol=1e-6, atol=1e-5, equal_nan=True)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("logit", [88.0, 88.9, 100.0, 266.0, 1e4])
def test_gradients_of_large_logits_are_finite(variant: str, logit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel adds rows to fill its registers, whose logits are those of the first text."""
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    values = torch.zeros(1, 1, requires_grad=True)
    table, bias = torch.zeros(2, 1, requires_grad=True), torch.tensor([logit, 0.0], requires_grad=True)
    torch.autograd.backward(softmax.nats(values, table, bias, torch.tensor([0])).sum())
    for part in (values, table, bias):
        assert part.grad is not None
        torch.testing.assert_close(part.grad, torch.zeros_like(part.grad), msg="the target is certain")


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("rows", "size", "width", "texts"), [(1, 1, 1, 0), (300, 1000, 50, 0), (130, 777, 33, 2)])
def test_gradients_of_exact_nats(
    variant: str, half: bool, rows: int, size: int, width: int, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    bias = torch.randn(texts, size) if texts else torch.randn(size)
    bias[..., 2:] = bias[..., 2:].masked_fill(torch.rand(bias[..., 2:].shape) < 0.1, -torch.inf)
    start = [torch.randn(rows, width), torch.randn(size, width), bias]
    targets, scale = torch.randint(min(2, size), (rows,)), torch.randn(rows)
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    monkeypatch.setattr(library, "uses_bfloat16", lambda: half)
    leaves = values, table, bias = [array.clone().requires_grad_() for array in start]
    (softmax.nats(values, table, bias, targets) * scale).sum().backward()  # type: ignore[no-untyped-call]
    doubles = [array.double().requires_grad_() for array in start]
    biases = doubles[2].repeat_interleave(rows // texts, 0) if texts else doubles[2]
    nats = torch.nn.functional.cross_entropy(doubles[0] @ doubles[1].T + biases, targets, reduction="none")
    for leaf, array, expected in zip(leaves, start, torch.autograd.grad((nats * scale).sum(), doubles), strict=True):
        assert leaf.grad is not None
        assert float((leaf.grad - expected).norm()) <= (0.01 if half else 3e-6) * float(expected.norm())
        is_impossible = array == -torch.inf
        assert float(leaf.grad[is_impossible].abs().sum()) < 1e-30


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("texts", "half"), [(0, False), (4, False), (0, True)])
def test_sampled_nats_in_compiled_code(variant: str, texts: int, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    start = [torch.randn(160, 33), torch.randn(90, 33), torch.randn(*[texts] * (texts > 0), 90)]
    targets, samples, scale = torch.randint(90, (160,)), torch.arange(0, 90, 2), torch.randn(160)
    results = []
    for kernel in ("off", variant):
        monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
        monkeypatch.setattr(library, "uses_bfloat16", lambda: half)
        leaves = values, table, bias = [array.clone().requires_grad_() for array in start]
        nats = softmax.sampled_nats(values, table, bias, targets, samples, torch.linspace(-2, 0, 90))
        (nats * scale).sum().backward()  # type: ignore[no-untyped-call]
        results.append([nats.detach(), *(leaf.grad for leaf in leaves)])
    for plain, compiled_result in zip(*results, strict=True):
        assert plain is not None
        assert float((compiled_result - plain).norm()) <= (0.01 if half else 3e-6) * float(plain.norm())


@compiled
def test_gradients_do_not_depend_on_the_order_of_threads() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    values, table, bias = torch.randn(500, 40), torch.randn(3000, 40), torch.randn(3000)
    targets, scale = torch.randint(3000, (500,)), torch.randn(500)
    sums = softmax.log_sums(values, table, bias)
    first, *others = [softmax.gradients(values, table, bias, targets, sums, scale, is_bfloat16=False) for _ in range(5)]
    for other in others:
        for expected, gradient in zip(first, other, strict=True):
            assert expected is not None
            assert torch.equal(expected, gradient)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_losses_in_bfloat16_are_close(kind: str) -> None:
    torch.manual_seed(0)
    start = [torch.randn(40, 12), torch.randn(90, 12), torch.randn(90)]
    targets, samples = torch.randint(90, (40,)), torch.arange(0, 90, 3)
    results = []
    for half in (False, True):
        leaves = values, table, bias = [array.clone().requires_grad_() for array in start]
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            if kind == "exact":
                nats = softmax.nats(values, table, bias, targets)
            else:
                nats = softmax.sampled_nats(values, table, bias, targets, samples, torch.zeros(90))
        nats.sum().backward()  # type: ignore[no-untyped-call]
        results.append([nats.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    # PyTorch emulates bfloat16 if the processor lacks it; the compiled code then uses float32.
    is_rounded = library.has_bfloat16() or not library.supports(*start)
    for expected, rounded in zip(*results, strict=True):
        assert rounded.dtype == torch.float32
        error = float((expected - rounded).norm() / expected.norm())
        assert (error > 0) == is_rounded
        assert error < 0.02


@pytest.mark.parametrize("chunk", [7, 35, 1 << 28])
def test_cross_entropies_in_chunks_equal_exact_nats(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "MAX_LOGITS", chunk)
    values, table = torch.randn(12, 4, dtype=torch.double), torch.randn(7, 4, dtype=torch.double)
    bias, targets = torch.randn(7, dtype=torch.double), torch.randint(2, 7, (12,))
    bias[1] = -torch.inf
    for each in (bias, torch.stack([bias, bias + 1, bias / 2])):
        results = []
        for chunked in (True, False):
            inputs = [array.clone().requires_grad_() for array in (values, table, each)]
            rows = inputs[2] if each.dim() == 1 else inputs[2].repeat_interleave(4, 0)
            if chunked:
                nats = softmax.cross_entropies(inputs[0], inputs[1], inputs[2], targets)
            else:
                nats = F.cross_entropy(inputs[0] @ inputs[1].T + rows, targets, reduction="none")
            results.append((nats.detach(), torch.autograd.grad((nats * torch.arange(12)).sum(), inputs)))
        torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("count", [1, softmax.MIN_COMPILED_TARGETS - 1, softmax.MIN_COMPILED_TARGETS])
@pytest.mark.parametrize("needs_gradients", [True, False])
def test_nats_of_few_targets_equal_cross_entropies_in_double_precision(count: int, needs_gradients: bool) -> None:
    torch.manual_seed(0)
    values, table, bias = torch.randn(count, 30), torch.randn(500, 30), torch.randn(1, 500)
    targets = torch.randint(500, (count,))
    with torch.set_grad_enabled(needs_gradients):
        nats = softmax.nats(values, table, bias, targets)
    expected = F.cross_entropy(values.double() @ table.double().T + bias, targets, reduction="none")
    torch.testing.assert_close(nats.double(), expected, rtol=1e-5, atol=1e-5)
