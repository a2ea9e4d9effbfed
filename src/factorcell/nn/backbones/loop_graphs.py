"""CUDA graphs of recurrent loops, so that a GPU does not wait for Python between the steps.

A step of `cells.run_loop` is some 25 short kernels, and its backward pass twice as many. Python needs about 10
microseconds to launch a kernel, and a GPU about 2 to run it. A CUDA graph records the kernels of all steps once, for
every cell, and launches them again without Python. It has fixed shapes and fixed addresses. Therefore

- numbers of texts and of steps are rounded up to `bucket_size`, and the loop skips what lies beyond the lengths;
- long texts are read in pieces of `MAX_STEPS`;
- arrays are copied into one buffer per layer before a replay, and results are copied out of it. All graphs of a layer
  share this buffer and the memory of their intermediate values. A backward pass whose values another replay has
  overwritten first replays its forward pass again.

The graphs compute no gradients of W, L and R: products over all steps compute them after the backward replay, as in
`kernels.gpu_recurrence`, which saves reading and writing gradients of their sizes at every step.

Shapes: B texts, T steps, H hidden, G columns of all gates, R rank.
"""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factorcell.nn.backbones.cells import CellState, RecurrentStep, run_loop, update_state, update_state_in_one_kernel
from factorcell.nn.kernels import gpu, library
from factorcell.nn.kernels.recurrence import ARRAY_FIELDS, RecurrenceInputs

MAX_STEPS = 128  # most steps of a graph; a piece of a longer text is replayed again in the backward pass
MAX_GRAPHS = 48  # most graphs of a layer; the least recently used ones are removed
ALIGNMENT = 512  # bytes between the starts of arrays in the buffer are a multiple of this
GROWTH = 1.5  # size of a new buffer relative to the size that the first graph in it needs

# Arrays that a graph reads. Those of the products have the type of the products, the others are float32.
PRODUCT_ARRAYS = ("input_reduced", "weight", "left", "right")
STATE_ARRAYS = ("input_gates", "keep", "norm", "scale", "feed", "hidden", "memory")
ARRAYS = (*PRODUCT_ARRAYS, *STATE_ARRAYS)
# Arrays whose gradients a graph computes. "zeros" are the zeros that `run_loop` adds to the products p for steps with
# separate products; for all other steps, the gradients of p are those of the gates.
DIFFERENTIATED = ("input_gates", "zeros", "input_reduced", "norm", "hidden", "memory")
RESULTS = ("outputs", "last_hidden", "last_memory")

_RECORDING = threading.Lock()  # PyTorch records one graph at a time

log = logging.getLogger(__name__)

Arrays = dict[str, Tensor]
OptionalArrays = dict[str, Tensor | None]


def bucket_size(count: int) -> int:
    """Return the smallest of 8, 12, 16, 24, 32, 48, 64, ... that is at least `count`."""
    power = 1 << max(3, (count - 1).bit_length())
    return power * 3 // 4 if power > 8 and count <= power * 3 // 4 else power


class LoopGraph:
    """A recorded loop of fixed shapes: its forward and its backward pass over arrays at fixed addresses.

    Attributes:
        arrays: The arrays that the loop reads, results, and gradients, all in the buffer of the layer.
        replay_forward: Computes the results from the arrays.
        replay_backward: Computes the gradients after `replay_forward`, if the graph has a backward pass.
    """

    replay_forward: Callable[[], None]
    replay_backward: Callable[[], None]

    def __init__(
        self, step: RecurrentStep, update: Callable[..., CellState], arrays: Arrays, differentiated: Sequence[str]
    ) -> None:
        self.step, self.update, self.arrays, self.differentiated = step, update, arrays, differentiated
        self.results: tuple[Tensor, ...] = ()
        self.replays = 0

    def forward(self) -> None:
        """Compute the results, and keep what the backward pass needs."""
        arrays = self.arrays
        with torch.inference_mode(False), torch.set_grad_enabled(bool(self.differentiated)):
            if "zeros" in arrays:
                arrays["zeros"].detach().zero_()  # other graphs use the same memory
            gates = arrays["input_gates"]
            optional: OptionalArrays = {name: arrays.get(name) for name in ARRAY_FIELDS}
            inputs = RecurrenceInputs(**{**optional, "bias": gates[:, 0]})  # type: ignore[arg-type]
            outputs, state = run_loop(self.step, gates, inputs, zeros=arrays.get("zeros"), update=self.update)
        self.results = outputs, state.hidden, state.memory
        with torch.no_grad():
            for name, result in zip(RESULTS, self.results, strict=True):
                arrays[name].copy_(result)

    def backward(self) -> None:
        """Compute the gradients of the differentiated arrays from those of the results."""
        arrays = self.arrays
        leaves = [arrays[name] for name in self.differentiated]
        with torch.inference_mode(False):
            named_results = zip(RESULTS, self.results, strict=True)
            pairs = [(result, arrays[f"of_{name}"]) for name, result in named_results if result.requires_grad]
            results, of_results = (list(tensors) for tensors in zip(*pairs, strict=True))
            gradients = torch.autograd.grad(results, leaves, of_results, allow_unused=True)
        self.results = ()
        with torch.no_grad():
            for name, gradient in zip(self.differentiated, gradients, strict=True):
                of_array = arrays[f"of_{name}"]
                of_array.zero_() if gradient is None else of_array.copy_(gradient)


Replay = tuple[LoopGraph, int]  # a replay of the forward pass of a graph, with its number


class LoopGraphs:
    """The CUDA graphs of a layer; `in_one_kernel`: one Triton kernel computes a step except its products (coupled)."""

    def __init__(self, step: RecurrentStep, in_one_kernel: bool = False) -> None:
        self.step, self.in_one_kernel = step, in_one_kernel
        self.lock = threading.Lock()
        self.has_failed = False
        self.graphs: OrderedDict[Any, LoopGraph] = OrderedDict()
        self.buffer: Tensor | None = None
        self.pool: Any = None
        self.last_replay: Replay | None = None  # the forward pass whose intermediate values are in memory

    def __reduce__(self) -> tuple[type["LoopGraphs"], tuple[RecurrentStep, bool]]:
        """Copy a layer without its graphs, which belong to addresses."""
        return LoopGraphs, (self.step, self.in_one_kernel)

    def supports(self, gates: Tensor) -> bool:
        """Whether `run` supports these gates (B, T, G): on a GPU, not empty, and float32 or bfloat16."""
        is_enabled = not self.has_failed and os.environ.get("FACTORCELL_KERNEL") != "off"
        is_recording = gates.is_cuda and torch.cuda.is_current_stream_capturing()
        return is_enabled and gates.is_cuda and gates.numel() > 0 and gates.dtype in library.FLOATS and not is_recording

    def run(self, gates: Tensor, inputs: RecurrenceInputs) -> tuple[Tensor, CellState]:
        """Compute `run_loop`.

        If a graph cannot be recorded, log a warning; from then on use separate kernels, or run the loop in Python.
        """
        is_bfloat16 = library.autocasts_to_bfloat16(gates.device)
        with torch.autocast(gates.device.type, enabled=False):
            arrays = self._convert(gates, inputs, torch.bfloat16 if is_bfloat16 else torch.float32)
            while not self.has_failed:
                try:
                    return self._run_pieces(arrays, inputs.lengths)
                except Exception as error:  # errors of the step itself are raised again by the loop
                    self._forget(None)
                    self.has_failed = not self.in_one_kernel
                    remedy = "running it step by step" if self.has_failed else "using separate kernels"
                    log.warning("a loop cannot be recorded in a CUDA graph (%s); %s", error, remedy)
                    self.in_one_kernel = False
        return run_loop(self.step, gates, inputs)

    @staticmethod
    def _convert(gates: Tensor, inputs: RecurrenceInputs, product_type: torch.dtype) -> OptionalArrays:
        """Return the arrays of the loop by name, each in its type of numbers."""
        arrays = replace(inputs, input_gates=gates)
        types = dict.fromkeys(PRODUCT_ARRAYS, product_type) | dict.fromkeys(STATE_ARRAYS, torch.float32)
        values = {name: getattr(arrays, name) for name in types}
        return {name: None if array is None else array.to(types[name]) for name, array in values.items()}

    def _run_pieces(self, arrays: OptionalArrays, lengths: Tensor | None) -> tuple[Tensor, CellState]:
        """Run pieces of at most `MAX_STEPS` steps one after the other."""
        gates = cast(Tensor, arrays["input_gates"])
        batch, steps = gates.shape[:2]
        lengths = torch.full((batch,), steps, device=gates.device) if lengths is None else lengths
        state, outputs = CellState(cast(Tensor, arrays["hidden"]), cast(Tensor, arrays["memory"])), []
        for first in range(0, steps, MAX_STEPS):
            piece = slice(first, first + MAX_STEPS)
            part = {**arrays, "hidden": state.hidden, "memory": state.memory, "input_gates": gates[:, piece]}
            for name, axis in (("input_reduced", 1), ("keep", 0)):
                if (array := arrays[name]) is not None:
                    part[name] = array[:, piece] if axis else array[piece]
            values = [part[name] for name in ARRAYS]
            needs_backward = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in values)
            of_piece, *last = _Loop.apply(self, needs_backward, (lengths - first).clamp(min=0), *values)  # type: ignore[no-untyped-call]
            state = CellState(*last)
            outputs.append(of_piece)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), state

    def run_forward(
        self, arrays: OptionalArrays, lengths: Tensor, needs_backward: bool
    ) -> tuple[tuple[Tensor, ...], Replay]:
        """Compute the results, copied out of the buffer; also return what identifies this replay."""
        batch, steps = cast(Tensor, arrays["input_gates"]).shape[:2]
        with self.lock:
            replay = self._replay_forward(arrays, lengths, needs_backward)
            outputs, hidden, memory = (replay[0].arrays[name] for name in RESULTS)
            return (outputs[:batch, :steps].clone(), hidden[:batch].clone(), memory[:batch].clone()), replay

    def run_backward(
        self, arrays: OptionalArrays, lengths: Tensor, replay: Replay, of_results: Mapping[str, Tensor]
    ) -> Arrays:
        """Return the gradients of `DIFFERENTIATED`, copied out of the buffer, from the gradients of the results.

        `replay` identifies the forward pass. If its intermediate values are overwritten, compute them again.
        """
        batch, steps = cast(Tensor, arrays["input_gates"]).shape[:2]
        with self.lock:
            if self.last_replay != replay:
                replay = self._replay_forward(arrays, lengths, needs_backward=True)
            graph, _ = replay
            for name, gradient in of_results.items():
                _fill(graph.arrays[f"of_{name}"], gradient, _axes(name, gradient))
            graph.replay_backward()
            self.last_replay = None  # the backward pass has overwritten the intermediate values
            sizes = {"B": batch, "T": steps}
            gradients = {name: graph.arrays[f"of_{name}"] for name in DIFFERENTIATED if f"of_{name}" in graph.arrays}
            return {
                name: x[tuple(slice(sizes[axis]) for axis in _axes(name, x))].clone() for name, x in gradients.items()
            }

    def _replay_forward(self, arrays: OptionalArrays, lengths: Tensor, needs_backward: bool) -> Replay:
        graph = self._graph(arrays, lengths, needs_backward)
        graph.replays += 1
        self.last_replay = graph, graph.replays
        for name, array in arrays.items():
            if array is not None:
                _fill(graph.arrays[name], array, _axes(name, array))
        _fill(graph.arrays["lengths"], lengths, "B")
        graph.replay_forward()
        return self.last_replay

    def _graph(self, arrays: OptionalArrays, lengths: Tensor, needs_backward: bool) -> LoopGraph:
        """Return the graph of these shapes; record it if it is new."""
        gates = cast(Tensor, arrays["input_gates"])
        sizes = {"B": bucket_size(gates.shape[0]), "T": min(bucket_size(gates.shape[1]), MAX_STEPS)}
        present = {name: array for name, array in {**arrays, "lengths": lengths}.items() if array is not None}
        layout = {}  # the shape of each array with its axes rounded up to `sizes`, and its type
        for name, array in present.items():
            axes = _axes(name, array)
            layout[name] = (*(sizes[axis] for axis in axes), *array.shape[len(axes) :]), array.dtype
        key = (tuple(layout.items()), needs_backward, torch.get_float32_matmul_precision(), gates.device)
        if key not in self.graphs:
            with torch.inference_mode(False), gpu.on(gates):
                self.graphs[key] = self._new_graph(layout, sizes, needs_backward, gates.device)
            if len(self.graphs) > MAX_GRAPHS:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return self.graphs[key]

    def _new_graph(
        self,
        layout: dict[str, tuple[tuple[int, ...], torch.dtype]],
        sizes: Mapping[str, int],
        needs_backward: bool,
        device: torch.device,
    ) -> LoopGraph:
        """Record the loop for arrays with these shapes and types."""
        layout = dict(layout)
        (hidden_shape, memory_shape), gates = (layout[name][0] for name in ("hidden", "memory")), layout["input_gates"]
        outputs_shape = (sizes["B"], sizes["T"], hidden_shape[1])
        results = dict(zip(RESULTS, (outputs_shape, hidden_shape, memory_shape), strict=True))
        layout |= {name: (shape, torch.float32) for name, shape in results.items()}
        differentiated: list[str] = []
        if needs_backward:
            if self.step.separate_products:
                layout["zeros"] = (gates[0], layout["weight"][1])
            differentiated = [name for name in DIFFERENTIATED if name in layout]
            layout |= {f"of_{name}": layout[name] for name in (*differentiated, *RESULTS)}
        arrays = self._allocate(layout, device)
        for name in differentiated:
            arrays[name].requires_grad_()
        in_one_kernel = self.in_one_kernel and gpu.supports(arrays["input_gates"])
        update = update_state_in_one_kernel if in_one_kernel else update_state
        graph = LoopGraph(self.step, update, arrays, differentiated)
        if device.type == "cuda":  # the first call of a kernel, which may compile it, cannot be recorded
            with on_recording_stream():
                graph.forward()
                if differentiated:
                    graph.backward()
        graph.replay_forward = record(graph.forward, self.pool)
        if needs_backward:
            graph.replay_backward = record(graph.backward, self.pool)
        graph.results = ()  # the recording of the next graph may use the memory of the intermediate values
        return graph

    def _allocate(self, layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> Arrays:
        """Return arrays with these shapes and types in the buffer; replace the buffer if it is too small."""
        offsets, size = {}, 0
        for name, (shape, dtype) in layout.items():
            offsets[name] = size
            size += -(-torch.Size(shape).numel() * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if self.buffer is None or self.buffer.device != device or len(self.buffer) < size:
            self._forget(torch.zeros(int(size * GROWTH), dtype=torch.uint8, device=device))
        buffer = cast(Tensor, self.buffer)
        arrays = {}
        for name, (shape, dtype) in layout.items():
            content = buffer[offsets[name] :][: torch.Size(shape).numel() * dtype.itemsize]
            # With `data`, autograd counts the changes of each array separately.
            arrays[name] = content.view(dtype).view(shape).data
        return arrays

    def _forget(self, buffer: Tensor | None) -> None:
        """Remove all graphs, and use the new `buffer`."""
        self.graphs.clear()
        self.buffer, self.last_replay = buffer, None
        self.pool = torch.cuda.graph_pool_handle() if buffer is not None and buffer.is_cuda else None


class _Loop(torch.autograd.Function):
    """The autograd function of `LoopGraphs`."""

    @staticmethod
    def forward(
        ctx: Any, graphs: LoopGraphs, needs_backward: bool, lengths: Tensor, *arrays: Tensor | None
    ) -> tuple[Tensor, ...]:
        results, ctx.replay = graphs.run_forward(dict(zip(ARRAYS, arrays, strict=True)), lengths, needs_backward)
        ctx.graphs = graphs
        ctx.save_for_backward(lengths, results[0], *arrays)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_results: Tensor) -> tuple[Tensor | None, ...]:
        lengths, outputs, *saved = ctx.saved_tensors
        arrays: OptionalArrays = dict(zip(ARRAYS, saved, strict=True))
        of_named = dict(zip(RESULTS, of_results, strict=True))
        with torch.autocast(outputs.device.type, enabled=False):
            gradients: OptionalArrays = {**ctx.graphs.run_backward(arrays, lengths, ctx.replay, of_named)}
            of_product = cast(Tensor, gradients.get("zeros", gradients["input_gates"]))
            gradients |= _product_gradients(arrays, outputs, of_product.to(cast(Tensor, arrays["weight"]).dtype))
        is_needed = dict(zip(ARRAYS, ctx.needs_input_grad[3:], strict=True))
        return None, None, None, *(gradients.get(name) if is_needed[name] else None for name in ARRAYS)


def _product_gradients(arrays: OptionalArrays, outputs: Tensor, of_product: Tensor) -> OptionalArrays:
    """Return the gradients of W, s, L and R from those of the products p (B, T, G), over all steps at once."""
    weight, scale, feed = cast(Tensor, arrays["weight"]), arrays["scale"], arrays["feed"]
    left, right, reduced = arrays["left"], arrays["right"], arrays["input_reduced"]
    previous = torch.cat([cast(Tensor, arrays["hidden"])[:, None], outputs[:, :-1]], dim=1)
    previous = (previous if feed is None else previous * feed[:, None]).to(weight.dtype)
    of_shared, of_scale = of_product, None
    if scale is not None:
        of_scale = ((previous @ weight) * of_product).float().sum(1)
        of_shared = (of_product * scale[:, None]).to(weight.dtype)
    if weight.dim() == 2:
        of_weight = previous.flatten(0, 1).T @ of_shared.flatten(0, 1)
    else:
        of_weight = previous.transpose(1, 2) @ of_shared
    of_left = of_right = None
    if left is not None and right is not None:
        of_reduced = of_product @ right.transpose(1, 2)
        total_reduced = previous @ left if reduced is None else previous @ left + reduced
        of_left, of_right = previous.transpose(1, 2) @ of_reduced, total_reduced.transpose(1, 2) @ of_product
    return {"weight": of_weight, "scale": of_scale, "left": of_left, "right": of_right}


def _axes(name: str, array: Tensor) -> str:
    """Name the axes of an array that are rounded up: B texts and T steps, in their order."""
    if name == "weight":
        return "B" if array.dim() == 3 else ""  # W differs between texts if a context is folded into it
    if name in ("input_gates", "input_reduced", "outputs", "zeros"):
        return "BT"
    return {"keep": "TB", "norm": ""}.get(name, "B")


def _fill(buffer: Tensor, array: Tensor, axes: str) -> None:
    """Copy `array` to the start of `buffer`, and set the rest of `buffer` to zero."""
    with torch.no_grad():
        buffer[tuple(slice(size) for size in array.shape[: len(axes)])].copy_(array)
        for axis in range(len(axes)):
            if array.shape[axis] < buffer.shape[axis]:
                buffer.narrow(axis, array.shape[axis], buffer.shape[axis] - array.shape[axis]).zero_()


@cache
def _recording_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of all recordings on a GPU: one stream, because PyTorch keeps working memory per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def on_recording_stream() -> Iterator[None]:
    """Run kernels on the stream of recordings, after those that are launched already and before all later ones."""
    stream = _recording_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def record(work: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Record the kernels that `work` launches in a CUDA graph; return the function that launches them again."""
    graph = torch.cuda.CUDAGraph()
    with _RECORDING, on_recording_stream():
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # which only says that the recording is not valid
                graph.capture_end()
            raise
        graph.capture_end()
    return graph.replay
