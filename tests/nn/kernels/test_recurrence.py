"""The compiled recurrence, compared with a plain loop in double precision, for all shapes and instruction sets."""

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from factorcell.config import RecurrentOptions
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import library, recurrence
from factorcell.nn.kernels.recurrence import PackedWeight, RecurrenceInputs
from tests.kernels import NATIVE, VARIANTS, compiled

Arrays = dict[str, Tensor | None]
Results = tuple[Tensor, Tensor, Tensor]


def arrays(
    batch: int,
    steps: int,
    hidden: int,
    rank: int,
    drop: bool = False,
    norm: bool = False,
    ragged: bool = False,
    scale: bool = False,
    feed: bool = False,
    seed: int = 0,
) -> Arrays:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=random) * scale

    return {
        "input_gates": normal(batch, steps, 3 * hidden),
        "bias": normal(batch, 3 * hidden),
        "input_reduced": normal(batch, steps, rank) if rank else None,
        "weight": normal(hidden, 3 * hidden, scale=hidden**-0.5),
        "left": normal(batch, hidden, rank, scale=hidden**-0.5) if rank else None,
        "right": normal(batch, rank, 3 * hidden, scale=0.5) if rank else None,
        "keep": (normal(steps, batch, hidden) > -0.5).float() / 0.7 if drop else None,
        "norm": normal(8, hidden) if norm else None,
        "scale": 1 + normal(batch, 3 * hidden, scale=0.5) if scale else None,
        "feed": (normal(batch, hidden) > -0.5).float() / 0.7 if feed else None,
        "hidden": normal(batch, hidden, scale=0.5),
        "memory": normal(batch, hidden),
        "lengths": torch.randint(0, steps + 1, (batch,), generator=random) if ragged else None,
    }


def run(a: Arrays) -> Results:
    return recurrence.run(RecurrenceInputs(**a))  # type: ignore[arg-type]


def run_plain_loop(a: Arrays) -> Results:
    x = RecurrenceInputs(**a)  # type: ignore[arg-type]
    texts, states = [], []
    for b in range(len(x.input_gates)):
        h, m, hidden = x.hidden[b], x.memory[b], []
        for t in range(x.input_gates.shape[1]):
            if x.lengths is not None and t >= x.lengths[b]:
                hidden.append(torch.zeros_like(h))
                continue
            scaled_h = h if x.feed is None else h * x.feed[b]
            gates = x.input_gates[b, t] + x.bias[b] + scaled_h @ x.weight * (1.0 if x.scale is None else x.scale[b])
            if x.left is not None and x.right is not None:
                reduced = (
                    scaled_h @ x.left[b] if x.input_reduced is None else x.input_reduced[b, t] + scaled_h @ x.left[b]
                )
                gates = gates + reduced @ x.right[b]
            candidate, forget, output = (normalize(x.norm, j, gate) for j, gate in enumerate(gates.chunk(3)))
            candidate = torch.tanh(candidate) * (1.0 if x.keep is None else x.keep[t, b])
            forget = torch.sigmoid(forget + 1)
            m = forget * m + (1 - forget) * candidate
            h = torch.tanh(normalize(x.norm, 3, m)) * torch.sigmoid(output)
            hidden.append(h)
        texts.append(torch.stack(hidden))
        states.append((h, m))
    return torch.stack(texts), torch.stack([h for h, _ in states]), torch.stack([m for _, m in states])


def normalize(norm: Tensor | None, index: int, values: Tensor) -> Tensor:
    if norm is None:
        return values
    centered = values - values.mean()
    return norm[index] * centered / ((centered**2).mean() + 1e-5).sqrt() + norm[index + 4]


def make_leaves(a: Arrays, double: bool) -> Arrays:
    dtype = torch.double if double else torch.float
    return {
        name: x
        if x is None or name == "lengths"
        else x.to(dtype).clone().requires_grad_(name not in ("keep", "feed") and x.numel() > 0)
        for name, x in a.items()
    }


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-3))


def check(a: Arrays, variant: str, values: float = 1e-5, gradients: float = 1e-4) -> None:
    os.environ["FACTORCELL_KERNEL"] = variant
    fast, plain = make_leaves(a, double=False), make_leaves(a, double=True)
    results = [run(fast), run_plain_loop(plain)]
    for hidden, last, memory in results:
        factor = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
        ((hidden * factor).sum() + (last * 0.3).sum() + (memory**2).sum()).backward()  # type: ignore[no-untyped-call]
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result.double(), expected, atol=values, rtol=values)
    for name, x in fast.items():
        expected_gradient = None if plain[name] is None else plain[name].grad  # type: ignore[union-attr]
        if x is not None and expected_gradient is not None:
            assert x.grad is not None, name
            assert distance(x.grad.double(), expected_gradient) < gradients, name


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 19),
    steps=st.integers(1, 6),
    hidden=st.integers(2, 70),
    rank=st.integers(0, 18),
    drop=st.booleans(),
    norm=st.booleans(),
    ragged=st.booleans(),
    scale=st.booleans(),
    feed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_kernel_equals_the_loop_for_any_shape(variant: str, seed: int, **shape: Any) -> None:
    check(arrays(**shape, seed=seed), variant, *((1e-4, 1e-3) if shape["norm"] and shape["hidden"] < 8 else ()))


@compiled
def test_nothing_is_stored_for_the_backward_pass_without_gradients() -> None:
    a = arrays(5, 4, 20, 3, norm=True)
    with torch.no_grad():
        results = run(a)
        stored = recurrence._forward(a, needs_backward=False, packed=None, is_bfloat16=False, instruction_set=0)[3:]
    assert [array.numel() for array in stored] == [0, 0, 0, 0]
    for result, expected in zip(results, run(make_leaves(a, double=False)), strict=True):
        torch.testing.assert_close(result, expected)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_equals_the_loop_for_published_sizes(variant: str) -> None:
    check(arrays(9, 12, 240, 12, drop=True), variant)
    check(arrays(9, 5, 600, 60, drop=True, norm=True, ragged=True, scale=True, feed=True), variant)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_large_values_neither_overflow_nor_lose_their_sign(variant: str) -> None:
    a = arrays(3, 4, 21, 2, drop=False)
    assert a["input_gates"] is not None
    a["input_gates"][0] *= 1000
    a["input_gates"][1, 2, 5] = torch.nan
    os.environ["FACTORCELL_KERNEL"] = variant
    hidden, _, memory = run(a)
    expected, *_ = run_plain_loop({name: None if x is None else x.double() for name, x in a.items()})
    torch.testing.assert_close(hidden[0].double(), expected[0], atol=1e-4, rtol=1e-4)
    assert hidden[1, :2].isfinite().all()
    assert hidden[1, 3].isnan().any()
    assert hidden[2].isfinite().all()
    assert memory[1].isnan().any()


@compiled
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    a, results = arrays(5, 7, 40, 3, drop=True, norm=True, scale=True, feed=True), []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        x = make_leaves(a, double=False)
        hidden, last, memory = run(x)
        (hidden.sum() + memory.sum()).backward()  # type: ignore[no-untyped-call]
        results.append([hidden, last, memory, *(value.grad for value in x.values() if value is not None)])
    for other in results[1:]:
        for result, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("adapt", [(), ("concat",), ("factor",), ("scale",), ("concat", "scale", "factor")])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("variational", [False, True])
def test_a_cell_gives_the_same_results_on_every_path(
    adapt: tuple[str, ...], layer_norm: bool, variational: bool
) -> None:
    torch.manual_seed(0)
    options = RecurrentOptions(hidden_size=37, dropout_recurrent=0.3, layer_norm=layer_norm, variational=variational)
    cell = Cell(options, BackboneSizes(20, 5, adapt, 3))
    vector, inputs = torch.randn(6, 5), torch.randn(6, 9, 20)
    results = []
    for kernel, lengths in itertools.product(("off", ""), (None, torch.tensor([9, 1, 0, 4, 9, 8]))):
        os.environ["FACTORCELL_KERNEL"] = kernel
        torch.manual_seed(1)
        cell.zero_grad()
        x, c = inputs.clone().requires_grad_(), vector.clone().requires_grad_()
        hidden, state = cell(x, cell.linear.condition(c), lengths=lengths)
        (hidden.sin().sum() + state.hidden.cos().sum() + state.memory.sum()).backward()
        results.append([hidden.detach(), x.grad, c.grad, *(parameter.grad for parameter in cell.parameters())])
    for plain, fast in zip(results[:2], results[2:], strict=True):
        for result, expected in zip(fast, plain, strict=True):
            if expected is not None:
                assert distance(result, expected) < 1e-5


def test_unsupported_inputs_are_not_usable() -> None:
    a = arrays(2, 3, 6, 1)

    def supports(**changed: Tensor) -> bool:
        return recurrence.supports(RecurrenceInputs(**{**a, **changed}))  # type: ignore[arg-type]

    assert a["input_gates"] is not None
    assert a["weight"] is not None
    assert supports() == (NATIVE is not None)
    assert not supports(input_gates=a["input_gates"].double())
    assert not supports(weight=a["weight"].expand(2, -1, -1))
    assert not supports(input_gates=a["input_gates"][:0])


@compiled
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_of_a_text_do_not_depend_on_the_batch(
    variant: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    monkeypatch.setattr(library, "uses_bfloat16", lambda: half)
    a, count = arrays(45, 3, 37, 5, norm=True), 45

    def results_of(texts: slice) -> list[Tensor]:
        selected = {name: x if x is None or name in ("weight", "norm") else x[texts] for name, x in a.items()}
        leaves = make_leaves(selected, double=False)
        outputs, *_ = recurrence.run(RecurrenceInputs(**leaves))  # type: ignore[arg-type]
        inputs = [leaves[name] for name in ("bias", "hidden")]
        return [outputs, *torch.autograd.grad(outputs.square().sum(), [x for x in inputs if x is not None])]

    single = [results_of(slice(text, text + 1)) for text in range(count)]
    for batch, parts in zip(results_of(slice(count)), zip(*single, strict=True), strict=True):
        assert torch.equal(batch, torch.cat(parts))


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("hidden", [5, 33])
def test_a_packed_weight_gives_the_same_results(hidden: int, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    for half in (False, True) if variant in library.BFLOAT16_VARIANTS else (False,):
        with library.precision("bfloat16" if half else "float32", torch.device("cpu")):
            a = make_leaves(arrays(3, 6, hidden, 2, norm=True, ragged=True), double=False)
            weight = a["weight"]
            assert weight is not None
            packed, results = PackedWeight.of(weight), []
            leaves = [x for x in a.values() if x is not None and x.requires_grad]
            wrong = PackedWeight(packed.forward * 0, packed.backward * 0, packed.instruction_set, packed.is_bfloat16)
            other = replace(wrong, is_bfloat16=not half)
            for candidate in (None, packed, other, wrong):
                outputs, *_ = recurrence.run(RecurrenceInputs(**a, packed=candidate))  # type: ignore[arg-type]
                gradients = torch.autograd.grad(outputs.square().sum(), leaves)
                results.append((outputs, *gradients))
            for unpacked, with_packed, with_other in zip(*results[:3], strict=True):
                assert torch.equal(unpacked, with_packed)
                assert torch.equal(unpacked, with_other)
            assert not torch.equal(results[0][0], results[3][0]), "the packed weight was not used"
