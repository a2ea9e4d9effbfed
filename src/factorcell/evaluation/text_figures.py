"""The contribution of every text to the metrics of a model, saved in the run folder for later comparisons.

A figure (metric) is a ratio of sums over texts, or the exponential of such a ratio:

    perplexity = exp(sum of nats / sum of targets)        accuracy = correct texts / texts with a true value

The key of a figure is a digest of the texts as the model reads them, without their contexts; that of bits per byte is a
digest of the normalized texts, which does not depend on the tokenizer. Two models can be compared text by text if the
keys of their figures are equal. The file `texts-<digest>.safetensors` has the figures of a measurement, where the
digest is that of the fields that identify its result (`saved_results.IDENTITY`).

Shapes: N texts.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, is_known_target, originals_key, target_offsets
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.ngram.spelling import spelling_nats
from factorcell.runs.saved_results import DEVELOPMENT, IDENTITY

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

DEVELOPMENT_RESULT = {"kind": "train", "table": DEVELOPMENT}  # the result of a training


class TextSums(NamedTuple):
    """The contributions of N texts to the `numerator` (N,) and the `denominator` (N,) of a figure.

    Both arrays are NaN for an omitted text. `key` is a digest of the texts, which is equal for two models if these can
    be compared text by text.
    """

    key: str
    numerator: Floats
    denominator: Floats

    def select(self, rows: NDArray[np.int64]) -> "TextSums":
        """Return the contributions of the texts with the indices `rows`; the key differs from that of all texts."""
        return TextSums(f"{self.key} some", self.numerator[rows], self.denominator[rows])

    @property
    def is_included(self) -> NDArray[np.bool_]:
        """Whether each text (N,) is counted, i.e. not omitted."""
        return ~np.isnan(self.denominator)

    @property
    def ratio(self) -> float:
        """The figure over all counted texts; for a perplexity, its logarithm."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self.numerator[self.is_included].sum() / self.denominator[self.is_included].sum())


Figures = dict[str, TextSums]


def texts_digest(corpus: Corpus, *task: str) -> str:
    """Return a digest of the texts and the vocabulary of `corpus`, and of a `task`.

    The task of a classification is the target and the candidates; an evaluation of perplexity has no task.
    """
    digest = hashlib.sha256(json.dumps([corpus.tokenizer.tokens, task]).encode())
    for array in (corpus.tokens, corpus.offsets):
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def sum_per_text(values: NDArray[np.generic], corpus: Corpus) -> Floats:
    """Return the sum of `values`, one per target, over each text (N,)."""
    sums: Floats = np.add.reduceat(np.append(values.astype(np.float64), 0.0), target_offsets(corpus)[:-1])
    return sums


def figures_from_nats(nats: NDArray[np.generic], corpus: Corpus) -> Figures:
    """Return the figures `perplexity`, `perplexity_known` and `bits_per_byte` from the nats of all targets.

    There are no bits per byte if the tokens do not determine the texts (`Tokenizer.is_lossless`). The bits include the
    spellings of out-of-vocabulary characters. Truncated texts are omitted from bits per byte, because the number of
    bytes of the part that was read is unknown.
    """
    is_known, key, nats_of_texts = is_known_target(corpus), texts_digest(corpus), sum_per_text(nats, corpus)
    known_nats = sum_per_text(np.where(is_known, nats, 0.0), corpus)
    figures = {
        "perplexity": TextSums(key, nats_of_texts, corpus.lengths.astype(np.float64)),
        "perplexity_known": TextSums(key, known_nats, sum_per_text(is_known, corpus)),
    }
    if corpus.originals is not None:
        bits = np.where(corpus.truncated, math.nan, (nats_of_texts + spelling_nats(corpus)) / math.log(2))
        sizes = np.where(corpus.truncated, math.nan, corpus.originals[:, 0])
        figures["bits_per_byte"] = TextSums(originals_key(corpus.originals), bits, sizes)
    return figures


def accuracy_sums(key: str, correct: NDArray[np.bool_], is_labelled: NDArray[np.bool_]) -> TextSums:
    """Return the accuracy figure from masks of the correct texts (N,) and of the texts with a true value (N,)."""
    return TextSums(key, (correct & is_labelled).astype(np.float64), is_labelled.astype(np.float64))


def save(folder: Path, figures: Figures, result: Row) -> None:
    """Save the figures of a `result` in the `folder` of a model."""
    tensors = {
        f"{name} {part}": torch.tensor(getattr(sums, part))
        for name, sums in figures.items()
        for part in ("numerator", "denominator")
    }
    files.save_tensors(_path(folder, result), tensors, {name: sums.key for name, sums in figures.items()})


def load(folder: Path, result: Row) -> Figures:
    """Return the figures of each text that `folder` has for a `result`; an empty dict without such figures."""
    path = _path(folder, result)
    if not path.exists():
        return {}
    tensors, keys = files.load_tensors(path)
    try:
        return {
            name: TextSums(key, tensors[f"{name} numerator"].numpy(), tensors[f"{name} denominator"].numpy())
            for name, key in keys.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: expected a file of figures per text ({error!r})") from None


def _path(folder: Path, result: Row) -> Path:
    identity = json.dumps([result.get(name) for name in IDENTITY])
    return folder / f"texts-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.safetensors"
