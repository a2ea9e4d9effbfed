"""Generative classification: choose the context that maximizes p(text given context) p(context) (TACL 2018, eq. 7).

Candidates are the values of a categorical variable; `point_classification` has named points. The prior p(context) is
conditional on the other context of a text (`conditional_prior`), the frequencies of the values in training, or uniform.
The model can be combined with the linear baseline of the run (`combination`).

Shapes: B texts, K candidates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig
from factorcell.data.columns.rows import distinct_category_names, to_texts
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.columns.values import category_name_or_none
from factorcell.data.corpus import Corpus
from factorcell.data.tables.chunks import format_names
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.bayes_rule import LIKELIHOOD, LINEAR_BASELINE, Classification, apply_bayes_rule
from factorcell.evaluation.combination import (
    fit_combination,
    load_baselines,
    missing_baseline,
    weighted_posterior,
)
from factorcell.evaluation.conditional_prior import (
    CONTEXT_CLASSIFIER,
    applicable_prior,
    load_priors,
    training_log_prior,
)
from factorcell.evaluation.diagnostics import report_repeated_texts, report_run
from factorcell.evaluation.likelihoods import check_adapted, check_value, log_likelihoods
from factorcell.evaluation.linear_classifier import LinearClassifier
from factorcell.evaluation.text_figures import texts_digest
from factorcell.options.choices import PRIORS
from factorcell.runs.run import Run

Options = dict[str, Any]  # keyword arguments of `log_likelihoods`
Floats = NDArray[np.float64]
ACCURACY_REASON = "the accuracy is computed over texts with a value"
CALIBRATION_REASON = "the temperature is fitted on texts with a value"


def classify(
    run: Run,
    source: Any,
    target: str,
    *,
    values: Sequence[Any] = (),
    distractors: Sequence[Any] = (),
    priors: str = "conditional",
    unknown: str = "group",
    samples: int = 0,
    seed: int = 0,
    proposal: str = "rank",
    calibrate: Any = None,
    combine: bool = False,
) -> Classification:
    """Classify texts by the values of a categorical variable.

    A text need not have a true value of the variable. Texts are cut after `max_tokens` tokens, as in training.

    Args:
        run: An adapted run.
        source: The texts, with the other context columns of the run.
        target: The name of the variable.
        values: The candidates; by default all values of the variable. The metrics omit texts with other values.
        distractors: Values that are not candidates; their texts count as negatives in the AUC.
        priors: "conditional" (given the other context of each text, as estimated in training), "training" (the
            frequencies in training) or "uniform". If `source` has no other context column, or the run has no
            conditional prior, "conditional" means "training". `Classification.with_priors` accepts other priors.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        samples: The number of tokens sampled from the vocabulary for the softmax; 0 computes the exact softmax.
        seed: The seed of the sample.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).
        calibrate: A table of held-out texts with true values, on which the temperature of the posterior is fitted; with
            `combine`, the weights of the combination.
        combine: Whether to combine the model with the linear baseline of the run.

    Returns:
        The classification. Its `other_predictions` are those with the other priors, with `calibrate` also those at
        temperature 1, and those of the linear baseline that training saved for this target, if there is one. Its
        metrics are NaN if no text has a true value.

    Raises:
        UserError: The run is not adapted, there are fewer than two candidates and distractors, no text of `calibrate`
            has a candidate value, or `combine` lacks the table `calibrate` or a linear baseline.

    References:
        Jaech and Ostendorf, TACL 2018, equation 7.
    """
    task = _Task.of(run, target, values, distractors, unknown)
    check_choice("priors", priors, PRIORS)
    if calibrate is not None:
        require_labels(calibrate, run.schema.variable(target), task.candidates, run.config.data, CALIBRATION_REASON)
    linear = load_baselines(run.folder, run.schema).get(target)
    if combine:
        _check_combination(run, target, calibrate, linear)
    corpus = task.read(source)
    report_repeated_texts(run, corpus)
    report_run(run)
    held_out_corpus = None if calibrate is None else task.read(calibrate)
    columns = _columns(source)
    prior = applicable_prior(load_priors(run.folder, run.schema), target, columns)
    options: Options = {"samples": samples, "seed": seed, "proposal": proposal}
    texts = task.classify(source, corpus, prior, options)
    held_out = None
    if held_out_corpus is not None:
        held_out = replace(task, distractors=()).classify(calibrate, held_out_corpus, prior, options)
    priors = "training" if priors == "conditional" and prior is None else priors
    result, *others = texts.with_all_priors(priors, None if combine else held_out)
    other_predictions = {other.name: other.predicted for other in others}
    if prior is not None:
        other_predictions[CONTEXT_CLASSIFIER] = texts.log_priors["conditional"].argmax(1)
    result = replace(result, other_predictions=other_predictions)
    return _with_linear_baseline(result, linear, texts, held_out if combine else None) if linear else result


@dataclass(frozen=True)
class _ClassifiedTexts:
    """The texts of a table, classified with a uniform prior at temperature 1, and their other log priors by name."""

    corpus: Corpus
    uniform: Classification
    log_priors: Mapping[str, Floats]

    def with_named_prior(self, priors: str) -> Classification:
        """Return the classification with the priors of this name."""
        return self.uniform if priors == "uniform" else self.uniform.with_log_prior(self.log_priors[priors], priors)

    def with_all_priors(self, first: str, held_out: "_ClassifiedTexts | None") -> Iterator[Classification]:
        """Yield the classifications with all priors, those with the priors `first` first.

        With `held_out`, each is preceded by the same one at the temperature that fits these texts, except that a
        temperature does not change predictions with uniform priors, unless these are `first`.
        """
        for name in dict.fromkeys((first, *self.log_priors, "uniform")):
            result = self.with_named_prior(name)
            if held_out is not None and (name == first or name in self.log_priors):
                yield result.at_temperature(held_out.with_named_prior(name).fitted_temperature())
            yield result

    def log_probs(self, priors: str, temperature: float, linear: Floats) -> dict[str, Floats]:
        """Return the log probabilities (B, K) that a combination reads: tempered likelihood, prior, linear posterior.

        A uniform prior has no weight in a combination, because it does not change predictions.
        """
        log_probs = {LIKELIHOOD: self.uniform.at_temperature(temperature).log_posterior}
        if priors in self.log_priors:
            log_probs[f"{priors} prior"] = np.broadcast_to(self.log_priors[priors], linear.shape)
        return {**log_probs, LINEAR_BASELINE: linear}


@dataclass(frozen=True)
class _Task:
    """A classification task: a run, the target and its candidates, and how to read texts."""

    run: Run
    target: str
    candidates: tuple[str, ...]
    distractors: tuple[str, ...]
    unknown: str

    @classmethod
    def of(cls, run: Run, target: str, values: Sequence[Any], distractors: Sequence[Any], unknown: str) -> "_Task":
        """Check the arguments of `classify` and return the task."""
        check_adapted(run)
        variable = category_variable(run.schema, target)
        candidates = distinct_category_names(values, "values") or list(variable.values[1:])
        distractors = distinct_category_names(distractors, "distractors")
        for name in candidates:
            check_value(run, variable, name, variable.values[1:])
        if (count := len({*candidates, *distractors})) < 2:
            raise UserError(f"{target}: expected at least two values (candidates and distractors), got {count}")
        return cls(run, target, tuple(candidates), tuple(distractors), unknown)

    def read(self, source: Any) -> Corpus:
        """Read the texts of a table, which may lack the column of the target."""
        return self.run.prepare(source, unknown=self.unknown, optional=(self.target,))

    def classify(
        self, source: Any, corpus: Corpus, prior: LinearClassifier | None, options: Options
    ) -> _ClassifiedTexts:
        """Classify the texts of a table, which were read as `corpus`."""
        run, names, variable = self.run, self.candidates, self.run.schema.variable(self.target)
        true_values: list[str | None] = [None] * len(corpus)
        if variable.source_column in _columns(source):
            labels = _read_category_names(source, variable.source_column)
            true_values = labels
        likelihoods = log_likelihoods(run, corpus, [{self.target: name} for name in names], **options)
        result = apply_bayes_rule(names, likelihoods, true_values, self.distractors, corpus.truncated)
        key = texts_digest(corpus, self.target, *names)
        uniform = replace(result, true_values=true_values, key=key, samples=options["samples"])
        log_priors = {} if prior is None else {"conditional": prior.candidate_log_probs(corpus, names)}
        log_priors["training"] = training_log_prior(variable, names)
        return _ClassifiedTexts(corpus, uniform, log_priors)


def _columns(source: Any) -> tuple[str, ...]:
    """Return the columns of a table; a list of texts has none."""
    return () if to_texts(source) is not None else open_table(source).columns


def _check_combination(run: Run, target: str, calibrate: Any, linear: LinearClassifier | None) -> None:
    """Raise a `UserError` without a table on which the weights are fitted, or without a linear baseline."""
    if calibrate is None:
        problem = "expected a table of held-out texts with values, on which its weights are fitted, got none"
        raise UserError(f"combination: {problem}; add --calibrate DEV (in Python: calibrate)")
    if linear is None:
        raise UserError(f"combination: {missing_baseline(run, target)}")


def _with_linear_baseline(
    result: Classification, linear: LinearClassifier, texts: _ClassifiedTexts, held_out: _ClassifiedTexts | None
) -> Classification:
    """Add the predictions of the linear baseline, and combine it with the model if `held_out` is not None."""
    log_posterior = linear.candidate_log_probs(texts.corpus, result.names)
    other_predictions = {**result.other_predictions, LINEAR_BASELINE: log_posterior.argmax(1)}
    if held_out is None:
        return replace(result, other_predictions=other_predictions)
    held_out_log_posterior = linear.candidate_log_probs(held_out.corpus, result.names)
    temperature, is_labelled = held_out.uniform.fitted_temperature(), held_out.uniform.truth >= 0
    held_out_log_probs = held_out.log_probs(result.priors, temperature, held_out_log_posterior)
    weights = fit_combination(
        {name: values[is_labelled] for name, values in held_out_log_probs.items()}, held_out.uniform.truth[is_labelled]
    )
    return replace(
        texts.uniform,
        log_posterior=weighted_posterior(weights, texts.log_probs(result.priors, temperature, log_posterior)),
        priors=result.priors,
        combination_weights=weights,
        other_predictions={result.name: result.predicted, **other_predictions},
    )


def category_variable(schema: ContextSchema, target: str) -> Variable:
    """Return the variable `target`; raise a `UserError` unless it is a category."""
    variable = schema.variable(target)
    if variable.kind == "category":
        return variable
    column = variable.source_column
    remedy = f"to predict its values, train with --context {column}:category"
    if variable in schema.numbers:
        remedy += "; to choose the nearest of named points, such as cities, use --points TABLE"
    raise UserError(f"{target}: expected a category, got a variable of kind {variable.kind}; {remedy}")


def has_labels(source: Any, variable: Variable, names: Sequence[str]) -> bool:
    """Return whether any text of a table, which may lack the column, has one of the values `names` of `variable`."""
    column = variable.source_column
    return column in open_table(source).columns and not set(names).isdisjoint(_read_category_names(source, column))


def require_labels(source: Any, variable: Variable, names: Sequence[str], config: DataConfig, reason: str) -> None:
    """Raise a `UserError` unless at least one text of `source` has one of the values `names` of `variable`.

    `reason` says why the caller needs true values; it ends the message.
    """
    table = open_table(source)
    if variable.source_column not in table.columns:
        raise UserError(f"{table.missing_column_error(variable.source_column).message}; {reason}")
    if not has_labels(source, variable, names):
        description = f"any of {len(names):,} users" if variable.source_column == config.user else format_names(names)
        raise UserError(f"{table.name}: no text has a candidate value of {variable.name} ({description}); {reason}")


def _read_category_names(source: Any, column: str) -> list[str | None]:
    """Return the value of each row of a table in `column`, None where it is missing."""
    return [category_name_or_none(value) for chunk in open_table(source).chunks([column]) for value in chunk[column]]
