"""Context-specificity of generated texts (thesis 2018, chapter 6): do texts fit the context that they were written for?

A judge, which is a classifier of real texts, predicts the value that each generated text was written for. The share of
correct predictions is the context-specificity of the model; the judge's accuracy on held-out real texts is the
reference. Other figures say how varied texts are, how much they repeat themselves, and which share of their n-grams
occurs in the training texts.

Shapes: B texts, K values.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus, longer
from factorcell.data.tokenizer import Tokenizer
from factorcell.evaluation import baselines
from factorcell.generation.generate import GenerationOptions, generate, origin, resumed
from factorcell.model.run import Run

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")  # in the name of a value: "4 stars"
DISTINCT, REPEATED, COPIED = 2, 3, 5  # lengths of the n-grams that are counted
MAX_NGRAMS = 10_000  # n-grams by which variety is measured: it falls with their number

Row = dict[str, Any]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Judge:
    """A fastText classifier of the values of the column `target`, trained on real texts.

    `seen` has the sorted hashes of the training n-grams, `scale` (K,) the values as numbers (None if they have no
    order), `real` the figures of held-out real texts.
    """

    target: str
    config: Config
    train: Corpus
    classify: baselines.FastText
    seen: Hashes
    scale: NDArray[np.float64] | None
    real: Row

    @classmethod
    def train_on(
        cls,
        table: Any,
        held_out: Any,
        config: Config,
        target: str,
        order: Sequence[str] = (),
        *,
        tokenizer: Tokenizer | None = None,
    ) -> "Judge":
        """Train a judge on the real texts of `table`, and evaluate it on those of `held_out`.

        `config` says how texts are read, with the `tokenizer` of the models, so that all read the same tokens. `order`
        lists the values from low to high, if their names are not numbers. `UserError` if the column has fewer than two
        frequent values, or the order lacks one of them.
        """
        config = baselines.with_target(config, target)
        train, unseen = baselines.read(table, held_out, target, config, tokenizer=tokenizer)
        scale = _scale(target, train.schema.categories[0].values[1:], order)
        seen = np.unique(ngrams(train, COPIED)[0])
        judge = cls(target, config, train, baselines.FastText(train), seen, scale, {})
        return replace(judge, real=judge._figures(unseen)[0])

    def judge(self, rows: Sequence[Mapping[str, Any]]) -> tuple[Row, NDArray[np.bool_]]:
        """Return the figures of texts `{"text": ..., target: value}`, and which of them (B,) fit their value."""
        table = [{self.config.data.text: row["text"], self.target: row[self.target]} for row in rows]
        return self._figures(prepare(table, self.config, tokenizer=self.train.tokenizer, schema=self.train.schema))

    def _figures(self, corpus: Corpus) -> tuple[Row, NDArray[np.bool_]]:
        result = self.classify(corpus)
        fits: NDArray[np.bool_] = result.predicted == result.truth
        known = result.truth >= 0
        deviation = None
        if self.scale is not None and known.any():
            deviation = float(np.abs(self.scale[result.predicted] - self.scale[result.truth])[known].mean())
        row = {
            "accuracy": float(fits[known].mean()) if known.any() else math.nan,
            "deviation": deviation,
            "tokens": corpus.targets / len(corpus),
            f"distinct_{DISTINCT}": distinct(corpus),
            "repeated": repeated(corpus),
            f"copied_{COPIED}": copied(corpus, self.seen),
        }
        return row, fits


def _scale(target: str, names: Sequence[str], order: Sequence[str]) -> NDArray[np.float64] | None:
    """Return the values as numbers: their places in `order`, else the one number in each name, else None."""
    if order:
        for name in names:
            if name not in order:
                raise UserError(f"the order of {target} lacks {name!r}; it has {', '.join(order)}")
        return np.array([float(list(order).index(name)) for name in names])
    numbers = [NUMBER.findall(name) for name in names]
    return np.array([float(found[0]) for found in numbers]) if all(len(found) == 1 for found in numbers) else None


def ngrams(corpus: Corpus, length: int) -> tuple[Hashes, NDArray[np.int64]]:
    """Return 64-bit hashes of all n-grams without special or unknown tokens, and the text that each is from."""
    tokens, offsets = np.asarray(corpus.tokens).astype(np.uint64), np.asarray(corpus.offsets)
    text = np.repeat(np.arange(len(corpus)), np.diff(offsets))
    plain = (~np.isin(tokens, corpus.tokenizer.specials)).astype(np.int64)
    run = np.append(0, np.cumsum(plain))
    count = max(0, len(tokens) - length + 1)
    hashed = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        hashed = longer(hashed, tokens[place : place + count])
    inside = run[length : length + count] - run[:count] == length  # each text begins with a special token
    return hashed[inside], text[:count][inside]


def distinct(corpus: Corpus, length: int = DISTINCT) -> float:
    """Return the share of distinct n-grams among the first `MAX_NGRAMS` (Li et al. 2016)."""
    hashed = ngrams(corpus, length)[0][:MAX_NGRAMS]
    return len(np.unique(hashed)) / len(hashed) if len(hashed) else math.nan


def repeated(corpus: Corpus, length: int = REPEATED) -> float:
    """Return the share of the n-grams of a text that occurred earlier in it, averaged over texts that have any."""
    hashed, text = ngrams(corpus, length)
    order = np.lexsort((hashed, text))
    first = np.append(True, (np.diff(hashed[order]) > 0) | (np.diff(text[order]) > 0))[: len(order)]
    counts, unlike = (np.bincount(which, minlength=len(corpus)) for which in (text, text[order][first]))
    there = counts > 0
    return float((1 - unlike[there] / counts[there]).mean()) if there.any() else math.nan


def copied(corpus: Corpus, seen: Hashes, length: int = COPIED) -> float:
    """Return the share of n-grams whose hashes are among `seen`."""
    hashed = ngrams(corpus, length)[0]
    return float(np.isin(hashed, seen).mean()) if len(hashed) else math.nan


def write(run: Run, wanted: Sequence[Mapping[str, str]], options: GenerationOptions, file: Path) -> list[Row]:
    """Write a text for each context to `file`, resuming after those that it has already; return all rows."""
    done = resumed(file, origin(run, options), wanted, 1) if file.exists() else 0
    for row in generate(run, wanted, options=options, unknown="group", first=done):
        files.append_row(file, row)
    return files.read_rows(file)
