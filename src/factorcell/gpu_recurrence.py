"""The recurrence of `Cell.forward` on a GPU: one launch for all steps, forward and backward.

    z[t] = given_reduced[t] + h L        [i, f, o] = given[t] + W h + z[t] R        f = sigmoid(f + 1)
    m = f m + (1 - f) tanh(i) keep[t]    h = tanh(m) sigmoid(o)

A program owns a few texts, over all hidden units and all steps, so that programs never wait for each other: between two steps
there is one barrier inside the program. What stays and what moves:

- W stays in shared memory for the whole launch where it fits (H up to 128 in bfloat16, 64 in float32). A larger W is streamed from the
  L2 cache at every step, in tiles fetched ahead of the products that use them: all programs read the same tiles.
- L and R are different for each text and larger than a step's share of on-chip memory; each is read once a step. With
  adapters a program therefore owns fewer texts: that reading is what takes the time, and more programs share it.
- h and m pass from step to step through small buffers of float32 m, and h in the type of W, which stay in the caches.

The backward kernel repeats this in reverse: the gradient of h[t] is W^T times the gradient of the gates of t + 1, plus L times
R^T times the same. Gradients of W, L and R are products over all steps, afterwards.

Shapes: B texts, T steps, H hidden, R rank. W (H, 3H), L^T (B, R, H), R (B, R, 3H).
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from factorcell import gpu
from factorcell.gpu import kernel, product, tl

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
    """`given` (B, T, 3H), x L_x (B, T, R), W (H, 3H), L (B, H, R), R (B, R, 3H), `keep` (T, B, H), a state -> h (B, T, H), m.

    After `lengths` (B,) steps a text's state stands still and its h is returned as zero: no gradient flows there.
    """
    turned = None if left is None else left.transpose(1, 2)
    outputs, last, *_ = _forward(given, given_reduced, weight, turned, right, keep, hidden, memory, lengths)
    return outputs, last


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
def _reduce(
    vectors,
    places,
    matrices,
    rows,
    live,
    SIZE: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
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
    given,
    given_reduced,
    weight,
    turned,
    right,
    keep,
    lengths,
    state,
    last,
    outputs,
    memories,
    gates,
    reduced,
    batch,
    steps,
    HIDDEN: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    DEPTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HELD: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps of `ROWS` texts. `state` (2, B, H) holds h before and after a step in turn, `last` (B, H) holds m."""
    GATES: tl.constexpr = 3 * HIDDEN  # noqa: N806
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    ends = _ends(lengths, rows, batch, steps)
    if HELD:
        columns, inner = tl.arange(0, UNITS), tl.arange(0, DEPTH)
        inside = (inner < HIDDEN)[:, None] & (columns < HIDDEN)[None, :]
        w_i = _tile(weight, inner, columns, inside, GATES)
        w_f = _tile(weight, inner, columns + HIDDEN, inside, GATES)
        w_o = _tile(weight, inner, columns + 2 * HIDDEN, inside, GATES)
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
            tl.store(reduced + places[:, None] * RANK + ranks[None, :], z, mask=fits)
            tl.debug_barrier()  # z is whole before any of it is used
        for unit in range(0, HIDDEN, UNITS):
            columns = unit + tl.arange(0, UNITS)
            mask = live[:, None] & (columns < HIDDEN)[None, :]
            # What does not wait for W is asked for first, and is under way during the products.
            sum_i = _tile(given, places, columns, mask, GATES).to(tl.float32)
            sum_f = _tile(given, places, columns + HIDDEN, mask, GATES).to(tl.float32)
            sum_o = _tile(given, places, columns + 2 * HIDDEN, mask, GATES).to(tl.float32)
            m = _tile(last, rows, columns, mask, HIDDEN)
            if RANK > 0:
                for rank in tl.range(0, RANK, num_stages=AHEAD):
                    z_r = tl.load(reduced + places * RANK + rank, mask=live, other=0)[:, None]
                    sum_i += z_r * _tile(right, rows * RANK + rank, columns, mask, GATES).to(tl.float32)
                    sum_f += z_r * _tile(right, rows * RANK + rank, columns + HIDDEN, mask, GATES).to(tl.float32)
                    sum_o += z_r * _tile(right, rows * RANK + rank, columns + 2 * HIDDEN, mask, GATES).to(tl.float32)
            dot_i = tl.zeros((ROWS, UNITS), tl.float32)
            dot_f = tl.zeros((ROWS, UNITS), tl.float32)
            dot_o = tl.zeros((ROWS, UNITS), tl.float32)
            for depth in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                h = _tile(before, rows, inner, live[:, None] & (inner < HIDDEN)[None, :], HIDDEN)
                if not HELD:
                    inside = (inner < HIDDEN)[:, None] & (columns < HIDDEN)[None, :]
                    w_i = _tile(weight, inner, columns, inside, GATES)
                    w_f = _tile(weight, inner, columns + HIDDEN, inside, GATES)
                    w_o = _tile(weight, inner, columns + 2 * HIDDEN, inside, GATES)
                dot_i = product(h, w_i, dot_i, PRECISION)
                dot_f = product(h, w_f, dot_f, PRECISION)
                dot_o = product(h, w_o, dot_o, PRECISION)
            i = _tanh(sum_i + dot_i)
            f = tl.sigmoid(sum_f + dot_f + 1)
            o = tl.sigmoid(sum_o + dot_o)
            kept = i
            if keep is not None:
                kept *= _tile(keep, step * batch + rows, columns, mask, HIDDEN).to(tl.float32)
            m = f * m + (1 - f) * kept
            h_new = _tanh(m) * o
            here = places[:, None] * HIDDEN + columns[None, :]
            at_gates = places[:, None] * GATES + columns[None, :]
            tl.debug_barrier()  # more than one thread may have read a number of m: all have, before it changes
            tl.store(gates + at_gates, i, mask=mask)
            tl.store(gates + at_gates + HIDDEN, f, mask=mask)
            tl.store(gates + at_gates + 2 * HIDDEN, o, mask=mask)
            tl.store(memories + here, m, mask=mask)
            tl.store(outputs + here, h_new, mask=mask)
            tl.store(last + rows[:, None] * HIDDEN + columns[None, :], m, mask=mask)
            tl.store(after + rows[:, None] * HIDDEN + columns[None, :], h_new, mask=mask)
        tl.debug_barrier()  # h is whole before the next step reads it


@kernel
def _backward_kernel(
    of_outputs,
    weight,
    turned,
    right,
    keep,
    lengths,
    memory,
    memories,
    gates,
    of_given,
    of_reduced,
    of_hidden,
    of_memory,
    batch,
    steps,
    HIDDEN: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    DEPTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HELD: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Back through the steps of `ROWS` texts; `of_memory` (B, H) holds the gradient of m, from the last to the first."""
    GATES: tl.constexpr = 3 * HIDDEN  # noqa: N806
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    ends = _ends(lengths, rows, batch, steps)
    final = tl.max(ends)
    if HELD:
        columns, inner = tl.arange(0, UNITS), tl.arange(0, DEPTH)
        inside = (inner < HIDDEN)[:, None] & (columns < HIDDEN)[None, :]
        w_i = tl.trans(_tile(weight, columns, inner, tl.trans(inside), GATES))
        w_f = tl.trans(_tile(weight, columns, inner + HIDDEN, tl.trans(inside), GATES))
        w_o = tl.trans(_tile(weight, columns, inner + 2 * HIDDEN, tl.trans(inside), GATES))
    for back in range(final + 1):
        step = final - 1 - back  # down to -1, where only the gradient of the first h is left to make
        places = rows * steps + step
        live = step < ends
        later = step + 1 < ends  # texts that have a step after this one
        if RANK > 0:
            ranks = tl.arange(0, RANKS)
            z = _reduce(of_given, places + 1, right, rows, later, GATES, RANK, RANKS, CHUNK)
            fits = later[:, None] & (ranks < RANK)[None, :]
            tl.store(of_reduced + (places[:, None] + 1) * RANK + ranks[None, :], z, mask=fits)
            tl.debug_barrier()
        for unit in range(0, HIDDEN, UNITS):
            columns = unit + tl.arange(0, UNITS)
            mask = live[:, None] & (columns < HIDDEN)[None, :]
            after = later[:, None] & (columns < HIDDEN)[None, :]
            of_h = tl.zeros((ROWS, UNITS), tl.float32)
            if RANK > 0:
                for rank in tl.range(0, RANK, num_stages=AHEAD):
                    z_r = tl.load(of_reduced + (places + 1) * RANK + rank, mask=later, other=0)[:, None]
                    of_h += z_r * _tile(turned, rows * RANK + rank, columns, after, HIDDEN).to(tl.float32)
            dot = tl.zeros((ROWS, UNITS), tl.float32)
            for depth in tl.range(0, HIDDEN, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                there = later[:, None] & (inner < HIDDEN)[None, :]
                if not HELD:
                    inside = (columns < HIDDEN)[:, None] & (inner < HIDDEN)[None, :]
                    w_i = tl.trans(_tile(weight, columns, inner, inside, GATES))
                    w_f = tl.trans(_tile(weight, columns, inner + HIDDEN, inside, GATES))
                    w_o = tl.trans(_tile(weight, columns, inner + 2 * HIDDEN, inside, GATES))
                dot = product(_tile(of_given, places + 1, inner, there, GATES), w_i, dot, PRECISION)
                dot = product(_tile(of_given, places + 1, inner + HIDDEN, there, GATES), w_f, dot, PRECISION)
                dot = product(_tile(of_given, places + 1, inner + 2 * HIDDEN, there, GATES), w_o, dot, PRECISION)
            of_h += dot
            at_rows = rows[:, None] * HIDDEN + columns[None, :]
            if step < 0:
                tl.store(of_hidden + at_rows, of_h, mask=(rows < batch)[:, None] & (columns < HIDDEN)[None, :])
            else:
                of_h += _tile(of_outputs, places, columns, mask, HIDDEN).to(tl.float32)
                i = _tile(gates, places, columns, mask, GATES).to(tl.float32)
                f = _tile(gates, places, columns + HIDDEN, mask, GATES).to(tl.float32)
                o = _tile(gates, places, columns + 2 * HIDDEN, mask, GATES).to(tl.float32)
                kept = i
                dropped = 1.0
                if keep is not None:
                    dropped = _tile(keep, step * batch + rows, columns, mask, HIDDEN).to(tl.float32)
                    kept = i * dropped
                m_before = _tile(memories, places - 1, columns, mask & (places > rows * steps)[:, None], HIDDEN)
                m_before += _tile(memory, rows, columns, mask & (places == rows * steps)[:, None], HIDDEN).to(
                    tl.float32
                )
                squashed = _tanh(f * m_before + (1 - f) * kept)
                of_m = _tile(of_memory, rows, columns, mask, HIDDEN) + of_h * o * (1 - squashed * squashed)
                of_i = of_m * (1 - f) * dropped * (1 - i * i)
                of_f = of_m * (m_before - kept) * f * (1 - f)
                of_o = of_h * squashed * o * (1 - o)
                at_gates = places[:, None] * GATES + columns[None, :]
                tl.debug_barrier()  # as in the forward kernel, of the gradient of m
                tl.store(of_given + at_gates, of_i, mask=mask)
                tl.store(of_given + at_gates + HIDDEN, of_f, mask=mask)
                tl.store(of_given + at_gates + 2 * HIDDEN, of_o, mask=mask)
                tl.store(of_memory + at_rows, of_m * f, mask=mask)
        tl.debug_barrier()  # the gradients of all gates are there before the step before reads them


@kernel
def _tanh(x):
    """tanh without overflow: 2 sigmoid(2 x) - 1."""
    return 2 * tl.sigmoid(2 * x) - 1


def _launch(function: Any, arrays: tuple[Tensor | None, ...], weight: Tensor, like: Tensor, rank: int) -> None:
    """One launch over all texts of `like` (B, T, .), with the sizes of tiles that fit."""
    batch, steps, hidden = *like.shape[:2], weight.shape[0]
    size, whole, ranks = weight.element_size(), max(gpu.power(hidden), 16), gpu.power(rank)
    # As many programs as there are processors. Fewer than 16 texts waste some of a product that waits for memory anyway.
    fewest, most = (4, min(max(1024 // ranks, 4), 16)) if rank else (16, 32)
    rows = min(max(gpu.power(-(-batch // gpu.processors(weight.device))), fewest), most)
    held = 3 * whole * whole * size <= HELD and rows * whole <= SUMS
    units = whole if held else min(whole, max(SUMS // rows, 16), 256 if whole <= 256 else 128)
    deepest = gpu.power(STAGE // (3 * (units + rows) * size) + 1) // 2
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
    with torch.cuda.device_of(weight):
        function[(-(-batch // rows),)](*dense, batch, steps, HIDDEN=hidden, RANK=rank, **tiles, **how)


def _new(like: Tensor, lengths: Tensor | None, size: int, dtype: torch.dtype) -> Tensor:
    """Room for (B, T, size), zeroed where a kernel leaves out what lies beyond the ends of texts."""
    make = like.new_empty if lengths is None else like.new_zeros
    return make(*like.shape[:2], size, dtype=dtype)


@torch.library.custom_op("factorcell::gpu_recurrence", mutates_args=())
def _forward(
    given: Tensor,
    given_reduced: Tensor | None,
    weight: Tensor,
    turned: Tensor | None,
    right: Tensor | None,
    keep: Tensor | None,
    hidden: Tensor,
    memory: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """h (B, T, H), last m (B, H); and, for the backward kernel, m (B, T, H), gates (B, T, 3H) and z (B, T, R)."""
    rank = 0 if turned is None else turned.shape[1]
    made = _room(given, turned, memory, lengths)
    outputs, last, memories, gates, reduced = made
    last.copy_(memory)
    state = torch.stack([hidden, hidden]).to(weight.dtype)
    taken = (given, given_reduced, weight, turned, right, keep, lengths, state)
    _launch(_forward_kernel, (*taken, last, outputs, memories, gates, reduced), weight, given, rank)
    return made


def _room(
    given: Tensor, turned: Tensor | None, memory: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `_forward` returns, not yet filled; m and z are float32, the rest as `given`."""
    hidden, rank = memory.shape[1], 0 if turned is None else turned.shape[1]
    return (
        _new(given, lengths, hidden, given.dtype),
        torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format),
        _new(given, lengths, hidden, torch.float32),
        _new(given, lengths, 3 * hidden, given.dtype),
        _new(given, lengths, rank, torch.float32),
    )


@_forward.register_fake
def _(given: Tensor, _reduced: Any, _weight: Any, turned: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _room(given, turned, rest[3], rest[4])


@torch.library.custom_op("factorcell::gpu_recurrence_backward", mutates_args=())
def _backward(
    of_outputs: Tensor,
    of_last: Tensor,
    weight: Tensor,
    turned: Tensor | None,
    right: Tensor | None,
    keep: Tensor | None,
    memory: Tensor,
    lengths: Tensor | None,
    memories: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the gates (B, T, 3H), of z (B, T, R), of the first h and the first m (B, H)."""
    rank = 0 if turned is None else turned.shape[1]
    of_given = _new(gates, lengths, gates.shape[2], gates.dtype)
    of_reduced = _new(gates, lengths, rank, torch.float32)
    of_hidden = torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format)
    of_memory = of_last.to(torch.float32, copy=True).contiguous()
    taken = (of_outputs, weight, turned, right, keep, lengths, memory, memories, gates)
    _launch(_backward_kernel, (*taken, of_given, of_reduced, of_hidden, of_memory), weight, gates, rank)
    return of_given, of_reduced, of_hidden, of_memory


@_backward.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    turned, memory, lengths, gates = given[3], given[6], given[7], given[9]
    rank = 0 if turned is None else turned.shape[1]
    first = torch.empty_like(memory, dtype=torch.float32, memory_format=torch.contiguous_format)
    of_given = _new(gates, lengths, gates.shape[2], gates.dtype)
    return of_given, _new(gates, lengths, rank, torch.float32), first, torch.empty_like(first)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, given_reduced, weight, turned, right, keep, hidden, memory, lengths = inputs
    outputs, _, memories, gates, reduced = output
    ctx.mark_non_differentiable(memories, gates, reduced)
    ctx.save_for_backward(weight, turned, right, keep, hidden, memory, lengths, outputs, memories, gates, reduced)
    ctx.reduced_dtype = None if given_reduced is None else given_reduced.dtype


def _differentiate(ctx: Any, of_outputs: Tensor, of_last: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """The kernel goes back through time; what is a sum over all steps are plain products afterwards."""
    weight, turned, right, keep, hidden, memory, lengths, outputs, memories, gates, reduced = ctx.saved_tensors
    of_given, of_reduced, of_hidden, of_memory = _backward(
        of_outputs, of_last, weight, turned, right, keep, memory, lengths, memories, gates
    )
    before = torch.cat([hidden[:, None].to(outputs.dtype), outputs[:, :-1]], dim=1)
    of_weight = before.flatten(0, 1).T @ of_given.flatten(0, 1)
    of_turned = None if turned is None else (of_reduced.transpose(1, 2).to(before.dtype) @ before).to(turned.dtype)
    of_right = None if right is None else (reduced.transpose(1, 2).to(of_given.dtype) @ of_given).to(right.dtype)
    of_given_reduced = None if ctx.reduced_dtype is None else of_reduced.to(ctx.reduced_dtype)
    first = of_hidden.to(hidden.dtype), of_memory.to(memory.dtype)
    return of_given, of_given_reduced, of_weight, of_turned, of_right, None, *first, None


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)
