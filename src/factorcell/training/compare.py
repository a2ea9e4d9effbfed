"""Comparison of models that are trained on the same texts with the same options, with one or several seeds."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from factorcell.config import PAPER_MODELS, Config, Options, options_by_section
from factorcell.data.columns.columns import check_columns
from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.classification import ACCURACY_REASON, category_variable, require_labels
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.results import classify_and_save, prediction_fields, save_result
from factorcell.evaluation.text_figures import Figures
from factorcell.io import files
from factorcell.io.finite import is_number
from factorcell.ngram.ngram import FILE as NGRAM_FILE
from factorcell.ngram.ngram import NGram
from factorcell.options import limits
from factorcell.runs.run import Run, initial_files
from factorcell.training.fit import read_corpora, train_run
from factorcell.training.mixture_fit import fit_mixture
from factorcell.training.plan import PLAN_ARGUMENTS, Budget, ConfigLike, Plan, config_with_defaults, plan, resumed_plan

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
    folder, config, budget = Path(out), options_by_section(options, PLAN_ARGUMENTS), Budget(minutes, preset)
    [seeds] = limits.check(seeds=seeds)
    if test is None and dev is None:
        raise UserError("compare: expected a development or a test table, got neither (--dev, --test)")
    if not resume and not files.is_new(folder, initial_files()):
        raise files.folder_exists_error(folder, resumable=True)
    evaluation_table = dev if test is None else test
    check_columns(evaluation_table, config_with_defaults(config).data)
    base_plan = common_plan(source, dev, config, folder, budget, models=models)
    if target:
        corpus, _ = read_corpora(source, dev, base_plan.config)
        variable = category_variable(corpus.schema, target)
        _, *frequent_values = variable.values  # the first is the unknown value
        require_labels(evaluation_table, variable, frequent_values, base_plan.config.data, ACCURACY_REASON)
    compared_models, first_run = [], None
    for model in models:
        evaluations = []
        for path, seed_plan in training_plans(folder, base_plan.with_options(model=model), model, seeds):
            run = train_run(source, dev, seed_plan.with_steps_of(first_run), path, resume=resume)
            first_run = first_run or run
            evaluations.append(_evaluate_run(run, evaluation_table, target))
        rows, figures_per_training = zip(*evaluations, strict=True)  # one of each per training
        compared_models.append(ComparedModel(model, rows, figures_per_training))
    if ngram:
        tables = source, dev, evaluation_table
        row, figures = _evaluate_ngram(base_plan.config, folder / NGRAM, tables)
        compared_models.append(ComparedModel(NGRAM, [row], [figures], is_deterministic=True))
        for model in models:
            paths = [path for path, _ in training_plans(folder, base_plan, model, seeds)]
            compared_models.append(_compared_mixture(model, paths, folder / NGRAM, tables))
    return compare_models(compared_models)


def training_plans(folder: Path, base_plan: Plan, model: str, seeds: int) -> list[tuple[Path, Plan]]:
    """Return the run folder and the plan of each training of a model.

    For example, the folders of three trainings from seed 0 are `factorcell`, `factorcell-seed-1`, `factorcell-seed-2`.
    """
    first_seed = base_plan.config.training.seed
    plans = [(folder / model, base_plan)]
    for seed in range(first_seed + 1, first_seed + seeds):
        plans.append((folder / f"{model}-seed-{seed}", base_plan.with_options(seed=seed)))
    return plans


def common_plan(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: Path,
    budget: Budget | None,
    *,
    models: Sequence[str],
) -> Plan:
    """Return a plan with the options that all `models` share: those of a run in `folder`, or else new ones."""
    for model in models:
        config_path = folder / model / "config.json"
        if config_path.exists():
            return resumed_plan(config, Config.of(config=config_path)).with_options(ngram_mixture=False)
    corpus, dev_corpus = read_corpora(source, dev, config_with_defaults(config))
    new_plan = plan(config, corpus, dev_corpus, budget)
    # A comparison measures the models alone; `compare` adds the mixture as a row.
    new_plan = new_plan.with_options(ngram_mixture=False)
    return new_plan


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


def _evaluate_ngram(config: Config, folder: Path, tables: tuple[Any, Any, Any]) -> Evaluation:
    """Fit and evaluate an n-gram model, and report its number of n-grams as its number of parameters.

    `tables` are the tables for training, development and evaluation.
    """
    source, dev, table = tables
    start = time.perf_counter()
    if (folder / NGRAM_FILE).is_file():
        model = NGram.open(folder)
    else:
        corpus, _ = read_corpora(source, dev, config)
        model = NGram.fit(corpus, config, folder)
    minutes = (time.perf_counter() - start) / 60
    row, figures = _perplexities(model, table)
    row |= {"parameters": model.size, "minutes": minutes}
    save_result(model, row, figures)
    return row, figures


def _compared_mixture(
    model: str, folders: Sequence[Path], ngram_folder: Path, tables: tuple[Any, Any, Any]
) -> ComparedModel:
    """Fit and evaluate the mixtures of the runs of a model; `tables` are those of `_evaluate_ngram`."""
    name = f"{model} + {NGRAM}"
    evaluations = [_evaluate_mixture(name, Run.open(path), ngram_folder, tables) for path in folders]
    rows, figures_per_training = zip(*evaluations, strict=True)
    return ComparedModel(name, rows, figures_per_training)


def _evaluate_mixture(name: str, run: Run, ngram_folder: Path, tables: tuple[Any, Any, Any]) -> Evaluation:
    """Fit and evaluate the mixture of a run and an n-gram model, and save the results in the folder of the latter.

    The run itself keeps predicting without the mixture. `tables` are those of `_evaluate_ngram`.
    """
    source, dev, table = tables
    ngram = NGram.open(ngram_folder)
    fitted = fit_mixture(run, *read_corpora(source, dev, run.config), ngram)
    run.mixture = fitted.mixture
    row, figures = _perplexities(run, table)
    row |= {"model": name, "predictor": f"mixture with {run.folder.name}", "seed": run.config.training.seed}
    row |= {"parameters": run.model.parameter_count() + ngram.size, "minutes": run.training_minutes()}
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
