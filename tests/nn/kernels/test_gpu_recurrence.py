"""The GPU recurrence, compared with a plain loop in double precision; interpreted if there is no GPU."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from factorcell.config import RecurrentOptions
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import gpu, gpu_recurrence
from factorcell.nn.kernels.recurrence import RecurrenceInputs
from tests.nn.kernels import test_recurrence
from tests.nn.kernels.test_recurrence import Arrays

pytestmark = [pytest.mark.slow, pytest.mark.skipif(gpu.triton is None, reason="Triton is not installed")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


NAMES = ("input_gates", "input_reduced", "weight", "left", "right", "keep", "hidden", "memory")


def arrays(batch: int, steps: int, hidden: int, rank: int, drop: bool, ragged: bool, seed: int = 0) -> Arrays:
    """Return random arguments of the kernel; if `ragged`, texts of all lengths from 0 on."""
    all_arrays = test_recurrence.arrays(batch, steps, hidden, rank, drop=drop, seed=seed)
    return {name: all_arrays[name] for name in NAMES} | {
        "lengths": torch.arange(batch) % (steps + 1) if ragged else None
    }


def run(a: Arrays) -> tuple[Tensor, Tensor]:
    input_gates = a["input_gates"]
    assert input_gates is not None
    bias = input_gates.new_zeros(len(input_gates), input_gates.shape[2])
    return gpu_recurrence.run(RecurrenceInputs(**a, bias=bias))  # type: ignore[arg-type]


def run_plain_loop(a: Arrays) -> tuple[Tensor, Tensor]:
    input_gates = a["input_gates"]
    assert input_gates is not None
    bias = input_gates.new_zeros(len(input_gates), input_gates.shape[2])
    outputs, _, memory = test_recurrence.run_plain_loop({**a, "bias": bias, "norm": None, "scale": None, "feed": None})
    return outputs, memory


def make_leaves(a: Arrays, dtype: torch.dtype, device: str) -> Arrays:
    copies: Arrays = {}
    for name, x in a.items():
        if x is None or name == "lengths":
            copies[name] = None if x is None else x.to(device)
        else:
            copies[name] = x.to(device, dtype).clone().requires_grad_(name != "keep")
    return copies


def check(a: Arrays, dtype: torch.dtype = torch.float32, value: float = 1e-5, gradient: float = 1e-4) -> None:
    fast = make_leaves(a, dtype, DEVICE)
    plain = make_leaves({name: round_to(x, dtype) for name, x in a.items()}, torch.double, "cpu")
    results = [run(fast), run_plain_loop(plain)]
    for hidden, memory in results:
        factor = torch.linspace(-1, 1, hidden.numel(), dtype=torch.double).view_as(hidden).to(hidden.device)
        ((hidden.double() * factor).sum() + (memory.double() ** 2).sum()).backward()  # type: ignore[no-untyped-call]
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result.cpu().double(), expected, atol=value, rtol=value)
    for name, x in fast.items():
        leaf = plain[name]
        if x is not None and x.requires_grad:
            assert leaf is not None
            assert x.grad is not None, name
            assert x.grad.dtype == dtype
            expected = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            assert test_recurrence.distance(x.grad.cpu().double(), expected) < gradient, name


def round_to(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype) if x.is_floating_point() else x


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {
        "MAX_RESIDENT_BYTES": 0,
        "MAX_STAGE_BYTES": 0,
        "MAX_TILE_SUMS": 256,
        "MAX_TILE_VALUES": 256,
    }.items():
        monkeypatch.setattr(gpu_recurrence, name, size)


SHAPES = {
    "batch": st.integers(1, 9),
    "steps": st.integers(1, 3),
    "hidden": st.integers(1, 40),
    "rank": st.integers(0, 9),
    "drop": st.booleans(),
    "ragged": st.booleans(),
    "seed": st.integers(0, 99),
}


@settings(max_examples=4)
@given(**SHAPES)
@example(batch=1, steps=1, hidden=1, rank=1, drop=False, ragged=False, seed=0)
@example(batch=1, steps=3, hidden=33, rank=0, drop=False, ragged=False, seed=0)
@example(batch=1, steps=2, hidden=8, rank=2, drop=True, ragged=True, seed=0)  # the only text is empty
def test_any_shape_with_weights_in_shared_memory(
    batch: int, steps: int, hidden: int, rank: int, drop: bool, ragged: bool, seed: int
) -> None:
    check(arrays(batch, steps, hidden, rank, drop, ragged, seed))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize(
    ("batch", "steps", "hidden", "rank", "drop", "ragged"),
    [(1, 1, 17, 1, False, False), (18, 3, 37, 3, True, True), (5, 2, 48, 0, False, True), (3, 4, 33, 19, True, False)],
)
def test_weights_streamed_in_tiles(batch: int, steps: int, hidden: int, rank: int, drop: bool, ragged: bool) -> None:
    check(arrays(batch, steps, hidden, rank, drop, ragged))


def test_input_reduced_is_optional() -> None:
    check({**arrays(3, 3, 10, 2, drop=False, ragged=False), "input_reduced": None})


def test_the_memory_is_float32_for_bfloat16_inputs() -> None:
    check(arrays(5, 4, 20, 3, drop=True, ragged=True), torch.bfloat16, value=2e-2, gradient=2e-2)
    a = arrays(2, 40, 16, 0, drop=False, ragged=False)
    # sigmoid(9 + 1) forgets 1 part in 22,000 per step, a difference from 1 that bfloat16 cannot represent.
    forget = torch.tensor([0.0, 9.0, 0.0]).repeat_interleave(16)
    a["input_gates"], a["weight"] = forget.expand(2, 40, 48), torch.zeros(16, 48)
    low = {name: x if x is None else x.to(DEVICE, torch.bfloat16) for name, x in a.items()}
    _, memory = run(low)
    assert memory.dtype == torch.float32
    _, expected = run_plain_loop({name: x if x is None else x.to("cpu", torch.double) for name, x in low.items()})
    torch.testing.assert_close(memory.cpu().double(), expected, atol=1e-5, rtol=1e-5)


def test_values_beyond_the_end_are_never_read() -> None:
    a = make_leaves(arrays(6, 4, 10, 2, drop=True, ragged=True), torch.float32, DEVICE)
    lengths = a["lengths"]
    assert lengths is not None
    beyond = torch.arange(4, device=DEVICE) >= lengths[:, None]
    for name in ("input_gates", "input_reduced"):
        x = a[name]
        assert x is not None
        x.data[beyond] = torch.nan
    hidden, memory = run(a)
    assert bool((hidden[beyond] == 0).all())
    empty = a["memory"]
    assert empty is not None
    assert torch.equal(memory[lengths == 0], empty[lengths == 0])
    factor = torch.where(beyond[:, :, None], torch.nan, 1.0)  # gradients beyond the end are ignored
    torch.autograd.backward([hidden, memory], [factor.expand_as(hidden), torch.ones_like(memory)])
    for name, x in a.items():
        if x is not None and x.grad is not None:
            assert x.grad.isfinite().all(), name
            if name in ("input_gates", "input_reduced"):
                assert (x.grad[beyond] == 0).all(), name


def test_large_values_saturate_and_nan_affects_only_its_text() -> None:
    a = arrays(3, 3, 21, 2, drop=False, ragged=False)
    assert a["input_gates"] is not None
    a["input_gates"][0] *= 1000
    a["input_gates"][1, 1, 5] = torch.nan
    low = {name: None if x is None else x.to(DEVICE) for name, x in a.items()}
    with np.errstate(over="ignore", invalid="ignore"):  # numpy in the interpreter warns about both
        hidden, memory = run(low)
    expected, _ = run_plain_loop({name: None if x is None else x.double() for name, x in a.items()})
    torch.testing.assert_close(hidden[0].cpu().double(), expected[0], atol=1e-4, rtol=1e-4)
    assert hidden[1, 0].isfinite().all()
    assert hidden[1, 2].isnan().any()
    assert hidden[2].isfinite().all()
    assert memory[1].isnan().any()


def test_two_halves_equal_the_whole() -> None:
    a = {name: x if x is None else x.to(DEVICE) for name, x in arrays(3, 6, 12, 2, False, False).items()}
    hidden, memory = run(a)
    halves = []
    for part in (slice(0, 2), slice(2, 6)):
        for name in ("input_gates", "input_reduced"):
            x = a[name]
            assert x is not None
            a[f"half_{name}"] = x[:, part]
        half = {**a, "input_gates": a["half_input_gates"], "input_reduced": a["half_input_reduced"]}
        half = {name: x for name, x in half.items() if not name.startswith("half_")}
        outputs, a["memory"] = run(half)
        a["hidden"] = outputs[:, -1]
        halves.append(outputs)
    torch.testing.assert_close(torch.cat(halves, dim=1), hidden)
    torch.testing.assert_close(a["memory"], memory)


@pytest.mark.parametrize("tiles", ["_small_tiles", "seed"])
def test_nothing_is_written_outside_the_arrays(tiles: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(tiles)
    batch, steps, hidden, rank = 5, 3, 21, 3
    a = {**arrays(batch, steps, hidden, rank, drop=True, ragged=False), "lengths": None}
    expected, last = run_plain_loop(a)
    texts, all_texts = (batch, hidden), (batch, steps, hidden)
    buffers: dict[str, Tensor] = {}

    def padded(name: str, shape: tuple[int, ...], content: Tensor | float) -> Tensor:
        size = torch.Size(shape).numel()
        buffers[name] = torch.full((size + 256,), torch.nan, device=DEVICE)
        view = buffers[name][128:-128].view(shape)
        view.copy_(torch.as_tensor(content).expand(shape))
        return view

    views = {name: None if x is None else padded(name, tuple(x.shape), x) for name, x in a.items()}
    left, weight, input_gates = a["left"], views["weight"], views["input_gates"]
    assert left is not None
    assert weight is not None
    assert input_gates is not None
    left_t = padded("left_t", (batch, rank, hidden), left.transpose(1, 2))
    state, m = padded("state", (2, *texts), torch.nan), padded("last", texts, a["memory"])  # type: ignore[arg-type]
    state[0] = a["hidden"]  # type: ignore[assignment]
    widths = {"outputs": hidden, "memories": hidden, "gates": 3 * hidden, "reduced": rank}
    results = [padded(name, (batch, steps, width), torch.nan) for name, width in widths.items()]
    first = (input_gates, views["input_reduced"], weight, left_t, views["right"], views["keep"], None, state, m)
    gpu_recurrence._launch(gpu_recurrence._forward_kernel, (*first, *results), weight, input_gates, rank)
    torch.testing.assert_close(results[0].cpu(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(m.cpu(), last, atol=1e-5, rtol=1e-5)
    gradients = [
        padded(f"of {n}", s, torch.nan) for n, s in enumerate([(batch, steps, 3 * hidden), (batch, steps, rank), texts])
    ]
    upstream, of_m = padded("upstream", all_texts, 1.0), padded("of m", texts, 1.0)
    second = (upstream, weight, left_t, views["right"], views["keep"], None, views["memory"], results[1], results[2])
    gpu_recurrence._launch(gpu_recurrence._backward_kernel, (*second, *gradients, of_m), weight, input_gates, rank)
    for name, x in buffers.items():
        assert x[:128].isnan().all(), name
        assert x[-128:].isnan().all(), name
        assert x[128:-128].isfinite().all(), name


@pytest.mark.parametrize("ragged", [False, True])
def test_a_cell_uses_the_kernel_if_supported(ragged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = torch.tensor([3, 0, 2], device=DEVICE) if ragged else None
    inputs, vector = torch.randn(3, 3, 4, device=DEVICE), torch.randn(3, 2, device=DEVICE)
    for layer_norm in (False, True):
        options = RecurrentOptions(hidden_size=6, layer_norm=layer_norm)
        cell, results = Cell(options, BackboneSizes(4, 2, ("concat", "factor"), 2)).to(DEVICE), []
        calls: list[int] = []
        launch = Cell._run_on_gpu
        monkeypatch.setattr(Cell, "_run_on_gpu", staticmethod(lambda a, c=calls, f=launch: (c.append(1), f(a))[1]))
        for kernel in ("off", "triton"):
            monkeypatch.setenv("FACTORCELL_KERNEL", kernel)
            cell.zero_grad()
            hidden, state = cell(inputs, cell.linear.condition(vector), lengths=lengths)
            (hidden.sin().sum() + state.hidden.cos().sum() + state.memory.sum()).backward()
            results.append([hidden, state.hidden, state.memory, *(p.grad for p in cell.parameters())])
        assert len(calls) == (0 if layer_norm else 1)
        for result, expected in zip(*results, strict=True):
            torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
        monkeypatch.setattr(Cell, "_run_on_gpu", launch)


def test_unsupported_inputs_use_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", "triton")
    x, matrix = torch.randn(2, 3, 6, device=DEVICE), torch.randn(2, 6, device=DEVICE)
    assert gpu_recurrence.supports(x, matrix)
    assert gpu_recurrence.supports(x.bfloat16(), matrix.bfloat16())
    assert not gpu_recurrence.supports(x.double(), matrix.double())
    assert not gpu_recurrence.supports(x.bfloat16(), matrix)
    assert not gpu_recurrence.supports(x, matrix.expand(2, -1, -1))
    assert not gpu_recurrence.supports(x[:0], matrix)
    monkeypatch.delenv("FACTORCELL_KERNEL")
    assert gpu_recurrence.supports(x, matrix) == (DEVICE == "cuda")
