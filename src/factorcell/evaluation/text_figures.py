"""Figures of models from the contributions of every text: saved in run folders, and compared with 95 % intervals.

A figure is a ratio of sums over texts, such as accuracy, or the exponential of one, such as perplexity. A model that is
trained with several seeds has the mean of their figures. Shapes: N texts, M models, D bootstrap draws.
"""

import hashlib
import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from factorcell import bootstrap
from factorcell.bootstrap import Interval
from factorcell.data.corpus import Corpus, is_known_target, originals_key, target_offsets
from factorcell.errors import UserError
from factorcell.io import files, lock
from factorcell.io.arrays import blocks
from factorcell.ngram.ngram import spelling_nats
from factorcell.nn.scoring import Scorer
from factorcell.runs import saved_results, summary
from factorcell.runs.run import Run, describe_running
from factorcell.runs.saved_results import DEVELOPMENT, IDENTITY

LEVEL = 0.95  # confidence level of all intervals

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

DEVELOPMENT_RESULT = {"kind": "train", "table": DEVELOPMENT}  # the result of a training


class TextSums(NamedTuple):
    """The contributions of N texts to the `numerator` (N,) and the `denominator` (N,) of a figure.

    Both arrays are NaN for an omitted text. Two models can be compared text by text if their keys are equal: `key` is a
    digest of the texts as the model reads them, without their contexts; that of bits per byte is a digest of the
    normalized texts, which does not depend on the tokenizer.
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
    """Return a digest of the texts and the vocabulary of `corpus`, and of a `task`."""
    digest = hashlib.sha256(json.dumps([corpus.tokenizer.tokens, task]).encode())
    for array in (corpus.tokens, corpus.offsets):
        for block in blocks(len(array)):
            digest.update(np.ascontiguousarray(array[block], dtype=np.int64).tobytes())
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


def save_result(run: Scorer, row: Row, texts: Figures) -> str | None:
    """Save a result in the folder of a model, for reports and its model card; return a notice if saving fails.

    `row` is the result, and `texts` has the contribution of every text to the figures. For an anonymous run, the
    groups of `row` by user are not saved. A model card that a person has edited does not change. Nothing is saved
    while the training of the run is running, because its files change.
    """
    if lock.is_locked(run.folder):
        return f"{run.folder}: the result was not saved in the run folder, because {describe_running(run.folder)}"
    if "by" in row and isinstance(run, Run) and run.config.data.anonymous:
        row = {**row, "by": {column: rows for column, rows in row["by"].items() if column != run.config.data.user}}
    try:
        card_run = run if isinstance(run, Run) and summary.has_unedited_card(run) else None
        save(run.folder, texts, row)
        saved_results.append(run.folder, row)
        if card_run:
            summary.write_card(card_run)
    except UserError as error:
        return f"the result was not saved in the run folder: {error}"
    return None


def prediction_fields(model: Scorer) -> dict[str, Any]:
    """Return the `precision` of the matrix products of a model, and "mixture" as its `predictor` if it has one."""
    precision = {"precision": model.precision} if hasattr(model, "precision") else {}
    is_mixture = isinstance(model, Run) and model.mixture is not None
    return {**precision, **({"predictor": "mixture"} if is_mixture else {})}


@dataclass(frozen=True)
class Ratios:
    """One figure of M models over the same texts."""

    # the figure of each model over all texts (first row), and over each bootstrap draw of texts, as an array (1 + D, M)
    resampled: Floats
    # for each model, the figure of each training; an empty array for a deterministic model
    training_figures: tuple[Floats, ...]
    text_count: int  # the number of texts that count, i.e. whose denominator is not 0

    @classmethod
    def from_sums(cls, models: Sequence[Sequence[TextSums]], deterministic: Container[int] = ()) -> "Ratios | None":
        """Compute the figure of each model on the texts that none omits; None unless all read the same texts."""
        trainings = [sums for model in models for sums in model]
        is_included = common_texts(models)
        if is_included is None:
            return None
        denominator = trainings[0].denominator[is_included]
        numerators = [np.mean([sums.numerator[is_included] for sums in model], axis=0) for model in models]
        resampled = bootstrap.resampled_sums(np.stack([denominator, *numerators], axis=1))
        with np.errstate(invalid="ignore", divide="ignore"):
            training_figures = tuple(
                np.array([sums.numerator[is_included].sum() for sums in model if index not in deterministic])
                / denominator.sum()
                for index, model in enumerate(models)
            )
            denominators, numerators_by_model = resampled[:, :1], resampled[:, 1:]
            return cls(numerators_by_model / denominators, training_figures, int(np.count_nonzero(denominator)))

    def interval(self, model: int) -> Interval:
        """Return the figure of the model with index `model`, with its interval over texts and trainings."""
        text_interval = bootstrap.percentile_interval(self.resampled[:, model], self.text_count)
        return add_training_variance(text_interval, self.training_figures[model], np.zeros(0))

    def difference(self, first: int, second: int) -> Interval:
        """Return the figure of the model with index `first` minus that of another, with its interval."""
        with np.errstate(invalid="ignore"):
            differences = self.resampled[:, first] - self.resampled[:, second]
            text_interval = bootstrap.percentile_interval(differences, self.text_count)
        return add_training_variance(text_interval, self.training_figures[first], self.training_figures[second])

    def best_model(self, higher_is_better: bool) -> int | None:
        """Return the index of the model that is significantly better than every other one, or None."""
        points, sign = self.resampled[0], 1 if higher_is_better else -1
        if len(points) < 2 or not np.isfinite(points).all():
            return None
        best = int((sign * points).argmax())
        others = (index for index in range(len(points)) if index != best)
        return best if all(self.difference(best, other).sign == sign for other in others) else None


def common_texts(models: Sequence[Sequence[TextSums]]) -> NDArray[np.bool_] | None:
    """Return a mask of the texts (N,) that all trainings of all models count; None unless they read the same texts."""
    trainings = [sums for model in models for sums in model]
    if not models or not all(models) or len({(sums.key, len(sums.denominator)) for sums in trainings}) > 1:
        return None
    is_included: NDArray[np.bool_] = np.logical_and.reduce([sums.is_included for sums in trainings])
    denominators = [sums.denominator[is_included] for sums in trainings]
    is_equal = all(np.array_equal(denominator, denominators[0]) for denominator in denominators)
    return is_included if is_included.any() and is_equal else None


def add_training_variance(interval: Interval, first: Floats, second: Floats) -> Interval:
    """Widen an interval [l, u] over texts of a difference d between two models by the variance between trainings.

        [d - sqrt((d - l)^2 + (t e)^2), d + sqrt((u - d)^2 + (t e)^2)],    e^2 = v (1 / S_1 + 1 / S_2)

    `first` (S_1,) and `second` (S_2,) are the figures of their trainings, none for a deterministic model, v is their
    pooled variance, and t is the quantile of Student's distribution with S_1 + S_2 - 2 degrees of freedom. The formula
    combines the confidence limits of two independent terms of a sum (Zou and Donner 2008).
    """
    if interval.low is None or interval.high is None:
        return interval
    figures_by_model = [values for values in (first, second) if len(values)]
    degrees_of_freedom = sum(len(values) - 1 for values in figures_by_model)
    sum_of_squares = sum(float(((values - values.mean()) ** 2).sum()) for values in figures_by_model)
    pooled_variance = sum_of_squares / max(1, degrees_of_freedom)
    standard_error = math.sqrt(pooled_variance * sum(1 / len(values) for values in figures_by_model))
    quantile = float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2)) if degrees_of_freedom else 0.0  # of Student
    half_width = quantile * standard_error
    distance_to_low, distance_to_high = (
        math.hypot(end - interval.point, half_width) for end in (interval.low, interval.high)
    )
    return Interval(interval.point, interval.point - distance_to_low, interval.point + distance_to_high)


def gain_from_nats(nats: Interval) -> Interval:
    """Convert a reduction in nats per target, with its interval, to the relative reduction of the perplexity."""
    with np.errstate(over="ignore"):  # a diverged model has infinite nats
        point, *ends = (None if value is None else float(-np.expm1(-value)) for value in nats)
    assert point is not None
    return Interval(point, *ends)
