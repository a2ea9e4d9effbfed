"""The compiled code: how it is found and chosen, that sanitizers find nothing, and its softmax against plain sums."""

import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.config import ModelConfig, UserError
from factorcell.model.cells import Cell
from factorcell.model.kernels import library, softmax

NATIVE = Path(library.__file__).parent / "native"
HERE = library.library()
VARIANTS = [] if HERE is None else library.VARIANTS[: HERE.factorcell_best() + 1]
compiled = pytest.mark.skipif(HERE is None, reason="not compiled: there was no C++ compiler at installation")


@compiled
def test_half_is_for_autocast_only() -> None:
    """And only where the processor multiplies such numbers."""
    assert not library.half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert library.half() == (VARIANTS[-1] == "avx512_bf16")
        os.environ["FACTORCELL_KERNEL"] = "plain"
        assert not library.half()


def test_without_the_compiled_code_the_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, however often it is asked for."""
    library.library.cache_clear()
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none.so")
    with caplog.at_level(logging.WARNING):
        cell = Cell(4, 2, ModelConfig(hidden_size=5, rank=1), ("factor",))
        for _ in range(3):
            hidden, _ = cell(torch.randn(2, 3, 4), cell.adapt(torch.randn(2, 2)))
    library.library.cache_clear()
    assert hidden.shape == (2, 3, 5)
    assert len(caplog.records) == 1


@compiled
def test_an_unknown_kernel_is_named() -> None:
    os.environ["FACTORCELL_KERNEL"] = "avx51"
    with pytest.raises(UserError, match=r"FACTORCELL_KERNEL.*avx51"):
        library.variant()


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 300),
    size=st.integers(1, 400),
    width=st.integers(1, 40),
    halved=st.booleans(),
    seed=st.integers(0, 99),
)
def test_log_sums_of_any_shape(variant: str, rows: int, size: int, width: int, halved: bool, seed: int) -> None:
    """Against the logits written out, tokens that are never predicted among them; half the bits to a hundredth."""
    random = torch.Generator().manual_seed(seed)
    values, table = torch.randn(rows, width, generator=random), torch.randn(size, width, generator=random)
    bias = torch.randn(size, generator=random)
    bias[1:][torch.rand(size - 1, generator=random) < 0.2] = -torch.inf
    expected = (values.double() @ table.double().T + bias.double()).logsumexp(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_KERNEL", variant)
        patch.setattr(library, "half", lambda: halved)
        got = softmax.log_sums(values, table, bias).double()
    torch.testing.assert_close(got, expected, atol=0.15 if halved else 2e-5, rtol=0.02 if halved else 1e-5)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_log_sums_of_extreme_logits(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far apart, rising and falling over the vocabulary; NaN stays NaN, in its own row only."""
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    values = torch.tensor([[1.0], [-1.0], [1000.0], [-1000.0], [torch.nan], [0.0]])
    table = torch.linspace(-50, 60, 3000)[:, None]
    bias = torch.zeros(3000)
    expected = (values.double() @ table.double().T).logsumexp(1)
    got = softmax.log_sums(values, table, bias)
    torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-5, equal_nan=True)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize(("rows", "size", "width", "texts"), [(1, 1, 1, 0), (300, 1000, 50, 0), (130, 777, 33, 2)])
def test_gradients_of_exact_nats(
    variant: str, halved: bool, rows: int, size: int, width: int, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against `cross_entropy` of doubles; tokens that never come have none. Half the bits to a hundredth."""
    torch.manual_seed(0)
    bias = torch.randn(texts, size) if texts else torch.randn(size)
    bias[..., 2:] = bias[..., 2:].masked_fill(torch.rand(bias[..., 2:].shape) < 0.1, -torch.inf)
    start = [torch.randn(rows, width), torch.randn(size, width), bias]
    targets, scale = torch.randint(min(2, size), (rows,)), torch.randn(rows)
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    monkeypatch.setattr(library, "half", lambda: halved)
    leaves = values, table, own = [array.clone().requires_grad_() for array in start]
    (softmax.nats(values, table, own, targets) * scale).sum().backward()  # type: ignore[no-untyped-call]
    doubles = [array.double().requires_grad_() for array in start]
    added = doubles[2].repeat_interleave(rows // texts, 0) if texts else doubles[2]
    nats = torch.nn.functional.cross_entropy(doubles[0] @ doubles[1].T + added, targets, reduction="none")
    for leaf, array, expected in zip(leaves, start, torch.autograd.grad((nats * scale).sum(), doubles), strict=True):
        assert leaf.grad is not None
        assert float((leaf.grad - expected).norm()) <= (0.01 if halved else 3e-6) * float(expected.norm())
        never = array == -torch.inf
        assert float(leaf.grad[never].abs().sum()) < 1e-30


@compiled
def test_gradients_of_exact_nats_are_their_slopes() -> None:
    """By finite differences of the compiled nats, along a direction of each array."""
    torch.manual_seed(1)
    arrays = values, table, bias = torch.randn(40, 20), torch.randn(300, 20) * 0.5, torch.randn(300)
    targets, step = torch.randint(300, (40,)), 0.01
    sums = softmax.log_sums(values, table, bias)
    made = softmax.gradients(values, table, bias, targets, sums, torch.ones(40), half=False)
    for number, gradient in enumerate(made):
        direction = torch.randn(arrays[number].shape)
        ends = []
        for sign in (1, -1):
            x, e, b = [array + sign * step * direction if n == number else array for n, array in enumerate(arrays)]
            ends.append(float(softmax.nats(x, e, b, targets).double().sum()))
        assert gradient is not None
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float((gradient * direction).sum()), rel=0.01)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("texts", "halved"), [(0, False), (4, False), (0, True)])
def test_sampled_nats_in_compiled_code(variant: str, texts: int, halved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in plain PyTorch, value and gradients; some targets are among the samples, which then count once."""
    torch.manual_seed(0)
    start = [torch.randn(160, 33), torch.randn(90, 33), torch.randn(*[texts] * (texts > 0), 90)]
    targets, samples, scale = torch.randint(90, (160,)), torch.arange(0, 90, 2), torch.randn(160)
    results = []
    for kernel in ("off", variant):
        monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
        monkeypatch.setattr(library, "half", lambda: halved)
        leaves = values, table, bias = [array.clone().requires_grad_() for array in start]
        nats = softmax.sampled_nats(values, table, bias, targets, samples, torch.linspace(-2, 0, 90))
        (nats * scale).sum().backward()  # type: ignore[no-untyped-call]
        results.append([nats.detach(), *(leaf.grad for leaf in leaves)])
    for plain, got in zip(*results, strict=True):
        assert plain is not None
        assert float((got - plain).norm()) <= (0.01 if halved else 3e-6) * float(plain.norm())


@compiled
def test_gradients_do_not_depend_on_who_was_first() -> None:
    """Bit for bit the same on two threads, however the work falls to them."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    values, table, bias = torch.randn(500, 40), torch.randn(3000, 40), torch.randn(3000)
    targets, scale = torch.randint(3000, (500,)), torch.randn(500)
    sums = softmax.log_sums(values, table, bias)
    first, *others = [softmax.gradients(values, table, bias, targets, sums, scale, half=False) for _ in range(5)]
    for other in others:
        for one, array in zip(first, other, strict=True):
            assert one is not None
            assert torch.equal(one, array)  # type: ignore[arg-type]


@compiled
def test_nats_are_the_same_on_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, with a gradient and without, and in chunks."""
    torch.manual_seed(0)
    values, table, bias = torch.randn(50, 12), torch.randn(333, 12), torch.randn(333)
    targets = torch.randint(333, (50,))
    with_gradient = softmax.nats(values.requires_grad_(), table, bias, targets)
    with torch.no_grad():
        compiled_nats = softmax.nats(values, table, bias, targets)
        monkeypatch.setenv("FACTORCELL_KERNEL", "off")
        plain = softmax.nats(values, table, bias, targets)
    expected = torch.nn.functional.cross_entropy(values @ table.T + bias, targets, reduction="none").detach()
    for got in (with_gradient.detach(), compiled_nats, plain):
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_losses_of_half_the_bits_are_near(kind: str) -> None:
    """Within autocast, value and gradient."""
    torch.manual_seed(0)
    start = [torch.randn(40, 12), torch.randn(90, 12), torch.randn(90)]
    targets, samples = torch.randint(90, (40,)), torch.arange(0, 90, 3)
    results = []
    for halved in (False, True):
        leaves = values, table, bias = [array.clone().requires_grad_() for array in start]
        with torch.autocast("cpu", torch.bfloat16, enabled=halved):
            if kind == "exact":
                nats = softmax.nats(values, table, bias, targets)
            else:
                nats = softmax.sampled_nats(values, table, bias, targets, samples, torch.zeros(90))
        nats.sum().backward()  # type: ignore[no-untyped-call]
        results.append([nats.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for full, half in zip(*results, strict=True):
        assert half.dtype == torch.float32
        assert 0 < float((full - half).norm() / full.norm()) < 0.02


HARNESS = """
#include "kernels.h"
#include <cmath>
#include <cstdio>
#include <vector>
extern "C" int factorcell_best();
extern "C" int factorcell_recurrence(Recurrence *, int, int);
extern "C" int factorcell_recurrence_pack(Recurrence *, int, int);
extern "C" int64_t factorcell_packed_weight(const Recurrence *, int, int);
extern "C" int64_t factorcell_packed_table(const Softmax *, int);
extern "C" int64_t factorcell_softmax_room(const Softmax *, int);
extern "C" int factorcell_softmax(Softmax *, int);
extern "C" int factorcell_softmax_gradient(Softmax *, int);
extern "C" int factorcell_search(Search *, int, int);
std::vector<std::vector<float>> kept;
float *make(int64_t n) { kept.emplace_back(n, 0.25f); return kept.back().data(); }
void recur(int64_t B, int64_t T, int64_t H, int64_t R, bool norm, bool ragged, bool half, int variant) {
    Recurrence a{};
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < B; i++) lengths.push_back(i % (T + 1));
    if (ragged) a.lengths = lengths.data();
    a.sequences = B, a.steps = T, a.hidden = H, a.rank = R, a.threads = 2, a.half = half;
    a.given = make(B * T * 3 * H), a.bias = make(B * 3 * H), a.bias_gradient = make(B * 3 * H);
    a.weight = make(H * 3 * H), a.keep = make(T * B * H);
    if (R) a.left = make(B * H * R), a.right = make(B * R * 3 * H), a.given_reduced = make(B * T * R);
    if (ragged) a.scale = make(B * 3 * H), a.feed = make(B * H);
    if (norm) a.norm = make(8 * H), a.inverse = make(B * T * 3), a.norm_gradient = make(B * 8 * H);
    a.first_hidden = make(B * H), a.first_memory = make(B * H), a.outputs = make(B * T * H);
    a.last_hidden = make(B * H), a.last_memory = make(B * H);
    a.memories = make(B * T * H), a.gates = make(B * T * 3 * H), a.reduced = make(B * T * R);
    a.outputs_gradient = make(B * T * H), a.last_memory_gradient = make(B * H), a.last_hidden_gradient = make(B * H);
    a.given_gradient = make(B * T * 3 * H), a.reduced_gradient = make(B * T * R);
    a.first_hidden_gradient = make(B * H), a.first_memory_gradient = make(B * H);
    for (int back : {0, 1}) {
        float *const packed = make(factorcell_packed_weight(&a, back, variant));
        for (bool before : {false, true}) {
            a.packed = before ? packed : nullptr;
            if (before) factorcell_recurrence_pack(&a, back, variant);
            factorcell_recurrence(&a, back, variant);
        }
    }
    a.packed = nullptr;
    a.memories = a.gates = a.reduced = a.inverse = nullptr;
    factorcell_recurrence(&a, 0, variant);
    kept.clear();
}
void sums(int64_t N, int64_t V, int64_t D, bool half, int variant) {
    Softmax a{};
    a.rows = N, a.size = V, a.width = D, a.threads = 2, a.half = half, a.texts = N % 3 ? 1 : 3, a.parts = 3;
    a.values = make(N * D), a.table = make(V * D), a.bias = make(a.texts * V), a.result = make(N);
    a.packed = make(factorcell_packed_table(&a, variant));
    factorcell_softmax(&a, variant);
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < N; i++) targets.push_back(i % V);
    a.targets = targets.data(), a.scale = make(N), a.packed = make(factorcell_softmax_room(&a, variant));
    for (bool all : {false, true}) {
        if (all) a.logits = make(N * V);
        a.values_gradient = make(N * D);
        if (all) a.table_gradient = make(V * D), a.bias_gradient = make(a.texts * V);
        factorcell_softmax_gradient(&a, variant);
    }
    kept.clear();
}
void complete(int64_t V, int64_t E, int64_t H, int64_t R, bool norm, int products, int variant) {
    const int64_t lanes = variant == 0 ? 4 : variant == 1 ? 8 : 16, gates = (H + lanes - 1) / lanes * lanes * 3;
    const auto whole = [&](int64_t columns) { return (columns + 3 * lanes - 1) / (3 * lanes) * 3 * lanes; };
    const int64_t words = products == 2 ? (H + 3) / 4 + 2 : (H + 1) / 2;  // and what is beside them
    Search a{};
    a.requests = 5, a.size = V, a.width = E, a.hidden = H, a.rank = R, a.end = 2;
    a.threads = 2, a.batch = 5, a.growth = 4, a.products = products, a.margin = 0.1;
    a.embedding = make(V * E), a.inputs = make(E * gates), a.weight = make(H * gates);
    a.short_weight = make(words * gates), a.projection = make(H * whole(E)), a.table = make(E * whole(V));
    if (norm) a.norm = make(8 * H);
    Request q{};
    float *const bias = make(whole(V)), *const start = make(2 * H + V);
    for (int64_t v = 0; v < whole(V); v++) bias[v] = v < V ? 0.1f * (v % 7) : -INFINITY;
    for (int64_t v = 0; v < V; v++) start[2 * H + v] = -0.3f * (v % 5) - 1;
    q.gate_bias = make(gates), q.bias = bias, q.start = start, q.k = 7, q.most = 4, q.rows = 150, q.waiting = 60;
    if (R) q.left_inputs = make(E * whole(R)), q.left = make(H * whole(R)), q.right = make(R * gates);
    if (R) q.short_left = make(words * whole(R)), q.short_right = make((R + 1) / 2 * gates);
    std::vector<Request> all(a.requests, q);
    const std::vector<int64_t> given(q.most, V - 1);
    std::vector<std::vector<double>> scores(a.requests, std::vector<double>(q.k));
    std::vector<std::vector<int32_t>> whole_numbers(2 * a.requests, std::vector<int32_t>(q.k * q.most, V - 1));
    for (int64_t i = 0; i < a.requests; i++) {
        all[i].scores = scores[i].data(), all[i].lengths = whole_numbers[2 * i].data();
        all[i].tokens = whole_numbers[2 * i + 1].data(), all[i].seconds = i == 4 ? 0 : INFINITY, all[i].empty = i % 2;
        all[i].after = make(q.most * (2 * H + V)), all[i].given = given.data();
    }
    a.request = all.data();
    factorcell_search(&a, 1, variant);
    factorcell_search(&a, 0, variant);
    kept.clear();
}
int main() {
    kept.reserve(100);
    for (int variant = 0; variant <= factorcell_best(); variant++) {
        for (bool half : {false, true}) {
            for (int64_t B : {1, 17}) for (int64_t T : {1, 4}) for (int64_t H : {1, 7, 16, 37, 64})
                for (int64_t R : {0, 1, 9, 17}) for (bool other : {false, true})
                    recur(B, T, H, R, other, other, half, variant);
            for (int64_t N : {1, 9, 300}) for (int64_t V : {1, 47, 500}) for (int64_t D : {1, 16, 33})
                sums(N, V, D, half, variant);
        }
        for (int64_t V : {4, 107}) for (int64_t E : {1, 17}) for (int64_t H : {1, 16, 37})
            for (int64_t R : {0, 1, 17}) for (bool norm : {false, true}) for (int products : {0, 1, 2})
                complete(V, E, H, R, norm, products, variant);
    }
    std::puts("done");
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """Every access within bounds, no race between threads, over many shapes and every instruction set."""
    (tmp_path / "main.cpp").write_text(HARNESS)
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-pthread",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        f"-I{NATIVE}",
    ]
    sources = [str(tmp_path / "main.cpp"), *map(str, NATIVE.glob("*.cpp"))]
    subprocess.run(["g++", *flags, "-o", str(tmp_path / "check"), *sources], check=True)
    ran: Any = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr[-2000:]
