"""The recurrence of `Cell.forward` on a GPU: one launch for all steps, forward and backward.

    z[t] = given_reduced[t] + h L        [i, f, o] = given[t] + W h + z[t] R        f = sigmoid(f + 1)
    m = f m + (1 - f) tanh(i) keep[t]    h = tanh(m) sigmoid(o)

A program owns a few texts, over all hidden units and all steps, so that programs never wait for each other: the
barriers between two steps are inside the program. What stays and what moves:

- W stays in shared memory for the whole launch where it fits (H up to 128 in bfloat16, 64 in float32). A larger W is
  streamed from the L2 cache at every step, in tiles fetched ahead of the products that use them: all programs read the
  same tiles.
- L and R are different for each text and larger than a step's share of on-chip memory; each is read once a step. With
  adapters a program therefore owns fewer texts: that reading is what takes the time, and more programs share it.
- h, in the type of W, and m, in float32, pass from step to step through small buffers, which stay in the caches.

The backward kernel repeats this in reverse: the gradient of h[t] is that of the gates of t + 1 times W^T, plus the same
times R^T L^T. Gradients of W, L and R are products over all steps, afterwards.

Shapes: B texts, T steps, H hidden, R rank. W (H, 3H), L^T (B, R, H), R (B, R, 3H).
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factorcell.model.kernels import gpu
from factorcell.model.kernels.gpu import kernel, product, tl

# Sizes of tiles, for a Hopper processor of 228 KiB shared memory and 64 Ki registers; a program has 8 warps.
WARPS = 8
HELD = 96 * 1024  # bytes of W that may stay in shared memory
STAGE = 64 * 1024  # bytes of W, and of what it multiplies, fetched at once; `STAGES - 1` of them are under way
STAGES = 4
SUMS = 4096  # texts times units of one tile, for each of three sums in registers
ADAPTED = 160 * 1024  # bytes of R fetched ahead, in at most six stages
PARTIAL = 8192  # texts times ranks times columns of one tile of L or R


def usable(given: Tensor, matrix: Tensor) -> bool:
    """Whether `run` can do it: float32 or bfloat16 on a GPU, one W for all texts, and something to do."""
    return matrix.dim() == 2 and gpu.usable(given, matrix)


def run(
    given: Tensor,
    given_reduced: Tensor | None,
    weight: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    keep: Tensor | None,
    hidden: Tensor,
    memory: Tensor,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`given` (B, T, 3H), x L_x (B, T, R), W (H, 3H), L (B, H, R), R (B, R, 3H), `keep` (T, B, H), state -> h, last m.

    After `lengths` (B,) steps a text's m stays the same and its h (B, T, H) is zero: no gradient flows there.
    """
    turned = None if left is None else left.transpose(-2, -1)
    arrays = given, given_reduced, weight, turned, right, keep, hidden, memory, lengths
    result: tuple[Tensor, Tensor] = _Recurrence.apply(*arrays)  # type: ignore[no-untyped-call]
    return result


@kernel
def _ends(lengths, rows, batch, steps):
    """Where each text ends, (ROWS,): nothing is left to do for rows beyond the batch."""
    ends = steps
    if lengths is not None:
        ends = tl.minimum(tl.load(lengths + rows, mask=rows < batch, other=0).to(tl.int32), steps)
    return tl.where(rows < batch, ends, 0)


@kernel
def _tile(array, rows, columns, mask, WIDTH: tl.constexpr):
    """`array`[rows, columns], of rows `WIDTH` long, and zeros where `mask` is false."""
    return tl.load(array + rows[:, None] * WIDTH + columns[None, :], mask=mask, other=0)


@kernel
def _three(array, rows, columns, mask, HIDDEN: tl.constexpr):
    """The same tile of each of the three gates, side by side in `array` (., 3H)."""
    i = _tile(array, rows, columns, mask, 3 * HIDDEN)
    f = _tile(array, rows, columns + HIDDEN, mask, 3 * HIDDEN)
    return i, f, _tile(array, rows, columns + 2 * HIDDEN, mask, 3 * HIDDEN)


@kernel
def _store(array, rows, columns, mask, tile, WIDTH: tl.constexpr):
    tl.store(array + rows[:, None] * WIDTH + columns[None, :], tile, mask=mask)


@kernel
def _store_three(array, rows, columns, mask, i, f, o, HIDDEN: tl.constexpr):
    _store(array, rows, columns, mask, i, 3 * HIDDEN)
    _store(array, rows, columns + HIDDEN, mask, f, 3 * HIDDEN)
    _store(array, rows, columns + 2 * HIDDEN, mask, o, 3 * HIDDEN)


@kernel
def _weights(weight, inner, columns, HIDDEN: tl.constexpr):
    return _three(weight, inner, columns, (inner < HIDDEN)[:, None] & (columns < HIDDEN)[None, :], HIDDEN)


@kernel
def _reduce(
    vectors, places, matrices, rows, live,
    SIZE: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """`vectors`[places] (ROWS, SIZE) times the transposed `matrices`[rows] (RANK, SIZE): (ROWS, RANKS) in float32."""
    ranks = tl.arange(0, RANKS)
    lines = rows[:, None] * RANK + ranks[None, :]
    partial = tl.zeros((rows.shape[0], RANKS, CHUNK), tl.float32)  # summed over its last axis once, at the end
    for start in tl.range(0, SIZE, CHUNK, num_stages=4):
        inner = start + tl.arange(0, CHUNK)
        fits = live[:, None] & (inner < SIZE)[None, :]
        values = _tile(vectors, places, inner, fits, SIZE).to(tl.float32)
        mask = fits[:, None, :] & (ranks < RANK)[None, :, None]
        part = tl.load(matrices + lines[:, :, None] * SIZE + inner[None, None, :], mask=mask, other=0)
        partial += values[:, None, :] * part.to(tl.float32)
    return tl.sum(partial, axis=2)


@kernel
def _forward_kernel(
    given, given_reduced, weight, turned, right, keep, lengths, state, last, outputs, memories, gates, reduced,
    batch, steps,
    HIDDEN: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    DEPTH: tl.constexpr, CHUNK: tl.constexpr, HELD: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """All steps of `ROWS` texts. `state` (2, B, H) holds h before and after a step in turn, `last` (B, H) holds m."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    ends = _ends(lengths, rows, batch, steps)
    if HELD:
        w_i, w_f, w_o = _weights(weight, tl.arange(0, DEPTH), tl.arange(0, UNITS), HIDDEN)
    for step in range(tl.max(ends)):
        live = step < ends
        places = rows * steps + step
        before = state + (step % 2) * batch * HIDDEN
        after = state + (1 - step % 2) * batch * HIDDEN
        if RANK > 0:
            ranks = tl.arange(0, RANKS)
            fits = live[:, None] & (ranks < RANK)[None, :]
            z = _reduce(before, rows, turned, rows, live, HIDDEN, RANK, RANKS, CHUNK)
            if given_reduced is not None:
                z += _tile(given_reduced, places, ranks, fits, RANK).to(tl.float32)
            _store(reduced, places, ranks, fits, z, RANK)
            tl.debug_barrier()  # z is whole before any of it is used
        for unit in range(0, HIDDEN, UNITS):
            columns = unit + tl.arange(0, UNITS)
            mask = live[:, None] & (columns < HIDDEN)[None, :]
            # Values that do not depend on W are fetched first, and arrive during the products.
            g_i, g_f, g_o = _three(given, places, columns, mask, HIDDEN)
            sum_i, sum_f, sum_o = g_i.to(tl.float32), g_f.to(tl.float32), g_o.to(tl.float32)
            m = _tile(last, rows, columns, mask, HIDDEN)
            if RANK > 0:
                for rank in tl.range(0, RANK, num_stages=AHEAD):
                    z_r = tl.load(reduced + places * RANK + rank, mask=live, other=0)[:, None]
                    r_i, r_f, r_o = _three(right, rows * RANK + rank, columns, mask, HIDDEN)
                    sum_i += z_r * r_i.to(tl.float32)
                    sum_f += z_r * r_f.to(tl.float32)
                    sum_o += z_r * r_o.to(tl.float32)
            dot_i = tl.zeros((ROWS, UNITS), tl.float32)
            dot_f = tl.zeros((ROWS, UNITS), tl.float32)
            dot_o = tl.zeros((ROWS, UNITS), tl.float32)
            for depth in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                h = _tile(before, rows, inner, live[:, None] & (inner < HIDDEN)[None, :], HIDDEN)
                if not HELD:
                    w_i, w_f, w_o = _weights(weight, inner, columns, HIDDEN)
                dot_i = product(h, w_i, dot_i, PRECISION)
                dot_f = product(h, w_f, dot_f, PRECISION)
                dot_o = product(h, w_o, dot_o, PRECISION)
            i, f, o = _tanh(sum_i + dot_i), tl.sigmoid(sum_f + dot_f + 1), tl.sigmoid(sum_o + dot_o)
            kept = i
            if keep is not None:
                kept *= _tile(keep, step * batch + rows, columns, mask, HIDDEN).to(tl.float32)
            m = f * m + (1 - f) * kept
            h_after = _tanh(m) * o
            tl.debug_barrier()  # more than one thread may have read a number of m: all have, before it changes
            _store_three(gates, places, columns, mask, i, f, o, HIDDEN)
            _store(memories, places, columns, mask, m, HIDDEN)
            _store(outputs, places, columns, mask, h_after, HIDDEN)
            _store(last, rows, columns, mask, m, HIDDEN)
            _store(after, rows, columns, mask, h_after, HIDDEN)
        tl.debug_barrier()  # h is whole before the next step reads it


@kernel
def _gates_gradients(places, rows, columns, mask, step, batch, steps, of_h, keep, memory, memories, gates,
                     of_memory, of_given, HIDDEN: tl.constexpr):  # fmt: skip
    """From the gradient of h[t] to those of its gates; the gradient of m goes on to the step before."""
    g_i, g_f, g_o = _three(gates, places, columns, mask, HIDDEN)
    i, f, o = g_i.to(tl.float32), g_f.to(tl.float32), g_o.to(tl.float32)
    kept = i
    dropped = 1.0
    if keep is not None:
        dropped = _tile(keep, step * batch + rows, columns, mask, HIDDEN).to(tl.float32)
        kept = i * dropped
    first = (places == rows * steps)[:, None]
    m = _tile(memory, rows, columns, mask & first, HIDDEN).to(tl.float32)
    m += _tile(memories, places - 1, columns, mask & (places > rows * steps)[:, None], HIDDEN)
    squashed = _tanh(f * m + (1 - f) * kept)
    of_m = _tile(of_memory, rows, columns, mask, HIDDEN) + of_h * o * (1 - squashed * squashed)
    of_i = of_m * (1 - f) * dropped * (1 - i * i)
    of_f = of_m * (m - kept) * f * (1 - f)
    of_o = of_h * squashed * o * (1 - o)
    tl.debug_barrier()  # as in the forward kernel, of the gradient of m
    _store_three(of_given, places, columns, mask, of_i, of_f, of_o, HIDDEN)
    _store(of_memory, rows, columns, mask, of_m * f, HIDDEN)


@kernel
def _backward_kernel(
    of_outputs, weight, turned, right, keep, lengths, memory, memories, gates,
    of_given, of_reduced, of_hidden, of_memory, batch, steps,
    HIDDEN: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    DEPTH: tl.constexpr, CHUNK: tl.constexpr, HELD: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through the steps of `ROWS` texts. `of_memory` (B, H) holds the gradient of m, in the end of the first."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    ends = _ends(lengths, rows, batch, steps)
    final = tl.max(ends)
    if HELD:
        w_i, w_f, w_o = _weights(weight, tl.arange(0, UNITS), tl.arange(0, DEPTH), HIDDEN)
    for back in range(final + 1):
        step = final - 1 - back  # down to -1, where only the gradient of the first h is left to make
        places = rows * steps + step
        live = step < ends
        later = step + 1 < ends  # texts that have a step after this one
        if RANK > 0:
            ranks = tl.arange(0, RANKS)
            z = _reduce(of_given, places + 1, right, rows, later, 3 * HIDDEN, RANK, RANKS, CHUNK)
            _store(of_reduced, places + 1, ranks, later[:, None] & (ranks < RANK)[None, :], z, RANK)
            tl.debug_barrier()
        for unit in range(0, HIDDEN, UNITS):
            columns = unit + tl.arange(0, UNITS)
            inside = (columns < HIDDEN)[None, :]
            of_h = tl.zeros((ROWS, UNITS), tl.float32)
            if RANK > 0:
                for rank in tl.range(0, RANK, num_stages=AHEAD):
                    z_r = tl.load(of_reduced + (places + 1) * RANK + rank, mask=later, other=0)[:, None]
                    part = _tile(turned, rows * RANK + rank, columns, later[:, None] & inside, HIDDEN)
                    of_h += z_r * part.to(tl.float32)
            dot = tl.zeros((ROWS, UNITS), tl.float32)
            for depth in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                if not HELD:
                    w_i, w_f, w_o = _weights(weight, columns, inner, HIDDEN)
                there = later[:, None] & (inner < HIDDEN)[None, :]
                of_i, of_f, of_o = _three(of_given, places + 1, inner, there, HIDDEN)
                dot = product(of_i, tl.trans(w_i), dot, PRECISION)
                dot = product(of_f, tl.trans(w_f), dot, PRECISION)
                dot = product(of_o, tl.trans(w_o), dot, PRECISION)
            of_h += dot
            if step < 0:
                _store(of_hidden, rows, columns, (rows < batch)[:, None] & inside, of_h, HIDDEN)
            else:
                mask = live[:, None] & inside
                of_h += _tile(of_outputs, places, columns, mask, HIDDEN).to(tl.float32)
                _gates_gradients(places, rows, columns, mask, step, batch, steps, of_h, keep, memory, memories, gates,
                                 of_memory, of_given, HIDDEN)  # fmt: skip
        tl.debug_barrier()  # the gradients of all gates are there before the step before reads them


@kernel
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


def _launch(function: Any, arrays: tuple[Tensor | None, ...], weight: Tensor, like: Tensor, rank: int) -> None:
    batch, steps, hidden = *like.shape[:2], weight.shape[0]
    size, whole, ranks = weight.element_size(), max(gpu.next_power_of_two(hidden), 16), gpu.next_power_of_two(rank)
    # As many programs as processors; fewer than 16 texts waste a part of products that wait for memory anyway.
    fewest, most = (4, min(max(1024 // ranks, 4), 16)) if rank else (16, 32)
    rows = min(max(gpu.next_power_of_two(-(-batch // gpu.processor_count(weight.device))), fewest), most)
    held = 3 * whole * whole * size <= HELD and rows * whole <= SUMS
    units = whole if held else min(whole, max(SUMS // rows, 16), 256 if whole <= 256 else 128)
    deepest = gpu.next_power_of_two(STAGE // (3 * (units + rows) * size) + 1) // 2
    tiles = {
        "ROWS": rows,
        "UNITS": units,
        "DEPTH": whole if held else min(whole, max(deepest, 16)),
        "RANKS": ranks,
        "CHUNK": max(PARTIAL // (rows * ranks), 4),
        "AHEAD": min(max(ADAPTED // (3 * rows * units * size), 2), 6),
    }
    how = {"HELD": held, "STAGES": STAGES, "PRECISION": gpu.precision(), "num_warps": WARPS, **gpu.OPTIONS}
    dense = [None if array is None else array.contiguous() for array in arrays]
    with gpu.on(weight):
        function[(-(-batch // rows),)](*dense, batch, steps, HIDDEN=hidden, RANK=rank, **tiles, **how)


def _new(like: Tensor, lengths: Tensor | None, size: int, dtype: torch.dtype) -> Tensor:
    """Room for (B, T, size), zeroed where a kernel leaves out what lies beyond the ends of texts."""
    make = like.new_empty if lengths is None else like.new_zeros
    return make(*like.shape[:2], size, dtype=dtype)


def _room(given: Tensor, turned: Tensor | None, memory: Tensor, lengths: Tensor | None) -> tuple[Tensor, ...]:
    """Room for h (B, T, H), last m (B, H), m (B, T, H), gates (B, T, 3H) and z (B, T, R); m and z are float32."""
    hidden, rank = memory.shape[1], 0 if turned is None else turned.shape[1]
    return (
        _new(given, lengths, hidden, given.dtype),
        torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format),
        _new(given, lengths, hidden, torch.float32),
        _new(given, lengths, 3 * hidden, given.dtype),
        _new(given, lengths, rank, torch.float32),
    )


class _Recurrence(torch.autograd.Function):
    """The kernel goes back through time; sums over all steps are plain products afterwards."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, given_reduced: Tensor | None, weight: Tensor, turned: Tensor | None,
        right: Tensor | None, keep: Tensor | None, hidden: Tensor, memory: Tensor, lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        outputs, last, memories, gates, reduced = _room(given, turned, memory, lengths)
        last.copy_(memory)
        state = torch.stack([hidden, hidden]).to(weight.dtype)
        taken = (given, given_reduced, weight, turned, right, keep, lengths, state)
        rank = reduced.shape[2]
        _launch(_forward_kernel, (*taken, last, outputs, memories, gates, reduced), weight, given, rank)
        ctx.save_for_backward(weight, turned, right, keep, hidden, memory, lengths, outputs, memories, gates, reduced)
        ctx.reduced_dtype = None if given_reduced is None else given_reduced.dtype
        return outputs, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, of_last: Tensor) -> tuple[Tensor | None, ...]:
        weight, turned, right, keep, hidden, memory, lengths, outputs, memories, gates, reduced = ctx.saved_tensors
        _, _, _, of_given, of_reduced = _room(gates, turned, memory, lengths)
        of_hidden = torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format)
        of_memory = of_last.to(torch.float32, copy=True).contiguous()
        taken = (of_outputs, weight, turned, right, keep, lengths, memory, memories, gates)
        made = (of_given, of_reduced, of_hidden, of_memory)
        _launch(_backward_kernel, (*taken, *made), weight, gates, reduced.shape[2])
        before = torch.cat([hidden[:, None].to(outputs.dtype), outputs[:, :-1]], dim=1)
        of_weight = before.flatten(0, 1).T @ of_given.flatten(0, 1)
        of_turned = None if turned is None else (of_reduced.transpose(1, 2).to(before.dtype) @ before).to(turned.dtype)
        of_right = None if right is None else (reduced.transpose(1, 2).to(of_given.dtype) @ of_given).to(right.dtype)
        of_given_reduced = None if ctx.reduced_dtype is None else of_reduced.to(ctx.reduced_dtype)
        first = of_hidden.to(hidden.dtype), of_memory.to(memory.dtype)
        return of_given, of_given_reduced, of_weight, of_turned, of_right, None, *first, None
