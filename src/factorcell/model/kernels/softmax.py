"""The softmax over a large vocabulary: nats of targets without storing the (targets x vocabulary) logits.

    nats = log sum_v exp(x . e_v + b_v) - (x . e_target + b_target)

x is the vector that predicts a target, e_v the row of token v in a table, and b_v the bias of token v. In a model with
a low-rank softmax bias Q c, x = [P h, c] and e_v = [E_v, Q_v], where P h is the projected hidden state and E_v the
embedding of token v. The bias b is (V,), or (C, V) if it differs between C texts; each text then has N / C consecutive
targets.

Shapes: N targets, V vocabulary, D size of x, S samples, C texts.
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
from factorcell.model.kernels.signature import checked_shape
from factorcell.model.kernels.signatures import SOFTMAX

CHUNK = 16_000_000  # largest number of logits in memory at one time: 64 MB
GPU_CHUNK = 1 << 28  # the same limit on a GPU: 4 GB for the logits and their gradients
MIN_PART = 48  # fewest tokens that a thread computes in one job: the columns of the widest packed panel


def nats(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Return the exact nats (N,) of `targets` (N,) from `values` (N, D), `table` (V, D) and `bias` (V,) or (C, V)."""
    if len(values) and library.usable(values, table, bias):
        compiled: Tensor = _Compiled.apply(values, table, bias, targets)  # type: ignore[no-untyped-call]
        return compiled
    return cross_entropies(values, table, bias, targets)


def cross_entropies(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` with PyTorch's cross-entropy, which is fastest on a GPU and needs no compiled code.

    More logits than the limit are computed in chunks. The backward pass computes each chunk again, so memory holds only
    one chunk at a time.
    """
    targets_per_text = max(1, len(values) // len(bias)) if bias.dim() == 2 and len(bias) else 1
    limit = GPU_CHUNK if values.is_cuda else CHUNK
    rows = max(1, limit // len(table) // targets_per_text) * targets_per_text
    if len(values) <= rows:
        return _cross_entropy(values, table, bias, targets)
    value_parts, target_parts = torch.split(values, rows), torch.split(targets, rows)
    bias_parts = torch.split(bias, rows // targets_per_text) if bias.dim() == 2 else [bias] * len(value_parts)
    chunks = zip(value_parts, [table] * len(value_parts), bias_parts, target_parts, strict=True)
    return torch.cat([checkpoint(_cross_entropy, *chunk, use_reentrant=False) for chunk in chunks])


def _cross_entropy(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` with all logits in memory at once."""
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

    Sampled softmax (Jean et al. 2015): the logit of each token, including the target, is reduced by its `log_inclusion`
    (V,), the log probability that the token is among the samples.
    """
    shifted = bias - log_inclusion
    if len(values) and len(samples) and library.usable(values, table, bias):
        compiled: Tensor = _CompiledSampled.apply(values, table, shifted, targets, samples)  # type: ignore[no-untyped-call]
        return compiled
    text_count = len(bias) if bias.dim() == 2 else 1
    values, targets, shifted = (
        values.view(text_count, -1, values.shape[1]),
        targets.view(text_count, -1),
        shifted.expand(text_count, -1),
    )
    target_logits = (values * F.embedding(targets, table)).sum(2) + shifted.gather(1, targets)
    sample_logits = (values @ F.embedding(samples[None], table).transpose(1, 2)).to(target_logits.dtype)
    sample_logits = sample_logits + shifted.gather(1, samples.expand(text_count, -1))[:, None]
    sample_logits = sample_logits.masked_fill(samples == targets[:, :, None], -torch.inf)
    return (torch.logaddexp(sample_logits.logsumexp(2), target_logits) - target_logits).flatten()


def log_sums(values: Tensor, table: Tensor, bias: Tensor, logits: Tensor | None = None) -> Tensor:
    """Return log sum_v exp(x . e_v + b_v) (N,), computed in compiled code without gradients.

    Within autocast, products are computed in bfloat16 if the processor supports it. If the caller passes an array
    `logits` (N, V), the function stores x . e_v + b_v in it.
    """
    bias = bias[None] if bias.dim() == 1 else bias
    numbers, instruction_set = _softmax_numbers(values, table, bias, library.half()), library.instruction_set()
    structure = SOFTMAX.checked_arguments(numbers, {})
    packed = torch.empty(library.require_library().factorcell_packed_table(ctypes.byref(structure), instruction_set))
    result = torch.empty(len(values))
    arrays = {**library.dense(values=values, table=table, bias=bias), "packed": packed, "result": result}
    arrays["logits"] = logits
    library.call("softmax", SOFTMAX.checked_arguments(numbers, arrays, "sums", packed=len(packed)), instruction_set)
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
    """Compute the gradients of the nats in compiled code.

    Args:
        values: x (N, D).
        table: e (V, D).
        bias: b (V,) or (C, V).
        targets: Targets (N,). A target V means no target: the gradient is then that of the log sum alone.
        sums: The `log_sums` (N,).
        scale: The upstream gradients (N,) of the nats.
        half: Whether products are in bfloat16.
        needed: Which gradients to compute.
        logits: Logits (N, V) that `log_sums` has stored; None to compute them again.

    Returns:
        The gradients of `values`, `table` and `bias`, or None for those that are not needed.
    """
    bias_shape, bias = bias.shape, bias[None] if bias.dim() == 1 else bias
    numbers, instruction_set = _softmax_numbers(values, table, bias, half), library.instruction_set()
    structure = SOFTMAX.checked_arguments(numbers, {})
    packed = torch.empty(library.require_library().factorcell_softmax_room(ctypes.byref(structure), instruction_set))
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
    library.call(
        "softmax_gradient", SOFTMAX.checked_arguments(numbers, arrays, "gradients", packed=len(packed)), instruction_set
    )
    return values_gradient, table_gradient, None if bias_gradient is None else bias_gradient.view(bias_shape)


def _softmax_numbers(values: Tensor, table: Tensor, bias: Tensor, half: bool) -> tuple[int, ...]:
    """Return the integer fields of the structure `SOFTMAX`; `half` means products in bfloat16."""
    (rows, _), (size, width) = checked_shape("values", values, 2), checked_shape("table", table, 2)
    text_count = checked_shape("bias", bias, 2)[0]
    rows_per_text = rows // max(1, text_count)
    threads = library.threads(rows + size)
    jobs = 2 * threads if threads > 1 else 1  # more jobs than threads, so that a delayed thread gets fewer jobs
    parts = max(1, min(jobs, size // MIN_PART))
    return rows_per_text * text_count, size, width, text_count, parts, threads, int(half), 0


class _Compiled(torch.autograd.Function):
    """The autograd function of exact `nats` in compiled code, which computes logits again in the backward pass."""

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
    """Return the bias of each target (N,) from biases (V,) or (C, V)."""
    if bias.dim() == 1:
        return bias[targets]
    return bias.gather(1, targets.view(len(bias), -1)).flatten()


class _CompiledSampled(torch.autograd.Function):
    """The autograd function of `sampled_nats` in compiled code.

    It computes exact nats over the samples, and adds targets that are not among the samples in PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor) -> Tensor:
        target_rows, sample_rows, sample_biases = F.embedding(targets, table), table[samples], bias[..., samples]
        target_logits = (values * target_rows).sum(1) + _target_biases(bias, targets)
        sample_of_token = torch.full((len(table),), len(samples))  # S for tokens that are not among the samples
        sample_of_token[samples] = torch.arange(len(samples))
        target_samples = sample_of_token[targets]
        sample_logits = torch.empty(len(values), len(samples))
        sums = log_sums(values, sample_rows, sample_biases, sample_logits)
        sums = sums.where(target_samples < len(samples), torch.logaddexp(sums, target_logits))
        ctx.size, ctx.half, ctx.shape = len(table), library.half(), bias.shape
        rows = target_rows, sample_rows, sample_biases
        ctx.save_for_backward(*rows, values, targets, samples, target_samples, sums, target_logits, sample_logits)
        return sums - target_logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *rows, values, targets, samples, target_samples, sums, target_logits, sample_logits = ctx.saved_tensors
        target_rows, sample_rows, sample_biases = rows
        results = gradients(
            values, sample_rows, sample_biases, target_samples, sums, gradient, ctx.half, logits=sample_logits
        )
        values_gradient, sample_rows_gradient, sample_biases_gradient = (cast(Tensor, result) for result in results)
        # Gradients of the logits of targets that are not among the samples; zero for all other targets.
        target_logits_gradient = gradient * torch.expm1(target_logits - sums) * (target_samples == len(samples))
        values_gradient.addcmul_(target_logits_gradient[:, None], target_rows)
        # The scatter-add of an embedding is faster than index_add_, which goes row by row.
        table_gradient = torch.ops.aten.embedding_dense_backward(
            target_logits_gradient[:, None] * values, targets, ctx.size, -1, False
        )
        table_gradient[samples] += sample_rows_gradient
        bias_gradient = gradient.new_zeros(ctx.shape)
        bias_gradient_rows = bias_gradient.view(-1, ctx.size)
        bias_gradient_rows.scatter_add_(
            1, targets.view(len(bias_gradient_rows), -1), target_logits_gradient.view(len(bias_gradient_rows), -1)
        )
        bias_gradient_rows[:, samples] += sample_biases_gradient.view(len(bias_gradient_rows), -1)
        return values_gradient, table_gradient, bias_gradient, None, None
