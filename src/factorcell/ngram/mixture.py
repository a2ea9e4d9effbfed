"""A linear mixture of the neural model of a run and of count-based models of its training texts.

    p(w | h, c) = sum_m W_gm p_m(w | h, c)

w is a token, h the preceding tokens of the text, c the context, and g the length of the longest history of w that
training counted. The components are:

    neural   the model of the run
    ngram    a Kneser-Ney n-gram model of all training texts (`ngram`), whose letters the others share
    value    a Kneser-Ney model of the training texts with the value v of a column; without a value, the same as `ngram`
             p_n(w | h, v) = (c_v(h w) - D(c_v(h w))) / c_v(h .) + backoff_v(h) q_n(w | h, v)
             q_n(w | h, v) = s_n p_{n-1}(w | h', v) + (1 - s_n) p_n(w | h)       s_n is a weight
    cache    the preceding tokens x_1, x_2, ... of the same text, the last one first
             p(w | x) = (sum_i d^(i-1) [x_i = w] + k p_ngram(w | h)) / (sum_i d^(i-1) + k)

A `Mixture` scores and writes like a `LanguageModel`. `training.mixture` fits the weights W, and mixes several models.

References:
    Chen and Goodman 1998 (Kneser-Ney), Wood and Teh 2009 (two directions of back-off), Kuhn and De Mori 1990 (cache).

Shapes: B contexts or texts, N texts that are extended token by token, T targets, V vocabulary, M components, G groups,
K values of a column (value K is missing).
"""

import itertools
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
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.corpus import Batch, Corpus, target_offsets
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.progress import progress_bar
from factorcell.ngram.ngram import NGram, NGramOrder, estimate_discounts, find_keys, lookup_tables
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.scoring import mixed_nats, put_batch

FILE, TABLES = "mixture.json", "mixture.safetensors"
FORMAT = 3  # version of `FILE`
NGRAM, VALUE, CACHE = "ngram", "value", "cache"  # names of the components
CACHE_SIZE, CACHE_DECAY, CACHE_PRIOR = 300, 0.99, 5.0  # number of cached tokens, d, and k

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class ValueOrder:
    """The n-grams of one order by value, with lookup tables, as `NGramOrder` for all texts.

    The pair of an n-gram and one of K values has the key (id of the n-gram) * K + value. `keys` are sorted, `counts`
    are the Kneser-Ney counts, and `share` is s_n.
    """

    def __init__(self, keys: Ids, counts: Ids, value_count: int, of_all_texts: NGramOrder, share: float = 0.0) -> None:
        self.keys, self.counts, self.value_count, self.share = keys, counts, value_count, share
        history_ids = of_all_texts.keys // of_all_texts.vocabulary_size
        self.history_keys, positions = np.unique(_replace_items(keys, history_ids, value_count), return_inverse=True)
        discounts = estimate_discounts(counts)
        self.discounted, self.backoff = lookup_tables(counts, discounts, positions, len(self.history_keys))

    def backoffs(self, history_ids: Ids, values: Ids) -> Floats:
        """Return backoff_v(h) (T,) of each history and value."""
        return self.backoff[self._find(self.history_keys, history_ids, values)]

    def first_terms(self, gram_ids: Ids, values: Ids) -> Floats:
        """Return the first term of p_n(w | h, v) (T,) of each n-gram and value."""
        return self.discounted[self._find(self.keys, gram_ids, values)]

    def _find(self, keys: Ids, items: Ids, values: Ids) -> Ids:
        """Return the index in `keys` of each pair of an item and a value (T,), or -1; value K is a missing value."""
        is_known = (items >= 0) & (values < self.value_count)
        return np.where(is_known, find_keys(keys, items * self.value_count + values), -1)


def count_by_value(ngram: NGram, corpus: Corpus, column: int, highest: int) -> list[ValueOrder]:
    """Count the n-grams of the orders up to `highest` by the values of a categorical column, with s_n = 0."""
    begins, value_count = corpus.offsets[:-1], len(corpus.schema.categories[column].values)
    values = np.repeat(values_of_texts(corpus, column), np.diff(corpus.offsets))
    values[begins] = value_count  # start tokens are not targets
    keys, counts, shorter_ids = list[Ids](), list[Ids](), np.zeros(0, dtype=np.int64)
    for ids in itertools.islice(ngram.gram_ids(corpus.tokens.astype(np.int64), begins), highest):
        is_counted = (ids >= 0) & (values < value_count)
        pairs = np.unique(ids[is_counted] * value_count + values[is_counted], return_counts=True)
        if keys:
            # The number of distinct tokens that precede an n-gram replaces the number of its occurrences; n-grams at
            # the beginning of a text, which no token precedes, keep their counts.
            suffix_ids = np.zeros(len(ngram.orders[len(keys)].keys), dtype=np.int64)  # of each n-gram
            suffix_ids[ids[ids >= 0]] = shorter_ids[ids >= 0]
            suffixes, predecessors = np.unique(_replace_items(pairs[0], suffix_ids, value_count), return_counts=True)
            counts[-1][np.searchsorted(keys[-1], suffixes)] = predecessors
        keys.append(pairs[0])
        counts.append(pairs[1])
        shorter_ids = ids
    parts = zip(keys, counts, ngram.orders, strict=False)
    return [ValueOrder(keys, counts, value_count, order) for keys, counts, order in parts]


def values_of_texts(corpus: Corpus, column: int) -> Ids:
    """Return the value of each text in a categorical column; K where it is missing."""
    values = corpus.categories[:, column].astype(np.int64)
    return np.where(values < 0, len(corpus.schema.categories[column].values), values)


def _replace_items(keys: Ids, replacements: Ids, value_count: int) -> Ids:
    """Return the keys item * K + value after replacing item i by `replacements[i]`."""
    return replacements[keys // value_count] * value_count + keys % value_count


class CountModels:
    """The count-based components: the n-gram model, the n-gram counts of each value of one column, and the cache.

    `names` are those of the components, in the order of the weights; `orders` has the counts by value of the column
    `variable`, from order 1 on, and is empty without the component `value`.
    """

    def __init__(
        self, ngram: NGram, variable: Variable | None, orders: Sequence[ValueOrder], names: Sequence[str]
    ) -> None:
        self.ngram, self.variable, self.orders, self.names = ngram, variable, tuple(orders), tuple(names)

    @property
    def length_count(self) -> int:
        """The number of lengths l that the longest counted history can have."""
        return len(self.ngram.orders)

    def of_targets(self, tokens: Ids, values: Ids) -> tuple[Floats, Ids]:
        """Return the probability of each target under each component (components, B, T), and its length (B, T)."""
        shape = len(tokens), tokens.shape[1] - 1
        begins = np.arange(len(tokens)) * tokens.shape[1]
        histories, grams = (
            [np.delete(ids, begins) for ids in part] for part in self.ngram.look_up(tokens.ravel(), begins)
        )
        by_order = self.ngram.target_probabilities(histories, grams)
        parts = {NGRAM: by_order[-1]}
        if VALUE in self.names:
            parts[VALUE] = self._by_value(by_order, histories, grams, np.repeat(values, shape[1]))
        if CACHE in self.names:
            counted, total = _cached_counts(tokens)
            parts[CACHE] = (counted.ravel() + CACHE_PRIOR * by_order[-1]) / (total.ravel() + CACHE_PRIOR)
        lengths = (np.stack(histories) >= 0).sum(0) - 1
        return np.stack([parts[name].reshape(shape) for name in self.names]), lengths.reshape(shape)

    def _by_value(self, by_order: list[Floats], histories: list[Ids], grams: list[Ids], values: Ids) -> Floats:
        """Return the probability (T,) of each target in the component `value`; the values are those of the targets."""
        probabilities = np.full(len(values), self.ngram.uniform)
        for order, of_all_texts, history_ids, gram_ids in zip(self.orders, by_order, histories, grams, strict=True):
            mixed = order.share * probabilities + (1 - order.share) * of_all_texts
            probabilities = order.first_terms(gram_ids, values) + order.backoffs(history_ids, values) * mixed
        return np.where(values < self.orders[0].value_count, probabilities, by_order[-1])

    def _of_all_tokens_by_value(self, by_order: list[Floats], histories: list[Ids], values: Ids) -> Floats:
        """Return the probabilities (N, V) of every next token in the component `value`."""
        probabilities = self.ngram.uniform_probabilities(len(values))
        parts = zip(self.orders, by_order, self.ngram.orders, histories, strict=True)
        for order, of_all_texts, grams, history_ids in parts:
            mixed = order.share * probabilities + (1 - order.share) * of_all_texts
            probabilities = order.backoffs(history_ids, values)[:, None] * mixed
            rows, gram_ids = grams.followers(history_ids)
            probabilities[rows, grams.last_tokens(gram_ids)] += order.first_terms(gram_ids, values[rows])
        return np.where((values < self.orders[0].value_count)[:, None], probabilities, by_order[-1])

    def step(self, tokens: Ids, state: Ids | None, values: Ids) -> tuple[list[Floats], Ids, Ids]:
        """Read one token (N,) of each text; `values` (N,) are the values of the texts.

        A row of the state, None before start tokens, has the ids of the histories in the n-gram model, and then the
        last `CACHE_SIZE` tokens, the last one first, or -1 where there is none. Return the probabilities (N, V) of
        every next token under each component, the lengths of the longest counted histories (N,), and the next state.
        """
        if state is None:
            before, recent = None, np.full((len(tokens), CACHE_SIZE), -1, dtype=np.int64)
        else:
            before, recent = np.split(state, [self.length_count], axis=1)
            recent = np.concatenate([tokens[:, None], recent[:, :-1]], axis=1)
        histories = self.ngram.extend_histories(before, tokens)
        by_order = self.ngram.probabilities(list(histories.T))
        parts = {NGRAM: by_order[-1]}
        if VALUE in self.names:
            parts[VALUE] = self._of_all_tokens_by_value(by_order, list(histories.T), values)
        if CACHE in self.names:
            decays = CACHE_DECAY ** np.arange(recent.shape[1]) * (recent >= 0)
            total = decays.sum(1, keepdims=True) + CACHE_PRIOR
            parts[CACHE] = by_order[-1] * (CACHE_PRIOR / total)
            rows, places = np.nonzero(recent >= 0)
            np.add.at(parts[CACHE], (rows, recent[rows, places]), (decays / total)[rows, places])
        lengths = (histories >= 0).sum(1) - 1
        return [parts[name] for name in self.names], lengths, np.concatenate([histories, recent], axis=1)

    def to_files(self) -> tuple[files.Row, dict[str, Tensor]]:
        """Return an entry of a JSON file, and tensors; `from_files` is the inverse."""
        tensors = self.ngram.to_tensors()
        for n, order in enumerate(self.orders, 1):
            tensors[f"value_keys{n}"] = torch.from_numpy(order.keys)
            tensors[f"value_counts{n}"] = torch.from_numpy(order.counts.astype(np.int32))
        entry = {"order": self.length_count, "components": list(self.names)}
        entry |= {"column": self.variable and self.variable.name, "shares": [order.share for order in self.orders]}
        return entry, tensors

    @classmethod
    def from_files(
        cls, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], ngram: NGram, schema: ContextSchema
    ) -> "CountModels":
        """Return the components that `to_files` stored; damaged contents raise a `KeyError` or `ValueError`."""
        if entry["column"] is None:
            return cls(ngram, None, (), entry["components"])
        variable, orders = schema.variable(entry["column"]), []
        for n, (share, order) in enumerate(zip(entry["shares"], ngram.orders, strict=True), 1):
            keys, counts = (tensors[f"value_{name}{n}"].numpy().astype(np.int64) for name in ("keys", "counts"))
            orders.append(ValueOrder(keys, counts, len(variable.values), order, float(share)))
        return cls(ngram, variable, orders, entry["components"])


def _cached_counts(tokens: Ids) -> tuple[Floats, Floats]:
    """Return the decayed count of each target among the preceding tokens of its text (B, T), and that of all tokens."""
    targets = tokens[:, 1:]
    counted, total = np.zeros(targets.shape), np.zeros(targets.shape)
    for distance in range(1, min(CACHE_SIZE, targets.shape[1] - 1) + 1):
        decay = CACHE_DECAY ** (distance - 1)
        counted[:, distance:] += decay * (targets[:, distance:] == targets[:, :-distance])
        total[:, distance:] += decay
    return counted, total


@dataclass(frozen=True)
class MixtureState:
    """The state of N texts, or space for it: that of the neural model, and that of the counts as numbers (N, S)."""

    neural: Any
    counts: Tensor

    def select(self, rows: Tensor) -> "MixtureState":
        return MixtureState(self.neural.select(rows), self.counts[rows.to(self.counts.device)])

    def cat(self, others: Sequence["MixtureState"]) -> "MixtureState":
        neural = self.neural.cat([state.neural for state in others])
        return MixtureState(neural, torch.cat([state.counts for state in (self, *others)]))

    def reserve(self, rows: int) -> "MixtureState":
        return MixtureState(self.neural.reserve(rows), self.counts.new_empty(rows, self.counts.shape[1]))

    def put(self, first: int, state: "MixtureState") -> None:
        self.neural.put(first, state.neural)
        self.counts[first : first + len(state.counts)] = state.counts


@dataclass(frozen=True)
class MixtureConditioning:
    """Everything that B contexts determine: the conditioning of the neural model, and their `values` (B,) or K."""

    neural: Any
    values: Tensor

    def select(self, rows: Tensor) -> "MixtureConditioning":
        return MixtureConditioning(self.neural.select(rows), self.values[rows.to(self.values.device)])


class Mixture:
    """A linear mixture of a neural model and counts with `weights` (G, M); it predicts like a `LanguageModel`."""

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
        if self.column is None or self.counts.variable is None:
            return MixtureConditioning(neural, torch.zeros(len(context), dtype=torch.int64))
        values = context.categories[:, self.column].cpu()
        return MixtureConditioning(neural, values.where(values >= 0, len(self.counts.variable.values)))

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
        with progress_bar(total=len(corpus), desc="mixture", unit="texts") as bar:
            for batch in batches:
                batch_nats, batch_groups = self.component_nats(batch)
                put_batch(nats, batch_nats, batch, starts)
                put_batch(groups, batch_groups, batch, starts)
                bar.update(len(batch.rows))
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
