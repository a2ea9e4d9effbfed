"""A mixture of the neural language model of a run and count-based models of its training texts.

    p(w | h, c) = sum_m W_lm p_m(w | h, c)

w is a token, h its history (the preceding tokens of the text), c the context, and l the number of preceding tokens in
the longest history of w that training counted. The components p_m are:

    neural                  the language model of the run
    ngram, value, cache     count-based models of the training texts and of the text so far (`count_models`)

The weights W are fitted on development texts (`training.mixture_fit`). `NGramMixture` has the methods with which a
`LanguageModel` scores, so that whatever reads probabilities of a run uses either of them.

Shapes: B contexts, N texts, T targets, V vocabulary, M components, K values (value K is a missing value).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell import files
from factorcell.config import Config, UserError
from factorcell.data.context import Context
from factorcell.data.corpus import Batch
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import Tokenizer
from factorcell.data.vocabulary import Specials
from factorcell.model.backbone import BackboneState
from factorcell.model.count_models import CACHE_SIZE, CountModels, ValueOrder, longest_history_lengths
from factorcell.model.language_model import Conditioning, LanguageModel
from factorcell.model.ngram import NGram, counts_from_tensors
from factorcell.model.scoring import mixed_nats
from factorcell.model.value_counts import ValueCounts

FILE, TABLES = "ngram_mixture.json", "ngram_mixture.safetensors"
FORMAT = 2  # version of `FILE`
NEURAL = "neural"  # name of the first component

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class Predictor(Protocol):
    """The part of a run that predicts tokens: its `LanguageModel`, or its `NGramMixture`."""

    specials: Specials

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""

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
class MixtureState:
    """The state of N texts.

    Attributes:
        neural: The state of the backbone.
        histories: The ids of the histories of the next token in the n-gram model (N, orders).
        recent: The last tokens of each text, the last one first (N, `CACHE_SIZE`); -1 where there is none.
    """

    neural: BackboneState
    histories: Tensor
    recent: Tensor

    def select(self, rows: Tensor) -> "MixtureState":
        """Return the state of the texts `rows` (N',), which may repeat."""
        return MixtureState(self.neural.select(rows), self.histories[rows], self.recent[rows])

    def cat(self, others: Sequence["MixtureState"]) -> "MixtureState":
        """Return the state of the texts of this state, followed by the texts of `others`."""
        states = (self, *others)
        return MixtureState(
            self.neural.cat([state.neural for state in others]),
            torch.cat([state.histories for state in states]),
            torch.cat([state.recent for state in states]),
        )

    def reserve(self, rows: int) -> "MixtureStateBuffer":
        """Return empty space for the states of `rows` texts."""
        histories, recent = (part.new_empty(rows, part.shape[1]) for part in (self.histories, self.recent))
        return MixtureStateBuffer(self.neural.reserve(rows), histories, recent)


class MixtureStateBuffer:
    """Preallocated space for the states of many texts."""

    def __init__(self, neural: Any, histories: Tensor, recent: Tensor) -> None:
        self.neural, self.histories, self.recent = neural, histories, recent

    def put(self, first: int, state: MixtureState) -> None:
        """Store the `state` of some texts, in the rows of the buffer from `first` on."""
        self.neural.put(first, state.neural)
        rows = slice(first, first + len(state.histories))
        self.histories[rows], self.recent[rows] = state.histories, state.recent

    def select(self, rows: Tensor) -> MixtureState:
        """Return the state of the texts in the rows `rows` (N,) of the buffer."""
        return MixtureState(self.neural.select(rows), self.histories[rows], self.recent[rows])


@dataclass(frozen=True)
class MixtureConditioning:
    """Everything that B contexts determine: the conditioning of the neural model, and their `values` (B,)."""

    neural: Conditioning
    values: Tensor

    def select(self, rows: Tensor) -> "MixtureConditioning":
        """Return the conditioning of the contexts `rows` (B',), which may repeat."""
        return MixtureConditioning(self.neural.select(rows), self.values[rows])


class NGramMixture:
    """A neural language model mixed with count-based models; it predicts like a `LanguageModel`.

    Args:
        neural: The language model of the run.
        schema: The context variables of the run.
        counts: The count-based components.
        weights: The weights (lengths of the longest counted history, M); component 0 is `neural`.
    """

    def __init__(self, neural: LanguageModel, schema: ContextSchema, counts: CountModels, weights: Floats) -> None:
        self.neural, self.counts, self.weights = neural, counts, weights
        self.specials, self.schema = neural.specials, schema
        variable = counts.variable
        self.column = None if variable is None else schema.categories.index(variable)

    @property
    def device(self) -> torch.device:
        """The device of the neural model."""
        return self.neural.device

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""
        return self.neural.vocabulary_size

    def condition(
        self, context: Context, override: Mapping[str, Tensor] | None = None, packed: Any = None
    ) -> MixtureConditioning:
        """Compute everything that B contexts determine; the arguments are those of `LanguageModel.condition`."""
        return MixtureConditioning(self.neural.condition(context, override, packed), self._values(context))

    def _values(self, context: Context) -> Tensor:
        """Return the value of each context (B,), K where it is missing; zeros without a column."""
        if self.column is None or self.counts.variable is None:
            return torch.zeros(len(context), dtype=torch.int64)
        values = context.categories[:, self.column].cpu()
        return torch.where(values < 0, len(self.counts.variable.values), values)

    def fold(self, conditioning: MixtureConditioning, shared: bool = False) -> MixtureConditioning:
        """Fold the conditioning of the neural model, as `LanguageModel.fold` does."""
        return replace(conditioning, neural=self.neural.fold(conditioning.neural, shared))

    def fold_head(self, conditioning: MixtureConditioning) -> MixtureConditioning:
        """Fold the softmax bias of the neural model, as `LanguageModel.fold_head` does."""
        return replace(conditioning, neural=self.neural.fold_head(conditioning.neural))

    def __call__(self, batch: Batch, conditioning: MixtureConditioning | None = None) -> Tensor:
        """Compute the exact nats (B, T) of all targets, zero on padding; there are no gradients."""
        conditioning = conditioning or self.condition(batch.context)
        nats, history_lengths = self.component_nats(batch, conditioning)
        mixed = mixed_nats(nats, self.weights[history_lengths])
        return torch.from_numpy(mixed.astype(np.float32)).to(self.device).masked_fill(~batch.mask(), 0.0)

    def component_nats(self, batch: Batch, conditioning: MixtureConditioning) -> tuple[Floats, Ids]:
        """Return the nats of each target under each component (B, T, M), and l, its longest counted history (B, T)."""
        with torch.inference_mode():
            neural = self.neural(batch, conditioning.neural).double().cpu().numpy()
        tokens, values = batch.tokens.cpu().numpy().astype(np.int64), conditioning.values.numpy()
        probabilities, history_lengths = self.counts.of_targets(tokens, values)
        return np.stack([neural, *-np.log(probabilities)], axis=-1), history_lengths

    def step(
        self, token: Tensor, conditioning: MixtureConditioning, state: MixtureState | None = None
    ) -> tuple[Tensor, MixtureState]:
        """Read one token of each text; return log probabilities (N, V) of the next token, and the state after it."""
        tokens = token.cpu().numpy().astype(np.int64)
        values = np.broadcast_to(conditioning.values.numpy(), tokens.shape)  # one context may have many texts
        logs, neural = self.neural.step(token, conditioning.neural, None if state is None else state.neural)
        if state is None:
            before = self.counts.ngram.empty_histories(len(tokens))
            recent = np.full((len(tokens), CACHE_SIZE), -1, dtype=np.int64)
        else:
            before = state.histories.numpy()
            recent = np.concatenate([tokens[:, None], state.recent.numpy()[:, :-1]], axis=1)
        histories = self.counts.ngram.extend_histories(before, tokens)
        parts = self.counts.of_all_tokens(histories, recent, values)
        weights = self.weights[longest_history_lengths(histories)]
        mixed = weights[:, :1] * logs.double().exp().cpu().numpy()
        for index, part in enumerate(parts, start=1):
            mixed += weights[:, index, None] * part
        with np.errstate(divide="ignore"):  # the start token has probability 0
            log_probs = torch.from_numpy(np.log(mixed).astype(np.float32)).to(self.device)
        return log_probs, MixtureState(neural, torch.from_numpy(histories), torch.from_numpy(recent))

    def save(self, folder: Path) -> None:
        """Write the count-based components and the weights into the folder of the run."""
        tensors = self.counts.ngram.to_tensors()
        for n, order in enumerate(self.counts.orders, 1):
            tensors[f"value_keys{n}"] = torch.from_numpy(order.counts.keys)
            tensors[f"value_counts{n}"] = torch.from_numpy(order.counts.counts.astype(np.int32))
        files.save_tensors(folder / TABLES, tensors, {"vocabulary": self.vocabulary_size})
        content = {
            "order": len(self.counts.ngram.grams),
            "components": [NEURAL, *self.counts.names],
            "column": None if self.counts.variable is None else self.counts.variable.name,
            "shares": [order.share for order in self.counts.orders],
            "weights": self.weights.tolist(),
        }
        files.write_versioned(folder / FILE, content, FORMAT)


def open_mixture(
    folder: Path, config: Config, neural: LanguageModel, tokenizer: Tokenizer, schema: ContextSchema
) -> NGramMixture | None:
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
        grams = counts_from_tensors(tensors, int(saved["order"]))
        ngram = NGram(folder, config, tokenizer, grams)
        variable = None if saved["column"] is None else schema.variable(saved["column"])
        by_value = []
        for n, (share, order_grams) in enumerate(zip(saved["shares"], grams if variable else (), strict=True), 1):
            assert variable is not None
            arrays = (tensors[f"value_{name}{n}"].numpy().astype(np.int64) for name in ("keys", "counts"))
            pairs = ValueCounts(len(variable.values), *arrays)
            by_value.append(ValueOrder(pairs, order_grams.keys, len(tokenizer), float(share)))
        counts = CountModels(ngram, variable, by_value, saved["components"][1:])
        weights = np.array(saved["weights"], dtype=np.float64)
        if weights.shape != (len(grams), len(saved["components"])):
            raise ValueError("its weights have another shape")
        if not ((weights >= 0).all() and np.allclose(weights.sum(-1), 1)):  # also rejects NaN
            raise ValueError("its weights are not at least 0 with a sum of 1")
    except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{folder / FILE}: not a mixture of this run ({error})") from None
    return NGramMixture(neural, schema, counts, weights)
