"""The model of a run with a Transformer in one context, as changes of the Transformer that other programs can apply.

In a fixed context, the adapted maps and the softmax are constant:

    map            y = s * (x (W + L R)) + b + v
    output layer   logits = M h + t,  M = E P,  t = M o + b + Q c + a(c)

o is the change of the last vectors h. A pretrained model has no P. If a model has no place for t, but for M, the logits
are approximated by M' h with M' = M + (t - t0) u^T, where t0 is the bias of the base, and u h is nearly 1: u minimizes
the sum of (u h - 1)^2 over the vectors h of a table of texts.

Shapes: B texts, T steps, N vectors, V vocabulary, H vector of the backbone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from factorcell.adapters.adapters import UNCHANGED, Shift
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError
from factorcell.nn.backbones.adapted_modules import Projection
from factorcell.nn.backbones.backbone import BackboneState
from factorcell.nn.backbones.huggingface import HuggingFaceBackbone, TransformerConditions
from factorcell.nn.output import ContextBias, SoftmaxHead
from factorcell.runs.run import Run

NEVER = -1e4  # bias of tokens whose probability is zero; infinity would make the products of some engines NaN
VECTORS_AT_ONCE = 512  # number of vectors whose logits are in memory at the same time
RIDGE = 0.01  # penalty on u, as a share of the mean square of the numbers in the vectors


@dataclass(frozen=True)
class FixedContext:
    """A run in one context."""

    run: Run
    conditions: TransformerConditions  # of the Transformer, without o
    start: BackboneState  # of the Transformer before a text
    output_matrix: Tensor  # M (V, H); the table of the run itself if it has no P
    output_bias: Tensor  # t (V,); that of the start token, which never follows a token, is `NEVER`
    base_output_bias: Tensor  # t0 (V,), the bias of the output layer of the base; zeros if it has none
    names: str = ""  # the names that the run reads before each text, between two start tokens
    name_ids: tuple[int, ...] = ()  # the tokens of the names

    @classmethod
    def of(cls, run: Run, context: Mapping[str, Any], unknown: str) -> "FixedContext":
        """Compute what the `context`, a value for each column, determines; raise a `UserError` if it is not valid."""
        backbone, head = run.model.backbone, run.model.head
        if not isinstance(backbone, HuggingFaceBackbone):
            problem = f"expected a Transformer (--base or --architecture), got {run.config.backbone.kind}"
            raise UserError(f"{run.folder}: {problem}; only the format onnx stores recurrent runs")
        if type(head) is not SoftmaxHead:
            raise UserError(f"{run.folder}: expected the head softmax, got {run.config.head.kind}")
        if run.model.prefix is not None or backbone.prefix is not None:
            vectors = "control codes" if run.model.prefix is not None else "prefix vectors"
            raise UserError(
                f"{run.folder}: its {vectors} are vectors that it reads before each text, which no exported format "
                "can store; train without them"
            )
        values = run.read([""], [dict(context)], unknown=unknown).context(np.array([0])).to(run.device)
        if any(len(prompt.ids) for prompt in values.prompts):
            raise UserError(
                "context: a prompt is text and cannot be exported; leave it out, and send the prompt before each text, "
                "with the start token before both"
            )
        with torch.no_grad():
            conditioning = run.model.fold_head(run.model.condition(values))
            conditions = cast(TransformerConditions, conditioning.conditions)
            matrix = head.embedding.detach()
            if head.projection is not None:
                matrix = matrix @ head.projection.detach().T
            (bias,) = cast(Tensor, cast(ContextBias, conditioning.head).bias)
            if conditions.offset is not None:
                bias = bias + matrix @ conditions.offset[0]
        base_bias = backbone.output_bias(run.model.vocabulary_size, run.tokenizer.known_count)
        base_bias = torch.zeros_like(bias) if base_bias is None else base_bias.to(run.device)
        conditions = replace(conditions, offset=None)
        fixed = cls(run, conditions, conditioning.start, matrix, bias.clamp(min=NEVER), base_bias)
        if (names := run.model.names) is None:
            return fixed
        (text,) = names.texts(values)
        return replace(fixed, names=text, name_ids=tuple(names(values).ids[1:].tolist()))

    @property
    def backbone(self) -> HuggingFaceBackbone:
        """The Transformer."""
        return cast(HuggingFaceBackbone, self.run.model.backbone)

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens of the exported model, without those that the run has added to a frozen base.

        Their embeddings are those of the end token of the base, and a text contains only the start token of them.
        """
        size, base_size = self.run.model.vocabulary_size, self.run.tokenizer.known_count
        return min(size, base_size) if self.backbone.is_frozen and self.run.model.specials.end < base_size else size

    @property
    def start_id(self) -> int:
        """The token that must precede each text of the exported model: that of the base, which may be its end token."""
        specials = self.run.model.specials
        return specials.start if specials.start < self.vocabulary_size else specials.end

    @property
    def output_change(self) -> Tensor:
        """Return t - t0 (V,)."""
        return self.output_bias - self.base_output_bias

    @property
    def changes_output_bias(self) -> bool:
        """Whether t differs from t0 for any token but the start token."""
        change = self.output_change
        change[self.run.model.specials.start] = 0
        return bool((change != 0).any())

    def maps(self) -> list[tuple[Projection, Shift]]:
        """Return each adapted map and its shift, which is empty if the run has no adapters."""
        projections = self.backbone.maps.projections
        return list(zip(projections, self.conditions.shifts or [UNCHANGED] * len(projections), strict=True))

    def with_output_bias_in_matrix(self, texts: Corpus) -> "FixedContext":
        """Return this context with M' instead of M, and the output bias of the base; u is fitted to `texts`."""
        size = self.output_matrix.shape[1]
        squares, total = torch.zeros(size, size, dtype=torch.double), torch.zeros(size, dtype=torch.double)
        with self.run.scoring():
            for batch in self.run.batches(texts):
                vectors = self.vectors(batch.tokens[:, :-1], batch.lengths)[batch.mask()].double().cpu()
                squares += vectors.T @ vectors
                total += vectors.sum(0)
        squares.diagonal().add_(RIDGE * squares.diagonal().mean())
        direction = torch.linalg.solve(squares, total).to(self.output_matrix)
        change = self.output_change
        start = self.run.model.specials.start
        change[start] = 0
        change[start] = change.min()  # NEVER would magnify the error of the approximation
        # A constant added to all logits changes no probability; this one makes the changes of frequent tokens small.
        change -= self.output_bias.softmax(0) @ change
        matrix = self.output_matrix + change[:, None] * direction
        return replace(self, output_bias=self.base_output_bias, output_matrix=matrix)

    def vectors(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the vectors (B, T, H) after the `tokens` (B, T), read in this context."""
        start = self.start.select(torch.zeros(len(tokens), dtype=torch.long, device=tokens.device))
        inputs = F.embedding(tokens, self.run.model.embedding)
        vectors, _ = self.backbone(inputs, self.conditions, start, lengths)
        return cast(Tensor, vectors)

    def log_probabilities(self, vectors: Tensor) -> Tensor:
        """Return the log probabilities (N, V) of the next token after vectors (N, H)."""
        return F.log_softmax(torch.addmm(self.output_bias, vectors, self.output_matrix.T), dim=-1)

    def perplexity(self, texts: Corpus) -> float:
        """Return the perplexity per token of `texts`, all read in this context."""
        nats = 0.0
        with self.run.scoring():
            for batch in self.run.batches(texts):
                mask = batch.mask()
                vectors, targets = self.vectors(batch.tokens[:, :-1], batch.lengths)[mask], batch.tokens[:, 1:][mask]
                for part, ids in zip(*(torch.split(part, VECTORS_AT_ONCE) for part in (vectors, targets)), strict=True):
                    nats -= float(self.log_probabilities(part).gather(1, ids[:, None]).double().sum())
        return float(np.exp(nats / max(1, texts.target_count)))
