"""Comparison of the paper's models, trained on the same texts with the same options and one or several seeds."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell import files, limits
from factorcell.config import PAPER_MODELS, Config, UserError
from factorcell.data.columns import must_have
from factorcell.data.tables import name_of
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.classification import ACCURACY, category, must_tell
from factorcell.evaluation.comparison import Candidate, Comparison, compared
from factorcell.evaluation.ngram import FILE as COUNTED
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.results import computed, note, told_apart
from factorcell.evaluation.text_figures import Figures
from factorcell.finite import is_number
from factorcell.model.run import Run, first_files
from factorcell.training.fit import Say, fit, read, tell
from factorcell.training.plan import Asked, Budget, Plan, duration, plan, resumed, said_config

Judged = tuple[files.Row, Figures]  # results of a model, and what each text adds to them
NGRAM = "ngram"  # the row and the folder of the n-gram baseline
SCORES = ("accuracy", "macro_f1", "auc")


def compare(
    source: Any,
    dev: Any,
    test: Any,
    config: Asked,
    folder: str | Path,
    *,
    budget: Budget | None = None,
    models: Sequence[str] = PAPER_MODELS,
    target: str | None = None,
    seeds: int = 1,
    ngram: bool = True,
    resume: bool = False,
    say: Say | None = None,
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
        say: A function that takes lines about the progress.

    Returns:
        One row of results per model.
    """
    folder = Path(folder)
    limits.check(seeds=seeds)
    if test is None and dev is None:
        raise UserError("compare needs a development or a test table to report on (--dev, --test)")
    if not resume and not files.is_new(folder, first_files()):
        raise files.occupied(folder, resumable=True)
    table = dev if test is None else test
    must_have(table, said_config(config).data)
    made = common_plan(source, dev, config, folder, budget, models=models, say=say)
    if target:
        corpus, _ = read(source, dev, made.config, progress=False)
        variable = category(corpus.schema, target)
        must_tell(table, variable, variable.values[1:], made.config.data, ACCURACY)
    times = len(models) * seeds
    if made.seconds is not None and times > 1:
        tell(say, f"{times} trainings, which take about {duration(times * made.seconds)} in all")
    candidates = []
    for model in models:
        judged = []
        for path, chosen in trainings(folder, made.of(model), model, seeds):
            tell(say, f"{model} -> {path}")
            judged.append(_judged(fit(source, dev, chosen, path, resume=resume, say=say), table, target))
        candidates.append(Candidate(model, [row for row, _ in judged], [texts for _, texts in judged]))
    if ngram:
        row, texts = _counted(source, dev, made.config, folder / NGRAM, table)
        candidates.append(Candidate(NGRAM, [row], [texts], exact=True))
    return compared(candidates)


def trainings(folder: Path, made: Plan, model: str, seeds: int) -> list[tuple[Path, Plan]]:
    """Return the run folder and the plan of each training of a model: `factorcell`, `factorcell-seed-1`, ..."""
    first = made.config.training.seed
    others = [(f"{model}-seed-{seed}", made.with_training(seed=seed)) for seed in range(first + 1, first + seeds)]
    return [(folder / name, chosen) for name, chosen in ((model, made), *others)]


def common_plan(
    source: Any,
    dev: Any,
    asked: Asked,
    folder: Path,
    budget: Budget | None,
    *,
    models: Sequence[str],
    say: Say | None,
) -> Plan:
    """Return the options of all `models`: those of a model that was begun in `folder`, or else those of a new plan."""
    if begun := [folder / model for model in models if (folder / model / "config.json").exists()]:
        return resumed(asked, Config.load(begun[0] / "config.json"))
    corpus, held = read(source, dev, said_config(asked), progress=say is not None)
    made = plan(asked, corpus, held, budget, models=models)
    for line in made.lines():
        tell(say, line)
    return made


def _judged(run: Run, table: Any, target: str | None) -> Judged:
    """Evaluate one run and keep the results in its folder."""
    row, texts = _scored(run, table)
    row |= {"parameters": run.model.parameter_count(), "minutes": run.minutes()}
    if target and run.model.adapted:
        metrics, judged = told_apart(run, table, target)
        row |= {key: value for key, value in metrics.items() if key in SCORES and is_number(value)}
        row |= {"target": target, "accuracy_key": judged["accuracy"].key}
        texts = {**texts, **judged}
    note(run, row, texts)
    return row, texts


def _counted(source: Any, dev: Any, config: Config, folder: Path, table: Any) -> Judged:
    """Fit and evaluate an n-gram model; its parameters are its n-grams."""
    begun = time.perf_counter()
    if (folder / COUNTED).is_file():
        model = NGram.open(folder)
    else:
        model = NGram.fit(read(source, dev, config, progress=False)[0], config, folder)
    minutes = (time.perf_counter() - begun) / 60
    row, texts = _scored(model, table)
    row |= {"parameters": sum(len(grams.keys) for grams in model.grams), "minutes": minutes}
    note(model, row, texts)
    return row, texts


def _scored(model: Run | NGram, table: Any) -> Judged:
    """Compute the perplexities of a model."""
    corpus = model.prepare(table, unknown="group")
    nats = model.nats(corpus)
    texts = text_figures.of_nats(nats, corpus)
    row: files.Row = {"kind": "compare", "table": name_of(table), "model": model.folder.name, **computed(model)}
    return {**row, **perplexity.summarised(nats, corpus), "texts_key": texts["perplexity"].key}, texts
