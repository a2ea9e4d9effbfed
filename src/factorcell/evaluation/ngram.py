"""An n-gram model with interpolated modified Kneser-Ney smoothing: the baseline of a neural model.

    p_n(w | h) = (c(h w) - D(c(h w))) / c(h .) + left(h) p_{n-1}(w | h')      (Chen and Goodman 1998, section 3)
    left(h)    = sum_w D(c(h w)) / c(h .)

h' is h without its first token; below one token the distribution is uniform. c counts n-grams at the highest order,
and at any order those that begin a text; otherwise it counts the distinct tokens seen before them. D has three values
per order. The start token occurs in histories only.

N-grams of order n have ids, their places in sorted `keys`; a key is id of the first n - 1 tokens * V + last token, so
that the histories of all targets are found by one search per order. The id -1 means not found.

Shapes: V vocabulary, T targets, M n-grams of an order.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import files, limits, lock
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus, target_ids
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import Tokenizer, load_tokenizer, new_tokenizer
from factorcell.progress import progress_bar

ORDERS = range(1, 13)
USUAL, USUAL_OF_CHARACTERS = 4, 9  # default orders; higher ones gain little
TOKENS = 1 << 20  # tokens that are looked up at once
FALLBACK = (0.5, 1.0, 1.5)  # discounts if a corpus has too few n-grams to estimate them
FORMAT = 1  # of the folder
FILE, TABLES = "ngram.json", "ngrams.safetensors"

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NGramCounts:
    """The n-grams of one order: sorted `keys` (M) and the Kneser-Ney `counts` (M)."""

    keys: Ids
    counts: Ids


class Level:
    """Lookup tables of one order: `share` (M + 1), the discounted part of p(w | h), and `left` (histories + 1).

    The last element of each array is for the id -1.
    """

    def __init__(self, grams: NGramCounts, histories: int, size: int) -> None:
        self.size, self.discounts = size, estimate_discounts(grams.counts)
        taken = np.array([0.0, *self.discounts])[np.minimum(grams.counts, 3)]
        history = grams.keys // size
        total = np.bincount(history, grams.counts, histories)
        mass = np.bincount(history, taken, histories)
        left = np.divide(mass, total, out=np.ones(histories), where=total > 0)
        self.keys = np.append(grams.keys, np.iinfo(np.int64).max)
        self.share = np.append((grams.counts - taken) / total[history], 0.0)
        self.left = np.append(left, 1.0)

    def find(self, history: Ids, tokens: Ids) -> Ids:
        """Return the ids of n-grams from the ids of their histories and their last tokens."""
        wanted = history * self.size + tokens
        place = np.searchsorted(self.keys, wanted)
        return np.where(self.keys[place] == wanted, place, -1)

    def followers(self, history: Ids) -> tuple[Ids, Ids]:
        """Return all n-grams that continue `history`: the place of the history, and the id of the n-gram."""
        begin = np.searchsorted(self.keys, history * self.size)
        count = np.searchsorted(self.keys, (history + 1) * self.size) - begin  # none go on from -1
        rows = np.repeat(np.arange(len(history)), count)
        return rows, np.arange(len(rows)) + np.repeat(begin - np.cumsum(count) + count, count)


def estimate_discounts(counts: Ids) -> tuple[float, ...]:
    """Estimate D of counts 1, 2, and 3 or more from the numbers of n-grams with counts 1 to 4; else `FALLBACK`."""
    ones, twos, threes, fours = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].tolist()
    if not (ones and twos and threes):
        return FALLBACK
    y = ones / (ones + 2 * twos)
    found = (1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes)
    return found if min(found) > 0 else FALLBACK


def count_ngrams(corpus: Corpus, order: int, progress: bool = False) -> list[NGramCounts]:
    """Return the Kneser-Ney counts of orders 1 to `order`, or to the longest text."""
    size, tokens, begins = len(corpus.tokenizer), corpus.tokens.astype(np.int64), corpus.offsets[:-1]
    keys = [np.arange(size)]
    counts = [np.bincount(target_ids(corpus), minlength=size)]
    ids = tokens  # of the n-gram that ends here; -1 where it would reach into the text before
    for _ in progress_bar(range(1, order), desc="counting", unit="orders", show=progress):
        history = _before(ids, begins)
        inside = history >= 0
        if not inside.any():
            break
        found, which, times = np.unique(
            history[inside] * size + tokens[inside], return_inverse=True, return_counts=True
        )
        shorter = np.empty(len(found), dtype=np.int64)
        shorter[which] = ids[inside]  # each n-gram without its first token
        different = np.bincount(shorter, minlength=len(keys[-1]))
        counts[-1] = np.where(different > 0, different, counts[-1])  # no token precedes a start token
        ids = np.full(len(tokens), -1)
        ids[inside] = which
        keys.append(found)
        counts.append(times)
    return [NGramCounts(*pair) for pair in zip(keys, counts, strict=True)]


def _before(ids: Ids, begins: Ids) -> Ids:
    """Return the ids that end one token earlier, -1 where a text begins."""
    history = np.empty(len(ids), dtype=np.int64)
    history[1:] = ids[:-1]
    history[begins] = -1
    return history


class NGram:
    """An n-gram model with a vocabulary and the options of reading texts. It has no context."""

    def __init__(self, folder: Path, config: Config, tokenizer: Tokenizer, grams: list[NGramCounts]) -> None:
        self.folder, self.config, self.tokenizer, self.grams = folder, config, tokenizer, grams
        self.schema = ContextSchema()
        histories = [1, *(len(table.keys) for table in grams)]
        self.levels = [Level(*pair, len(tokenizer)) for pair in zip(grams, histories, strict=False)]
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
        progress: bool = False,
    ) -> "NGram":
        """Count the n-grams of `source`, a table that is read as `config` says or a corpus, and save the model.

        `folder` must be new. `tokenizer` is that of another model with the same targets; by default it is made from
        `source`. The default `order` depends on the tokens.
        """
        folder, data = Path(folder), replace(config.data, context=(), user="", time="", anonymous=False)
        reading = tokenizer or (source.tokenizer if isinstance(source, Corpus) else new_tokenizer(config))
        config = Config(data=data, tokenizer=reading.options)
        if order is None:
            order = USUAL_OF_CHARACTERS if reading.is_character_level else USUAL
        limits.check(order=order)
        with lock.training_lock(folder):
            files.new_folder(folder, (TABLES, *reading.FILES))
            read = isinstance(source, Corpus)
            corpus = source if read else prepare(source, config, tokenizer=tokenizer, progress=progress)
            model = cls(folder, config, corpus.tokenizer, count_ngrams(corpus, order, progress))
            model._save()
        return model

    def _save(self) -> None:
        files.create_manifest(self.folder, (FILE, *self.tokenizer.FILES))
        tensors = {}
        for order, table in enumerate(self.grams, 1):
            tensors[f"keys{order}"] = torch.from_numpy(table.keys)
            tensors[f"counts{order}"] = torch.from_numpy(table.counts.astype(np.int32))
        files.save_tensors(self.folder / TABLES, tensors, {"vocabulary": len(self.tokenizer)})
        self.tokenizer.save(self.folder)
        reading = {"data": asdict(self.config.data), "tokenizer": asdict(self.config.tokenizer)}
        files.write_versioned(self.folder / FILE, {"order": len(self.grams), **reading}, FORMAT)

    @classmethod
    def open(cls, folder: str | Path) -> "NGram":
        folder = Path(folder)
        facts = files.read_versioned(folder / FILE, FORMAT, folder)
        tensors, known = files.load_tensors(folder / TABLES)
        if type(facts.get("order")) is not int or facts["order"] not in ORDERS:
            raise UserError(f"{folder / FILE}: not an n-gram model (expected an order from 1 to {max(ORDERS)})")
        sections = {name: values for name, values in facts.items() if name in ("data", "tokenizer")}
        config = Config.from_dict(sections, str(folder / FILE))
        tokenizer = load_tokenizer(config, folder)
        names = {f"{name}{order}" for order in range(1, facts["order"] + 1) for name in ("keys", "counts")}
        if set(tensors) != names or not isinstance(known, dict) or known.get("vocabulary") != len(tokenizer):
            raise UserError(f"{folder / TABLES}: does not belong to this order and vocabulary")
        arrays = {name: tensor.numpy().astype(np.int64) for name, tensor in tensors.items()}
        grams = [NGramCounts(arrays[f"keys{n}"], arrays[f"counts{n}"]) for n in range(1, facts["order"] + 1)]
        return cls(folder, config, tokenizer, grams)

    def prepare(self, source: Any, **options: Any) -> Corpus:
        """Read texts without their contexts; options as in `data.prepare`."""
        return prepare(source, self.config, tokenizer=self.tokenizer, schema=self.schema, **options)

    def nats(self, corpus: Corpus) -> Floats:
        nats = []
        for histories, grams, _ in self.blocks(corpus):
            probability = np.full(len(grams[0]), self.uniform)
            for level, history, gram in zip(self.levels, histories, grams, strict=True):
                probability = level.share[gram] + level.left[history] * probability
            nats.append(-np.log(probability))
        return np.concatenate(nats)

    def probabilities(self, histories: list[Ids]) -> Floats:
        """Return p(w | h) of all tokens (T, V) from the ids of each target's history at every order."""
        after = [np.ones(len(histories[0]))]  # the weight of each order in the sum
        for level, history in zip(self.levels[:0:-1], histories[:0:-1], strict=True):
            after.insert(0, after[0] * level.left[history])
        first = self.levels[0]
        everything: Floats = np.outer(after[0], first.share[:-1] + first.left[0] * self.uniform)
        for level, history, weight in zip(self.levels[1:], histories[1:], after[1:], strict=True):
            rows, grams = level.followers(history)
            everything[rows, level.keys[grams] % level.size] += level.share[grams] * weight[rows]
        everything[:, self.tokenizer.specials.start] = 0.0
        return everything

    def blocks(self, corpus: Corpus) -> Iterator[tuple[list[Ids], list[Ids], Ids]]:
        """Yield, for some texts at a time, the ids of each target's history and n-gram at every order, and targets."""
        if corpus.tokenizer.tokens != self.tokenizer.tokens:
            raise UserError(f"{self.folder}: has another vocabulary than these texts were read with")
        offsets = np.asarray(corpus.offsets)
        lows = np.flatnonzero(np.diff(offsets[:-1] // TOKENS, prepend=-1))
        for low, high in zip(lows, [*lows[1:], len(corpus)], strict=True):
            tokens = corpus.tokens[offsets[low] : offsets[high]].astype(np.int64)
            begins = offsets[low:high] - offsets[low]
            keep = np.ones(len(tokens), dtype=bool)
            keep[begins] = False
            ids, histories, grams = tokens, [np.zeros(int(keep.sum()), dtype=np.int64)], [tokens[keep]]
            for level in self.levels[1:]:
                history = _before(ids, begins)
                ids = level.find(history, tokens)
                histories.append(history[keep])
                grams.append(ids[keep])
            yield histories, grams, tokens[keep]
