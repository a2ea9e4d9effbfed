"""The compiled code: how it is found and selected; GCC has no warnings, and the thread sanitizer finds no race."""

import ctypes
import logging
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from factorcell.config import RecurrentOptions
from factorcell.errors import UserError
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import library
from tests.kernels import compiled

NATIVE = Path(library.__file__).parent / "native"


@compiled
def test_bfloat16_is_used_only_within_autocast() -> None:
    assert not library.uses_bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert library.uses_bfloat16() == (library.variant() in library.BFLOAT16_VARIANTS)
        os.environ["FACTORCELL_KERNEL"] = "plain"
        assert not library.uses_bfloat16()


def test_the_loop_runs_without_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library.library.cache_clear()
    monkeypatch.delenv("FACTORCELL_KERNEL", raising=False)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none.so")
    with caplog.at_level(logging.WARNING):
        cell = Cell(RecurrentOptions(hidden_size=5), BackboneSizes(4, 2, ("factor",), 1))
        for _ in range(3):
            hidden, _ = cell(torch.randn(2, 3, 4), cell.linear.condition(torch.randn(2, 2)))
    library.library.cache_clear()
    assert hidden.shape == (2, 3, 5)
    assert len(caplog.records) == 1


@compiled
def test_an_unknown_kernel_is_an_error() -> None:
    os.environ["FACTORCELL_KERNEL"] = "avx51"
    with pytest.raises(UserError, match=r"FACTORCELL_KERNEL.*avx51"):
        library.variant()


def test_memory_is_not_retained_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse_null(name: str | None) -> None:
        raise TypeError(f"expected str, not {type(name).__name__}")

    monkeypatch.setattr(library, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(ctypes, "CDLL", refuse_null)
    library.retain_freed_memory.__wrapped__()


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
extern "C" int factorcell_softmax_pack(Softmax *, int);
extern "C" int factorcell_learning(Learning *, int);
std::vector<std::vector<float>> buffers;
float *make(int64_t n) { buffers.emplace_back(n, 0.25f); return buffers.back().data(); }
void recur(int64_t B, int64_t T, int64_t H, int64_t R, bool norm, bool ragged, bool half, int variant) {
    Recurrence a{};
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < B; i++) lengths.push_back(i % (T + 1));
    if (ragged) a.lengths = lengths.data();
    a.sequences = B, a.steps = T, a.hidden = H, a.rank = R, a.threads = 2, a.half = half;
    const auto numbers = [&](int64_t n) { return make(half ? (n + 1) / 2 : n); };
    a.input_gates = numbers(B * T * 3 * H), a.bias = make(B * 3 * H), a.bias_gradient = make(B * 3 * H);
    a.weight = make(H * 3 * H), a.keep = make(T * B * H);
    if (R) a.left = numbers(B * H * R), a.right = numbers(B * R * 3 * H), a.input_reduced = make(B * T * R);
    if (ragged) a.scale = make(B * 3 * H), a.feed = make(B * H);
    if (norm) a.norm = make(8 * H), a.inverse = make(B * T * 3), a.norm_gradient = make(B * 8 * H);
    a.first_hidden = make(B * H), a.first_memory = make(B * H), a.outputs = make(B * T * H);
    a.last_hidden = make(B * H), a.last_memory = make(B * H);
    a.memories = make(B * T * H), a.gates = make(B * T * 3 * H), a.reduced = make(B * T * R);
    a.outputs_gradient = make(B * T * H), a.last_memory_gradient = make(B * H), a.last_hidden_gradient = make(B * H);
    a.input_gates_gradient = numbers(B * T * 3 * H), a.reduced_gradient = make(B * T * R);
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
    buffers.clear();
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
    buffers.clear();
}
void complete(int64_t V, int64_t E, int64_t H, int64_t R, bool norm, int products, int variant) {
    const int64_t lanes = variant == 0 ? 4 : variant == 1 ? 8 : 16, gates = (H + lanes - 1) / lanes * lanes * 3;
    const auto whole = [&](int64_t columns) { return (columns + 3 * lanes - 1) / (3 * lanes) * 3 * lanes; };
    const int64_t words = (H + 1) / 2;
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
    q.gate_bias = make(gates), q.bias = bias, q.start = start, q.k = 7, q.max_tokens = 4, q.max_rows = 150;
    q.max_waiting = 60;
    if (R) q.left_inputs = make(E * whole(R)), q.left = make(H * whole(R)), q.right = make(R * gates);
    if (R) q.short_left = make(words * whole(R)), q.short_right = make((R + 1) / 2 * gates);
    std::vector<Request> all(a.requests, q);
    const std::vector<int64_t> input_tokens(q.max_tokens, V - 1);
    std::vector<std::vector<double>> scores(a.requests, std::vector<double>(q.k));
    std::vector<std::vector<int32_t>> whole_numbers(2 * a.requests, std::vector<int32_t>(q.k * q.max_tokens, V - 1));
    for (int64_t i = 0; i < a.requests; i++) {
        all[i].scores = scores[i].data(), all[i].lengths = whole_numbers[2 * i].data();
        all[i].tokens = whole_numbers[2 * i + 1].data(), all[i].seconds = i == 4 ? 0 : INFINITY;
        all[i].allow_empty = i % 2;
        all[i].states = make(q.max_tokens * (2 * H + V)), all[i].input_tokens = input_tokens.data();
    }
    a.request = all.data();
    factorcell_search(&a, 1, variant);
    factorcell_search(&a, 0, variant);
    buffers.clear();
}
void learn(int64_t V, int64_t E, int64_t H, int64_t R, bool norm, int variant) {
    const int64_t K = 3, U = 2, D = E + H;
    Learning a{};
    a.texts = 5, a.size = V, a.width = E, a.inputs_and_hidden = D, a.hidden = H, a.rank = R, a.context = K, a.user = U;
    a.activation = 2, a.threads = 2;
    a.embedding = make(V * E), a.weight = make(D * 3 * H), a.bias = make(3 * H), a.projection = make(H * E);
    a.joint = make(U * K), a.concat = make(K * 3 * H), a.context_bias = make(K * V), a.user_bias = make(U * V);
    if (norm) a.norm = make(8 * H);
    if (R) a.left = make(K * D * R), a.right = make(K * R * 3 * H);
    Recurrence r{};
    r.sequences = r.steps = r.threads = 1, r.hidden = H, r.weight = a.weight + E * 3 * H;
    for (int back : {0, 1}) {
        r.packed = (back ? a.packed_backward : a.packed_forward) = make(factorcell_packed_weight(&r, back, variant));
        factorcell_recurrence_pack(&r, back, variant);
    }
    Softmax s{};
    s.size = V, s.width = E, s.texts = s.parts = s.threads = 1, s.table = a.embedding;
    s.packed = a.packed_table = make(factorcell_packed_table(&s, variant));
    factorcell_softmax_pack(&s, variant);
    std::vector<int64_t> tokens, ends, prompts;
    for (int64_t i = 0; i < a.texts; i++) {
        for (int64_t t = 0; t < 2 + 3 * i; t++) tokens.push_back(t % V);
        ends.push_back(static_cast<int64_t>(tokens.size())), prompts.push_back(i);
    }
    std::vector<double> nats(a.texts);
    a.count = static_cast<int64_t>(tokens.size()), a.tokens = tokens.data(), a.ends = ends.data();
    a.prompts = prompts.data(), a.vectors = make(a.texts * U), a.joint_bias = make(a.texts * K);
    a.output_bias = make(a.texts * V), a.nats = nats.data(), a.gradients = make(a.texts * U);
    factorcell_learning(&a, variant);
    buffers.clear();
}
int main() {
    buffers.reserve(100);
    for (int variant = 0; variant <= factorcell_best(); variant++) {
        for (bool half : {false, true}) {
            for (int64_t B : {1, 17}) for (int64_t T : {1, 4}) for (int64_t H : {1, 7, 16, 37, 64})
                for (int64_t R : {0, 1, 9, 17}) for (bool other : {false, true})
                    recur(B, T, H, R, other, other, half, variant);
            for (int64_t N : {1, 9, 300}) for (int64_t V : {1, 47, 500}) for (int64_t D : {1, 16, 33})
                sums(N, V, D, half, variant);
        }
        for (int64_t V : {4, 107}) for (int64_t E : {1, 17}) for (int64_t H : {1, 16, 37})
            for (int64_t R : {0, 1, 17}) for (bool norm : {false, true}) for (int products : {0, 1})
                complete(V, E, H, R, norm, products, variant);
        for (int64_t V : {4, 107}) for (int64_t E : {1, 17}) for (int64_t H : {1, 16, 37})
            for (int64_t R : {0, 1, 17}) for (bool norm : {false, true}) learn(V, E, H, R, norm, variant);
    }
    std::puts("done");
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_thread_sanitizer_finds_no_race(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(HARNESS)
    flags = "-std=c++17 -O1 -g -pthread -fsanitize=thread -fno-sanitize-recover=all".split()
    sources = [str(tmp_path / "main.cpp"), *map(str, NATIVE.glob("*.cpp"))]
    subprocess.run(["g++", *flags, f"-I{NATIVE}", "-o", str(tmp_path / "check"), *sources], check=True)
    process: Any = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("source", sorted(NATIVE.glob("*.cpp")), ids=lambda source: source.stem)
def test_the_kernels_compile_without_warnings(source: Path, tmp_path: Path) -> None:
    flags = "-std=c++17 -O3 -pthread -fPIC -Wall -Wextra".split()  # without optimization, GCC finds fewer faults
    command = ["g++", *flags, "-c", str(source), "-o", str(tmp_path / "kernels.o")]
    process: Any = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
