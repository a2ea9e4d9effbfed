"""Whole jobs over run folders, as the command line offers them: fit, compare, evaluate."""

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from factorcell import card, evaluation, ngram, parallel, store
from factorcell.classification import Classification, classify
from factorcell.columns import to_number
from factorcell.completer import UNITS
from factorcell.config import PAPER_MODELS, Config, DataConfig, UserError
from factorcell.data import Corpus, prepare
from factorcell.evaluation import Scorer
from factorcell.ngram import NGram
from factorcell.parallel import World
from factorcell.popularity import FILE, Counts
from factorcell.run import Run
from factorcell.tables import open_table
from factorcell.training import train
from factorcell.vocabulary import Vocabulary

HELD_OUT = 0.05  # of the training rows, where no development table is given
SCORES = ("accuracy", "macro_f1", "auc")

Row = dict[str, Any]
Say = Callable[[str], None]


def fit(
    source: Any,
    dev: Any,
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    say: Say | None = None,
) -> Run:
    """Train a run in `folder` on the table `source` and return it, with its best weights and its card written.

    Without `dev`, 5 % of the rows are held out (their words count for the vocabulary). `resume` goes on with a folder
    that exists, if its config is the same. `say` is told what is being done; bars go to standard error.
    The processes of torchrun train it together; only the first writes and speaks.
    """
    folder = Path(folder)
    going_on = begun(folder, resume or parallel.restarted())
    with parallel.join(config.training.device) as world:
        say = say if world.first else None
        with world.first_goes_ahead():  # the others have looked into the folder, and find what was read in the cache
            corpus, held = read(source, dev, config, progress=say is not None)
        if going_on:
            run = Run.open(folder, trained=False)
            check_same(run, config, corpus)
        else:
            make = Run.create if world.first else Run
            run = make(folder, config, corpus.vocabulary, corpus.schema)
        learn(run, corpus, held, world, resume=going_on, say=say)
        if world.first:
            finish(run, corpus, source)
    return run


def begun(folder: Path, resume: bool) -> bool:
    """Whether to go on with the run in `folder`; `UserError` where there is something else."""
    going_on = resume and (folder / "config.json").exists()
    if not going_on and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: exists already; choose another folder, or --resume to go on with it")
    return going_on


def learn(run: Run, corpus: Corpus, dev: Corpus, world: World | None = None, *, resume: bool, say: Say | None) -> None:
    """Train a run to its end, and say on what."""
    for line in described(run, corpus, dev):
        tell(say, line)
    for _ in watched(run, corpus, dev, world, resume=resume, progress=say is not None):
        pass


def read(source: Any, dev: Any, config: Config, *, progress: bool) -> tuple[Corpus, Corpus]:
    """Training and development texts; without `dev` the latter are held out."""
    corpus = prepare(source, config.data, progress=progress)
    if dev is None:
        return corpus.split(HELD_OUT, config.training.seed)
    return corpus, prepare(dev, config.data, vocabulary=corpus.vocabulary, schema=corpus.schema, unknown="group")


def finish(run: Run, corpus: Corpus, source: Any, finetuned: Row | None = None) -> None:
    """Keep in the folder of a trained run what it was trained on, from which run it came, and write its card."""
    kept: Row = {"texts": len(corpus), "targets": corpus.targets, "source": name_of(source)}
    if finetuned:
        kept["finetuned"] = finetuned
    store.write_json(run.folder / "training.json", kept)
    if run.config.data.user and run.config.data.unit in UNITS:
        Counts.of_table(source, run.config.data).save(run.folder / FILE)
    card.write(run)


def facts(run: Run) -> Row:
    """What `finish` kept."""
    kept: Row = store.read_json(run.folder / "training.json")
    return kept


def tell(say: Say | None, text: str) -> None:
    """Tell whoever listens."""
    if say is not None:
        say(text)


def described(run: Run, corpus: Corpus, dev: Corpus) -> list[str]:
    """What was read and how, a line each."""
    return [
        f"{len(corpus):,} texts, {corpus.targets:,} targets; {len(dev):,} texts held for development",
        f"{len(run.vocabulary):,} tokens in the vocabulary ({run.config.data.unit} units)",
        *(variable.describe() for variable in run.schema.variables),
        f"{run.model.parameter_count():,} parameters",
    ]


def check_same(run: Run, config: Config, corpus: Corpus) -> None:
    """Refuse to resume with other options or other data."""
    old, new = run.config.to_dict(), config.to_dict()
    for section in old:
        for key, value in old[section].items():
            if new[section][key] != value and key not in ("threads", "device"):
                raise UserError(
                    f"{run.folder} was begun with {key} = {value!r}, not {new[section][key]!r}; nothing resumed"
                )
    if run.vocabulary.tokens != corpus.vocabulary.tokens or run.schema != corpus.schema:
        raise UserError(f"{run.folder} was begun with other training data; nothing resumed")


def watched(
    run: Run, corpus: Corpus, dev: Corpus, world: World | None = None, *, resume: bool, progress: bool
) -> Generator[Row]:
    """The rows of `train` under a progress bar: tokens a second, time left, present and best perplexity."""
    name = run.folder.name
    with tqdm(desc=name, unit="step", disable=not progress, dynamic_ncols=True, leave=None) as bar:
        for row in train(run, corpus, dev, resume=resume, world=world):
            bar.total = row["steps"]
            bar.update(row["step"] - bar.n)
            if row["split"] == "dev":
                bar.set_description(f"{name} perplexity {row['perplexity']:.2f} (best {row['best']:.2f})")
            else:
                bar.set_postfix_str(f"{row['tokens_per_second']:,.0f} tokens/s, loss {row['loss']:.3f}")
            yield row


def summary(run: Run) -> str:
    """The best development figures of a run in one line."""
    best = run.best()
    assert best is not None  # a training ends with an evaluation
    return (
        f"development perplexity {best['perplexity']:.2f} ({best['perplexity_known']:.2f} without out-of-vocabulary "
        f"targets) at step {best['step']} of {best['steps']}, {run.minutes():.1f} minutes"
    )


def open_model(folder: Path, device: str = "cpu", precision: str = "float32") -> Run | NGram:
    """The model in a folder; `device` and `precision` as in `Run.open` (an n-gram model has no use for them)."""
    if (folder / ngram.FILE).is_file():
        return NGram.open(folder)
    return Run.open(folder, device=device, precision=precision)


def reading(like: Path | None, config: Path | None) -> tuple[DataConfig, Vocabulary | None]:
    """How the model in the folder `like` reads texts, with its vocabulary; or how the file `config` says, with none."""
    if like is None:
        return (Config.load(config) if config else Config()).data, None
    model = open_model(like)
    return (model.data if isinstance(model, NGram) else model.config.data), model.vocabulary


def note(run: Scorer, row: Mapping[str, Any]) -> None:
    """Keep a result in the folder, so that the card of a run and reports show it."""
    store.append_row(run.folder / "results.jsonl", row)
    if isinstance(run, Run):
        card.write(run)


def evaluate(
    run: Scorer,
    source: Any,
    *,
    by: Sequence[str] = (),
    baseline: Scorer | None = None,
    unknown: str = "error",
    top: bool = False,
) -> Row:
    """Perplexities of a table, whole and by the values of columns: {"evaluation": row, "by": {column: rows}}.

    `top` adds how often the next token is among the most probable ones.
    """
    if top and not isinstance(run, Run | NGram):
        raise UserError(f"{run.folder}: only runs and n-gram models tell which tokens are most probable (--top)")
    columns = {column: evaluation.column_values(source, column) for column in by}
    corpus = run.prepare(source, unknown=unknown)
    result: Row = {"evaluation": {"table": name_of(source), **evaluation.evaluate(run, corpus)}, "by": {}}
    if top and isinstance(run, Run | NGram):
        result["evaluation"] |= evaluation.top_accuracy(run, corpus)
    for column, values in columns.items():
        named = ["(missing)" if value is None else value for value in values]
        result["by"][column] = evaluation.evaluate_by(run, corpus, named, baseline)
    note(run, {"kind": "evaluate", **result})
    return result


def name_of(source: Any) -> str:
    """A table as results name it: its file without the folder, or "rows"."""
    return Path(source).name if isinstance(source, (str, Path)) else "rows"


def compare(
    source: Any,
    dev: Any,
    test: Any,
    config: Config,
    folder: str | Path,
    *,
    models: Sequence[str] = PAPER_MODELS,
    target: str | None = None,
    resume: bool = False,
    say: Say | None = None,
) -> list[Row]:
    """Train the papers' models with the same options on the same texts; one row of results a model.

    `target` names the context column to classify. Results are of `test`, else of `dev`. Finished models are not
    trained again with `resume`.
    """
    folder = Path(folder)
    if test is None and dev is None:
        raise UserError("compare needs a development or a test table to report on (--dev, --test)")
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: exists already; choose another folder, or --resume to go on with it")
    rows = []
    table = dev if test is None else test
    for model in models:
        path = folder / model
        tell(say, f"{model} -> {path}")
        chosen = config.with_model(model)
        kept = store.read_rows(path / "results.jsonl") if resume else []
        done = [row for row in kept if row["kind"] == "compare" and row["table"] == name_of(table)]
        rows.append(done[-1] if done else _compared(source, dev, table, chosen, path, target, resume, say))
    return rows


def _compared(
    source: Any,
    dev: Any,
    table: Any,
    config: Config,
    path: Path,
    target: str | None,
    resume: bool,
    say: Say | None,
) -> Row:
    """Train and judge one model of a comparison."""
    run = fit(source, dev, config, path, resume=resume, say=say)
    corpus = run.prepare(table, unknown="group")
    row: Row = {"model": path.name, **evaluation.evaluate(run, corpus)}
    row["parameters"] = run.model.parameter_count()
    row["minutes"] = run.minutes()
    if target and run.model.adapted:
        row |= {key: value for key, value in told_apart(run, table, target).items() if key in SCORES}
    note(run, {"kind": "compare", "table": name_of(table), **row})
    return row


def told_apart(run: Run, table: Any, target: str) -> Row:
    """Classify the texts of `table` by the variable `target`; the metrics, also kept in the run folder."""
    result = classify(run, table, target, unknown="group")
    metrics = result.metrics()
    confusion = {"labels": list(result.names), "counts": result.confusion().tolist()}
    note(run, {"kind": "classify", "table": name_of(table), "target": target, **metrics, "confusion": confusion})
    return metrics


def read_points(path: str | Path) -> dict[str, dict[str, float]]:
    """Named points from a table: a column `name`, the others numeric context columns."""
    table = open_table(path)
    if "name" not in table.columns or len(table.columns) < 2:
        raise UserError(f"{path}: points need a column `name` and numeric columns; it has {', '.join(table.columns)}")
    points = {}
    for chunk in table.chunks(table.columns):
        for index, name in enumerate(chunk["name"]):
            values = {column: to_number(chunk[column][index]) for column in table.columns if column != "name"}
            bad = [column for column, value in values.items() if value is None]
            if bad:
                raise UserError(f"{path}: {bad[0]} of {name} is not a number")
            points[str(name)] = {column: value for column, value in values.items() if value is not None}
    return points


def write_predictions(path: Path, result: Classification) -> None:
    """One row of JSON a text: what was predicted, with the probability of every value."""
    rows = []
    for row, (best, probabilities) in enumerate(zip(result.predicted, result.probabilities, strict=True)):
        named = {name: round(float(p), 6) for name, p in zip(result.names, probabilities, strict=True)}
        true = result.names[result.truth[row]] if result.truth[row] >= 0 else None
        rows.append({"row": row, "predicted": result.names[best], "true": true, "probabilities": named})
    store.write_rows(path, rows)
