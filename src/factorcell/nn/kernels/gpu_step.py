"""One step of the coupled cell without its matrix products, in one GPU kernel per direction.

    [i, f, o] = gates + product     i = tanh(N(i))     f = sigmoid(N(f) + 1)     o = sigmoid(N(o))
    m' = f m + (1 - f) i keep       h' = tanh(N(m')) o

N is the layer normalization x -> gain (x - mean) / deviation + offset, or nothing. A text that has ended keeps h and m.
A program of Triton computes all hidden units of a text. The backward kernel computes the step again, so the forward
kernel stores nothing but its results. Names: `of_x` is the gradient of the loss with respect to x.

Shapes: B texts, H hidden.
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from factorcell.nn.kernels import gpu
from factorcell.nn.kernels.gpu import kernel, tanh, tl

EPSILON = 1e-5  # added to the variance, as `torch.nn.functional.layer_norm` does


def run(
    gates: Tensor,
    product: Tensor,
    hidden: Tensor,
    memory: Tensor,
    norm: Tensor | None,
    keep: Tensor | None,
    is_inside: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return h and m (B, H) after a step, as `cells.update_state`; `product` may be in bfloat16."""
    result: tuple[Tensor, Tensor] = _Step.apply(gates, product, hidden, memory, norm, keep, is_inside)  # type: ignore[no-untyped-call]
    return result


@kernel
def _load(array, row, stride, columns, mask):
    """Load the `columns` of a row in float32."""
    return tl.load(array + row * stride + columns, mask=mask, other=0).to(tl.float32)


@kernel
def _load_sum(gates, product, row, gates_stride, product_stride, columns, mask):
    """Load the `columns` of a row of two arrays, and return their sum in float32."""
    return _load(gates, row, gates_stride, columns, mask) + _load(product, row, product_stride, columns, mask)


@kernel
def _standardize(x, mask, EPSILON: tl.constexpr, HIDDEN: tl.constexpr):
    """Return (x - mean) / deviation, zero outside `mask`, and 1 / deviation."""
    centered = tl.where(mask, x - tl.sum(x, axis=0) / HIDDEN, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centered * centered, axis=0) / HIDDEN + EPSILON)
    return centered * inverse, inverse


@kernel
def _normalize(x, norm, INDEX: tl.constexpr, columns, mask, EPSILON: tl.constexpr, HIDDEN: tl.constexpr):
    """Return N(x), (x - mean) / deviation, and 1 / deviation."""
    if norm is None:
        return x, x, 1.0
    else:
        standard, inverse = _standardize(x, mask, EPSILON, HIDDEN)
        gain = tl.load(norm + INDEX * HIDDEN + columns, mask=mask, other=0)
        offset = tl.load(norm + (4 + INDEX) * HIDDEN + columns, mask=mask, other=0)
        return gain * standard + offset, standard, inverse


@kernel
def _denormalize(of_y, standard, inverse, norm, of_norm, row, INDEX: tl.constexpr, columns, mask, HIDDEN: tl.constexpr):
    """Return the gradient of x from `of_y`, that of N(x); store the gradients of the gain and the offset of the row."""
    if norm is None:
        return of_y
    else:
        tl.store(of_norm + (row * 8 + INDEX) * HIDDEN + columns, of_y * standard, mask=mask)
        tl.store(of_norm + (row * 8 + 4 + INDEX) * HIDDEN + columns, of_y, mask=mask)
        of_standard = of_y * tl.load(norm + INDEX * HIDDEN + columns, mask=mask, other=0)
        mean = tl.sum(of_standard, axis=0) / HIDDEN
        projection = tl.sum(of_standard * standard, axis=0) / HIDDEN
        return inverse * (of_standard - mean - standard * projection)


@kernel
def _forward_kernel(
    gates, product, hidden, memory, norm, keep, inside, next_hidden, next_memory, gates_stride, product_stride,
    keep_stride, inside_stride, EPSILON: tl.constexpr, HIDDEN: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Compute the step of one text."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, UNITS)
    mask = columns < HIDDEN
    x_i = _load_sum(gates, product, row, gates_stride, product_stride, columns, mask)
    x_f = _load_sum(gates + HIDDEN, product + HIDDEN, row, gates_stride, product_stride, columns, mask)
    x_o = _load_sum(gates + 2 * HIDDEN, product + 2 * HIDDEN, row, gates_stride, product_stride, columns, mask)
    m = _load(memory, row, HIDDEN, columns, mask)
    y_i, _, _ = _normalize(x_i, norm, 0, columns, mask, EPSILON, HIDDEN)
    y_f, _, _ = _normalize(x_f, norm, 1, columns, mask, EPSILON, HIDDEN)
    y_o, _, _ = _normalize(x_o, norm, 2, columns, mask, EPSILON, HIDDEN)
    candidate, f = tanh(y_i), tl.sigmoid(y_f + 1)
    if keep is not None:
        candidate *= _load(keep, row, keep_stride, columns, mask)
    after = tl.where(mask, f * m + (1 - f) * candidate, 0.0)
    y_m, _, _ = _normalize(after, norm, 3, columns, mask, EPSILON, HIDDEN)
    h = tanh(y_m) * tl.sigmoid(y_o)
    if inside is not None:
        is_live = tl.load(inside + row * inside_stride) != 0
        h = tl.where(is_live, h, _load(hidden, row, HIDDEN, columns, mask))
        after = tl.where(is_live, after, m)
    tl.store(next_hidden + row * HIDDEN + columns, h, mask=mask)
    tl.store(next_memory + row * HIDDEN + columns, after, mask=mask)


@kernel
def _backward_kernel(
    of_next_hidden, of_next_memory, gates, product, memory, norm, keep, inside, of_gates, of_product, of_hidden,
    of_memory, of_norm, gates_stride, product_stride, keep_stride, inside_stride, of_hidden_stride, of_memory_stride,
    EPSILON: tl.constexpr, HIDDEN: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one text; `of_norm` (B, 8, H) are the gradients of the gains and offsets per text."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, UNITS)
    mask = columns < HIDDEN
    of_h = _load(of_next_hidden, row, of_hidden_stride, columns, mask)
    of_after = _load(of_next_memory, row, of_memory_stride, columns, mask)
    of_h_before, of_m_ended = tl.zeros_like(of_h), tl.zeros_like(of_h)
    if inside is not None:
        is_live = tl.load(inside + row * inside_stride) != 0
        of_h_before, of_m_ended = tl.where(is_live, 0.0, of_h), tl.where(is_live, 0.0, of_after)
        of_h, of_after = tl.where(is_live, of_h, 0.0), tl.where(is_live, of_after, 0.0)
    x_i = _load_sum(gates, product, row, gates_stride, product_stride, columns, mask)
    x_f = _load_sum(gates + HIDDEN, product + HIDDEN, row, gates_stride, product_stride, columns, mask)
    x_o = _load_sum(gates + 2 * HIDDEN, product + 2 * HIDDEN, row, gates_stride, product_stride, columns, mask)
    m = _load(memory, row, HIDDEN, columns, mask)
    y_i, standard_i, inverse_i = _normalize(x_i, norm, 0, columns, mask, EPSILON, HIDDEN)
    y_f, standard_f, inverse_f = _normalize(x_f, norm, 1, columns, mask, EPSILON, HIDDEN)
    y_o, standard_o, inverse_o = _normalize(x_o, norm, 2, columns, mask, EPSILON, HIDDEN)
    i, f, o = tanh(y_i), tl.sigmoid(y_f + 1), tl.sigmoid(y_o)
    candidate, of_i_factor = i, 1 - i * i
    if keep is not None:
        factor = _load(keep, row, keep_stride, columns, mask)
        candidate, of_i_factor = i * factor, of_i_factor * factor
    after = tl.where(mask, f * m + (1 - f) * candidate, 0.0)
    y_m, standard_m, inverse_m = _normalize(after, norm, 3, columns, mask, EPSILON, HIDDEN)
    squashed = tanh(y_m)
    of_y_m = of_h * o * (1 - squashed * squashed)
    of_after += _denormalize(of_y_m, standard_m, inverse_m, norm, of_norm, row, 3, columns, mask, HIDDEN)
    of_y_i = of_after * (1 - f) * of_i_factor
    of_y_f = of_after * (m - candidate) * f * (1 - f)
    of_y_o = of_h * squashed * o * (1 - o)
    of_x_i = _denormalize(
        tl.where(mask, of_y_i, 0.0), standard_i, inverse_i, norm, of_norm, row, 0, columns, mask, HIDDEN
    )
    of_x_f = _denormalize(
        tl.where(mask, of_y_f, 0.0), standard_f, inverse_f, norm, of_norm, row, 1, columns, mask, HIDDEN
    )
    of_x_o = _denormalize(
        tl.where(mask, of_y_o, 0.0), standard_o, inverse_o, norm, of_norm, row, 2, columns, mask, HIDDEN
    )
    places = row * 3 * HIDDEN + columns
    tl.store(of_gates + places, of_x_i, mask=mask)
    tl.store(of_gates + places + HIDDEN, of_x_f, mask=mask)
    tl.store(of_gates + places + 2 * HIDDEN, of_x_o, mask=mask)
    tl.store(of_product + places, of_x_i, mask=mask)
    tl.store(of_product + places + HIDDEN, of_x_f, mask=mask)
    tl.store(of_product + places + 2 * HIDDEN, of_x_o, mask=mask)
    tl.store(of_hidden + row * HIDDEN + columns, of_h_before, mask=mask)
    tl.store(of_memory + row * HIDDEN + columns, of_after * f + of_m_ended, mask=mask)


def _with_dense_rows(array: Tensor) -> Tensor:
    """Return `array` (B, N) with adjacent columns; copy it only if they are not adjacent."""
    return array if array.stride(1) == 1 else array.contiguous()


def _row_strides(*arrays: Tensor | None) -> tuple[int, ...]:
    """Return the distance between the rows of each array; 0 for those that do not exist."""
    return tuple(0 if array is None else array.stride(0) for array in arrays)


def _sizes(hidden: Tensor) -> dict[str, Any]:
    """Return the constants of a kernel for h (B, H)."""
    units = gpu.next_power_of_two(hidden.shape[1])
    warps = min(max(units // 256, 1), 8)
    return {"EPSILON": EPSILON, "HIDDEN": hidden.shape[1], "UNITS": units, "num_warps": warps, **gpu.OPTIONS}


class _Step(torch.autograd.Function):
    """The autograd function of a step."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, product: Tensor, hidden: Tensor, memory: Tensor, norm: Tensor | None,
        keep: Tensor | None, is_inside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        gates, product = _with_dense_rows(gates), _with_dense_rows(product)
        hidden, memory = hidden.contiguous(), memory.contiguous()
        norm = None if norm is None else norm.contiguous()
        keep = None if keep is None else _with_dense_rows(keep)
        inside = None if is_inside is None else is_inside.view(torch.uint8)
        next_hidden, next_memory = torch.empty_like(hidden), torch.empty_like(memory)
        strides = _row_strides(gates, product, keep, inside)
        arrays = gates, product, hidden, memory, norm, keep, inside, next_hidden, next_memory
        with gpu.on(gates):
            _forward_kernel[(len(gates),)](*arrays, *strides, **_sizes(hidden))
        ctx.save_for_backward(gates, product, memory, norm, keep, inside)
        return next_hidden, next_memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_next_hidden: Tensor, of_next_memory: Tensor) -> tuple[Tensor | None, ...]:
        gates, product, memory, norm, keep, inside = ctx.saved_tensors
        of_next_hidden, of_next_memory = _with_dense_rows(of_next_hidden), _with_dense_rows(of_next_memory)
        of_gates = torch.empty(gates.shape, device=gates.device)
        of_product = torch.empty(product.shape, device=gates.device, dtype=product.dtype)
        of_hidden, of_memory = torch.empty_like(memory), torch.empty_like(memory)
        of_norm = None if norm is None else memory.new_empty(len(memory), *norm.shape)
        results = of_gates, of_product, of_hidden, of_memory, of_norm
        strides = _row_strides(gates, product, keep, inside, of_next_hidden, of_next_memory)
        arrays = of_next_hidden, of_next_memory, gates, product, memory, norm, keep, inside
        with gpu.on(gates):
            _backward_kernel[(len(gates),)](*arrays, *results, *strides, **_sizes(memory))
        of_all_norm = None if of_norm is None else of_norm.sum(0)
        of_hidden_before = None if inside is None else of_hidden  # only texts that have ended pass h on
        return of_gates, of_product, of_hidden_before, of_memory, of_all_norm, None, None
