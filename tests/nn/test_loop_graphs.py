"""Recorded loops give the results of the loop in Python.

Without a GPU, a recording is simulated: a replay runs the recorded function again on the same arrays, and a replay of
one loop destroys the intermediate values of all others, which share their memory on a GPU.
"""

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from factorcell.adapters.adapters import ADAPTERS
from factorcell.config import RecurrentOptions
from factorcell.nn.backbones import loop_graphs
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.cells import CELLS
from factorcell.nn.backbones.loop_graphs import LoopGraphs, bucket_size
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
E, H, K, R = 3, 8, 2, 2
ALL = tuple(ADAPTERS)


def address(loop: Any) -> int:
    """Return the address of the buffer of the layer to which a loop belongs."""
    buffer: int = loop.arrays["outputs"].untyped_storage().data_ptr()
    return buffer


class Recorder:
    """Replacement of `record`: counts recordings and replays."""

    def __init__(self) -> None:
        self.recordings, self.replays, self.loops = 0, list[str](), list[Any]()

    def __call__(self, work: Callable[[], None], pool: Any) -> Callable[[], None]:
        loop: Any = work.__self__  # type: ignore[attr-defined]
        self.recordings += 1
        self.loops.append(loop)
        work()

        def replay() -> None:
            name = work.__name__
            for other in self.loops:
                is_same_layer = address(other) == address(loop)
                if is_same_layer and (other is not loop or name == "forward"):
                    other.results = ()
            work()
            self.replays.append(name)

        return replay


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    if DEVICE == "cpu":
        monkeypatch.setattr(loop_graphs, "record", recorder)
        monkeypatch.setattr(LoopGraphs, "supports", lambda self, gates: not self.has_failed)
        monkeypatch.setattr(gpu, "supports", lambda *arrays: False)  # Triton's interpreter is slow
    monkeypatch.setenv("FACTORCELL_KERNEL", "triton")  # neither compiled code nor, for float32 here, its GPU kernel
    monkeypatch.setattr("factorcell.nn.kernels.gpu_recurrence.supports", lambda gates, matrix: False)
    return recorder


def make_cell(kind: str = "coupled", adapt: tuple[str, ...] = ALL, **options: Any) -> Cell:
    torch.manual_seed(0)
    cell = Cell(RecurrentOptions(hidden_size=H, cell=kind, **options), BackboneSizes(E, K, adapt, R))
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.normal_(0, 0.4)
    return cell.to(DEVICE)


def run(cell: Cell, shape: tuple[int, int], lengths: Tensor | None = None, seed: int = 0) -> list[Tensor]:
    """Return the results and all gradients of a pass."""
    generator = torch.Generator().manual_seed(seed)
    batch, steps = shape
    x, c = torch.randn(batch, steps, E, generator=generator), torch.randn(batch, K, generator=generator)
    x, c = x.to(DEVICE).requires_grad_(), c.to(DEVICE).requires_grad_()
    cell.zero_grad()
    torch.manual_seed(seed)  # of the dropout masks
    outputs, state = cell(x, cell.linear.condition(c), None, lengths)
    (outputs.sin().sum() + state.hidden.cos().sum() + state.memory.square().sum()).backward()
    gradients = [parameter.grad for parameter in cell.parameters()]
    return [x for x in (outputs, state.hidden, state.memory, x.grad, c.grad, *gradients) if x is not None]


def expect(cell: Cell, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> list[Tensor]:
    """Return the results of the loop in Python."""
    with monkeypatch.context() as patch:
        patch.setattr(LoopGraphs, "supports", lambda self, gates: False)
        return run(cell, *arguments)


def check_equal(results: list[Tensor], expected: list[Tensor]) -> None:
    assert len(results) == len(expected)
    for result, other in zip(results, expected, strict=True):
        assert result.shape == other.shape
        assert (result - other).norm() <= 1e-5 + 1e-5 * other.norm()


@pytest.mark.parametrize("count", [1, 5, 8, 9, 12, 13, 16, 17, 24, 25, 33, 48, 100, 128])
def test_a_bucket_is_the_next_power_of_two_or_three_quarters_of_it(count: int) -> None:
    sizes = sorted({8, 12} | {factor * 2**power for factor in (2, 3) for power in range(3, 8)})
    assert bucket_size(count) == min(size for size in sizes if size >= count)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_every_cell_gives_the_results_of_the_loop(
    kind: str, layer_norm: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = torch.tensor([4, 0, 5, 1, 3], device=DEVICE)
    cases: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), {}),
        (("concat", "factor"), {"dropout_recurrent": 0.3}),
        (ALL, {"dropout_recurrent": 0.3, "variational": True}),
    ]
    for adapt, dropout in cases:
        cell = make_cell(kind, adapt, layer_norm=layer_norm, **dropout)
        for arguments in (((5, 6), lengths), ((3, 9), None)):
            check_equal(run(cell, *arguments), expect(cell, monkeypatch, *arguments))
    if DEVICE == "cpu":
        assert recorder.replays[:4] == ["forward", "backward"] * 2


@pytest.mark.slow
@pytest.mark.skipif(gpu.triton is None, reason="Triton is not installed")
def test_the_kernel_of_a_step_gives_the_results_of_the_loop(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "supports", lambda *arrays: True)
    lengths = torch.tensor([2, 0, 3], device=DEVICE)
    for layer_norm in (False, True):
        cell = make_cell(layer_norm=layer_norm, dropout_recurrent=0.3)
        check_equal(run(cell, (3, 3), lengths), expect(cell, monkeypatch, (3, 3), lengths))


def test_batches_of_other_shapes_use_the_same_recording(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell(layer_norm=True)
    shapes = [(8, 8), (3, 5), (7, 8), (1, 1)]
    expected = [expect(cell, monkeypatch, shape) for shape in shapes]
    for shape, results in zip(shapes, expected, strict=True):
        check_equal(run(cell, shape), results)
    assert len(cell.graphs.graphs) == 1
    run(cell, (9, 16))
    assert len(cell.graphs.graphs) == 1  # a larger buffer replaces the first, with its recording
    run(cell, (3, 5))
    assert len(cell.graphs.graphs) == 2


def test_values_of_an_earlier_batch_do_not_change_a_result(recorder: Recorder) -> None:
    cell = make_cell("relu", layer_norm=True)
    expected = run(cell, (2, 3))
    with torch.no_grad():
        cell(torch.full((8, 8, E), torch.nan, device=DEVICE), cell.linear.condition(torch.zeros(8, K, device=DEVICE)))
    buffer = cell.graphs.buffer
    assert buffer is not None
    buffer.fill_(255)  # bytes of NaN
    for result, other in zip(run(cell, (2, 3)), expected, strict=True):
        assert torch.equal(result, other)


def test_long_texts_are_read_in_pieces(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_graphs, "MAX_STEPS", 8)
    lengths = torch.tensor([20, 7, 8, 0], device=DEVICE)
    for kind in ("coupled", "gru"):
        cell = make_cell(kind, layer_norm=True, dropout_recurrent=0.2)
        for arguments in (((4, 20), lengths), ((4, 20), None)):
            recorder.replays.clear()
            check_equal(run(cell, *arguments), expect(cell, monkeypatch, *arguments))
            if DEVICE == "cpu":  # the values of the first two pieces are computed again
                assert recorder.replays == ["forward"] * 3 + ["backward", "forward", "backward", "forward", "backward"]


def test_two_passes_before_their_backward_passes(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell(layer_norm=True)

    def two_passes() -> list[Tensor]:
        torch.manual_seed(3)
        cell.zero_grad()
        shift = cell.linear.condition(torch.randn(4, K, device=DEVICE))
        first, state = cell(torch.randn(4, 3, E, device=DEVICE), shift)
        second, _ = cell(torch.randn(4, 20, E, device=DEVICE), shift, state)
        with torch.no_grad():
            cell(torch.randn(4, 3, E, device=DEVICE), shift)
        (first.sin().sum() + second.cos().sum()).backward()
        return [first, second, *(parameter.grad for parameter in cell.parameters() if parameter.grad is not None)]

    results = two_passes()
    monkeypatch.setattr(LoopGraphs, "supports", lambda self, gates: False)
    check_equal(results, two_passes())


def test_scoring_records_no_backward_pass(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell("gru").requires_grad_(False)
    x, shift = torch.randn(3, 4, E, device=DEVICE), cell.linear.condition(torch.randn(3, K, device=DEVICE))
    with torch.inference_mode():
        outputs, state = cell(x, shift)
        folded, _ = cell(x, cell.linear.fold(shift))  # a matrix per text
    (graph, other) = cell.graphs.graphs.values()
    assert not hasattr(graph, "replay_backward")
    assert not hasattr(other, "replay_backward")
    monkeypatch.setattr(LoopGraphs, "supports", lambda self, gates: False)
    check_equal([outputs, folded, state.hidden], [cell(x, shift)[0], cell(x, shift)[0], cell(x, shift)[1].hidden])


def test_a_layer_that_first_scored_can_be_trained(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell(layer_norm=True)
    with torch.inference_mode():
        cell(torch.randn(5, 6, E, device=DEVICE), cell.linear.condition(torch.randn(5, K, device=DEVICE)))
    check_equal(run(cell, (5, 6)), expect(cell, monkeypatch, (5, 6)))


def test_matrices_of_texts_get_gradients(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell("coupled", layer_norm=True)
    fold = cell.linear.fold
    monkeypatch.setattr(cell.linear, "condition", lambda c, f=cell.linear.condition: fold(f(c)))
    check_equal(run(cell, (3, 4)), expect(cell, monkeypatch, (3, 4)))


def test_products_in_bfloat16_are_close_to_those_of_the_loop(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("coupled", "gru"):
        cell = make_cell(kind, layer_norm=True)
        exact = expect(cell, monkeypatch, (4, 5))
        with torch.autocast(DEVICE, torch.bfloat16):
            results = run(cell, (4, 5))
        assert results[0].dtype == torch.float32
        for result, expected in zip(results, exact, strict=True):
            assert (result - expected).norm() <= 0.05 * expected.norm() + 1e-3


def test_the_least_recently_used_recording_is_removed(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_graphs, "MAX_GRAPHS", 2)
    cell = make_cell()
    for steps in (24, 16, 24, 8):
        run(cell, (2, steps))
    assert [graph.arrays["outputs"].shape[1] for graph in cell.graphs.graphs.values()] == [24, 8]


def test_a_failure_falls_back_to_the_loop(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(work: Any, pool: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    cell = make_cell(layer_norm=True)
    expected = expect(cell, monkeypatch, (3, 4))
    monkeypatch.setattr(loop_graphs, "record", fail)
    reason = "a loop cannot be recorded in a CUDA graph (operation not permitted when stream is capturing); "
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            check_equal(run(cell, (3, 4)), expected)
    assert [record.getMessage() for record in caplog.records if "recorded" in record.getMessage()] == [
        reason + "using separate kernels",
        reason + "running it step by step",
    ]
    assert cell.graphs.buffer is None


def test_a_copy_of_a_layer_has_no_graphs(recorder: Recorder) -> None:
    cell = make_cell()
    run(cell, (2, 3))
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert not other.graphs.graphs
        check_equal(run(other, (2, 3)), run(cell, (2, 3)))


def test_a_processor_and_the_setting_off_use_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = torch.randn(2, 3, 4, device=DEVICE)
    graphs = LoopGraphs(CELLS["gru"]())
    assert not graphs.supports(gates.cpu())
    assert graphs.supports(gates) == (DEVICE == "cuda")
    assert not graphs.supports(gates[:0])
    monkeypatch.setenv("FACTORCELL_KERNEL", "off")
    assert not graphs.supports(gates)
