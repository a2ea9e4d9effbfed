"""A linear mixture of models: neural language models, and count-based models of their training texts.

    p(w | h, c) = sum_m W_gm p_m(w | h, c)

w is a token, h its history (the preceding tokens of the text), c the context, and g the group of the target, which
selects a row of the weights W. There are two ways of grouping targets:

    by history     if there are counts: g is the number of tokens in the longest history of w that training counted
    by value       otherwise: g is the index of the value of a column, 0 for a missing or new value or without a column

A run predicts with the mixture in its folder: its neural model, and the components of `count_models`. `mix` makes a
mixture of several runs and n-gram models (`training.mixture`). `Mixture` has the methods with which a `LanguageModel`
scores, so that all code that reads probabilities of a run can use either of them, and a mixture can be mixed again.
`training.mixture_weights` fits the weights.

Shapes: B contexts, N texts, T targets, V vocabulary, M components, K values (value K is a missing value), G groups.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.tokenizers.tokenizer import Specials, Tokenizer
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.ngram.count_models import NGRAM, CountModels
from factorcell.ngram.ngram import NGram, counts_from_tensors
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.scoring import mixed_nats, put_batch

FILE, TABLES = "mixture.json", "mixture.safetensors"
FORMAT = 3  # version of `FILE`

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class Predictor(Protocol):
    """A model that predicts tokens: a `LanguageModel` or a `Mixture`."""

    specials: Specials

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""

    @property
    def texts_at_once(self) -> int:
        """The largest number of texts whose contexts fit into memory at once."""

    def condition(self, context: Context, override: Mapping[str, Tensor] | None = None, packed: Any = None) -> Any:
        """Compute everything that B contexts determine, as `LanguageModel.condition` does."""

    def fold(self, conditioning: Any, shared: bool = False) -> Any:
        """Multiply the changes of weights into the weights, as `LanguageModel.fold` does."""

    def fold_head(self, conditioning: Any) -> Any:
        """Add the changes of the softmax bias to it, as `LanguageModel.fold_head` does."""

    def __call__(self, batch: Batch, conditioning: Any = None) -> Tensor:
        """Compute the exact nats (B, T) of all targets, zero on padding."""

    def step(self, token: Tensor, conditioning: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Read one token of each text; return log probabilities (N, V) of the next token, and the state after it."""


@dataclass(frozen=True)
class ContextPart:
    """The places of the variables of one schema among those of several schemas, by kind."""

    categories: slice
    numbers: slice
    vectors: slice
    words: slice
    prompts: slice

    def of(self, context: Context) -> Context:
        """Return the context that has only these variables."""
        return replace(
            context,
            categories=context.categories[:, self.categories],
            numbers=context.numbers[:, self.numbers],
            vectors=context.vectors[self.vectors],
            words=context.words[self.words],
            prompts=context.prompts[self.prompts],
        )


def context_parts(schemas: Iterable[ContextSchema]) -> list[ContextPart]:
    """Return the places of the variables of each schema in a schema with the variables of all of them, in order."""
    parts, starts = [], [0] * 5
    for schema in schemas:
        kinds = (schema.categories, schema.numbers, schema.vectors, schema.texts, schema.prompts)
        ends = [start + len(variables) for start, variables in zip(starts, kinds, strict=True)]
        parts.append(ContextPart(*(slice(*bounds) for bounds in zip(starts, ends, strict=True))))
        starts = ends
    return parts


@dataclass(frozen=True)
class MixtureState:
    """The state of N texts: that of each model, and the `counts` as numbers (N, S), S of which may be 0."""

    models: tuple[Any, ...]
    counts: Tensor

    def select(self, rows: Tensor) -> "MixtureState":
        """Return the state of the texts `rows` (N',), which may repeat."""
        return MixtureState(tuple(state.select(rows) for state in self.models), self.counts[rows])

    def cat(self, others: Sequence["MixtureState"]) -> "MixtureState":
        """Return the state of the texts of this state, followed by the texts of `others`."""
        states = (self, *others)
        models = (first.cat(rest) for first, *rest in zip(*(state.models for state in states), strict=True))
        return MixtureState(tuple(models), torch.cat([state.counts for state in states]))

    def reserve(self, rows: int) -> "MixtureStateBuffer":
        """Return empty space for the states of `rows` texts."""
        models = tuple(state.reserve(rows) for state in self.models)
        return MixtureStateBuffer(models, self.counts.new_empty(rows, self.counts.shape[1]))


@dataclass(frozen=True)
class MixtureStateBuffer:
    """Preallocated space for the states of many texts."""

    models: tuple[Any, ...]
    counts: Tensor

    def put(self, first: int, state: MixtureState) -> None:
        """Store the `state` of some texts, in the rows of the buffer from `first` on."""
        for buffer, model_state in zip(self.models, state.models, strict=True):
            buffer.put(first, model_state)
        self.counts[first : first + len(state.counts)] = state.counts

    def select(self, rows: Tensor) -> MixtureState:
        """Return the state of the texts in the rows `rows` (N,) of the buffer."""
        return MixtureState(tuple(buffer.select(rows) for buffer in self.models), self.counts[rows])


@dataclass(frozen=True)
class MixtureConditioning:
    """Everything that B contexts determine: the conditioning of each model, and their `values` (B,)."""

    models: tuple[Any, ...]
    values: Tensor

    def select(self, rows: Tensor) -> "MixtureConditioning":
        """Return the conditioning of the contexts `rows` (B',), which may repeat."""
        return MixtureConditioning(tuple(model.select(rows) for model in self.models), self.values[rows])


class Mixture:
    """A linear mixture of models; it predicts like a `LanguageModel`.

    Args:
        models: The neural models and mixtures, which have the same vocabulary.
        parts: The places of the context variables of each of them in the context of the mixture.
        weights: The weights (G, M); the models are the first components, and the counts the others.
        counts: The count-based components, if any; then the weights depend on the history.
        column: The place of the category whose values the counts, or without counts the weights, depend on; None if
            they depend on no column.
    """

    def __init__(
        self,
        models: Sequence[Predictor],
        parts: Sequence[ContextPart],
        weights: Floats,
        counts: CountModels | None = None,
        column: int | None = None,
    ) -> None:
        self.models, self.parts, self.weights = tuple(models), tuple(parts), weights
        self.counts, self.column = counts, column
        self.specials = self.models[0].specials if counts is None else counts.ngram.tokenizer.specials

    @classmethod
    def of_run(
        cls, neural: LanguageModel, schema: ContextSchema, counts: CountModels, weights: Floats | None = None
    ) -> "Mixture":
        """Mix the neural model of a run with counts; by default, all components have the same weight."""
        component_count = 1 + len(counts.names)
        if weights is None:
            weights = np.full((counts.length_count, component_count), 1 / component_count)
        column = None if counts.variable is None else schema.categories.index(counts.variable)
        return cls([neural], context_parts([schema]), weights, counts, column)

    @classmethod
    def of_ngram(cls, ngram: NGram) -> "Mixture":
        """Return the mixture whose only component is an n-gram model."""
        return cls([], [], np.ones((len(ngram.order_tables), 1)), CountModels(ngram, None, (), (NGRAM,)))

    @property
    def device(self) -> torch.device:
        """The device of the models: a GPU if any of them is on one."""
        devices = [model.device for model in self.models]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""
        return self.models[0].vocabulary_size if self.counts is None else len(self.counts.ngram.tokenizer)

    @property
    def texts_at_once(self) -> int:
        """The largest number of texts whose contexts fit into memory at once."""
        return min((model.texts_at_once for model in self.models), default=sys.maxsize)

    def condition(
        self, context: Context, override: Mapping[str, Tensor] | None = None, packed: Any = None
    ) -> MixtureConditioning:
        """Compute everything that B contexts determine; the arguments are those of `LanguageModel.condition`."""
        pairs = zip(self.models, self.parts, strict=True)
        models = tuple(model.condition(part.of(context), override, packed) for model, part in pairs)
        if self.column is None:
            return MixtureConditioning(models, torch.zeros(len(context), dtype=torch.int64))
        return MixtureConditioning(models, context.categories[:, self.column].cpu())

    def fold(self, conditioning: MixtureConditioning, shared: bool = False) -> MixtureConditioning:
        """Fold the conditioning of the models, as `LanguageModel.fold` does."""
        pairs = zip(self.models, conditioning.models, strict=True)
        return replace(conditioning, models=tuple(model.fold(part, shared) for model, part in pairs))

    def fold_head(self, conditioning: MixtureConditioning) -> MixtureConditioning:
        """Fold the softmax bias of the models, as `LanguageModel.fold_head` does."""
        pairs = zip(self.models, conditioning.models, strict=True)
        return replace(conditioning, models=tuple(model.fold_head(part) for model, part in pairs))

    def __call__(self, batch: Batch, conditioning: MixtureConditioning | None = None) -> Tensor:
        """Compute the exact nats (B, T) of all targets, zero on padding; there are no gradients."""
        nats, groups = self.component_nats(batch, conditioning)
        mixed = mixed_nats(nats, self.weights[groups]).astype(np.float32)
        return torch.from_numpy(mixed).to(batch.tokens.device).masked_fill(~batch.mask(), 0.0)

    def component_nats(self, batch: Batch, conditioning: MixtureConditioning | None = None) -> tuple[Floats, Ids]:
        """Return the nats of each target under each component (B, T, M), and the group of the target (B, T)."""
        conditioning = conditioning or self.condition(batch.context)
        values = conditioning.values.numpy()
        with torch.inference_mode():
            nats = [self._model_nats(index, batch, conditioning) for index in range(len(self.models))]
        if self.counts is None:
            return np.stack(nats, axis=-1), np.broadcast_to(np.maximum(values, 0)[:, None], nats[0].shape)
        probabilities, groups = self.counts.of_targets(batch.tokens.cpu().numpy().astype(np.int64), values)
        return np.stack([*nats, *-np.log(probabilities)], axis=-1), groups

    def _model_nats(self, index: int, batch: Batch, conditioning: MixtureConditioning) -> Floats:
        """Return the nats (B, T) of one of the models, infinite in texts in which its weight is 0."""
        batch = replace(batch, context=self.parts[index].of(batch.context))
        model_conditioning = conditioning.models[index]
        if self.counts is None:
            rows = torch.from_numpy(np.flatnonzero(self.weights[np.maximum(conditioning.values.numpy(), 0), index]))
            if len(rows) < len(batch.lengths):
                rows = rows.to(batch.tokens.device)
                nats = torch.full(batch.tokens[:, 1:].shape, torch.inf, dtype=torch.float64)
                if len(rows):
                    part = Batch(batch.tokens[rows], batch.lengths[rows], batch.context.select(rows), batch.rows[rows])
                    nats[rows.cpu()] = self.models[index](part, model_conditioning.select(rows)).double().cpu()
                return nats.numpy()
        all_nats: Floats = self.models[index](batch, model_conditioning).double().cpu().numpy()
        return all_nats

    def target_nats(self, corpus: Corpus, batches: Iterable[Batch]) -> tuple[Floats, Ids]:
        """Return the nats of all targets of `corpus` under each component (T, M), and the group of each target (T,)."""
        nats = np.zeros((corpus.target_count, self.weights.shape[1]))
        groups, starts = np.zeros(corpus.target_count, dtype=np.int64), target_offsets(corpus)
        for batch in batches:
            batch_nats, batch_groups = self.component_nats(batch)
            put_batch(nats, batch_nats, batch, starts)
            put_batch(groups, batch_groups, batch, starts)
        return nats, groups

    def step(
        self, token: Tensor, conditioning: MixtureConditioning, state: MixtureState | None = None
    ) -> tuple[Tensor, MixtureState]:
        """Read one token of each text; return log probabilities (N, V) of the next token, and the state after it."""
        probabilities, states = [], []
        before = [None] * len(self.models) if state is None else state.models
        for model, part, model_state in zip(self.models, conditioning.models, before, strict=True):
            logs, after = model.step(token, part, model_state)
            probabilities.append(logs.double().exp().cpu().numpy())
            states.append(after)
        tokens = token.cpu().numpy().astype(np.int64)
        values = np.broadcast_to(conditioning.values.numpy(), tokens.shape)  # one context may have many texts
        if self.counts is None:
            groups, counts = np.maximum(values, 0), np.zeros((len(tokens), 0), dtype=np.int64)
        else:
            parts, groups, counts = self.counts.step(tokens, None if state is None else state.counts.numpy(), values)
            probabilities += parts
        weights = self.weights[groups]
        mixed = weights[:, :1] * probabilities[0]
        for index, part in enumerate(probabilities[1:], start=1):
            mixed += weights[:, index, None] * part
        with np.errstate(divide="ignore"):  # the start token has probability 0
            log_probs = torch.from_numpy(np.log(mixed).astype(np.float32)).to(token.device)
        return log_probs, MixtureState(tuple(states), torch.from_numpy(counts))

    def save(self, folder: Path) -> None:
        """Write the counts and the weights of the mixture of a run into the folder of the run."""
        assert self.counts is not None
        counts, tensors = self.counts.to_files()
        files.save_tensors(folder / TABLES, tensors, {"vocabulary": self.vocabulary_size})
        content = {"models": ["."], "counts": counts, "by": None, "weights": self.weights.tolist()}
        files.write_versioned(folder / FILE, content, FORMAT)


def read_weights(saved: Mapping[str, Any], groups: int, components: int) -> Floats:
    """Return the weights (G, M) in the content of a file; raise a `ValueError` if they are not valid."""
    weights = np.array(saved["weights"], dtype=np.float64)
    if weights.shape != (groups, components):
        raise ValueError(f"expected weights of the shape {(groups, components)}, got {weights.shape}")
    if not ((weights >= 0).all() and np.allclose(weights.sum(axis=1), 1)):  # also rejects NaN
        raise ValueError("expected weights of at least 0 with a sum of 1")
    return weights


def open_mixture(
    folder: Path, config: Config, neural: LanguageModel, tokenizer: Tokenizer, schema: ContextSchema
) -> Mixture | None:
    """Open the mixture in the folder of a run; None if the run has none.

    Raises:
        UserError: A file of the mixture is damaged or belongs to another run.
    """
    if not (folder / FILE).is_file():
        return None
    saved = files.read_versioned(folder / FILE, FORMAT, folder)
    tensors, facts = files.load_tensors(folder / TABLES)
    try:
        if facts != {"vocabulary": len(tokenizer)}:
            raise ValueError("it belongs to another vocabulary")
        ngram = NGram(folder, config, tokenizer, counts_from_tensors(tensors, int(saved["counts"]["order"])))
        counts = CountModels.from_files(saved["counts"], tensors, ngram, schema)
        weights = read_weights(saved, counts.length_count, 1 + len(counts.names))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{folder / FILE}: not a mixture of this run ({error})") from None
    return Mixture.of_run(neural, schema, counts, weights)
