"""The papers' models side by side, trained on the same texts with the same options, once or with several seeds."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell import files, limits
from factorcell.config import MODELS, PAPER_MODELS, Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.columns import must_have
from factorcell.data.corpus import Corpus
from factorcell.data.tables import name_of
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.classification import ACCURACY, category, must_tell
from factorcell.evaluation.comparison import Candidate, Comparison, compared
from factorcell.evaluation.ngram import FILE as COUNTED
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.results import computed, note, told_apart
from factorcell.evaluation.text_figures import Figures, key_of
from factorcell.finite import is_number
from factorcell.model import kept_results
from factorcell.model.run import BEGINNING, Run, read_config
from factorcell.training.fit import Say, check_options, fit, read, tell
from factorcell.training.plan import Asked, Budget, Plan, duration, plan, resumed, said_config

Row = dict[str, Any]
NGRAM = "ngram"  # the row and the folder of what every language model has to beat
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
    """Train the papers' models with the same options on the same texts; one row of results per model.

    What `config` leaves open follows from the table and the `budget`, as `fit` has it: minutes of a model on average,
    since all read the table as often.
    `target` names the context column to classify. Results are of `test`, else of `dev`. Each model is trained with
    `seeds` seeds, that of `config` and those after it. With `ngram` an n-gram model of the same tokens is the last row:
    what counting alone reaches. Finished runs are not trained again with `resume`.
    """
    folder = Path(folder)
    limits.check(seeds=seeds)
    if test is None and dev is None:
        raise UserError("compare needs a development or a test table to report on (--dev, --test)")
    if not resume and not files.is_new(folder, BEGINNING):
        raise files.occupied(folder, resumable=True)
    table = dev if test is None else test
    must_have(table, said_config(config).data)
    made = common_plan(source, dev, config, folder, budget, models=models, say=say)
    corpus = read(source, dev, made.config, progress=False)[0] if target or resume else None
    if target and corpus is not None:
        variable = category(corpus.schema, target)
        must_tell(table, variable, variable.values[1:], made.config.data, ACCURACY)
    times = len(models) * seeds
    if made.seconds is not None and times > 1:
        tell(say, f"{times} trainings, which take about {duration(times * made.seconds)} in all")
    asked = _asked(corpus, made.config, table) if resume and corpus is not None else None
    candidates = []
    for model in models:
        rows, texts = [], []
        told = target if any(MODELS[model]) else None  # what is not adapted tells no values apart
        for path, chosen in trainings(folder, made.of(model), model, seeds):
            tell(say, f"{model} -> {path}")
            row = _kept(path, {**asked, "target": told}, chosen.config) if asked else None
            row = row or _judged(fit(source, dev, chosen, path, resume=resume, say=say), table, target)
            rows.append(row)
            texts.append(texts_of(path, row))
        candidates.append(Candidate(model, rows, texts))
    if ngram:
        path = folder / NGRAM
        row = (_kept(path, asked) if asked else None) or _counted(source, dev, made.config, path, table)
        candidates.append(Candidate(NGRAM, [row], [texts_of(path, row)], exact=True))
    return compared(candidates)


def trainings(folder: Path, made: Plan, model: str, seeds: int) -> list[tuple[Path, Plan]]:
    """The run folder and the plan of each training of a model: `factorcell`, `factorcell-seed-1`, ..."""
    first = made.config.training.seed
    others = range(first + 1, first + seeds)
    seeded = [(f"{model}-seed-{n}", made.with_training(seed=n)) for n in others]
    return [(folder / name, chosen) for name, chosen in ((model, made), *seeded)]


def texts_of(folder: Path, row: Row) -> Figures:
    """What every text of the table of a result adds, as it is kept in the folder of the run."""
    whole = text_figures.read(folder, row.get("texts_key"))
    return {**whole, **text_figures.read(folder, row.get("accuracy_key"))}


def _asked(corpus: Corpus, config: Config, table: Any) -> Row:
    """What the rows of a comparison on `table` have in common: its name and its texts, as all models read them."""
    texts = prepare(table, config.data, vocabulary=corpus.vocabulary, schema=corpus.schema, unknown="group")
    return {"kind": "compare", "table": name_of(table), "texts_key": key_of(texts)}


def _kept(folder: Path, asked: Row, config: Config | None = None) -> Row | None:
    """The row of a finished run that has all that is `asked`; None if there is none, or none that can be compared.

    `UserError` if the run was begun with other options than those of `config`.
    """
    rows = kept_results.read(folder)
    if rows and config is not None:
        check_options(folder, read_config(folder), config)
    done = [row for row in rows if all(row.get(name) == value for name, value in asked.items())]
    return done[-1] if done and texts_of(folder, done[-1]) else None


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
    """The options of all `models` in `folder`: those of the ones that were begun, else of a plan."""
    if begun := [folder / model for model in models if (folder / model / "config.json").exists()]:
        return resumed(asked, Config.load(begun[0] / "config.json"))
    corpus, held = read(source, dev, said_config(asked), progress=say is not None)
    made = plan(asked, corpus, held, budget, models=models)
    for line in made.lines():
        tell(say, line)
    return made


def _judged(run: Run, table: Any, target: str | None) -> Row:
    """The results of one run of a comparison, noted in its folder."""
    row, texts = _scored(run, table)
    row |= {"parameters": run.model.parameter_count(), "minutes": run.minutes()}
    if target and run.model.adapted:
        metrics, judged = told_apart(run, table, target)
        row |= {key: value for key, value in metrics.items() if key in SCORES and is_number(value)}
        row |= {"target": target, "accuracy_key": judged["accuracy"].key}
    note(run, row, texts)
    return row


def _counted(source: Any, dev: Any, config: Config, folder: Path, table: Any) -> Row:
    """The results of an n-gram model of the texts that the runs learn from; its parameters are its n-grams."""
    begun = time.perf_counter()
    if (folder / COUNTED).is_file():
        model = NGram.open(folder)
    else:
        model = NGram.fit(read(source, dev, config, progress=False)[0], config.data, folder)
    minutes = (time.perf_counter() - begun) / 60
    row, texts = _scored(model, table)
    row |= {"parameters": sum(len(grams.keys) for grams in model.grams), "minutes": minutes}
    note(model, row, texts)
    return row


def _scored(model: Run | NGram, table: Any) -> tuple[Row, Figures]:
    """The perplexities of a model of a comparison, and what every text adds to them."""
    corpus = model.prepare(table, unknown="group")
    nats = model.nats(corpus)
    texts = text_figures.of_nats(nats, corpus)
    row: Row = {"kind": "compare", "table": name_of(table), "model": model.folder.name, **computed(model)}
    return {**row, **perplexity.summarised(nats, corpus), "texts_key": texts["perplexity"].key}, texts
