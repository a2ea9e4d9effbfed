"""Comparison of models that are trained on the same texts with the same options, with one or several seeds."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from factorcell.config import MODELS, PAPER_MODELS, Config, Options, options_by_section
from factorcell.data.columns.columns import check_columns
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.bayes_rule import text_accuracies
from factorcell.evaluation.classification import ACCURACY_REASON, category_variable, classify, require_labels
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import Figures, save_result
from factorcell.io import files
from factorcell.io.output import is_number
from factorcell.ngram.ngram import FILE as NGRAM_FILE
from factorcell.ngram.ngram import NGram
from factorcell.options import limits
from factorcell.runs.run import Run, initial_files
from factorcell.training.fit import PARAMETERS, read_corpora, train_run
from factorcell.training.rules import SpecifiedOptions, add_options

EvaluatedTraining = tuple[files.Row, Figures]  # the results, and the contribution of each text to them
NGRAM = "ngram"  # name of the row and of the folder of the n-gram baseline
CLASSIFICATION_SCORES = ("accuracy", "accuracy_low", "accuracy_high", "macro_f1", "auc", "majority", "linear_accuracy")


def compare(
    source: Any,
    *,
    out: str | Path,
    dev: Any = None,
    test: Any = None,
    models: Sequence[str] = PAPER_MODELS,
    target: str | None = None,
    seeds: int = 1,
    ngram: bool = True,
    minutes: float | None = None,
    preset: str | None = None,
    resume: bool = False,
    **options: Unpack[Options],
) -> Comparison:
    """Train several models with the same options on the same texts, and evaluate each of them.

    Args:
        source: The training table.
        out: The folder that will contain the run folders.
        dev: The development table; if None, 5 % of the training rows are held out.
        test: The table to evaluate on; if None, the models are evaluated on the development table.
        models: The names of the models.
        target: A context column whose value is inferred from each text by Bayes' rule.
        seeds: The number of trainings per model. The first has the option `seed`, the others the following seeds.
        ngram: Whether to add an n-gram model of the same tokens.
        minutes: The longest duration of the first training; the others make the same number of steps.
        preset: The number of passes, as in `fit`.
        resume: Whether to resume a stopped comparison in `out`; finished runs are evaluated, but not trained again.
        **options: The options of the trainings, as in `fit`.

    Returns:
        The comparison, with one row of results per model.

    Raises:
        UserError: If there is no table to evaluate on, the folder exists and `resume` is false, or a table or an option
            is not valid.
    """
    folder, specified = Path(out), options_by_section(options, PARAMETERS, minutes)
    [seeds] = limits.check(seeds=seeds)
    table = dev if test is None else test
    if table is None:
        raise UserError("compare: expected a development or a test table, got neither (--dev, --test)")
    if not resume:
        files.check_new(folder, initial_files(), resumable=True)
    config = Config.from_dict(specified)
    check_columns(table, config.data)
    corpus, _ = read_corpora(source, dev, config)
    if target:
        variable = category_variable(corpus.schema, target)
        _, *frequent_values = variable.values  # the first is the unknown value
        require_labels(table, variable, frequent_values, config.data, ACCURACY_REASON)
    evaluations: dict[str, list[EvaluatedTraining]] = {model: [] for model in models}
    settings = {"minutes": minutes, "preset": preset, "resume": resume, "compare_ngram": ngram}
    for model, run in train_models(source, dev, specified, folder, models, seeds=seeds, **settings):
        evaluations[model].append(_evaluate_run(run, table, target))
    if ngram:
        evaluations[NGRAM] = [_evaluate_ngram(corpus, config, folder / NGRAM, table)]
    compared = []
    for name, results in evaluations.items():
        rows, figures_per_training = zip(*results, strict=True)
        compared.append(ComparedModel(name, rows, figures_per_training, is_deterministic=name == NGRAM))
    comparison = compare_models(compared)
    for row in comparison if ngram else ():
        row["is_worse_than_counts"] = row["perplexity"] > comparison[-1]["perplexity"]
    return comparison


def train_models(
    source: Any,
    dev: Any,
    specified: SpecifiedOptions,
    folder: Path,
    models: Sequence[str],
    *,
    seeds: int = 1,
    **options: Any,
) -> Iterator[tuple[str, Run]]:
    """Train the runs of a comparison, all with the options of the first; yield each model name and run."""
    first_seed = Config.from_dict(specified).training.seed
    specified = add_options(specified, {"ngram_mixture": False})  # a comparison measures the models alone
    for model in models:
        adapt, output_bias = MODELS[check_choice("model", model, MODELS)]
        for seed in range(first_seed, first_seed + seeds):
            path = folder / (model if seed == first_seed else f"{model}-seed-{seed}")
            run_options = add_options(specified, {"adapt": adapt, "output_bias": output_bias, "seed": seed})
            run = train_run(source, dev, run_options, path, **options)
            yield model, run
            specified, options = run.config.to_dict(), options | {"minutes": None, "preset": None}


def _evaluate_run(run: Run, table: Any, target: str | None) -> EvaluatedTraining:
    """Evaluate a run and save the results in its folder."""
    size, minutes = run.model.parameter_count(), run.training_minutes()
    row, figures = _evaluate(run, table, parameters=size, minutes=minutes)
    if target and run.model.is_adapted:
        classification = classify(run, table, target)
        scores = classification.result_row(run, table, target)
        accuracies = {"accuracy": text_accuracies(classification)}
        if classification.has_labels:
            save_result(run, scores, accuracies)
        scores = {key: scores[key] for key in CLASSIFICATION_SCORES if is_number(scores.get(key))}
        return row | scores, {**figures, **accuracies}
    return row, figures


def _evaluate_ngram(corpus: Corpus, config: Config, folder: Path, table: Any) -> EvaluatedTraining:
    """Fit and evaluate an n-gram model; its number of n-grams counts as its number of parameters."""
    start = time.perf_counter()
    model = NGram.open(folder) if (folder / NGRAM_FILE).is_file() else NGram.fit(corpus, config, folder)
    return _evaluate(model, table, parameters=model.size, minutes=(time.perf_counter() - start) / 60)


def _evaluate(model: Run | NGram, table: Any, **facts: float) -> EvaluatedTraining:
    evaluation = evaluate(model, table)
    row = {**evaluation.result_row(model, table), **facts}
    save_result(model, row, evaluation.figures)
    return row, evaluation.figures
