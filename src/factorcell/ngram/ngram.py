"""An n-gram language model with interpolated modified Kneser-Ney smoothing, as a baseline for neural models.

    p_n(w | h)  = (c(h w) - D(c(h w))) / c(h .) + backoff(h) p_{n-1}(w | h')      (Chen and Goodman 1998, section 3)
    backoff(h)  = sum_w D(c(h w)) / c(h .)

p_n is the model of order n, w a token, h its n - 1 preceding tokens, h' h without its first token, and p_0 uniform.
At the highest order and at the beginning of a text, c is the number of occurrences of an n-gram; otherwise it is the
number of distinct tokens that precede it. c(h .) is the sum of c(h w) over w. The discount D has three values per
order: for c = 1, for c = 2, and for c of at least 3. The start token occurs in histories only.

The id of an n-gram is its index in the sorted `keys` of its order; its key is (id of its first n - 1 tokens) * V + (id
of its last token). One binary search per order finds the n-grams of all targets; -1 is an n-gram that was not counted.

Shapes: V vocabulary, T targets, M n-grams of an order, P n-grams of the next lower order (histories).
"""

import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import CharacterOptions, Config, PretrainedTokenizerOptions
from factorcell.data.columns.columns import with_context
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus, is_known_target, target_ids, target_offsets
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.kinds import load_tokenizer, new_tokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io import files, lock
from factorcell.io.progress import progress_bar
from factorcell.nn.scoring import TextModel
from factorcell.options import limits

ORDERS = range(1, 13)
DEFAULT_ORDER, DEFAULT_CHARACTER_ORDER = 4, 9  # higher orders hardly lower the perplexity
TOKENS = 1 << 20  # approximate number of tokens in a block of texts
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # used if a corpus has too few n-grams to estimate the discounts
FORMAT = 1  # version of the format of an n-gram model's folder
FILE, TABLES = "ngram.json", "ngrams.safetensors"  # names of the files of options and of n-grams
SPELLING_ORDER = 6  # higher orders hardly lower the nats of out-of-vocabulary tokens
CHARACTERS = sys.maxunicode + 1  # number of code points

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Counts = tuple[Ids, Ids]  # the sorted keys (M,) of the n-grams of one order, and their Kneser-Ney counts (M,)


class NGramOrder:
    """The n-grams of one order n: their sorted `keys` (M,), their Kneser-Ney `counts` (M,), and lookup tables.

    `discounted` (M + 1,) is the first term of p_n(w | h), and `backoff` (P + 1,) is backoff(h).
    """

    def __init__(self, keys: Ids, counts: Ids, history_count: int, vocabulary_size: int) -> None:
        self.keys, self.counts, self.vocabulary_size = keys, counts, vocabulary_size
        self.discounts = estimate_discounts(counts)
        self.discounted, self.backoff = lookup_tables(counts, self.discounts, keys // vocabulary_size, history_count)

    def find(self, history_ids: Ids, tokens: Ids) -> Ids:
        """Return the ids (T,) of the n-grams with the given histories (T,) and last tokens (T,), or -1."""
        return find_keys(self.keys, history_ids * self.vocabulary_size + tokens)

    def last_tokens(self, ids: Ids) -> Ids:
        """Return the last token (T,) of each n-gram."""
        return self.keys[ids] % self.vocabulary_size

    def followers(self, history_ids: Ids) -> tuple[Ids, Ids]:
        """Return, for each n-gram after one of `history_ids` (T,), the index of its history in them, and its id."""
        first_ids = np.searchsorted(self.keys, history_ids * self.vocabulary_size)
        end_ids = np.searchsorted(self.keys, (history_ids + 1) * self.vocabulary_size)
        follower_counts = end_ids - first_ids  # 0 for the id -1
        history_indices = np.repeat(np.arange(len(history_ids)), follower_counts)
        # The n-grams of a history have consecutive ids; the result lists the histories one after the other.
        first_places = np.cumsum(follower_counts) - follower_counts
        return history_indices, np.arange(len(history_indices)) + np.repeat(first_ids - first_places, follower_counts)


def lookup_tables(
    counts: Ids, discounts: Sequence[float], history_ids: Ids, history_count: int
) -> tuple[Floats, Floats]:
    """Return the first term of p_n(w | h) (M + 1,) and backoff(h) (P + 1,); the last elements are for the id -1."""
    discounts_of_grams = np.array([0.0, *discounts])[np.minimum(counts, 3)]
    total_counts = np.bincount(history_ids, counts, history_count)  # c(h .)
    total_discounts = np.bincount(history_ids, discounts_of_grams, history_count)
    backoff = np.divide(total_discounts, total_counts, out=np.ones(history_count), where=total_counts > 0)
    return np.append((counts - discounts_of_grams) / total_counts[history_ids], 0.0), np.append(backoff, 1.0)


def find_keys(sorted_keys: Ids, keys: Ids) -> Ids:
    """Return the index of each of `keys` (T,) in `sorted_keys` (M,), or -1."""
    if not len(sorted_keys):
        return np.full(len(keys), -1)
    indices = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[indices] == keys, indices, -1)


def estimate_discounts(counts: Ids) -> tuple[float, ...]:
    """Estimate the discounts of counts 1, 2, and 3 or more; return `FALLBACK_DISCOUNTS` if that is impossible."""
    _, ones, twos, threes, fours, _ = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    if not (ones and twos and threes):
        return FALLBACK_DISCOUNTS
    y = ones / (ones + 2 * twos)  # Y in Chen and Goodman
    estimates = (1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes)
    return estimates if min(estimates) > 0 else FALLBACK_DISCOUNTS


def default_order(tokenizer: Tokenizer) -> int:
    """Return the order above which the perplexity hardly falls."""
    return DEFAULT_CHARACTER_ORDER if tokenizer.is_character_level else DEFAULT_ORDER


def count_ngrams(corpus: Corpus, order: int) -> list[Counts]:
    """Return the keys and Kneser-Ney counts of the orders from 1 to `order`, or to the length of the longest text."""
    vocabulary_size, tokens, begins = len(corpus.tokenizer), corpus.tokens.astype(np.int64), corpus.offsets[:-1]
    keys = [np.arange(vocabulary_size)]  # `keys` and `counts` have an array for each order
    counts = [np.bincount(target_ids(corpus), minlength=vocabulary_size)]
    ids = tokens  # id of the n-gram that ends at each token; -1 if it would reach into the previous text
    for _ in progress_bar(range(1, order), desc="counting", unit="orders"):
        history_ids = _preceding_ids(ids, begins)
        is_inside = history_ids >= 0
        if not is_inside.any():
            break
        ngram_keys, ngram_ids, ngram_counts = np.unique(
            history_ids[is_inside] * vocabulary_size + tokens[is_inside], return_inverse=True, return_counts=True
        )
        suffix_ids = np.empty(len(ngram_keys), dtype=np.int64)
        suffix_ids[ngram_ids] = ids[is_inside]  # id of each n-gram without its first token
        predecessor_counts = np.bincount(suffix_ids, minlength=len(keys[-1]))  # distinct tokens before each n-gram
        counts[-1] = np.where(predecessor_counts > 0, predecessor_counts, counts[-1])  # no token precedes a start token
        ids = np.full(len(tokens), -1)
        ids[is_inside] = ngram_ids
        keys.append(ngram_keys)
        counts.append(ngram_counts)
    return list(zip(keys, counts, strict=True))


def _preceding_ids(ids: Ids, begins: Ids) -> Ids:
    """Return the ids of the n-grams that end one token earlier, -1 at the beginning of a text."""
    preceding_ids = np.empty(len(ids), dtype=np.int64)
    preceding_ids[1:] = ids[:-1]
    preceding_ids[begins] = -1  # `begins` are the positions of the start tokens
    return preceding_ids


class NGram(TextModel):
    """An n-gram model with a tokenizer and the options for reading texts; it reads no context."""

    def __init__(self, folder: Path, config: Config, tokenizer: Tokenizer, counts: Sequence[Counts]) -> None:
        self.folder, self.config, self.tokenizer = folder, config, tokenizer
        self.schema = ContextSchema()
        history_counts = [1, *(len(keys) for keys, _ in counts[:-1])]
        self.orders = [
            NGramOrder(*pair, history_count, len(tokenizer))
            for pair, history_count in zip(counts, history_counts, strict=True)
        ]
        self.uniform = 1 / (len(tokenizer) - 1)  # the start token is never predicted

    @classmethod
    def fit(
        cls,
        source: Any,
        config: Config,
        folder: str | Path,
        *,
        order: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> "NGram":
        """Count the n-grams of a table or corpus and save the model in a new folder.

        Args:
            source: A table, or a corpus.
            config: The options for reading the table.
            folder: The folder, which must not exist.
            order: The length of the longest n-grams; by default 4, for characters 9.
            tokenizer: The tokenizer of another model, to predict the same targets as that model. By default, the
                tokenizer of `source` if that is a corpus, else a tokenizer that is trained on `source`.
        """
        folder, is_corpus = Path(folder), isinstance(source, Corpus)
        chosen_tokenizer = tokenizer or (source.tokenizer if is_corpus else new_tokenizer(config))
        if isinstance(config.tokenizer, PretrainedTokenizerOptions):
            tokenizer = chosen_tokenizer
        config = Config(data=with_context(config.data), tokenizer=chosen_tokenizer.options)
        [order] = limits.check(order=default_order(chosen_tokenizer) if order is None else order)
        with lock.training_lock(folder):
            files.create_new_folder(folder, (TABLES, *chosen_tokenizer.FILES))
            corpus = source if is_corpus else prepare(source, config, tokenizer=tokenizer)
            model = cls(folder, config, corpus.tokenizer, count_ngrams(corpus, order))
            model._save()
        return model

    def _save(self) -> None:
        self.tokenizer.save(self.folder)
        facts = {"digests": files.digests(self.folder, self.tokenizer.FILES)}
        files.save_tensors(self.folder / TABLES, self.to_tensors(), facts)
        reading_options = {"data": asdict(self.config.data), "tokenizer": asdict(self.config.tokenizer)}
        files.write_versioned(self.folder / FILE, {"order": len(self.orders), **reading_options}, FORMAT)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the n-grams of all orders as tensors for a file; `from_tensors` is the inverse."""
        tensors = {}
        for n, order in enumerate(self.orders, 1):
            tensors[f"keys{n}"] = torch.from_numpy(order.keys)
            tensors[f"counts{n}"] = torch.from_numpy(order.counts.astype(np.int32))
        return tensors

    @classmethod
    def from_tensors(
        cls, folder: Path, config: Config, tokenizer: Tokenizer, tensors: Mapping[str, Tensor], order: int
    ) -> "NGram":
        """Create a model from the n-grams of the orders 1 to `order`; a missing tensor raises a `KeyError`."""
        arrays = {name: tensor.numpy().astype(np.int64) for name, tensor in tensors.items()}
        counts = [(arrays[f"keys{n}"], arrays[f"counts{n}"]) for n in range(1, order + 1)]
        return cls(folder, config, tokenizer, counts)

    @classmethod
    def open(cls, folder: str | Path) -> "NGram":
        """Open the n-gram model in a folder; raise a `UserError` if its files are invalid."""
        folder = Path(folder)
        saved = files.read_versioned(folder / FILE, FORMAT, folder)
        tensors, facts = files.load_tensors(folder / TABLES)
        if type(saved.get("order")) is not int or saved["order"] not in ORDERS:
            raise UserError(f"{folder / FILE}: expected an order from 1 to {max(ORDERS)}, got {saved.get('order')!r}")
        sections = {name: values for name, values in saved.items() if name in ("data", "tokenizer")}
        config = Config.from_dict(sections, str(folder / FILE))
        tokenizer = load_tokenizer(config, folder)
        tensor_names = {f"{name}{order}" for order in range(1, saved["order"] + 1) for name in ("keys", "counts")}
        if set(tensors) != tensor_names:
            raise UserError(f"{folder / TABLES}: the n-grams do not match the order of the model")
        files.check_digests(folder, facts.get("digests", {}))
        return cls.from_tensors(folder, config, tokenizer, tensors, saved["order"])

    def nats(self, corpus: Corpus) -> Floats:
        """Return the nats of all targets of `corpus`, -log p(w | h)."""
        return np.concatenate([-np.log(self.target_probabilities(*ids)[-1]) for ids in self.blocks(corpus)])

    def target_probabilities(self, histories: list[Ids], grams: list[Ids]) -> list[Floats]:
        """Return p_n(w | h) (T,) for each order n, from the ids of the history and n-gram of each target (T,)."""
        probabilities = [np.full(len(grams[0]), self.uniform)]
        for order, history_ids, gram_ids in zip(self.orders, histories, grams, strict=True):
            probabilities.append(order.discounted[gram_ids] + order.backoff[history_ids] * probabilities[-1])
        return probabilities[1:]

    def look_up(self, tokens: Ids, begins: Ids) -> tuple[list[Ids], list[Ids]]:
        """Return, for each order, the ids of the history and n-gram of each token (T,); texts start at `begins`."""
        grams = list(self.gram_ids(tokens, begins))
        histories = [np.zeros(len(tokens), dtype=np.int64), *(_preceding_ids(ids, begins) for ids in grams[:-1])]
        return histories, grams

    def gram_ids(self, tokens: Ids, begins: Ids) -> Iterator[Ids]:
        """Yield, for each order, the id of the n-gram that ends at each token (T,), as in `look_up`."""
        ids = tokens
        yield ids
        for order in self.orders[1:]:
            ids = order.find(_preceding_ids(ids, begins), tokens)
            yield ids

    def extend_histories(self, histories: Ids | None, tokens: Ids) -> Ids:
        """Return the ids (T, orders) of histories after one more token each, `tokens` (T,); None: start tokens."""
        if histories is None:
            histories = np.full((len(tokens), len(self.orders)), -1, dtype=np.int64)
            histories[:, 0] = 0
        longer = [order.find(ids, tokens) for order, ids in zip(self.orders[:-1], histories.T, strict=False)]
        return np.stack([np.zeros(len(tokens), dtype=np.int64), *longer], axis=1)

    @property
    def size(self) -> int:
        """The number of n-grams."""
        return sum(len(order.keys) for order in self.orders)

    def uniform_probabilities(self, count: int) -> Floats:
        """Return p_0 of every token (count, V): the start token has probability 0, all others the same."""
        probabilities = np.full((count, len(self.tokenizer)), self.uniform)
        probabilities[:, self.tokenizer.specials.start] = 0.0
        return probabilities

    def probabilities(self, histories: list[Ids]) -> list[Floats]:
        """Return p_n(w | h) of every token w (T, V) for each order n, from the ids of the histories (T,)."""
        by_order = [self.uniform_probabilities(len(histories[0]))]
        for order, history_ids in zip(self.orders, histories, strict=True):
            probabilities = order.backoff[history_ids, None] * by_order[-1]
            rows, gram_ids = order.followers(history_ids)
            probabilities[rows, order.last_tokens(gram_ids)] += order.discounted[gram_ids]
            by_order.append(probabilities)
        return by_order[1:]

    def blocks(self, corpus: Corpus) -> Iterator[tuple[list[Ids], list[Ids]]]:
        """Yield, for each block of texts, the ids of the history and n-gram of each target (T,) for each order."""
        if corpus.tokenizer.tokens != self.tokenizer.tokens:
            raise UserError(
                f"{self.folder}: expected texts read with the vocabulary of the model, got another vocabulary"
            )
        offsets = np.asarray(corpus.offsets)
        block_of_text = offsets[:-1] // TOKENS
        first_texts = np.flatnonzero(np.diff(block_of_text, prepend=-1))
        for first_text, end_text in zip(first_texts, [*first_texts[1:], len(corpus)], strict=True):
            tokens = corpus.tokens[offsets[first_text] : offsets[end_text]].astype(np.int64)
            begins = offsets[first_text:end_text] - offsets[first_text]
            histories, grams = self.look_up(tokens, begins)
            yield [np.delete(ids, begins) for ids in histories], [np.delete(ids, begins) for ids in grams]


class SpellingModel:
    """Probabilities of the spellings of out-of-vocabulary tokens (N tokens or texts).

        p(w | history) = p(<unk> | history) q(w) / (1 - sum_v q(v))       q(w) = prod_i q(x_i | x_1 ... x_{i-1})

    A language model predicts the unknown token <unk> in place of an out-of-vocabulary token w with the characters x_i
    and the end. q is an n-gram model of the characters of the vocabulary's tokens v, each counted once. The denominator
    removes the probability of the tokens v, which are never spelled. All characters that no v has are equally probable.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        specials = set(tokenizer.specials)
        tokens = [token for token_id, token in enumerate(tokenizer.tokens) if token_id not in specials]
        self.config = Config(tokenizer=CharacterOptions(min_count=1, max_vocabulary=CHARACTERS))
        corpus = prepare(_rows(tokens or [""]), self.config, truncate=False)
        self.ngram = NGram(Path(), self.config, corpus.tokenizer, count_ngrams(corpus, SPELLING_ORDER))
        other_characters = CHARACTERS - len(corpus.tokenizer) + len(corpus.tokenizer.specials)
        self.nats_of_other_character = math.log(other_characters)
        self.log_remainder = math.log1p(-float(np.exp(-self._raw_nats(corpus)).sum())) if tokens else 0.0

    def nats(self, tokens: Sequence[str]) -> Floats:
        """Return the nats (N,) of the spellings of N out-of-vocabulary tokens."""
        if not tokens:
            return np.zeros(0)
        corpus = prepare(_rows(tokens), self.config, tokenizer=self.ngram.tokenizer, truncate=False)
        return self._raw_nats(corpus) + self.log_remainder

    def _raw_nats(self, corpus: Corpus) -> Floats:
        """Return -log q (N,) of the tokens that are the texts of `corpus`."""
        nats = self.ngram.nats(corpus) + np.where(is_known_target(corpus), 0.0, self.nats_of_other_character)
        sums: Floats = np.add.reduceat(nats, target_offsets(corpus)[:-1])
        return sums


spelling_model = functools.lru_cache(maxsize=8)(SpellingModel)  # the same model for the same tokenizer


def spelling_nats(corpus: Corpus) -> Floats:
    """Return the nats of the spellings of all out-of-vocabulary tokens of each text (N,)."""
    tokens = [corpus.unknown_names[index] for index in corpus.unknown.values.tolist()]
    texts = np.repeat(np.arange(len(corpus)), np.diff(corpus.unknown.offsets))
    if not tokens:
        return np.zeros(len(corpus))
    distinct_tokens, indices = np.unique(np.array(tokens, dtype=object), return_inverse=True)
    nats = spelling_model(corpus.tokenizer).nats(distinct_tokens.tolist())
    return np.bincount(texts, nats[indices], minlength=len(corpus)).astype(np.float64)


def _rows(tokens: Sequence[str]) -> list[dict[str, str]]:
    return [{"text": token} for token in tokens]
