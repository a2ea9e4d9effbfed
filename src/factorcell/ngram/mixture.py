"""A linear mixture of the neural model of a run and of count-based models of its training texts.

    p(w | h, c) = sum_m W_gm p_m(w | h, c)

w is a token, h the preceding tokens of the text, c the context, and g the length of the longest history of w that
training counted. Component 0 is the neural model, and the others are those of `count_models`.
A `Mixture` scores and writes like a `LanguageModel`. `training.mixture` fits the weights W, and mixes several models.

Shapes: B contexts, N texts, T targets, V vocabulary, M components, G groups.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.ngram.count_models import CountModels
from factorcell.ngram.ngram import NGram
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.scoring import mixed_nats, put_batch

FILE, TABLES = "mixture.json", "mixture.safetensors"
FORMAT = 3  # version of `FILE`

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MixtureState:
    """The state of N texts, or space for it: that of the neural model, and that of the counts as numbers (N, S)."""

    neural: Any
    counts: Tensor

    def select(self, rows: Tensor) -> "MixtureState":
        """Return the state of the texts `rows` (N',), which may repeat."""
        return MixtureState(self.neural.select(rows), self.counts[rows])

    def cat(self, others: Sequence["MixtureState"]) -> "MixtureState":
        """Return the state of the texts of this state, followed by the texts of `others`."""
        neural = self.neural.cat([state.neural for state in others])
        return MixtureState(neural, torch.cat([state.counts for state in (self, *others)]))

    def reserve(self, rows: int) -> "MixtureState":
        """Return empty space for the states of `rows` texts."""
        return MixtureState(self.neural.reserve(rows), self.counts.new_empty(rows, self.counts.shape[1]))

    def put(self, first: int, state: "MixtureState") -> None:
        """Store the `state` of some texts in reserved space, from the row `first` on."""
        self.neural.put(first, state.neural)
        self.counts[first : first + len(state.counts)] = state.counts


@dataclass(frozen=True)
class MixtureConditioning:
    """Everything that B contexts determine: the conditioning of the neural model, and their `values` (B,)."""

    neural: Any
    values: Tensor

    def select(self, rows: Tensor) -> "MixtureConditioning":
        """Return the conditioning of the contexts `rows` (B',), which may repeat."""
        return MixtureConditioning(self.neural.select(rows), self.values[rows])


class Mixture:
    """A linear mixture of a neural model and counts; it predicts like a `LanguageModel`.

    The context variables of the neural model, `schema`, include that of the counts. The `weights` (G, M) are equal by
    default.
    """

    def __init__(
        self, neural: LanguageModel, schema: ContextSchema, counts: CountModels, weights: Floats | None = None
    ) -> None:
        if weights is None:
            component_count = 1 + len(counts.names)
            weights = np.full((counts.length_count, component_count), 1 / component_count)
        self.neural, self.counts, self.weights = neural, counts, weights
        self.column = None if counts.variable is None else schema.categories.index(counts.variable)
        self.specials, self.device = neural.specials, neural.device
        self.vocabulary_size, self.texts_at_once = neural.vocabulary_size, neural.texts_at_once

    def condition(self, context: Context, override: Mapping[str, Tensor] | None = None, packed: Any = None) -> Any:
        """Compute everything that B contexts determine; the arguments are those of `LanguageModel.condition`."""
        neural = self.neural.condition(context, override, packed)
        if self.column is None:
            return MixtureConditioning(neural, torch.zeros(len(context), dtype=torch.int64))
        return MixtureConditioning(neural, context.categories[:, self.column].cpu())

    def fold(self, conditioning: Any, shared: bool = False) -> Any:
        """Fold the conditioning of the neural model, as `LanguageModel.fold` does."""
        return replace(conditioning, neural=self.neural.fold(conditioning.neural, shared))

    def fold_head(self, conditioning: Any) -> Any:
        """Fold the softmax bias of the neural model, as `LanguageModel.fold_head` does."""
        return replace(conditioning, neural=self.neural.fold_head(conditioning.neural))

    def __call__(self, batch: Batch, conditioning: Any = None) -> Tensor:
        """Compute the exact nats (B, T) of all targets, zero on padding; there are no gradients."""
        nats, groups = self.component_nats(batch, conditioning)
        mixed = mixed_nats(nats, self.weights[groups]).astype(np.float32)
        return torch.from_numpy(mixed).to(batch.tokens.device).masked_fill(~batch.mask(), 0.0)

    def component_nats(self, batch: Batch, conditioning: Any = None) -> tuple[Floats, Ids]:
        """Return the nats of each target under each component (B, T, M), and the group of the target (B, T)."""
        conditioning = conditioning or self.condition(batch.context)
        with torch.inference_mode():
            neural = self.neural(batch, conditioning.neural).double().cpu().numpy()
        tokens = batch.tokens.cpu().numpy().astype(np.int64)
        probabilities, groups = self.counts.of_targets(tokens, conditioning.values.numpy())
        return np.stack([neural, *-np.log(probabilities)], axis=-1), groups

    def target_nats(self, corpus: Corpus, batches: Iterable[Batch]) -> tuple[Floats, Ids]:
        """Return the nats of all targets of `corpus` under each component (T, M), and the group of each target (T,)."""
        nats = np.zeros((corpus.target_count, self.weights.shape[1]))
        groups, starts = np.zeros(corpus.target_count, dtype=np.int64), target_offsets(corpus)
        for batch in batches:
            batch_nats, batch_groups = self.component_nats(batch)
            put_batch(nats, batch_nats, batch, starts)
            put_batch(groups, batch_groups, batch, starts)
        return nats, groups

    def step(self, token: Tensor, conditioning: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Read one token of each text; return log probabilities (N, V) of the next token, and the state after it."""
        logs, neural = self.neural.step(token, conditioning.neural, None if state is None else state.neural)
        tokens = token.cpu().numpy().astype(np.int64)
        values = np.broadcast_to(conditioning.values.numpy(), tokens.shape)  # one context may have many texts
        parts, groups, counts = self.counts.step(tokens, None if state is None else state.counts.numpy(), values)
        weights = self.weights[groups]
        mixed = weights[:, :1] * logs.double().exp().cpu().numpy()
        for index, part in enumerate(parts, start=1):
            mixed += weights[:, index, None] * part
        with np.errstate(divide="ignore"):  # the start token has probability 0
            log_probs = torch.from_numpy(np.log(mixed).astype(np.float32)).to(token.device)
        return log_probs, MixtureState(neural, torch.from_numpy(counts))

    def save(self, folder: Path) -> None:
        """Write the counts and the weights of the mixture of a run into the folder of the run."""
        counts, tensors = self.counts.to_files()
        files.save_tensors(folder / TABLES, tensors, {"vocabulary": self.vocabulary_size})
        content = {"models": ["."], "counts": counts, "by": None, "weights": self.weights.tolist()}
        files.write_versioned(folder / FILE, content, FORMAT)


Predictor = LanguageModel | Mixture  # a model that predicts the tokens of a run


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
    """Open the mixture in the folder of a run; None if it has none. A file of another run raises a `UserError`."""
    if not (folder / FILE).is_file():
        return None
    saved = files.read_versioned(folder / FILE, FORMAT, folder)
    tensors, facts = files.load_tensors(folder / TABLES)
    try:
        if facts != {"vocabulary": len(tokenizer)}:
            raise ValueError("it belongs to another vocabulary")
        ngram = NGram.from_tensors(folder, config, tokenizer, tensors, int(saved["counts"]["order"]))
        counts = CountModels.from_files(saved["counts"], tensors, ngram, schema)
        weights = read_weights(saved, counts.length_count, 1 + len(counts.names))
        return Mixture(neural, schema, counts, weights)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{folder / FILE}: not a mixture of this run ({error})") from None
