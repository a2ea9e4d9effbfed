"""Comparison of the paper's models, trained on the same texts with the same options and one or several seeds."""

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
from factorcell.evaluation.ngram import FILE as COUNTED
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.results import classify_and_save, precision_fields, save_result
from factorcell.evaluation.text_figures import Figures
from factorcell.finite import is_number
from factorcell.model.run import Run, initial_files
from factorcell.training.fit import Notify, emit_notice, fit, read_corpora
from factorcell.training.plan import Budget, ConfigLike, Plan, config_with_defaults, format_duration, plan, resumed_plan

Judged = tuple[files.Row, Figures]  # results of a model, and what each text adds to them
NGRAM = "ngram"  # the row and the folder of the n-gram baseline
SCORES = ("accuracy", "macro_f1", "auc")


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
    """Train `models` with the same options on the same texts, and evaluate each of them.

    Args:
        source: The training table.
        dev: The development table; without it, 5 % of the rows are held out.
        test: The table to report on; without it, the development table.
        config: A `Config`, or a mapping of some options; the others follow from the table and the `budget`.
        folder: The folder of the run folders.
        budget: The work of a model on average: all models make the same passes.
        models: The names of the models.
        target: The context column to classify.
        seeds: The trainings of each model, with the seed of `config` and those after it.
        ngram: Whether to add an n-gram model of the same tokens as the last row.
        resume: Whether to resume in a folder that exists; finished runs are evaluated, but not trained again.
        notify: A function that takes lines about the progress.

    Returns:
        One row of results per model.
    """
    folder = Path(folder)
    limits.check(seeds=seeds)
    if test is None and dev is None:
        raise UserError("compare needs a development or a test table to report on (--dev, --test)")
    if not resume and not files.is_new(folder, initial_files()):
        raise files.folder_exists_error(folder, resumable=True)
    table = dev if test is None else test
    check_columns(table, config_with_defaults(config).data)
    made = common_plan(source, dev, config, folder, budget, models=models, notify=notify)
    if target:
        corpus, _ = read_corpora(source, dev, made.config, progress=False)
        variable = category_variable(corpus.schema, target)
        require_labels(table, variable, variable.values[1:], made.config.data, ACCURACY_REASON)
    times = len(models) * seeds
    if made.seconds is not None and times > 1:
        emit_notice(notify, f"{times} trainings, which take about {format_duration(times * made.seconds)} in all")
    candidates = []
    for model in models:
        judged = []
        for path, chosen in training_plans(folder, made.for_model(model), model, seeds):
            emit_notice(notify, f"{model} -> {path}")
            judged.append(_judged(fit(source, dev, chosen, path, resume=resume, notify=notify), table, target))
        candidates.append(ComparedModel(model, [row for row, _ in judged], [texts for _, texts in judged]))
    if ngram:
        row, texts = _counted(source, dev, made.config, folder / NGRAM, table)
        candidates.append(ComparedModel(NGRAM, [row], [texts], is_deterministic=True))
    return compare_models(candidates)


def training_plans(folder: Path, made: Plan, model: str, seeds: int) -> list[tuple[Path, Plan]]:
    """Return the run folder and the plan of each training of a model: `factorcell`, `factorcell-seed-1`, ..."""
    first = made.config.training.seed
    others = [(f"{model}-seed-{seed}", made.with_training(seed=seed)) for seed in range(first + 1, first + seeds)]
    return [(folder / name, chosen) for name, chosen in ((model, made), *others)]


def common_plan(
    source: Any,
    dev: Any,
    asked: ConfigLike,
    folder: Path,
    budget: Budget | None,
    *,
    models: Sequence[str],
    notify: Notify | None,
) -> Plan:
    """Return the options of all `models`: those of a model that was begun in `folder`, or else those of a new plan."""
    if begun := [folder / model for model in models if (folder / model / "config.json").exists()]:
        return resumed_plan(asked, Config.load(begun[0] / "config.json"))
    corpus, held = read_corpora(source, dev, config_with_defaults(asked), progress=notify is not None)
    made = plan(asked, corpus, held, budget, models=models)
    for line in made.notices():
        emit_notice(notify, line)
    return made


def _judged(run: Run, table: Any, target: str | None) -> Judged:
    """Evaluate one run and keep the results in its folder."""
    row, texts = _scored(run, table)
    row |= {"parameters": run.model.parameter_count(), "minutes": run.training_minutes()}
    if target and run.model.adapted:
        metrics, judged = classify_and_save(run, table, target)
        row |= {key: value for key, value in metrics.items() if key in SCORES and is_number(value)}
        row |= {"target": target, "accuracy_key": judged["accuracy"].key}
        texts = {**texts, **judged}
    save_result(run, row, texts)
    return row, texts


def _counted(source: Any, dev: Any, config: Config, folder: Path, table: Any) -> Judged:
    """Fit and evaluate an n-gram model; its parameters are its n-grams."""
    begun = time.perf_counter()
    if (folder / COUNTED).is_file():
        model = NGram.open(folder)
    else:
        model = NGram.fit(read_corpora(source, dev, config, progress=False)[0], config, folder)
    minutes = (time.perf_counter() - begun) / 60
    row, texts = _scored(model, table)
    row |= {"parameters": sum(len(grams.keys) for grams in model.grams), "minutes": minutes}
    save_result(model, row, texts)
    return row, texts


def _scored(model: Run | NGram, table: Any) -> Judged:
    """Compute the perplexities of a model."""
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
