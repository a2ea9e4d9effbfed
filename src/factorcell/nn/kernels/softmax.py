"""The softmax over a large vocabulary: nats of targets without storing the (targets x vocabulary) logits.

    nats = log sum_v exp(x . e_v + b_v) - (x . e_target + b_target)

x is the vector that predicts a target, e_v the row of token v in a table, and b_v the bias of token v. The bias b is
(V,), or (C, V) if it differs between C texts; each text then has N / C consecutive targets.

Shapes: N targets, V vocabulary, D size of x, S samples, C texts.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import SOFTMAX

MAX_LOGITS = 16_000_000  # largest number of logits in memory at one time: 64 MB
MAX_GPU_LOGITS = 1 << 28  # largest number of logits in the memory of a GPU: 4 GB for the logits and their gradients
MIN_COMPILED_TARGETS = 32  # fewer targets are computed faster by PyTorch if no gradients are needed
MIN_JOB_TOKENS = 48  # fewest tokens that a thread computes in one job: the columns of the widest packed panel


def nats(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Return the exact nats (N,) of `targets` (N,) from `values` (N, D), `table` (V, D) and `bias` (V,) or (C, V)."""
    # Compiled code first copies the table into the order in which it reads it, which pays off only with enough targets.
    is_worthwhile = len(values) >= MIN_COMPILED_TARGETS or torch.is_grad_enabled()
    if len(values) and is_worthwhile and library.supports(values, table, bias):
        compiled: Tensor = _Compiled.apply(values, table, bias, targets)  # type: ignore[no-untyped-call]
        return compiled
    return cross_entropies(values, table, bias, targets)


def cross_entropies(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` with PyTorch's cross-entropy, which is fastest on a GPU and needs no compiled code.

    If there are more logits than the limit, they are computed in chunks. The backward pass computes each chunk again,
    so memory holds only one chunk at a time.
    """
    targets_per_text = max(1, len(values) // len(bias)) if bias.dim() == 2 and len(bias) else 1
    max_logits = MAX_GPU_LOGITS if values.is_cuda else MAX_LOGITS
    texts_at_once = max(1, max_logits // len(table) // targets_per_text)
    targets_at_once = texts_at_once * targets_per_text
    if len(values) <= targets_at_once:
        return _cross_entropy(values, table, bias, targets)
    value_parts, target_parts = torch.split(values, targets_at_once), torch.split(targets, targets_at_once)
    bias_parts = torch.split(bias, texts_at_once) if bias.dim() == 2 else [bias] * len(value_parts)
    chunks = zip(value_parts, [table] * len(value_parts), bias_parts, target_parts, strict=True)
    return torch.cat([checkpoint(_cross_entropy, *chunk, use_reentrant=False) for chunk in chunks])


def _cross_entropy(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` with all logits in memory at once."""
    if bias.dim() == 1:
        logits = F.linear(values, table, bias).to(bias.dtype)
    else:
        logits = F.linear(values, table).to(bias.dtype)
        logits.view(len(bias), len(values) // max(1, len(bias)), len(table)).add_(bias[:, None])
    return F.cross_entropy(logits, targets, reduction="none")


def sampled_nats(
    values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor, log_inclusion: Tensor
) -> Tensor:
    """Return the nats (N,) of `targets` (N,) in a softmax over the target and the distinct `samples` (S,) only.

    Sampled softmax (Jean et al. 2015): the logit of each token, including the target, is reduced by its `log_inclusion`
    (V,), the log probability that the token is among the samples.
    """
    corrected_bias = bias - log_inclusion
    if len(values) and len(samples) and library.supports(values, table, bias):
        compiled: Tensor = _CompiledSampled.apply(values, table, corrected_bias, targets, samples)  # type: ignore[no-untyped-call]
        return compiled
    text_count = len(bias) if bias.dim() == 2 else 1
    values = values.view(text_count, -1, values.shape[1])
    targets = targets.view(text_count, -1)
    corrected_bias = corrected_bias.expand(text_count, -1)
    target_logits = (values * F.embedding(targets, table)).sum(2) + corrected_bias.gather(1, targets)
    sample_logits = (values @ F.embedding(samples, table).T).to(target_logits.dtype)
    sample_logits = sample_logits + corrected_bias.gather(1, samples.expand(text_count, -1))[:, None]
    # A target that is also a sample counts once.
    sample_logits = sample_logits.masked_fill(samples == targets[:, :, None], -torch.inf)
    return (torch.logaddexp(sample_logits.logsumexp(2), target_logits) - target_logits).flatten()


def log_sums(values: Tensor, table: Tensor, bias: Tensor, logits: Tensor | None = None) -> Tensor:
    """Return log sum_v exp(x . e_v + b_v) (N,), computed in compiled code without gradients.

    Within autocast, products are computed in bfloat16 if the processor supports it. If the caller passes an array
    `logits` (N, V), this function stores all x . e_v + b_v in it.
    """
    result = torch.empty(len(values))
    _call("softmax", "packed_table", (values, table, bias), library.uses_bfloat16(), result=result, logits=logits)
    return result


def gradients(
    values: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    sums: Tensor,
    scale: Tensor,
    is_bfloat16: bool,
    needed: Sequence[bool] = (True, True, True),
    logits: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of `values`, `table` and `bias` in compiled code; None for those that are not `needed`.

    `sums` (N,) are the `log_sums`, `scale` (N,) the gradients of the nats, and `logits` (N, V) those that `log_sums`
    has stored, or None to compute them again. A target V means no target: the gradient is that of the log sum alone.
    """
    needs_values, needs_table, needs_bias = needed
    values_gradient = torch.empty(values.shape) if needs_values else None
    table_gradient = torch.empty(table.shape) if needs_table else None
    bias_gradient = torch.zeros(bias.shape) if needs_bias else None
    _call(
        "softmax_gradient",
        "softmax_room",
        (values, table, bias),
        is_bfloat16,
        **library.dense_arrays(targets=targets, result=sums, scale=scale),
        logits=logits,
        values_gradient=values_gradient,
        table_gradient=table_gradient,
        bias_gradient=None if bias_gradient is None else bias_gradient.view(-1, len(table)),
    )
    return values_gradient, table_gradient, bias_gradient


def _call(
    function: str, size_function: str, inputs: tuple[Tensor, Tensor, Tensor], is_bfloat16: bool, **arrays: Tensor | None
) -> None:
    """Call a compiled `function` of values, table and bias, whose working memory has the size `size_function`."""
    values, table, bias = inputs
    bias = bias[None] if bias.dim() == 1 else bias
    rows, text_count, (size, width) = len(values), len(bias), table.shape
    threads = library.thread_count(rows + size)
    jobs = 2 * threads if threads > 1 else 1  # more jobs than threads, so that a delayed thread gets fewer jobs
    numbers = {
        "rows": rows // max(1, text_count) * text_count,
        "size": size,
        "width": width,
        "texts": text_count,
        "parts": max(1, min(jobs, size // MIN_JOB_TOKENS)),
        "threads": threads,
        "half": int(is_bfloat16),
    }
    instruction_set = library.instruction_set()
    packed = torch.empty(library.size_of(size_function, SOFTMAX.checked_arguments(numbers, {}), instruction_set))
    checked = {**library.dense_arrays(values=values, table=table, bias=bias), "packed": packed, **arrays}
    library.call(function, SOFTMAX.checked_arguments(numbers, checked, len(packed)), instruction_set)


class _Compiled(torch.autograd.Function):
    """The autograd function of exact `nats` in compiled code; the backward pass computes the logits again."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        target_rows = F.embedding(targets, table)
        sums = log_sums(values, table, bias)
        ctx.is_bfloat16 = library.uses_bfloat16()
        ctx.save_for_backward(values, table, bias, targets, sums)
        return sums - (values * target_rows).sum(1) - _target_biases(bias, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, table, bias, targets, sums = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        return *gradients(values, table, bias, targets, sums, gradient, ctx.is_bfloat16, needed), None


def _target_biases(bias: Tensor, targets: Tensor) -> Tensor:
    """Return the bias of each target (N,) from biases (V,) or (C, V)."""
    if bias.dim() == 1:
        return bias[targets]
    return bias.gather(1, targets.view(len(bias), -1)).flatten()


class _CompiledSampled(torch.autograd.Function):
    """The autograd function of `sampled_nats`: PyTorch adds the targets outside the samples to compiled nats."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor) -> Tensor:
        target_rows, sample_rows, sample_biases = F.embedding(targets, table), table[samples], bias[..., samples]
        target_logits = (values * target_rows).sum(1) + _target_biases(bias, targets)
        # For each token its index among the samples, or S if it is not among the samples.
        sample_of_token = torch.full((len(table),), len(samples))
        sample_of_token[samples] = torch.arange(len(samples))
        target_samples = sample_of_token[targets]
        sample_logits = torch.empty(len(values), len(samples))
        sums = log_sums(values, sample_rows, sample_biases, sample_logits)
        sums = sums.where(target_samples < len(samples), torch.logaddexp(sums, target_logits))
        ctx.vocabulary_size, ctx.bias_shape, ctx.is_bfloat16 = len(table), bias.shape, library.uses_bfloat16()
        selected = target_rows, sample_rows, sample_biases
        ctx.save_for_backward(*selected, values, targets, samples, target_samples, sums, target_logits, sample_logits)
        return sums - target_logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *selected, values, targets, samples, target_samples, sums, target_logits, sample_logits = ctx.saved_tensors
        target_rows, sample_rows, sample_biases = selected
        results = gradients(
            values, sample_rows, sample_biases, target_samples, sums, gradient, ctx.is_bfloat16, logits=sample_logits
        )
        values_gradient, sample_rows_gradient, sample_biases_gradient = (cast(Tensor, result) for result in results)
        # Gradients of the logits of targets that are not among the samples; zero for all other targets.
        target_logits_gradient = gradient * torch.expm1(target_logits - sums) * (target_samples == len(samples))
        values_gradient.addcmul_(target_logits_gradient[:, None], target_rows)
        # The scatter-add of an embedding is faster than index_add_, which adds row by row.
        table_gradient = torch.ops.aten.embedding_dense_backward(
            target_logits_gradient[:, None] * values,
            targets,
            num_weights=ctx.vocabulary_size,
            padding_idx=-1,
            scale_grad_by_freq=False,
        )
        table_gradient[samples] += sample_rows_gradient
        bias_gradient = gradient.new_zeros(ctx.bias_shape)
        text_bias_gradients = bias_gradient.view(-1, ctx.vocabulary_size)  # a row per text, or one row for all texts
        text_count = len(text_bias_gradients)
        text_bias_gradients.scatter_add_(1, targets.view(text_count, -1), target_logits_gradient.view(text_count, -1))
        text_bias_gradients[:, samples] += sample_biases_gradient.view(text_count, -1)
        return values_gradient, table_gradient, bias_gradient, None, None
