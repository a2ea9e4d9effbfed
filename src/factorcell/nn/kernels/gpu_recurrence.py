"""The recurrence of `Cell.forward` (coupled cell) on a GPU: one kernel launch per direction for all steps.

    z[t] = input_reduced[t] + h L        [i, f, o] = input_gates[t] + W h + z[t] R        f = sigmoid(f + 1)
    m = f m + (1 - f) tanh(i) keep[t]    h = tanh(m) sigmoid(o)

W multiplies the hidden state h, and L R is its low-rank change. i, f, o are the gates, m is the memory, and keep are
dropout factors. A program of Triton (a block of GPU threads) computes all hidden units and all steps of a few texts.
Therefore programs never wait for each other; the barriers between two steps are inside a program. The data is placed as
follows:

- W stays in shared memory for the whole launch if it fits (H up to 128 in bfloat16, 64 in float32). A larger W is
  streamed from the L2 cache at every step, in tiles that are fetched before the products need them; all programs read
  the same tiles.
- L and R differ between texts and do not fit into on-chip memory; each is read once per step, which takes most of the
  time. Therefore a program computes fewer texts if there are L and R: more programs then share the reading.
- h, in the type of W, and m, in float32, pass from step to step through small buffers that stay in the caches.

The backward kernel runs through the steps in reverse. The gradient of h[t] is the sum of three terms: the gradient of
the gates of step t + 1 times W^T, the same gradient times R^T L^T, and the gradient of output t. After the kernel,
products over all steps give the gradients of W, L and R.

Names in the kernels: `of_x` is the gradient of the loss with respect to x. `rows` are the texts of a program. `live`
marks the texts that have the current step. `places` are the rows of the current step in an array (B, T, .) viewed as
(B T, .).

Shapes: B texts, T steps, H hidden, R rank. W (H, 3H), L^T (B, R, H), R (B, R, 3H).
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factorcell.nn.kernels import gpu
from factorcell.nn.kernels.gpu import kernel, product, tanh, tl
from factorcell.nn.kernels.recurrence import RecurrenceInputs

# Sizes of tiles for a Hopper processor with 228 KiB of shared memory and 64 Ki registers.
WARPS = 8  # warps of GPU threads per program
MAX_RESIDENT_BYTES = 96 * 1024  # largest size of W that stays in shared memory
MAX_STAGE_BYTES = 64 * 1024  # largest size of the tiles of W and h that are fetched at once
STAGES = 4  # stages of the pipeline: one is computed while the others are fetched
MAX_TILE_SUMS = 4096  # largest number of sums in one tile (texts times hidden units), for each of the three gates
MAX_PREFETCH_BYTES = 160 * 1024  # largest size of the tiles of R that are fetched ahead, in at most six stages
MAX_TILE_VALUES = 8192  # largest number of values in one tile of L or R (texts times ranks times columns)


def supports(input_gates: Tensor, matrix: Tensor) -> bool:
    """Whether `run` supports these arrays: float32 or bfloat16 on a GPU, not empty, and one W for all texts."""
    return matrix.dim() == 2 and gpu.supports(input_gates, matrix)


def run(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Return h (B, T, H) and the last m (B, H) of `inputs` without `norm`, `scale` and `feed`.

    After the `lengths` of a text m does not change, h is zero, and gradients are zero.
    """
    gates = inputs.input_gates + inputs.bias[:, None]
    left_t = None if inputs.left is None else inputs.left.transpose(-2, -1)  # L^T (B, R, H)
    factors = inputs.weight, left_t, inputs.right, inputs.keep
    first = inputs.hidden, inputs.memory, inputs.lengths
    result: tuple[Tensor, Tensor] = _Recurrence.apply(gates, inputs.input_reduced, *factors, *first)  # type: ignore[no-untyped-call]
    return result


@kernel
def _ends(lengths, rows, batch, steps):
    """Return the number of steps of each text in `rows` (ROWS,); rows beyond the batch have 0 steps."""
    ends = steps
    if lengths is not None:
        ends = tl.minimum(tl.load(lengths + rows, mask=rows < batch, other=0).to(tl.int32), steps)
    return tl.where(rows < batch, ends, 0)


@kernel
def _load_tile(array, rows, columns, mask, WIDTH: tl.constexpr):
    """Load a tile `array`[rows, columns] of an array with `WIDTH` columns; zeros where `mask` is false."""
    return tl.load(array + rows[:, None] * WIDTH + columns[None, :], mask=mask, other=0)


@kernel
def _load_gates(array, rows, columns, mask, HIDDEN: tl.constexpr):
    """Load the same tile of each of the three gates, which are adjacent in `array` (., 3H)."""
    i = _load_tile(array, rows, columns, mask, 3 * HIDDEN)
    f = _load_tile(array, rows, columns + HIDDEN, mask, 3 * HIDDEN)
    return i, f, _load_tile(array, rows, columns + 2 * HIDDEN, mask, 3 * HIDDEN)


@kernel
def _store(array, rows, columns, mask, tile, WIDTH: tl.constexpr):
    """Store `tile` in `array`[rows, columns], whose rows have `WIDTH` columns, where `mask` is true."""
    tl.store(array + rows[:, None] * WIDTH + columns[None, :], tile, mask=mask)


@kernel
def _store_gates(array, rows, columns, mask, i, f, o, HIDDEN: tl.constexpr):
    """Store the same tile of each of the three gates, which are adjacent in `array` (., 3H)."""
    _store(array, rows, columns, mask, i, 3 * HIDDEN)
    _store(array, rows, columns + HIDDEN, mask, f, 3 * HIDDEN)
    _store(array, rows, columns + 2 * HIDDEN, mask, o, 3 * HIDDEN)


@kernel
def _weights(weight, inner, columns, HIDDEN: tl.constexpr):
    """Load the tile W[inner, columns] of each of the three gates."""
    return _load_gates(weight, inner, columns, (inner < HIDDEN)[:, None] & (columns < HIDDEN)[None, :], HIDDEN)


@kernel
def _reduce(
    vectors, places, matrices, rows, live,
    SIZE: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return `vectors`[places] (ROWS, SIZE) times the transposed `matrices`[rows] (RANK, SIZE), in float32."""
    ranks = tl.arange(0, RANKS)
    lines = rows[:, None] * RANK + ranks[None, :]
    partial = tl.zeros((rows.shape[0], RANKS, CHUNK), tl.float32)  # summed over its last axis once, at the end
    for start in tl.range(0, SIZE, CHUNK, num_stages=4):
        inner = start + tl.arange(0, CHUNK)
        fits = live[:, None] & (inner < SIZE)[None, :]
        values = _load_tile(vectors, places, inner, fits, SIZE).to(tl.float32)
        mask = fits[:, None, :] & (ranks < RANK)[None, :, None]
        part = tl.load(matrices + lines[:, :, None] * SIZE + inner[None, None, :], mask=mask, other=0)
        partial += values[:, None, :] * part.to(tl.float32)
    return tl.sum(partial, axis=2)


@kernel
def _forward_kernel(
    input_gates, input_reduced, weight, left_t, right, keep, lengths, state, last, outputs, memories, gates, reduced,
    batch, steps,
    HIDDEN: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    DEPTH: tl.constexpr, CHUNK: tl.constexpr, RESIDENT: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Run all steps of `ROWS` texts.

    Even steps read h from `state`[0] (B, H) and write it to `state`[1]; odd steps read `state`[1] and write `state`[0].
    `last` (B, H) is m.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    ends = _ends(lengths, rows, batch, steps)
    if RESIDENT:
        w_i, w_f, w_o = _weights(weight, tl.arange(0, DEPTH), tl.arange(0, UNITS), HIDDEN)
    for step in range(tl.max(ends)):
        live = step < ends
        places = rows * steps + step
        before = state + (step % 2) * batch * HIDDEN
        after = state + (1 - step % 2) * batch * HIDDEN
        if RANK > 0:
            ranks = tl.arange(0, RANKS)
            fits = live[:, None] & (ranks < RANK)[None, :]
            z = _reduce(before, rows, left_t, rows, live, HIDDEN, RANK, RANKS, CHUNK)
            if input_reduced is not None:
                z += _load_tile(input_reduced, places, ranks, fits, RANK).to(tl.float32)
            _store(reduced, places, ranks, fits, z, RANK)
            tl.debug_barrier()  # all of z is stored before any of it is read
        for unit in range(0, HIDDEN, UNITS):
            columns = unit + tl.arange(0, UNITS)
            mask = live[:, None] & (columns < HIDDEN)[None, :]
            # First fetch the values that the products do not need: they arrive while the products are computed.
            g_i, g_f, g_o = _load_gates(input_gates, places, columns, mask, HIDDEN)
            sum_i, sum_f, sum_o = g_i.to(tl.float32), g_f.to(tl.float32), g_o.to(tl.float32)
            m = _load_tile(last, rows, columns, mask, HIDDEN)
            if RANK > 0:
                for rank in tl.range(0, RANK, num_stages=AHEAD):
                    z_r = tl.load(reduced + places * RANK + rank, mask=live, other=0)[:, None]
                    r_i, r_f, r_o = _load_gates(right, rows * RANK + rank, columns, mask, HIDDEN)
                    sum_i += z_r * r_i.to(tl.float32)
                    sum_f += z_r * r_f.to(tl.float32)
                    sum_o += z_r * r_o.to(tl.float32)
            dot_i = tl.zeros((ROWS, UNITS), tl.float32)
            dot_f = tl.zeros((ROWS, UNITS), tl.float32)
            dot_o = tl.zeros((ROWS, UNITS), tl.float32)
            for depth in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                h = _load_tile(before, rows, inner, live[:, None] & (inner < HIDDEN)[None, :], HIDDEN)
                if not RESIDENT:
                    w_i, w_f, w_o = _weights(weight, inner, columns, HIDDEN)
                dot_i = product(h, w_i, dot_i, PRECISION)
                dot_f = product(h, w_f, dot_f, PRECISION)
                dot_o = product(h, w_o, dot_o, PRECISION)
            i, f, o = tanh(sum_i + dot_i), tl.sigmoid(sum_f + dot_f + 1), tl.sigmoid(sum_o + dot_o)
            candidate = i
            if keep is not None:
                candidate *= _load_tile(keep, step * batch + rows, columns, mask, HIDDEN).to(tl.float32)
            m = f * m + (1 - f) * candidate
            h_after = tanh(m) * o
            tl.debug_barrier()  # several threads may read the same element of m; all have read it before it changes
            _store_gates(gates, places, columns, mask, i, f, o, HIDDEN)
            _store(memories, places, columns, mask, m, HIDDEN)
            _store(outputs, places, columns, mask, h_after, HIDDEN)
            _store(last, rows, columns, mask, m, HIDDEN)
            _store(after, rows, columns, mask, h_after, HIDDEN)
        tl.debug_barrier()  # all of h is stored before the next step reads it


@kernel
def _gates_gradients(places, rows, columns, mask, step, batch, steps, of_h, keep, memory, memories, gates,
                     of_memory, of_gates, HIDDEN: tl.constexpr):  # fmt: skip
    """Compute the gradients of the gates of one step from `of_h`, the gradient of h after the step.

    `of_memory` becomes the gradient of m before the step.
    """
    g_i, g_f, g_o = _load_gates(gates, places, columns, mask, HIDDEN)
    i, f, o = g_i.to(tl.float32), g_f.to(tl.float32), g_o.to(tl.float32)
    candidate = i
    dropped = 1.0
    if keep is not None:
        dropped = _load_tile(keep, step * batch + rows, columns, mask, HIDDEN).to(tl.float32)
        candidate = i * dropped
    first = (places == rows * steps)[:, None]
    m = _load_tile(memory, rows, columns, mask & first, HIDDEN).to(tl.float32)
    m += _load_tile(memories, places - 1, columns, mask & (places > rows * steps)[:, None], HIDDEN)
    squashed = tanh(f * m + (1 - f) * candidate)
    of_m = _load_tile(of_memory, rows, columns, mask, HIDDEN) + of_h * o * (1 - squashed * squashed)
    of_i = of_m * (1 - f) * dropped * (1 - i * i)
    of_f = of_m * (m - candidate) * f * (1 - f)
    of_o = of_h * squashed * o * (1 - o)
    tl.debug_barrier()  # several threads may read the same element of the gradient of m, as of m in the forward kernel
    _store_gates(of_gates, places, columns, mask, of_i, of_f, of_o, HIDDEN)
    _store(of_memory, rows, columns, mask, of_m * f, HIDDEN)


@kernel
def _backward_kernel(
    of_outputs, weight, left_t, right, keep, lengths, memory, memories, gates,
    of_gates, of_reduced, of_hidden, of_memory, batch, steps,
    HIDDEN: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    DEPTH: tl.constexpr, CHUNK: tl.constexpr, RESIDENT: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Run the steps of `ROWS` texts in reverse; at the end, `of_memory` (B, H) is the gradient of the first m."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    ends = _ends(lengths, rows, batch, steps)
    final = tl.max(ends)
    if RESIDENT:
        w_i, w_f, w_o = _weights(weight, tl.arange(0, UNITS), tl.arange(0, DEPTH), HIDDEN)
    for back in range(final + 1):
        step = final - 1 - back  # down to -1, where only the gradient of the first h remains
        places = rows * steps + step
        live = step < ends
        later = step + 1 < ends  # texts that have a step after this one
        if RANK > 0:
            ranks = tl.arange(0, RANKS)
            z = _reduce(of_gates, places + 1, right, rows, later, 3 * HIDDEN, RANK, RANKS, CHUNK)
            _store(of_reduced, places + 1, ranks, later[:, None] & (ranks < RANK)[None, :], z, RANK)
            tl.debug_barrier()
        for unit in range(0, HIDDEN, UNITS):
            columns = unit + tl.arange(0, UNITS)
            inside = (columns < HIDDEN)[None, :]
            of_h = tl.zeros((ROWS, UNITS), tl.float32)
            if RANK > 0:
                for rank in tl.range(0, RANK, num_stages=AHEAD):
                    z_r = tl.load(of_reduced + (places + 1) * RANK + rank, mask=later, other=0)[:, None]
                    part = _load_tile(left_t, rows * RANK + rank, columns, later[:, None] & inside, HIDDEN)
                    of_h += z_r * part.to(tl.float32)
            dot = tl.zeros((ROWS, UNITS), tl.float32)
            for depth in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                if not RESIDENT:
                    w_i, w_f, w_o = _weights(weight, columns, inner, HIDDEN)
                valid = later[:, None] & (inner < HIDDEN)[None, :]
                of_i, of_f, of_o = _load_gates(of_gates, places + 1, inner, valid, HIDDEN)
                dot = product(of_i, tl.trans(w_i), dot, PRECISION)
                dot = product(of_f, tl.trans(w_f), dot, PRECISION)
                dot = product(of_o, tl.trans(w_o), dot, PRECISION)
            of_h += dot
            if step < 0:
                _store(of_hidden, rows, columns, (rows < batch)[:, None] & inside, of_h, HIDDEN)
            else:
                mask = live[:, None] & inside
                of_h += _load_tile(of_outputs, places, columns, mask, HIDDEN).to(tl.float32)
                _gates_gradients(places, rows, columns, mask, step, batch, steps, of_h, keep, memory, memories, gates,
                                 of_memory, of_gates, HIDDEN)  # fmt: skip
        tl.debug_barrier()  # the gradients of all gates are stored before the previous step reads them


def _launch(function: Any, arrays: tuple[Tensor | None, ...], weight: Tensor, like: Tensor, rank: int) -> None:
    """Choose the sizes of tiles and launch a kernel on `arrays`; `like` (B, T, .) has the number of texts and steps."""
    batch, steps, hidden = *like.shape[:2], weight.shape[0]
    value_bytes = weight.element_size()
    padded_hidden, ranks = max(gpu.next_power_of_two(hidden), 16), gpu.next_power_of_two(rank)
    # Start about as many programs as the GPU has multiprocessors. With adapters a program may have fewer than 16 texts:
    # its products are then not full, but they wait for memory anyway.
    min_rows, max_rows = (4, min(max(1024 // ranks, 4), 16)) if rank else (16, 32)
    texts_per_processor = -(-batch // gpu.processor_count(weight.device))
    rows = min(max(gpu.next_power_of_two(texts_per_processor), min_rows), max_rows)
    weight_bytes = 3 * padded_hidden * padded_hidden * value_bytes
    is_resident = weight_bytes <= MAX_RESIDENT_BYTES and rows * padded_hidden <= MAX_TILE_SUMS
    if is_resident:
        units = depth = padded_hidden
    else:
        units = min(padded_hidden, max(MAX_TILE_SUMS // rows, 16), 256 if padded_hidden <= 256 else 128)
        # The largest power of two with which the tiles of a stage fit.
        max_depth = gpu.next_power_of_two(MAX_STAGE_BYTES // (3 * (units + rows) * value_bytes) + 1) // 2
        depth = min(padded_hidden, max(max_depth, 16))
    tiles = {
        "ROWS": rows,
        "UNITS": units,
        "DEPTH": depth,
        "RESIDENT": is_resident,
        "RANKS": ranks,
        "CHUNK": max(MAX_TILE_VALUES // (rows * ranks), 4),
        "AHEAD": min(max(MAX_PREFETCH_BYTES // (3 * rows * units * value_bytes), 2), 6),
    }
    options = {"STAGES": STAGES, "PRECISION": gpu.precision(), "num_warps": WARPS, **gpu.OPTIONS}
    dense = [None if array is None else array.contiguous() for array in arrays]
    program_count = -(-batch // rows)
    with gpu.on(weight):
        function[(program_count,)](*dense, batch, steps, HIDDEN=hidden, RANK=rank, **tiles, **options)


def _allocate_steps(like: Tensor, lengths: Tensor | None, size: int, dtype: torch.dtype) -> Tensor:
    """Allocate an array (B, T, size); with `lengths` fill it with zeros, because kernels skip steps after a text."""
    allocate = like.new_empty if lengths is None else like.new_zeros
    return allocate(*like.shape[:2], size, dtype=dtype)


def _allocate(input_gates: Tensor, left_t: Tensor | None, memory: Tensor, lengths: Tensor | None) -> tuple[Tensor, ...]:
    """Allocate h (B, T, H), last m (B, H), m (B, T, H), gates (B, T, 3H) and z (B, T, R); m and z are float32."""
    hidden, rank = memory.shape[1], 0 if left_t is None else left_t.shape[1]
    return (
        _allocate_steps(input_gates, lengths, hidden, input_gates.dtype),
        torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format),
        _allocate_steps(input_gates, lengths, hidden, torch.float32),
        _allocate_steps(input_gates, lengths, 3 * hidden, input_gates.dtype),
        _allocate_steps(input_gates, lengths, rank, torch.float32),
    )


class _Recurrence(torch.autograd.Function):
    """The autograd function of the recurrence."""

    @staticmethod
    def forward(
        ctx: Any, input_gates: Tensor, input_reduced: Tensor | None, weight: Tensor, left_t: Tensor | None,
        right: Tensor | None, keep: Tensor | None, hidden: Tensor, memory: Tensor, lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        outputs, last_memory, memories, gates, reduced = _allocate(input_gates, left_t, memory, lengths)
        last_memory.copy_(memory)
        state = torch.stack([hidden, hidden]).to(weight.dtype)
        inputs = (input_gates, input_reduced, weight, left_t, right, keep, lengths, state)
        rank = reduced.shape[2]
        _launch(_forward_kernel, (*inputs, last_memory, outputs, memories, gates, reduced), weight, input_gates, rank)
        ctx.save_for_backward(weight, left_t, right, keep, hidden, memory, lengths, outputs, memories, gates, reduced)
        ctx.reduced_dtype = None if input_reduced is None else input_reduced.dtype
        return outputs, last_memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, of_last_memory: Tensor) -> tuple[Tensor | None, ...]:
        weight, left_t, right, keep, hidden, memory, lengths, outputs, memories, gates, reduced = ctx.saved_tensors
        _, _, _, of_gates, of_reduced = _allocate(gates, left_t, memory, lengths)
        of_hidden = torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format)
        of_memory = of_last_memory.to(torch.float32, copy=True).contiguous()
        inputs = (of_outputs, weight, left_t, right, keep, lengths, memory, memories, gates)
        results = (of_gates, of_reduced, of_hidden, of_memory)
        _launch(_backward_kernel, (*inputs, *results), weight, gates, reduced.shape[2])
        previous_hidden = torch.cat([hidden[:, None].to(outputs.dtype), outputs[:, :-1]], dim=1)
        of_weight = previous_hidden.flatten(0, 1).T @ of_gates.flatten(0, 1)
        of_left_t = of_right = None
        if left_t is not None:
            of_left_t = (of_reduced.transpose(1, 2).to(previous_hidden.dtype) @ previous_hidden).to(left_t.dtype)
        if right is not None:
            of_right = (reduced.transpose(1, 2).to(of_gates.dtype) @ of_gates).to(right.dtype)
        of_input_reduced = None if ctx.reduced_dtype is None else of_reduced.to(ctx.reduced_dtype)
        of_keep = of_lengths = None  # not computed
        of_first = of_hidden.to(hidden.dtype), of_memory.to(memory.dtype)
        return of_gates, of_input_reduced, of_weight, of_left_t, of_right, of_keep, *of_first, of_lengths
