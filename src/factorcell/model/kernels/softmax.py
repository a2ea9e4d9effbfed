"""The softmax over a large vocabulary: nats of targets, without keeping the (targets x vocabulary) logits.

    nats = log sum_v exp(x . e_v + b_v) - (x . e_target + b_target)

A bias of low rank that the context shifts is part of the product: x = [P h, c] and e_v = [E_v, Q_v].

The bias may also be of each of C texts, (C, V): then the targets are theirs, N / C each, text after text.

Shapes: N targets, V vocabulary, D width, S samples, C texts.
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

CHUNK = 16_000_000  # logits that exist at one time, 64 MB
GPU_CHUNK = 1 << 28  # logits at once on a GPU: 4 GB with their gradients
PART = 48  # tokens of a job at least: a panel of the widest vectors


def nats(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Exact nats (N,) of `targets` (N,) from `values` (N, D), `table` (V, D) and `bias` (V,) or (C, V)."""
    if len(values) and library.usable(values, table, bias):
        compiled: Tensor = _Compiled.apply(values, table, bias, targets)  # type: ignore[no-untyped-call]
        return compiled
    return cross_entropies(values, table, bias, targets)


def cross_entropies(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` by PyTorch's cross-entropy: the fastest way on a GPU, and the only one without compiled code.

    If there are too many logits, they are computed in chunks, and again in the backward pass, so that memory holds one
    chunk at a time.
    """
    each = max(1, len(values) // len(bias)) if bias.dim() == 2 and len(bias) else 1  # targets of a text
    rows = max(1, (GPU_CHUNK if values.is_cuda else CHUNK) // len(table) // each) * each
    if len(values) <= rows:
        return _cross_entropy(values, table, bias, targets)
    parts = torch.split(values, rows), torch.split(targets, rows)
    biases = torch.split(bias, rows // each) if bias.dim() == 2 else [bias] * len(parts[0])
    chunks = zip(parts[0], biases, parts[1], strict=True)
    return torch.cat([checkpoint(_cross_entropy, x, table, b, ids, use_reentrant=False) for x, b, ids in chunks])


def _cross_entropy(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    if bias.dim() == 1:
        logits = F.linear(values, table, bias).to(bias.dtype)
    else:
        added = bias.repeat_interleave(len(values) // max(1, len(bias)), 0)
        logits = F.linear(values, table).to(bias.dtype) + added
    return F.cross_entropy(logits, targets, reduction="none")


def sampled_nats(
    values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor, log_inclusion: Tensor
) -> Tensor:
    """Nats (N,) of `targets` (N,) against distinct `samples` (S,) only, both ids of rows of `table`.

    Sampled softmax (Jean et al. 2015): `log_inclusion` (V,), how likely each row was among the samples, is subtracted
    from its logit, the target's own included.
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
    """log sum_v exp(x . e_v + b_v) (N,) in compiled code, without a gradient; of bfloat16 products within autocast.

    `logits` (N, V) is room for x . e_v + b_v, if they are to be kept.
    """
    bias = bias[None] if bias.dim() == 1 else bias
    numbers, number = _numbers(values, table, bias, library.half()), library.instruction_set()
    sized = SOFTMAX.arguments(numbers, {})
    packed = torch.empty(library.require_library().factorcell_packed_table(ctypes.byref(sized), number))
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
    wanted: Sequence[bool] = (True, True, True),
    logits: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Those of `values`, `table` and `bias`, each if `wanted`, in compiled code, of `half` the bits or floats.

    `sums` (N,) are the `log_sums`, with the `logits` (N, V) if they were kept, `scale` (N,) the gradients of the nats
    of the `targets` (N,). A target of V stands for none: then they are those of the sum alone.
    """
    shape, bias = bias.shape, bias[None] if bias.dim() == 1 else bias
    numbers, number = _numbers(values, table, bias, half), library.instruction_set()
    sized = SOFTMAX.arguments(numbers, {})
    packed = torch.empty(library.require_library().factorcell_softmax_room(ctypes.byref(sized), number))
    of_values = torch.empty(values.shape) if wanted[0] else None
    of_table = torch.empty(table.shape) if wanted[1] else None
    of_bias = torch.zeros(bias.shape) if wanted[2] else None
    arrays = library.dense(values=values, table=table, bias=bias, targets=targets, result=sums, scale=scale)
    arrays |= {
        "logits": logits,
        "packed": packed,
        "values_gradient": of_values,
        "table_gradient": of_table,
        "bias_gradient": of_bias,
    }
    library.call("softmax_gradient", SOFTMAX.arguments(numbers, arrays, "gradients", packed=len(packed)), number)
    return of_values, of_table, None if of_bias is None else of_bias.view(shape)


def _numbers(values: Tensor, table: Tensor, bias: Tensor, half: bool) -> tuple[int, ...]:
    (rows, _), (size, width) = dimensions("values", values, 2), dimensions("table", table, 2)
    texts = dimensions("bias", bias, 2)[0]
    each = rows // max(1, texts)  # rows of a text, of all texts alike
    threads = library.threads(rows + size)
    most = 2 * threads if threads > 1 else 1  # so that a thread that other work holds up does less
    parts = max(1, min(most, size // PART))
    return each * texts, size, width, texts, parts, threads, int(half), 0


class _Compiled(torch.autograd.Function):
    """In compiled code: logits a tile at a time, computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        own = F.embedding(targets, table)
        sums = log_sums(values, table, bias)
        ctx.half = library.half()
        ctx.save_for_backward(values, table, bias, targets, sums)
        return sums - (values * own).sum(1) - _chosen(bias, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, table, bias, targets, sums = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        return *gradients(values, table, bias, targets, sums, gradient, ctx.half, wanted), None


def _chosen(bias: Tensor, targets: Tensor) -> Tensor:
    if bias.dim() == 1:
        return bias[targets]
    return bias.gather(1, targets.view(len(bias), -1)).flatten()


class _CompiledSampled(torch.autograd.Function):
    """Exact nats over the samples, to which a target that is not among them is added."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor) -> Tensor:
        own, chosen, biases = F.embedding(targets, table), table[samples], bias[..., samples]
        positive = (values * own).sum(1) + _chosen(bias, targets)
        place = torch.full((len(table),), len(samples))
        place[samples] = torch.arange(len(samples))
        place = place[targets]
        logits = torch.empty(len(values), len(samples))
        sums = log_sums(values, chosen, biases, logits)
        sums = sums.where(place < len(samples), torch.logaddexp(sums, positive))
        ctx.size, ctx.half, ctx.shape = len(table), library.half(), bias.shape
        ctx.save_for_backward(values, own, chosen, biases, targets, samples, place, sums, positive, logits)
        return sums - positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, own, chosen, biases, targets, samples, place, sums, positive, logits = ctx.saved_tensors
        made = gradients(values, chosen, biases, place, sums, gradient, ctx.half, logits=logits)
        of_values, of_chosen, of_biases = (cast(Tensor, one) for one in made)
        alone = gradient * torch.expm1(positive - sums) * (place == len(samples))
        of_values.addcmul_(alone[:, None], own)
        # the scatter-add of an embedding, since index_add_ goes row by row
        of_table = torch.ops.aten.embedding_dense_backward(alone[:, None] * values, targets, ctx.size, -1, False)
        of_table[samples] += of_chosen
        of_bias = gradient.new_zeros(ctx.shape)
        texts = of_bias.view(-1, ctx.size)
        texts.scatter_add_(1, targets.view(len(texts), -1), alone.view(len(texts), -1))
        texts[:, samples] += of_biases.view(len(texts), -1)
        return of_values, of_table, of_bias, None, None
