"""The compiled recurrence against a plain loop in double precision, whatever the shapes and the instruction set."""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from factorcell import recurrence
from factorcell.cells import Cell
from factorcell.config import UserError

NATIVE = Path(recurrence.__file__).parent / "native"
HERE = recurrence.library()
VARIANTS = [] if HERE is None else recurrence.VARIANTS[: HERE.factorcell_best() + 1]
compiled = pytest.mark.skipif(HERE is None, reason="not compiled: there was no C++ compiler at installation")
Arrays = dict[str, Tensor | None]


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Leave the choice of the kernel and the number of threads as they were."""
    threads, chosen = torch.get_num_threads(), os.environ.pop("FACTORCELL_KERNEL", None)
    yield
    torch.set_num_threads(threads)
    os.environ.pop("FACTORCELL_KERNEL", None)
    if chosen is not None:
        os.environ["FACTORCELL_KERNEL"] = chosen


def arrays(batch: int, steps: int, hidden: int, rank: int, drop: bool, seed: int = 0) -> Arrays:
    """What a cell would hand over."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=random) * scale

    return {
        "given": normal(batch, steps, 3 * hidden),
        "weight": normal(hidden, 3 * hidden, scale=hidden**-0.5),
        "left": normal(batch, hidden, rank, scale=hidden**-0.5) if rank else None,
        "right": normal(batch, rank, 3 * hidden, scale=0.5) if rank else None,
        "keep": (normal(steps, batch, hidden) > -0.5).float() / 0.7 if drop else None,
        "hidden": normal(batch, hidden, scale=0.5),
        "memory": normal(batch, hidden),
    }


def slow(a: Arrays) -> tuple[Tensor, Tensor]:
    """All h and the last m, a step and a text at a time."""
    given, weight, hidden, memory = a["given"], a["weight"], a["hidden"], a["memory"]
    assert given is not None
    assert weight is not None
    assert hidden is not None
    assert memory is not None
    texts, lasts = [], []
    for b in range(len(given)):
        h, m, states = hidden[b], memory[b], []
        for t in range(given.shape[1]):
            gates = given[b, t] + h @ weight
            if a["left"] is not None and a["right"] is not None:
                gates = gates + h @ a["left"][b] @ a["right"][b]
            candidate, forget, output = gates.chunk(3)
            kept = torch.tanh(candidate) * (1.0 if a["keep"] is None else a["keep"][t, b])
            forget = torch.sigmoid(forget + 1)
            m = forget * m + (1 - forget) * kept
            h = torch.tanh(m) * torch.sigmoid(output)
            states.append(h)
        texts.append(torch.stack(states))
        lasts.append(m)
    return torch.stack(texts), torch.stack(lasts)


def learned(a: Arrays, double: bool) -> Arrays:
    """Copies that take gradients, all but the dropout mask."""
    kind = torch.double if double else torch.float
    return {
        name: None if x is None else x.to(kind).clone().requires_grad_(name != "keep" and x.numel() > 0)
        for name, x in a.items()
    }


def distance(a: Tensor, b: Tensor) -> float:
    """|a - b| relative to |b|."""
    return float((a - b).norm() / b.norm().clamp(min=1e-6))


def check(a: Arrays, variant: str) -> None:
    """Values to 1e-5, every gradient to 1e-4, of a loss in which all h and the last m count."""
    os.environ["FACTORCELL_KERNEL"] = variant
    fast, plain = learned(a, double=False), learned(a, double=True)
    results = [recurrence.run(**fast), slow(plain)]  # type: ignore[arg-type]
    for hidden, memory in results:
        factor = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
        ((hidden * factor).sum() + (memory**2).sum()).backward()  # type: ignore[no-untyped-call]
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)
    for name, x in fast.items():
        expected_gradient = None if plain[name] is None else plain[name].grad  # type: ignore[union-attr]
        if x is not None and expected_gradient is not None:
            assert x.grad is not None, name
            assert distance(x.grad.double(), expected_gradient) < 1e-4, name


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 19),
    steps=st.integers(1, 6),
    hidden=st.integers(1, 70),
    rank=st.integers(0, 18),
    drop=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape(variant: str, batch: int, steps: int, hidden: int, rank: int, drop: bool, seed: int) -> None:
    check(arrays(batch, steps, hidden, rank, drop, seed), variant)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_published_sizes(variant: str) -> None:
    check(arrays(9, 12, 240, 12, drop=True), variant)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_large_values_neither_overflow_nor_lose_their_sign(variant: str) -> None:
    """Gates of a thousand saturate; NaN stays NaN, in its own text only."""
    a = arrays(3, 4, 21, 2, drop=False)
    assert a["given"] is not None
    a["given"][0] *= 1000
    a["given"][1, 2, 5] = torch.nan
    os.environ["FACTORCELL_KERNEL"] = variant
    hidden, memory = recurrence.run(**a)  # type: ignore[arg-type]
    expected, _ = slow({name: None if x is None else x.double() for name, x in a.items()})
    torch.testing.assert_close(hidden[0].double(), expected[0], atol=1e-4, rtol=1e-4)
    assert hidden[1, :2].isfinite().all()
    assert hidden[1, 3].isnan().any()
    assert hidden[2].isfinite().all()
    assert memory[1].isnan().any()


@compiled
def test_threads_change_nothing() -> None:
    """One thread, two, and more than there are texts."""
    a, results = arrays(5, 7, 40, 3, drop=True), []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        x = learned(a, double=False)
        hidden, memory = recurrence.run(**x)  # type: ignore[arg-type]
        (hidden.sum() + memory.sum()).backward()  # type: ignore[no-untyped-call]
        results.append([hidden, memory, *(value.grad for value in x.values() if value is not None)])
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_written_beside_the_arrays(variant: str) -> None:
    """Arrays in the middle of a larger one full of NaN: none gets in, and none is overwritten."""
    a = arrays(3, 4, 13, 5, drop=True)
    wide: dict[str, Tensor] = {}
    for name, x in a.items():
        assert x is not None
        wide[name] = torch.full((x.numel() + 128,), torch.nan)
        wide[name][64:-64] = x.flatten()
    inside = {name: wide[name][64:-64].view_as(x) for name, x in a.items() if x is not None}
    os.environ["FACTORCELL_KERNEL"] = variant
    made = {}
    for name, shape in {"outputs": 13, "memories": 13, "gates": 39, "reduced": 5}.items():
        wide[name] = torch.full((3 * 4 * shape + 128,), torch.nan)
        made[name] = wide[name][64:-64].view(3, 4, shape)
    renamed = {"hidden": "first_hidden", "memory": "first_memory"}
    taken: Arrays = {renamed.get(name, name): x for name, x in inside.items()}
    recurrence._call(False, recurrence.VARIANTS.index(variant), {**taken, **made})
    expected, _ = slow(a)
    torch.testing.assert_close(made["outputs"], expected, atol=1e-5, rtol=1e-5)
    for name, x in wide.items():
        assert x[:64].isnan().all(), name
        assert x[-64:].isnan().all(), name
        assert x[64:-64].isfinite().all(), name


@compiled
def test_the_operator_keeps_the_rules_of_operators() -> None:
    """Its shapes without data, its gradient and its aliasing, as PyTorch's own check has them."""
    for rank in (0, 3):
        x = learned(arrays(3, 4, 10, rank, drop=False), double=False)
        torch.library.opcheck(recurrence._forward, (*x.values(), 0))


@pytest.mark.parametrize("adapt", [(), ("concat",), ("factor",), ("concat", "factor")])
def test_a_cell_is_the_same_on_every_path(adapt: tuple[str, ...]) -> None:
    """Values and gradients of a whole cell, with dropout, compiled and not."""
    torch.manual_seed(0)
    cell, vector, inputs = Cell(20, 37, 5, 3, adapt, 0.3), torch.randn(6, 5), torch.randn(6, 9, 20)
    results = []
    for kernel in ("off", ""):
        os.environ["FACTORCELL_KERNEL"] = kernel
        torch.manual_seed(1)
        cell.zero_grad()
        x, c = inputs.clone().requires_grad_(), vector.clone().requires_grad_()
        hidden, state = cell(x, cell.adapt(c))
        (hidden.sin().sum() + state.hidden.cos().sum() + state.memory.sum()).backward()
        results.append([hidden.detach(), x.grad, c.grad, *(parameter.grad for parameter in cell.parameters())])
    for got, expected in zip(*results, strict=True):
        if expected is not None:
            assert distance(got, expected) < 1e-5


def test_without_the_compiled_code_the_loop_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, however often it is asked for."""
    recurrence.library.cache_clear()
    monkeypatch.setattr("importlib.machinery.EXTENSION_SUFFIXES", [".none"])
    with caplog.at_level(logging.WARNING):
        cell = Cell(4, 5, 2, 1, ("factor",), 0.0)
        for _ in range(3):
            hidden, _ = cell(torch.randn(2, 3, 4), cell.adapt(torch.randn(2, 2)))
    recurrence.library.cache_clear()
    assert hidden.shape == (2, 3, 5)
    assert len(caplog.records) == 1


@compiled
def test_an_unknown_kernel_is_named() -> None:
    os.environ["FACTORCELL_KERNEL"] = "avx51"
    with pytest.raises(UserError, match=r"FACTORCELL_KERNEL.*avx51"):
        recurrence.variant()


def test_what_the_kernel_cannot_do_is_left_to_the_loop() -> None:
    """Doubles, a matrix for each text, no text at all."""
    x, matrix = torch.randn(2, 3, 6), torch.randn(2, 6)
    assert recurrence.usable(x, matrix) == (HERE is not None)
    assert not recurrence.usable(x.double(), matrix)
    assert not recurrence.usable(x, matrix.expand(2, -1, -1))
    assert not recurrence.usable(x[:0], matrix)


HARNESS = """
#include "recurrence.h"
#include <cstdio>
#include <vector>
extern "C" int factorcell_best();
extern "C" void factorcell_recurrence(Recurrence *, int, int);
int main() {
    for (int variant = 0; variant <= factorcell_best(); variant++)
        for (int64_t B : {1, 3, 17}) for (int64_t T : {1, 4})
        for (int64_t H : {1, 7, 16, 37, 64}) for (int64_t R : {0, 1, 9, 17}) {
            std::vector<std::vector<float>> kept;
            auto make = [&](int64_t n) { kept.emplace_back(n, 0.25f); return kept.back().data(); };
            Recurrence a{};
            a.sequences = B, a.steps = T, a.hidden = H, a.rank = R, a.threads = 2;
            a.given = make(B * T * 3 * H), a.weight = make(H * 3 * H), a.keep = make(T * B * H);
            if (R) a.left = make(B * H * R), a.right = make(B * R * 3 * H);
            a.first_hidden = make(B * H), a.first_memory = make(B * H), a.outputs = make(B * T * H);
            a.memories = make(B * T * H), a.gates = make(B * T * 3 * H), a.reduced = make(B * T * R);
            a.outputs_gradient = make(B * T * H), a.last_memory_gradient = make(B * H);
            a.given_gradient = make(B * T * 3 * H), a.reduced_gradient = make(B * T * R);
            a.first_hidden_gradient = make(B * H), a.first_memory_gradient = make(B * H);
            factorcell_recurrence(&a, 0, variant);
            a.next = 0;
            factorcell_recurrence(&a, 1, variant);
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
    sources = [str(tmp_path / "main.cpp"), str(NATIVE / "recurrence.cpp")]
    subprocess.run(["g++", *flags, "-o", str(tmp_path / "check"), *sources], check=True)
    ran: Any = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr[-2000:]
