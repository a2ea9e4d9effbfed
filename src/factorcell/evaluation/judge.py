"""Does a text fit the context it was written for, and is it new? A judge of generated texts, trained on real ones.

The judge is a classifier of real texts: how often it finds the value that a text was written for is its
context-specificity (thesis, section 6.3; the same is asked of real texts held out, whose score is what can be
reached). The other figures are how varied the texts are, how much they repeat themselves, and which share of their
n-grams is copied from the training texts, which a classifier of the same data would not hold against them.

Shapes: B texts, K values, T tokens, n length of an n-gram.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config, UserError, choose
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus, longer
from factorcell.data.tokenizer import Tokenizer
from factorcell.data.values import category_name
from factorcell.evaluation import baselines
from factorcell.evaluation.bayes_rule import Classification
from factorcell.evaluation.statistics import correlation

KINDS: dict[str, type[baselines.Linear] | type[baselines.FastText]] = {
    "linear": baselines.Linear,
    "fasttext": baselines.FastText,
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")  # in the name of a value: "4 stars"
DISTINCT = (1, 2, 3)  # lengths of n-grams whose variety is reported
REPEATED = 3  # a text that repeats a trigram repeats itself
COPIED = (4, 5, 6, 7, 8)  # lengths of n-grams that may be copied
HELD_OUT = 0.1  # of the table, where no real texts are given to compare with
LOOKED_AT = 10_000  # n-grams on which variety is measured, at most: it falls with their number

Row = dict[str, Any]
Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class JudgeOptions:
    """What a judge tells apart, the values of the column `target`, and by a classifier of what `kind`.

    `order` names values that are no numbers from low to high. The `seed` draws what is held out.
    """

    target: str
    kind: str = "linear"
    order: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        choose("judge", self.kind, tuple(KINDS))


@dataclass(frozen=True)
class Judge:
    """A classifier of the values of `target` and the n-grams of the texts it learned from; `real` is how it judges
    real texts that it never saw. `scale` (K,) are the values as numbers, None where they have no order.
    """

    target: str
    config: Config
    train: Corpus
    classify: baselines.Linear | baselines.FastText
    seen: Mapping[int, Hashes]
    scale: NDArray[np.float64] | None
    real: Row

    @classmethod
    def train_on(
        cls,
        table: Any,
        config: Config,
        options: JudgeOptions,
        *,
        held: Any = None,
        tokenizer: Tokenizer | None = None,
        progress: bool = False,
    ) -> "Judge":
        """A judge that learned from the real texts of `table`, read as `config` says.

        It is judged by the real texts of `held`, or by a tenth of the table that it does not learn from.
        `tokenizer` is that of the models, so that all see the same tokens. `UserError` where the column has fewer than
        two values, or the order lacks one.
        """
        target, seed = options.target, options.seed
        config = baselines.with_target(config, target)
        if held is None:
            whole, _ = baselines.read(table, table, target, config, tokenizer=tokenizer, progress=progress)
            train, unseen = whole.split(HELD_OUT, seed)
        else:
            train, unseen = baselines.read(table, held, target, config, tokenizer=tokenizer, progress=progress)
        scale = _scale(target, train.schema.categories[0].values[1:], options.order)
        seen = {length: np.unique(ngrams(train, length)[0]) for length in COPIED}
        judge = cls(target, config, train, KINDS[options.kind](train, seed=seed), seen, scale, {})
        return replace(judge, real=judge.of(unseen))

    def judge(self, rows: Sequence[Mapping[str, Any]]) -> Row:
        """Figures of generated texts, `{"text": ..., target: the value it was written for}` each; as `of`.

        `UserError` where there is none, where a row lacks one of the two, or for a value that the judge does not know.
        """
        return self.judge_each(rows)[0]

    def judge_each(self, rows: Sequence[Mapping[str, Any]]) -> tuple[Row, NDArray[np.bool_]]:
        """The same, and which of the texts (B,) fit."""
        if not rows:
            raise UserError("no texts to judge")
        for number, row in enumerate(rows, 1):
            for name in ("text", self.target):
                if name not in row:
                    raise UserError(f"row {number} has no {name!r}; it has {', '.join(map(str, row)) or 'nothing'}")
            choose(f"value of {self.target} in row {number}", category_name(row[self.target]), self.names)
        return self._of(self._read([(row["text"], row[self.target]) for row in rows]))

    def told(self, texts: Sequence[str]) -> list[str]:
        """The value that each text is judged to have been written for."""
        found = self.classify(self._read([(text, self.names[0]) for text in texts]))
        return [self.names[place] for place in found.predicted.tolist()]

    def _read(self, texts: Sequence[tuple[str, Any]]) -> Corpus:
        """Texts with their values of the target."""
        table = [{self.config.data.text: text, self.target: value} for text, value in texts]
        return prepare(table, self.config, tokenizer=self.train.tokenizer, schema=self.train.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """The values that it tells apart (K)."""
        return self.train.schema.categories[0].values[1:]

    def of(self, corpus: Corpus) -> Row:
        """How texts fit their values, how varied they are, and what is copied.

        `accuracy` and its standard error, `deviation` (mean absolute, of ordered values), `by_value`, `confusion`;
        `distinct_1` to 3, `repeated` and `copied_4` to 8 as the functions below; `tokens` of a text.
        """
        return self._of(corpus)[0]

    def _of(self, corpus: Corpus) -> tuple[Row, NDArray[np.bool_]]:
        found = self.classify(corpus)
        fits: NDArray[np.bool_] = found.predicted == found.truth
        right = fits[found.truth >= 0]
        share = float(right.mean()) if len(right) else math.nan
        row = {
            "target": self.target,
            "texts": len(corpus),
            "accuracy": share,
            "accuracy_error": math.sqrt(share * (1 - share) / len(right)) if len(right) else math.nan,
            "deviation": None if self.scale is None else deviation(found, self.scale),
            "tokens": corpus.targets / len(corpus),
            **{f"distinct_{length}": distinct(corpus, length) for length in DISTINCT},
            "repeated": repeated(corpus),
            **{f"copied_{length}": copied(corpus, length, self.seen[length]) for length in COPIED},
            "by_value": {row["value"]: row["recall"] for row in found.metrics()["values"] if row["count"]},
            "confusion": {"labels": list(found.names), "counts": found.confusion().tolist()},
        }
        return row, fits


def _scale(target: str, names: Sequence[str], order: Sequence[str]) -> NDArray[np.float64] | None:
    """The values as numbers: their places in `order`, else the one number in each name, else None."""
    if order:
        for name in names:
            if name not in order:
                raise UserError(f"the order of {target} lacks {name!r}; it has {', '.join(order)}")
        return np.array([float(list(order).index(name)) for name in names])
    numbers = [NUMBER.findall(name) for name in names]
    if any(len(found) != 1 for found in numbers):
        return None
    return np.array([float(found[0]) for found in numbers])


def deviation(found: Classification, scale: NDArray[np.float64]) -> float:
    """Mean absolute deviation of the predicted values from the wanted ones, on `scale` (K,)."""
    known = found.truth >= 0
    return float(np.abs(scale[found.predicted] - scale[found.truth])[known].mean()) if known.any() else math.nan


def ngrams(corpus: Corpus, length: int) -> tuple[Hashes, Ids]:
    """64-bit hashes of all n-grams of real tokens, and the text each is from; those with an unknown token omitted."""
    tokens, offsets = np.asarray(corpus.tokens).astype(np.uint64), np.asarray(corpus.offsets)
    text = np.repeat(np.arange(len(corpus)), np.diff(offsets))
    plain = (~np.isin(tokens, corpus.tokenizer.specials)).astype(np.int64)
    run = np.append(0, np.cumsum(plain))
    count = max(0, len(tokens) - length + 1)
    hashed = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        hashed = longer(hashed, tokens[place : place + count])
    inside = run[length : length + count] - run[:count] == length  # from one text, for a special token begins each
    return hashed[inside], text[:count][inside]


def distinct(corpus: Corpus, length: int) -> float:
    """Distinct n-grams over all n-grams (Li et al. 2016) of the first texts, `LOOKED_AT` n-grams at most."""
    hashed = ngrams(corpus, length)[0][:LOOKED_AT]
    return len(np.unique(hashed)) / len(hashed) if len(hashed) else math.nan


def repeated(corpus: Corpus, length: int = REPEATED) -> float:
    """The share of a text's n-grams that it had already, averaged over the texts that have any."""
    hashed, text = ngrams(corpus, length)
    order = np.lexsort((hashed, text))
    first = np.append(True, (np.diff(hashed[order]) > 0) | (np.diff(text[order]) > 0))[: len(order)]
    counts, unlike = (np.bincount(which, minlength=len(corpus)) for which in (text, text[order][first]))
    there = counts > 0
    return float((1 - unlike[there] / counts[there]).mean()) if there.any() else math.nan


def copied(corpus: Corpus, length: int, seen: Hashes) -> float:
    """The share of n-grams that are among the sorted hashes `seen`."""
    hashed = ngrams(corpus, length)[0]
    if not len(hashed) or not len(seen):
        return 0.0 if len(hashed) else math.nan
    places = np.minimum(np.searchsorted(seen, hashed), len(seen) - 1)
    return float((seen[places] == hashed).mean())


def correlations(rows: Sequence[Mapping[str, Any]]) -> dict[str, Row]:
    """How specificity goes with accuracy on real texts, rank and perplexity, over the models that have each."""
    found = {}
    for name in ("accuracy", "rank", "perplexity"):
        there = [row for row in rows if row.get(name) is not None and row.get("specificity") is not None]
        found[name] = correlation([row[name] for row in there], [row["specificity"] for row in there])
    return found
