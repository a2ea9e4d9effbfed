"""Comparison of models that are trained on the same texts with the same options, with one or several seeds."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from factorcell.config import MODELS, PAPER_MODELS, Config, Options, options_by_section
from factorcell.data.columns.columns import check_columns
from factorcell.data.corpus import Corpus
from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError, check_choice
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.classification import ACCURACY_REASON, category_variable, require_labels
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.results import classify_and_save, prediction_fields, save_result
from factorcell.evaluation.text_figures import Figures
from factorcell.io import files
from factorcell.io.output import is_number
from factorcell.ngram.ngram import FILE as NGRAM_FILE
from factorcell.ngram.ngram import NGram
from factorcell.options import limits
from factorcell.runs.run import Run, initial_files
from factorcell.training.fit import PARAMETERS, read_corpora, train_run
from factorcell.training.mixture import fit_mixture
from factorcell.training.rules import SpecifiedOptions, add_options

Evaluation = tuple[files.Row, Figures]  # the results of a training, and the contribution of each text to them
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
        ngram: Whether to add an n-gram model of the same tokens, and the mixture of each model with it.
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
    folder, specified = Path(out), options_by_section(options, PARAMETERS)
    [seeds] = limits.check(seeds=seeds)
    table = dev if test is None else test
    if table is None:
        raise UserError("compare: expected a development or a test table, got neither (--dev, --test)")
    if not resume:
        files.check_new(folder, initial_files(), resumable=True)
    config = Config.from_dict(specified)
    check_columns(table, config.data)
    corpora = read_corpora(source, dev, config)
    if target:
        variable = category_variable(corpora[0].schema, target)
        _, *frequent_values = variable.values  # the first is the unknown value
        require_labels(table, variable, frequent_values, config.data, ACCURACY_REASON)
    names = [*models, *([NGRAM, *(f"{model} + {NGRAM}" for model in models)] if ngram else [])]
    evaluations: dict[str, list[Evaluation]] = {name: [] for name in names}
    if ngram:
        counts, evaluation = _evaluate_ngram(corpora[0], config, folder / NGRAM, table)
        evaluations[NGRAM].append(evaluation)
    for model, run in train_models(
        source, dev, specified, folder, models, seeds=seeds, minutes=minutes, preset=preset, resume=resume
    ):
        evaluations[model].append(_evaluate_run(run, table, target))
        if ngram:
            evaluations[f"{model} + {NGRAM}"].append(_evaluate_mixture(model, run, corpora, counts, table))
    compared = []
    for name, results in evaluations.items():
        rows, figures_per_training = zip(*results, strict=True)
        compared.append(ComparedModel(name, rows, figures_per_training, is_deterministic=name == NGRAM))
    return compare_models(compared)


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
    """Train the runs of a comparison; yield the name of the model and the run of each training.

    The first training determines the options and the number of steps of all others. The folders of three trainings of
    a model from seed 0 are, for example, `factorcell`, `factorcell-seed-1` and `factorcell-seed-2`. `options` are those
    of `train_run`, of which `minutes` and `preset` are for the first training.
    """
    first_seed = Config.from_dict(specified).training.seed
    # A comparison measures the models alone; `compare` adds the mixtures as rows.
    specified = add_options(specified, {"ngram_mixture": False})
    for model in models:
        adapt, output_bias = MODELS[check_choice("model", model, MODELS)]
        for seed in range(first_seed, first_seed + seeds):
            path = folder / (model if seed == first_seed else f"{model}-seed-{seed}")
            run_options = add_options(specified, {"adapt": adapt, "output_bias": output_bias, "seed": seed})
            run = train_run(source, dev, run_options, path, **options)
            yield model, run
            specified, options = run.config.to_dict(), options | {"minutes": None, "preset": None}


def _evaluate_run(run: Run, table: Any, target: str | None) -> Evaluation:
    """Evaluate a run and save the results in its folder."""
    row, figures = _perplexities(run, table)
    row |= {"parameters": run.model.parameter_count(), "minutes": run.training_minutes()}
    save_result(run, row, figures)
    if target and run.model.is_adapted:
        scores, accuracy_figures = classify_and_save(run, table, target)
        scores = {key: scores[key] for key in CLASSIFICATION_SCORES if is_number(scores.get(key))}
        return row | scores, {**figures, **accuracy_figures}
    return row, figures


def _evaluate_ngram(corpus: Corpus, config: Config, folder: Path, table: Any) -> tuple[NGram, Evaluation]:
    """Fit and evaluate an n-gram model; its number of n-grams counts as its number of parameters."""
    start = time.perf_counter()
    model = NGram.open(folder) if (folder / NGRAM_FILE).is_file() else NGram.fit(corpus, config, folder)
    minutes = (time.perf_counter() - start) / 60
    row, figures = _perplexities(model, table)
    row |= {"parameters": model.size, "minutes": minutes}
    save_result(model, row, figures)
    return model, (row, figures)


def _evaluate_mixture(name: str, run: Run, corpora: tuple[Corpus, Corpus], ngram: NGram, table: Any) -> Evaluation:
    """Fit and evaluate the mixture of a run and an n-gram model, and save the results in the folder of the latter."""
    run.mixture, _ = fit_mixture(run, *corpora, ngram)
    row, figures = _perplexities(run, table)
    row |= {"model": f"{name} + {NGRAM}", "predictor": f"mixture with {run.folder.name}"}
    row |= {"seed": run.config.training.seed, "minutes": run.training_minutes()}
    row |= {"parameters": run.model.parameter_count() + ngram.size}
    save_result(ngram, row, figures)
    return row, figures


def _perplexities(model: Run | NGram, table: Any) -> Evaluation:
    """Return a row with the perplexities of a model on a table, and the contribution of each text to them."""
    corpus = model.prepare(table, unknown="group")
    nats = model.nats(corpus)
    figures = text_figures.figures_from_nats(nats, corpus)
    row: files.Row = {
        "kind": "evaluate",
        "table": table_name(table),
        "unit": model.tokenizer.unit,
        "model": model.folder.name,
        **prediction_fields(model),
    }
    return {**row, **perplexity.summary_row(nats, corpus)}, figures
