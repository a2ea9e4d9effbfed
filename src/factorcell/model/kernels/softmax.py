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
    if values.is_cuda and bias.dim() == 1:
        return cross_entropies(values, table, bias, targets)
    result: Tensor = _Exact.apply(values, table, bias, targets)  # type: ignore[no-untyped-call]
    return result


def cross_entropies(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute `nats` by PyTorch's cross-entropy, which is the fastest way on a GPU.

    Where there are more than `GPU_CHUNK` logits, they are computed in chunks, again in the backward pass, so that
    memory holds one chunk at a time.
    """
    rows = max(1, GPU_CHUNK // len(table))
    if len(values) <= rows:
        return _cross_entropy(values, table, bias, targets)
    pairs = zip(torch.split(values, rows), torch.split(targets, rows), strict=True)
    return torch.cat(
        [checkpoint(_cross_entropy, own, table, bias, wanted, use_reentrant=False) for own, wanted in pairs]
    )


def _cross_entropy(values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(values, table, bias), targets, reduction="none")


def sampled_nats(
    values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor, log_inclusion: Tensor
) -> Tensor:
    """Nats (N,) of `targets` (N,) against distinct `samples` (S,) only, both ids of rows of `table`.

    Sampled softmax (Jean et al. 2015): `log_inclusion` (V,), how likely each row was among the samples, is subtracted
    from its logit, the target's own included.
    """
    shifted = bias - log_inclusion
    compiled = len(values) and len(samples) and library.usable(values, table, bias)
    way = _CompiledSampled if compiled else _Sampled
    result: Tensor = way.apply(values, table, shifted, targets, samples)  # type: ignore[no-untyped-call]
    return result


def nats_by_text(
    values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor, repeated: Tensor
) -> Tensor:
    """As `sampled_nats`, each text against samples of its own: nats (C, T) of `targets` (C, T), `values` (C, T, D).

    `samples` (C, S) and where they are `repeated`, which counts once; `bias`, (V,) or (C, V), is corrected already.
    """
    bias = bias.expand(len(values), -1)
    positive = (values * F.embedding(targets, table)).sum(2) + bias.gather(1, targets)
    logits = torch.bmm(values, F.embedding(samples, table).transpose(1, 2)).to(positive.dtype)
    logits = logits + bias.gather(1, samples)[:, None]
    never = repeated[:, None] | (samples[:, None] == targets[:, :, None])
    logits = logits.masked_fill(never, -torch.inf)
    return torch.logaddexp(logits.logsumexp(2), positive) - positive


def log_sums(values: Tensor, table: Tensor, bias: Tensor, logits: Tensor | None = None) -> Tensor:
    """log sum_v exp(x . e_v + b_v) (N,) in compiled code, without a gradient; of bfloat16 products within autocast.

    `logits` (N, V) is room for x . e_v + b_v, if they are to be kept.
    """
    bias = bias[None] if bias.dim() == 1 else bias
    numbers, number = _numbers(values, table, bias, library.half()), library.chosen()
    sized = SOFTMAX.arguments(numbers, {})
    packed = torch.empty(library.existing().factorcell_packed_table(ctypes.byref(sized), number))
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
    numbers, number = _numbers(values, table, bias, half), library.chosen()
    sized = SOFTMAX.arguments(numbers, {})
    packed = torch.empty(library.existing().factorcell_softmax_room(ctypes.byref(sized), number))
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
    """Those of the compiled softmax, in their order."""
    (rows, _), (size, width) = dimensions("values", values, 2), dimensions("table", table, 2)
    texts = dimensions("bias", bias, 2)[0]
    each = rows // max(1, texts)  # rows of a text, of all texts alike
    threads = library.threads(rows + size)
    most = 2 * threads if threads > 1 else 1  # so that a thread that other work holds up does less
    parts = max(1, min(most, size // PART))
    return each * texts, size, width, texts, parts, threads, int(half), 0


class _Compiled(torch.autograd.Function):
    """In compiled code: logits a tile at a time, made again on the way back."""

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


class _Exact(torch.autograd.Function):
    """The same in plain PyTorch: a chunk of targets at a time; the logits are made again on the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        ctx.short, parts = library.halved(values.device), []
        for rows, texts in _chunks(values, table, bias):
            logits = _add(library.product(values[rows], table.T, ctx.short), bias[texts])
            chosen = logits.gather(1, targets[rows, None])[:, 0]
            top = logits.amax(1)
            parts.append(logits.sub_(top[:, None]).exp_().sum(1).log_().add_(top).sub_(chosen))
        result = torch.cat(parts) if parts else values.new_zeros(0)
        ctx.save_for_backward(values, table, bias, targets, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, table, bias, targets, result = ctx.saved_tensors
        of_values, of_table, of_bias = torch.empty_like(values), torch.zeros_like(table), torch.zeros_like(bias)
        for rows, texts in _chunks(values, table, bias):
            wanted, scale = targets[rows, None], gradient[rows, None]
            logits = _add(library.product(values[rows], table.T, ctx.short), bias[texts])
            total = logits.gather(1, wanted).add_(result[rows, None])  # the logarithm of the sum
            share = logits.sub_(total).exp_().mul_(scale).scatter_add_(1, wanted, -scale)
            of_values[rows] = library.product(share, table, ctx.short)
            of_table += library.product(share.T, values[rows], ctx.short)
            of_bias[texts] += _sum(share, bias[texts])
        return of_values, of_table, of_bias, None


def _chunks(values: Tensor, table: Tensor, bias: Tensor) -> list[tuple[slice, slice]]:
    """Rows whose logits exist at one time, and what of the bias is theirs: of each text's, whole texts."""
    count, most = len(values), max(1, CHUNK // len(table))
    if bias.dim() == 1:
        return [(slice(begin, begin + most), slice(None)) for begin in range(0, count, most)]
    each = max(1, count // max(1, len(bias)))  # targets of a text
    step = max(1, most // each)
    starts = range(0, len(bias) if count else 0, step)
    return [(slice(text * each, (text + step) * each), slice(text, text + step)) for text in starts]


def _add(logits: Tensor, bias: Tensor) -> Tensor:
    """`logits` (n, V) plus `bias`, (V,) or (c, V) of the texts that the rows belong to, in place."""
    if bias.dim() == 1:
        return logits.add_(bias)
    logits.view(len(bias), -1, logits.shape[1]).add_(bias[:, None])
    return logits


def _sum(shares: Tensor, bias: Tensor) -> Tensor:
    """`shares` (n, V) summed up to the shape of `bias`."""
    return shares.sum(0) if bias.dim() == 1 else shares.view(len(bias), -1, shares.shape[1]).sum(1)


def _chosen(bias: Tensor, targets: Tensor) -> Tensor:
    """The bias (N,) of each of the `targets` (N,)."""
    if bias.dim() == 1:
        return bias[targets]
    return bias.gather(1, targets.view(len(bias), -1)).flatten()


class _Sampled(torch.autograd.Function):
    """One matrix of (targets x samples), in place; a sample that is the target itself does not count twice."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, bias: Tensor, targets: Tensor, samples: Tensor) -> Tensor:
        own = F.embedding(targets, table)
        positive = (values * own).sum(1).add_(_chosen(bias, targets))
        chosen = table[samples]
        ctx.size, ctx.short, ctx.shape = len(table), library.halved(values.device), bias.shape
        shares = _add(library.product(values, chosen.T, ctx.short), bias[..., samples])
        shares[_collisions(targets, samples, len(table))] = -torch.inf
        top = torch.maximum(shares.amax(1), positive)
        shares.sub_(top[:, None]).exp_()
        share = (positive - top).exp_()
        total = shares.sum(1).add_(share)
        ctx.save_for_backward(values, own, chosen, targets, samples, shares, share.div_(total), total)
        return total.log().add_(top).sub_(positive)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, own, chosen, targets, samples, shares, share, total = ctx.saved_tensors
        shares = shares * (gradient / total)[:, None]
        of_positive = gradient * (share - 1)
        of_values = torch.addcmul(library.product(shares, chosen, ctx.short), of_positive[:, None], own)
        # the scatter-add of an embedding, since index_add_ goes row by row
        of_table = torch.ops.aten.embedding_dense_backward(of_positive[:, None] * values, targets, ctx.size, -1, False)
        of_table[samples] += library.product(shares.T, values, ctx.short)
        of_bias = gradient.new_zeros(ctx.shape)
        texts = of_bias.view(-1, ctx.size)
        texts.scatter_add_(1, targets.view(len(texts), -1), of_positive.view(len(texts), -1))
        texts[:, samples] += shares.view(len(texts), -1, shares.shape[1]).sum(1)
        return of_values, of_table, of_bias, None, None


class _CompiledSampled(torch.autograd.Function):
    """The same in compiled code: exact nats over the samples, to which a target that is none of them is added."""

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


def _collisions(targets: Tensor, samples: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where a target is among the samples: its row and its column."""
    column = torch.full((size,), -1, device=targets.device)
    column[samples] = torch.arange(len(samples), device=targets.device)
    found = column[targets]
    rows = (found >= 0).nonzero()[:, 0]
    return rows, found[rows]
