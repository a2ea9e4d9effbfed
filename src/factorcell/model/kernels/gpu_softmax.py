"""Linear cross-entropy on a GPU without its logits: values and table in, nats and gradients out.

    nats = log sum_v exp(p . E_v + b_v) - (p . E_target + b_target)

The logits (N, V) are made a tile at a time, on chip, and made again for the gradients. A low-rank bias of a context is
more columns: p' = [p, c] and E' = [E, Q].

- Forward: a program owns a tile of tokens and goes over a share of the vocabulary with a running maximum and sum; the
  shares are joined afterwards.
- Backward: the same kernel twice, with the roles of tokens and vocabulary exchanged: once it owns tokens and sums their
  gradients over the vocabulary, once it owns a tile of the vocabulary and sums over the tokens. Every sum of a share
  belongs to one program, and shares are added afterwards in their order, so that a result repeats exactly.

What is owned stays on chip up to D = 256 (64 in float32), and the other side is streamed past it, fetched ahead. A
larger D is cut into blocks, and the backward kernel makes its logits again for each block of gradients.

Shapes: N tokens, V vocabulary, D columns of values (N, D) and table (V, D).
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from factorcell.model.kernels import gpu
from factorcell.model.kernels.gpu import kernel, product, tl
from factorcell.model.kernels.operators import operator
from factorcell.model.kernels.signature import dimensions
from factorcell.model.kernels.signatures import GPU_SOFTMAX

# Sizes of tiles, for a Hopper processor of 228 KiB shared memory; a program has 8 warps.
WARPS = 8
WIDEST = {
    2: 256,
    4: 64,
}  # columns of a tile, by the bytes of a number: three products instead of one take more registers
STAGES = 2


def usable(values: Tensor, table: Tensor) -> bool:
    """Whether `nats` can do it: float32 or bfloat16, both the same, on a GPU, and something to do."""
    return gpu.usable(values, table)


def nats(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """`values` (N, D), `table` (V, D), `bias` (V,), -inf where never predicted, `targets` (N,) -> float32 nats (N,).

    Those of a target that is none of 0 to V - 1 are NaN: to raise an error would be to wait for the GPU.
    """
    (rows, width), (size, _) = dimensions("values", values, 2), dimensions("table", table, 2)
    arrays = {"values": values, "table": table, "bias": bias, "targets": targets}
    GPU_SOFTMAX.addresses(GPU_SOFTMAX.expected((rows, size, width), ()), arrays, "nats", device=values.device)
    result: Tensor = _forward(values, table, bias, targets)[0]
    return result


@kernel
def _block(array, rows, size, columns, WIDTH: tl.constexpr):
    """`array`[rows, columns], of `size` rows `WIDTH` long, zeros beyond."""
    mask = (rows < size)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(array + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], mask=mask, other=0)


@kernel
def _forward_kernel(
    values,
    table,
    bias,
    targets,
    normalizers,
    chosen,
    tokens,
    vocabulary,
    share,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    HELD: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Log sum of exp over a share of the vocabulary, (shares, N); the target's logit, from the share that has it."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, vocabulary)
    target = tl.load(targets + rows, mask=rows < tokens, other=-1)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS,), tl.float32)
    if HELD:
        own = _block(values, rows, tokens, tl.arange(0, DEPTH), WIDTH)
    for start in tl.range(begin, end, COLUMNS, num_stages=STAGES):
        columns = start + tl.arange(0, COLUMNS)
        logits = tl.zeros((ROWS, COLUMNS), tl.float32)
        for depth in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            inner = depth + tl.arange(0, DEPTH)
            if not HELD:
                own = _block(values, rows, tokens, inner, WIDTH)
            other = _block(table, columns, end, inner, WIDTH)
            logits = product(own, tl.trans(other), logits, PRECISION)
        logits += tl.load(bias + columns, mask=columns < end, other=-float("inf")).to(tl.float32)[None, :]
        found += tl.sum(tl.where(columns[None, :] == target[:, None], logits, 0.0), axis=1)
        higher = tl.maximum(top, tl.max(logits, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing but tokens that are never predicted so far
        total = total * tl.exp(top - base) + tl.sum(tl.exp(logits - base[:, None]), axis=1)
        top = higher
    total = tl.where(top == -float("inf"), 1.0, total)  # a share without a logit
    tl.store(normalizers + tl.program_id(1) * tokens + rows, top + tl.log(total), mask=rows < tokens)
    tl.store(chosen + rows, found, mask=(target >= begin) & (target < end))


@kernel
def _backward_kernel(
    own,
    other,
    bias,
    targets,
    normalizers,
    of_nats,
    of_own,
    of_bias,
    owned,
    others,
    share,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    HELD: tl.constexpr,
    BY_TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients (shares, owned, D) of a block of columns of what is owned: tokens, or else the table and the bias."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(2) * DEPTH + tl.arange(0, DEPTH)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, others)
    gradient = tl.zeros((ROWS, DEPTH), tl.float32)
    gradient_of_bias = tl.zeros((ROWS,), tl.float32)
    if HELD:
        mine = _block(own, rows, owned, tl.arange(0, DEPTH), WIDTH)
    for start in tl.range(begin, end, COLUMNS, num_stages=STAGES):
        columns = start + tl.arange(0, COLUMNS)
        theirs = _block(other, columns, end, block, WIDTH)
        logits = tl.zeros((ROWS, COLUMNS), tl.float32)
        if HELD:  # the one block is all columns
            logits = product(mine, tl.trans(theirs), logits, PRECISION)
        else:
            for depth in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
                inner = depth + tl.arange(0, DEPTH)
                part = _block(own, rows, owned, inner, WIDTH)
                logits = product(part, tl.trans(_block(other, columns, end, inner, WIDTH)), logits, PRECISION)
        if BY_TOKENS:
            token, word, tokens, words = rows[:, None], columns[None, :], owned, end
        else:
            token, word, tokens, words = columns[None, :], rows[:, None], end, owned
        logits += tl.load(bias + word, mask=word < words, other=-float("inf")).to(tl.float32)
        normalizer = tl.load(normalizers + token, mask=token < tokens, other=0)
        target = tl.load(targets + token, mask=token < tokens, other=-1)
        weight = tl.load(of_nats + token, mask=token < tokens, other=0)
        of_logits = (tl.exp(logits - normalizer) - tl.where(word == target, 1.0, 0.0)) * weight
        gradient = product(of_logits.to(theirs.dtype), theirs, gradient, PRECISION)
        if not BY_TOKENS:
            gradient_of_bias += tl.sum(of_logits, axis=1)
    line = tl.program_id(1).to(tl.int64) * owned + rows
    mask = (rows < owned)[:, None] & (block < WIDTH)[None, :]
    tl.store(of_own + line[:, None] * WIDTH + block[None, :], gradient, mask=mask)
    if not BY_TOKENS:  # the same from every block of columns
        tl.store(of_bias + line, gradient_of_bias, mask=rows < owned)


def _tiles(values: Tensor, backward: bool) -> dict[str, Any]:
    """Sizes of tiles that fit on chip, and how their products are made."""
    width, size = max(gpu.power(values.shape[1]), 16), values.element_size()
    depth = min(width, WIDEST[size])
    rows = 128 if depth == width and size == 2 and not backward else 64
    how = {"PRECISION": gpu.precision(), "STAGES": STAGES, "num_warps": WARPS, **gpu.OPTIONS}
    return {"ROWS": rows, "COLUMNS": rows, "DEPTH": depth, "HELD": depth == width, "WIDTH": values.shape[1], **how}


def _shares(rows: int, columns: int, tile: int, device: torch.device) -> tuple[int, int]:
    """How many shares `columns` are cut into, and columns of each, for about two programs a processor."""
    programs, tiles = -(-rows // tile), -(-columns // tile)
    count = min(max(2 * gpu.processors(device) // programs, 1), tiles)
    each = -(-tiles // count) * tile
    return -(-columns // each), each


@operator("gpu_linear_nats")
def _forward(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Nats (N,) and the logarithm (N,) of what normalizes them, both float32."""
    tokens, vocabulary, how = len(values), len(table), _tiles(values, backward=False)
    count, share = _shares(tokens, vocabulary, how["ROWS"], values.device)
    normalizers = values.new_empty(count, tokens, dtype=torch.float32)
    chosen = values.new_full((tokens,), torch.nan, dtype=torch.float32)
    dense = [array.contiguous() for array in (values, table, bias, targets)]
    with gpu.on(values):
        grid = (-(-tokens // how["ROWS"]), count)
        _forward_kernel[grid](*dense, normalizers, chosen, tokens, vocabulary, share, **how)
    normalizer = torch.logsumexp(normalizers, dim=0)
    return normalizer - chosen, normalizer


def _forward_shapes(values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    made = values.new_empty(len(values), dtype=torch.float32)
    return made, torch.empty_like(made)


@operator("gpu_linear_nats_backward")
def _backward(
    of_nats: Tensor, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, normalizer: Tensor, by_tokens: bool
) -> tuple[Tensor, Tensor]:
    """Gradients in float32 of the values (N, D) and nothing, or of the table (V, D) and the bias (V,)."""
    own, other = (values, table) if by_tokens else (table, values)
    how = _tiles(values, backward=True)
    count, share = _shares(len(own), len(other), how["ROWS"], values.device)
    of_own = values.new_empty(count, *own.shape, dtype=torch.float32)
    of_bias = values.new_empty(count, 0 if by_tokens else len(own), dtype=torch.float32)
    dense = [array.contiguous() for array in (own, other, bias, targets, normalizer, of_nats)]
    with gpu.on(values):
        grid = (-(-len(own) // how["ROWS"]), count, -(-own.shape[1] // how["DEPTH"]))
        _backward_kernel[grid](*dense, of_own, of_bias, len(own), len(other), share, BY_TOKENS=by_tokens, **how)
    return of_own.sum(0), of_bias.sum(0)


def _backward_shapes(of_nats: Tensor, values: Tensor, table: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    own, words = (values, 0) if rest[3] else (table, len(table))
    return own.new_empty(own.shape, dtype=torch.float32), own.new_empty(words, dtype=torch.float32)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _differentiate(ctx: Any, of_nats: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    """d logits = (softmax - one of the target) times the gradient of the nats."""
    values, table, bias, targets, normalizer = ctx.saved_tensors
    of_values = of_table = of_bias = None
    if ctx.needs_input_grad[0]:
        of_values = _backward(of_nats, values, table, bias, targets, normalizer, True)[0].to(values.dtype)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        of_table, of_bias = _backward(of_nats, values, table, bias, targets, normalizer, False)
        of_table, of_bias = of_table.to(table.dtype), of_bias.to(bias.dtype)
    return of_values, of_table, of_bias, None


torch.library.register_fake("factorcell::gpu_linear_nats", _forward_shapes)
torch.library.register_fake("factorcell::gpu_linear_nats_backward", _backward_shapes)
torch.library.register_autograd("factorcell::gpu_linear_nats", _differentiate, setup_context=_keep_for_backward)
