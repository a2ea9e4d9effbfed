"""The softmax over a large vocabulary: nats of targets without storing the (targets x vocabulary) logits.

    nats = log sum_v exp(x . e_v + b_v) - (x . e_target + b_target)

A low-rank bias that the context shifts is part of the product: x = [P h, c] and e_v = [E_v, Q_v].

The bias can also differ between C texts: it is (C, V), and each text has N / C consecutive targets.

Variables `of_x` are gradients of x. Shapes: N targets, V vocabulary, D width, S samples, C texts.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from factorcell.model.kernels import library
from factorcell.model.kernels.signature import dimensions
from factorcell.model.kernels.signatures import SOFTMAX

CHUNK = 16_000_000  # logits that exist at one time: 64 MB
GPU_CHUNK = 1 << 28  # logits that exist at one time on a GPU: 4 GB with their gradients
MIN_PART = 48  # fewest tokens in a job: one panel of the widest vectors


def nats(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Return the exact nats (N,) of `targets` (N,) from `values` (N, D), `table` (V, D) and `bias` (V,) or (C, V)."""
    if len(values) and library.usable(values, table, bias):
        compiled: Tensor = _Compiled.apply(values, table, bias, targets)  # type: ignore[no-untyped-call]
        return compiled
    return cross_entropies(values, table, bias, targets)


def cross_entropies(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` by PyTorch's cross-entropy: the fastest way on a GPU, and the only one without compiled code.

    If there are too many logits, they are computed in chunks, and again in the backward pass, so that memory holds one
    chunk at a time.
    """
    targets_per_text = max(1, len(values) // len(bias)) if bias.dim() == 2 and len(bias) else 1
    limit = GPU_CHUNK if values.is_cuda else CHUNK
    rows = max(1, limit // len(table) // targets_per_text) * targets_per_text
    if len(values) <= rows:
        return _cross_entropy(values, table, bias, targets)
    parts = torch.split(values, rows), torch.split(targets, rows)
    biases = torch.split(bias, rows // targets_per_text) if bias.dim() == 2 else [bias] * len(parts[0])
    chunks = zip(parts[0], biases, parts[1], strict=True)
    return torch.cat([checkpoint(_cross_entropy, x, table, b, ids, use_reentrant=False) for x, b, ids in chunks])


def _cross_entropy(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    if bias.dim() == 1:
        logits = F.linear(values, table, bias).to(bias.dtype)
    else:
        biases = bias.repeat_interleave(len(values) // max(1, len(bias)), 0)
        logits = F.linear(values, table).to(bias.dtype) + biases
    return F.cross_entropy(logits, targets, reduction="none")


def sampled_nats(
    values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor, log_inclusion: Tensor
) -> Tensor:
    """Return the nats (N,) of `targets` (N,) in a softmax over the target and the distinct `samples` (S,) only.

    Sampled softmax (Jean et al. 2015): `log_inclusion` (V,), the log probability that a row of `table` is among the
    samples, is subtracted from the logit of each row, also from that of the target.
    """
    shifted = bias - log_inclusion
    if len(values) and len(samples) and library.usable(values, table, bias):
        compiled: Tensor = _CompiledSampled.apply(values, table, shifted, targets, samples)  # type: ignore[no-untyped-call]
        return compiled
    texts = len(bias) if bias.dim() == 2 else 1
    values, targets, shifted = (
        values.view(texts, -1, values.shape[1]),
        targets.view(texts, -1),
        shifted.expand(texts, -1),
    )
    positive = (values * F.embedding(targets, table)).sum(2) + shifted.gather(1, targets)
    logits = (values @ F.embedding(samples[None], table).transpose(1, 2)).to(positive.dtype)
    logits = logits + shifted.gather(1, samples.expand(texts, -1))[:, None]
    logits = logits.masked_fill(samples == targets[:, :, None], -torch.inf)
    return (torch.logaddexp(logits.logsumexp(2), positive) - positive).flatten()


def log_sums(values: Tensor, table: Tensor, bias: Tensor, logits: Tensor | None = None) -> Tensor:
    """Return log sum_v exp(x . e_v + b_v) (N,), computed by compiled code without gradients.

    Products are in bfloat16 within autocast. If `logits` (N, V) is passed, it receives x . e_v + b_v.
    """
    bias = bias[None] if bias.dim() == 1 else bias
    numbers, number = _numbers(values, table, bias, library.half()), library.instruction_set()
    sizes = SOFTMAX.arguments(numbers, {})
    packed = torch.empty(library.require_library().factorcell_packed_table(ctypes.byref(sizes), number))
    result = torch.empty(len(values))
    arrays = {**library.dense(values=values, table=table, bias=bias), "packed": packed, "result": result}
    arrays["logits"] = logits
    library.call("softmax", SOFTMAX.arguments(numbers, arrays, "sums", packed=len(packed)), number)
    return result


def gradients(
    values: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    sums: Tensor,
    scale: Tensor,
    half: bool,
    needed: Sequence[bool] = (True, True, True),
    logits: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of the nats by compiled code.

    Args:
        values: x (N, D).
        table: e (V, D).
        bias: b (V,) or (C, V).
        targets: Targets (N,); V stands for no target, which gives the gradients of the `log_sums` alone.
        sums: The `log_sums` (N,).
        scale: The upstream gradients (N,) of the nats.
        half: Whether products are in bfloat16.
        needed: Which gradients to compute.
        logits: Logits (N, V) stored by `log_sums`, if any; otherwise they are computed again.

    Returns:
        The gradients of `values`, `table` and `bias`, or None for those that are not needed.
    """
    shape, bias = bias.shape, bias[None] if bias.dim() == 1 else bias
    numbers, number = _numbers(values, table, bias, half), library.instruction_set()
    sizes = SOFTMAX.arguments(numbers, {})
    packed = torch.empty(library.require_library().factorcell_softmax_room(ctypes.byref(sizes), number))
    values_gradient = torch.empty(values.shape) if needed[0] else None
    table_gradient = torch.empty(table.shape) if needed[1] else None
    bias_gradient = torch.zeros(bias.shape) if needed[2] else None
    arrays = library.dense(values=values, table=table, bias=bias, targets=targets, result=sums, scale=scale)
    arrays |= {
        "logits": logits,
        "packed": packed,
        "values_gradient": values_gradient,
        "table_gradient": table_gradient,
        "bias_gradient": bias_gradient,
    }
    library.call("softmax_gradient", SOFTMAX.arguments(numbers, arrays, "gradients", packed=len(packed)), number)
    return values_gradient, table_gradient, None if bias_gradient is None else bias_gradient.view(shape)


def _numbers(values: Tensor, table: Tensor, bias: Tensor, half: bool) -> tuple[int, ...]:
    (rows, _), (size, width) = dimensions("values", values, 2), dimensions("table", table, 2)
    texts = dimensions("bias", bias, 2)[0]
    rows_per_text = rows // max(1, texts)
    threads = library.threads(rows + size)
    jobs = 2 * threads if threads > 1 else 1  # more jobs than threads, so that a delayed thread gets fewer jobs
    parts = max(1, min(jobs, size // MIN_PART))
    return rows_per_text * texts, size, width, texts, parts, threads, int(half), 0


class _Compiled(torch.autograd.Function):
    """Exact nats in compiled code: logits are computed tile by tile, and again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        target_rows = F.embedding(targets, table)
        sums = log_sums(values, table, bias)
        ctx.half = library.half()
        ctx.save_for_backward(values, table, bias, targets, sums)
        return sums - (values * target_rows).sum(1) - _target_biases(bias, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, table, bias, targets, sums = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        return *gradients(values, table, bias, targets, sums, gradient, ctx.half, needed), None


def _target_biases(bias: Tensor, targets: Tensor) -> Tensor:
    if bias.dim() == 1:
        return bias[targets]
    return bias.gather(1, targets.view(len(bias), -1)).flatten()


class _CompiledSampled(torch.autograd.Function):
    """Sampled nats in compiled code: exact nats over the samples, plus the target if it is not among them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor) -> Tensor:
        target_rows, sample_rows, biases = F.embedding(targets, table), table[samples], bias[..., samples]
        positive = (values * target_rows).sum(1) + _target_biases(bias, targets)
        place = torch.full((len(table),), len(samples))
        place[samples] = torch.arange(len(samples))
        place = place[targets]
        logits = torch.empty(len(values), len(samples))
        sums = log_sums(values, sample_rows, biases, logits)
        sums = sums.where(place < len(samples), torch.logaddexp(sums, positive))
        ctx.size, ctx.half, ctx.shape = len(table), library.half(), bias.shape
        tensors = values, target_rows, sample_rows, biases, targets, samples, place, sums, positive, logits
        ctx.save_for_backward(*tensors)
        return sums - positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, target_rows, sample_rows, biases, targets, samples, place, sums, positive, logits = ctx.saved_tensors
        results = gradients(values, sample_rows, biases, place, sums, gradient, ctx.half, logits=logits)
        of_values, of_samples, of_biases = (cast(Tensor, result) for result in results)
        # The part of the gradient that comes from targets that are not among the samples.
        extra = gradient * torch.expm1(positive - sums) * (place == len(samples))
        of_values.addcmul_(extra[:, None], target_rows)
        # The scatter-add of an embedding is faster than index_add_, which goes row by row.
        of_table = torch.ops.aten.embedding_dense_backward(extra[:, None] * values, targets, ctx.size, -1, False)
        of_table[samples] += of_samples
        of_bias = gradient.new_zeros(ctx.shape)
        texts = of_bias.view(-1, ctx.size)
        texts.scatter_add_(1, targets.view(len(texts), -1), extra.view(len(texts), -1))
        texts[:, samples] += of_biases.view(len(texts), -1)
        return of_values, of_table, of_bias, None, None
