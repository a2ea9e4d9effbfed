"""Comparison of models that are trained on the same texts with the same options, with one or several seeds."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell import files, limits
from factorcell.config import PAPER_MODELS, Config, UserError
from factorcell.data.columns import check_columns
from factorcell.data.tables import table_name
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.classification import ACCURACY_REASON, category_variable, require_labels
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.ngram import FILE as NGRAM_FILE
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.results import classify_and_save, precision_fields, save_result
from factorcell.evaluation.text_figures import Figures
from factorcell.finite import is_number
from factorcell.model.run import Run, initial_files
from factorcell.training.fit import Notify, emit_notice, fit, read_corpora
from factorcell.training.plan import Budget, ConfigLike, Plan, config_with_defaults, format_duration, plan, resumed_plan

Evaluation = tuple[files.Row, Figures]  # the results of a model, and the contribution of each text to the results
NGRAM = "ngram"  # name of the row and of the folder of the n-gram baseline
CLASSIFICATION_SCORES = ("accuracy", "macro_f1", "auc")


def compare(
    source: Any,
    dev: Any,
    test: Any,
    config: ConfigLike,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    models: Sequence[str] = PAPER_MODELS,
    target: str | None = None,
    seeds: int = 1,
    ngram: bool = True,
    resume: bool = False,
    notify: Notify | None = None,
) -> Comparison:
    """Train several models with the same options on the same texts, and evaluate each of them.

    Args:
        source: The training table.
        dev: The development table; without it, 5 % of the rows are held out.
        test: The table to evaluate on; without it, the development table.
        config: A `Config`, which sets all options, or a mapping of some options by section; the other options follow
            from the table and the `budget`.
        folder: The folder that will contain the run folders.
        budget: The time or work per model, as a mean over the models: all models make the same number of passes.
        models: The names of the models.
        target: A context column to classify by Bayes' rule.
        seeds: The number of trainings per model, with the seed of `config` and the following seeds.
        ngram: Whether to add an n-gram model of the same tokens as the last row.
        resume: Whether to resume in a folder that exists; finished runs are evaluated, but not trained again.
        notify: A function that receives one-line notices; with it, progress bars go to standard error.

    Returns:
        The comparison, with one row of results per model.

    Raises:
        UserError: If there is no table to evaluate on, the folder exists and `resume` is false, or a table or an option
            is not valid.
    """
    folder = Path(folder)
    limits.check(seeds=seeds)
    if test is None and dev is None:
        raise UserError("compare: expected a development or a test table, got neither (--dev, --test)")
    if not resume and not files.is_new(folder, initial_files()):
        raise files.folder_exists_error(folder, resumable=True)
    table = dev if test is None else test
    check_columns(table, config_with_defaults(config).data)
    base_plan = common_plan(source, dev, config, folder, budget, models=models, notify=notify)
    if target:
        corpus, _ = read_corpora(source, dev, base_plan.config, progress=False)
        variable = category_variable(corpus.schema, target)
        require_labels(table, variable, variable.values[1:], base_plan.config.data, ACCURACY_REASON)
    count = len(models) * seeds
    if base_plan.seconds is not None and count > 1:
        emit_notice(notify, f"{count} trainings, about {format_duration(count * base_plan.seconds)} in total")
    candidates = []
    for model in models:
        evaluations = []
        for path, seed_plan in training_plans(folder, base_plan.for_model(model), model, seeds):
            emit_notice(notify, f"{model} -> {path}")
            run = fit(source, dev, seed_plan, path, resume=resume, notify=notify)
            evaluations.append(_evaluate_run(run, table, target))
        candidates.append(ComparedModel(model, [row for row, _ in evaluations], [texts for _, texts in evaluations]))
    if ngram:
        row, texts = _evaluate_ngram(source, dev, base_plan.config, folder / NGRAM, table)
        candidates.append(ComparedModel(NGRAM, [row], [texts], is_deterministic=True))
    return compare_models(candidates)


def training_plans(folder: Path, base_plan: Plan, model: str, seeds: int) -> list[tuple[Path, Plan]]:
    """Return the run folder and the plan of each training of a model: `factorcell`, `factorcell-seed-1`, ..."""
    first = base_plan.config.training.seed
    plans = [(folder / model, base_plan)]
    for seed in range(first + 1, first + seeds):
        plans.append((folder / f"{model}-seed-{seed}", base_plan.with_training(seed=seed)))
    return plans


def common_plan(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: Path,
    budget: Budget | None,
    *,
    models: Sequence[str],
    notify: Notify | None,
) -> Plan:
    """Return the options that all `models` share: those of an existing run in `folder`, or else those of a new plan."""
    if existing := [path for model in models if (path := folder / model / "config.json").exists()]:
        return resumed_plan(config, Config.load(existing[0]))
    corpus, dev_corpus = read_corpora(source, dev, config_with_defaults(config), progress=notify is not None)
    new_plan = plan(config, corpus, dev_corpus, budget, models=models)
    for line in new_plan.notices():
        emit_notice(notify, line)
    return new_plan


def _evaluate_run(run: Run, table: Any, target: str | None) -> Evaluation:
    """Evaluate a run and save the results in its folder."""
    row, texts = _perplexities(run, table)
    row |= {"parameters": run.model.parameter_count(), "minutes": run.training_minutes()}
    if target and run.model.is_adapted:
        metrics, accuracies = classify_and_save(run, table, target)
        row |= {key: value for key, value in metrics.items() if key in CLASSIFICATION_SCORES and is_number(value)}
        row |= {"target": target, "accuracy_key": accuracies["accuracy"].key}
        texts = {**texts, **accuracies}
    save_result(run, row, texts)
    return row, texts


def _evaluate_ngram(source: Any, dev: Any, config: Config, folder: Path, table: Any) -> Evaluation:
    """Fit and evaluate an n-gram model, and report its number of n-grams as its number of parameters."""
    start = time.perf_counter()
    if (folder / NGRAM_FILE).is_file():
        model = NGram.open(folder)
    else:
        model = NGram.fit(read_corpora(source, dev, config, progress=False)[0], config, folder)
    minutes = (time.perf_counter() - start) / 60
    row, texts = _perplexities(model, table)
    row |= {"parameters": sum(len(grams.keys) for grams in model.grams), "minutes": minutes}
    save_result(model, row, texts)
    return row, texts


def _perplexities(model: Run | NGram, table: Any) -> Evaluation:
    """Return the perplexities of a model on a table."""
    corpus = model.prepare(table, unknown="group")
    nats = model.nats(corpus)
    texts = text_figures.figures_from_nats(nats, corpus)
    row: files.Row = {
        "kind": "compare",
        "table": table_name(table),
        "model": model.folder.name,
        **precision_fields(model),
    }
    return {**row, **perplexity.summary_row(nats, corpus), "texts_key": texts["perplexity"].key}, texts
