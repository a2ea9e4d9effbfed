"""Hyperparameter search: the trials of one Optuna study, shared by all processes that are started on its folder.

Each trial is a run folder, and the process that trains it holds its lock.
The operating system releases the lock when the process ends.
So a running trial whose lock is free was abandoned, and another process resumes it from its checkpoint.
What a trial draws follows from (seed, its number), and with TPE also from the trials before it.

study.journal   trials.jsonl   best.toml   study.html   trial-0000/   trial-0001/   ...
"""

import functools
import json
import math
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorcell import files, input_files, limits
from factorcell.choices import PRUNERS, SAMPLERS
from factorcell.config import Config, UserError, choose
from factorcell.data import tables
from factorcell.data.corpus import Corpus
from factorcell.escapes import escape_hidden
from factorcell.evaluation import comparison, results
from factorcell.evaluation.classification import ACCURACY_REASON, category_variable, require_labels
from factorcell.evaluation.comparison import ComparedModel
from factorcell.evaluation.results import Row, saved_text_figures
from factorcell.finite import format_option, is_number
from factorcell.model.run import CHECKPOINT, Run, training_facts
from factorcell.training import search_space
from factorcell.training.fit import Notify, emit_notice, read_corpora, write_training_facts
from factorcell.training.loop import train
from factorcell.training.plan import Budget, ConfigLike, config_with_defaults, plan, resumed_plan

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock

# The content of study.html from a title, rows of trials, the target, and the options drawn on a logarithmic scale.
PageRenderer = Callable[[str, Sequence[Row], str | None, Collection[str]], str]
Texts = Callable[[int], tuple[Corpus, Corpus]]  # training and development texts by `min_context_count`

NAME = "factorcell"  # of the only study in a journal, and of its attribute that says what it searches
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
COMPARED = ("gain", "gain_low", "gain_high", "ahead")


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Args:
        trials: The number of trials in the whole study.
        models: The model classes to draw from; without any, the config decides.
        ranges: The options that are drawn, and from what.
        target: The context column to classify in the development table.
        sampler: "random" or "tpe", which learns from earlier trials.
        pruner: Which trials are stopped early: those behind the "median" of the others, or "none".
        budget: The time or work of each trial.
    """

    trials: int = 50
    models: Sequence[str] = ()
    ranges: search_space.Space = field(default_factory=lambda: search_space.DEFAULT)
    target: str | None = None
    sampler: str = "random"
    pruner: str = "median"
    budget: Budget | None = None


def search(
    source: Any,
    dev: Any,
    asked: ConfigLike,
    folder: str | Path,
    options: SearchOptions | None = None,
    *,
    notify: Notify | None = None,
    page: PageRenderer | None = None,
) -> list[Row]:
    """Train trials in `folder` until their study has all of them; a search in an existing folder resumes.

    Args:
        source: The training table.
        dev: The development table; without it, 5 % of the rows are held out.
        asked: A `Config`, or a mapping of some options; options that are neither here nor drawn follow from the table.
        folder: The folder of the study.
        options: What is drawn, and how.
        notify: A function that takes lines about the progress.
        page: A function that makes the content of study.html, which is written when the search ends or is stopped.

    Returns:
        A row per trial, the best first.
    """
    options = options or SearchOptions()
    target = options.target
    if target and dev is None:
        raise UserError("texts are classified in a development table: give --dev with --target")
    limits.check(trials=options.trials)
    choose("sampler", options.sampler, SAMPLERS)
    _optuna()
    folder = Path(folder)
    said = config_with_defaults(asked)
    options = replace(options, ranges=search_space.applicable(options.ranges, said))
    search_space.check(options.ranges, said)

    @functools.cache
    def texts(least: int) -> tuple[Corpus, Corpus]:
        config = search_space.with_drawn_options(said, {"min_context_count": least})
        return read_corpora(source, dev, config, progress=notify is not None)

    corpus, held = texts(said.data.min_context_count)
    if target:
        variable = category_variable(corpus.schema, target)
        require_labels(dev, variable, variable.values[1:], said.data, ACCURACY_REASON)
    study, guard = open_study(folder, options.pruner)
    if (old := study.user_attrs.get(NAME)) is None:
        config = plan(asked, corpus, held, options.budget).config
    else:
        kept: dict[str, Row] = {section: {} for section in Config().to_dict()}
        for name, value in old.items():
            section, _, key = name.partition(".")
            if section in kept:
                kept[section][key] = value
        config = resumed_plan(asked, Config.from_dict(kept)).config
    begun = {
        "texts": len(corpus),
        "targets": corpus.target_count,
        "source": tables.table_name(source),
        "dev": None if dev is None else tables.table_name(dev),
        "target": target,
        "models": list(options.models) or [config.model_name],
        **{f"{part}.{key}": value for part, values in config.to_dict().items() for key, value in values.items()},
        **{f"range of {key}": vars(v) if isinstance(v, search_space.Range) else v for key, v in options.ranges.items()},
    }
    with guard:
        _check_same(study, folder, begun)
    return Search(study, guard, texts, source, dev, config, folder, options, page).run(notify)


def _optuna() -> Any:
    """Import the optional library of the search."""
    try:
        import filelock  # noqa: F401
        import optuna
    except ImportError:
        raise UserError("a search needs Optuna, which is not installed: pip install 'factorcell[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(folder: Path, pruner: str) -> "tuple[optuna.Study, BaseFileLock]":
    """Open or create the study of `folder`; return it and the lock of the folder."""
    optuna = _optuna()
    from filelock import FileLock

    pruners, journal = optuna.pruners, optuna.storages.journal
    chosen = pruners.NopPruner() if choose("pruner", pruner, PRUNERS) == "none" else pruners.MedianPruner()
    path = folder / "study.journal"
    if path.exists():
        input_files.check(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        guard = FileLock(folder / "study.lock")
        with guard:
            backend = journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
            storage = optuna.storages.JournalStorage(backend)
            study = optuna.create_study(storage=storage, study_name=NAME, pruner=chosen, load_if_exists=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path}: the study cannot be opened ({reason[0]})") from None
    return study, guard


def _check_same(study: "optuna.Study", folder: Path, begun: Row) -> None:
    """Refuse to resume a study with other texts, options or ranges."""
    begun = json.loads(json.dumps(begun))
    old = study.user_attrs.get(NAME, begun)
    for key in old | begun:
        if key != "training.threads" and old.get(key) != begun.get(key):
            raise UserError(
                f"{folder} was begun with {key} = {old.get(key)!r}, not {begun.get(key)!r}; choose another --out"
            )
    study.set_user_attr(NAME, begun)


@dataclass
class Search:
    """A study, and what its trials are made of."""

    study: "optuna.Study"
    guard: "BaseFileLock"
    texts: Texts
    source: Any
    dev: Any
    config: Config
    folder: Path
    options: SearchOptions
    page: PageRenderer | None = None

    def run(self, notify: Notify | None) -> list[Row]:
        """Train until the study has all trials; return its rows, the best first."""
        try:
            while (claimed := self.claim()) is not None:
                trial, lock = claimed
                try:
                    self.attempt(trial, progress=notify is not None)
                finally:
                    lock.release()
                Path(lock.lock_file).unlink(missing_ok=True)
                emit_notice(notify, describe_trial(self.publish()[trial.number]))
        finally:
            rows = self.publish(ended=True)
        return rank_trials(rows)

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        return self.study.get_trials(deepcopy=False)

    def path(self, number: int) -> Path:
        """Return the run folder of a trial."""
        return self.folder / f"trial-{number:04}"

    def claim(self) -> "tuple[optuna.Trial, BaseFileLock] | None":
        """Lock and return an abandoned trial, or else a new one; None if the study has all trials."""
        optuna = _optuna()
        from filelock import FileLock, Timeout

        with self.guard:
            for frozen in self._trials():
                if frozen.state.name != "RUNNING":
                    continue
                lock = FileLock(self.path(frozen.number).with_suffix(".lock"))
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    continue  # another process is training it
                if self._trials()[frozen.number].state.name == "RUNNING":
                    return optuna.Trial(self.study, frozen.number), lock  # in a journal of one study, ids are numbers
                lock.release()  # it ended after the first look
            if len(self._trials()) >= self.options.trials:
                return None
            trial = self.study.ask()
            lock = FileLock(self.path(trial.number).with_suffix(".lock"))
            lock.acquire()
            return trial, lock

    def attempt(self, trial: "optuna.Trial", progress: bool) -> None:
        """Train one trial and report to the study how it ended; an interrupted trial stays as it is."""
        states = _optuna().trial.TrialState
        self.study.sampler = trial_sampler(self.options.sampler, self.config.training.seed, trial.number)
        try:
            pruned, result = self._trained(trial, progress)
        except Exception as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=states.FAIL)
            if not isinstance(error, UserError):
                raise
            return
        for key, value in result.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial, None if pruned else result["perplexity"], states.PRUNED if pruned else None)

    def _trained(self, trial: "optuna.Trial", progress: bool) -> tuple[bool, Row]:
        """Train the run of `trial`; return whether it was pruned, and its figures."""
        config = search_space.draw(trial, self.options.ranges, self.options.models, self.config)
        corpus, held = self.texts(config.data.min_context_count)
        folder, pruned = self.path(trial.number), False
        resumes = (folder / CHECKPOINT).exists()
        if resumes:
            run = Run.open(folder, trained=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed before the first checkpoint
            run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
        with closing(train(run, corpus, held, resume=resumes, progress=progress)) as rows:
            for row in rows:
                if row["split"] == "dev" and self._hopeless(trial, row, config):
                    pruned = True
                    break
        if pruned:
            run.load_weights()  # the best ones, as at the end of a whole training
        write_training_facts(run, corpus, held, self.source)
        best = run.best_evaluation()
        if best is None or not is_number(best["perplexity"]):
            raise UserError(f"{folder}: no finite perplexity on the development texts")
        result = {key: best[key] for key in ("perplexity", "perplexity_known")}
        result |= {"minutes": run.training_minutes(), "parameters": run.model.parameter_count()}
        if self.options.target and run.model.adapted and not pruned:
            accuracy = results.classify_and_save(run, self.dev, self.options.target)[0]["accuracy"]
            result |= {"accuracy": accuracy} if is_number(accuracy) else {}
        return pruned, result

    def _hopeless(self, trial: "optuna.Trial", row: Row, config: Config) -> bool:
        """Report an evaluation by its number, and ask the pruner unless it is the last one."""
        number = row["step"] * config.training.evaluations // row["steps"]
        if number not in self._trials()[trial.number].intermediate_values:
            trial.report(row["perplexity"], number)
        return row["step"] < row["steps"] and trial.should_prune()

    def rows(self) -> list[Row]:
        """Return a row per trial, by number."""
        names = ("perplexity", "perplexity_known", "accuracy", "parameters", "minutes", "error")
        made = []
        for frozen in self._trials():
            params, kept = dict(frozen.params), frozen.user_attrs
            row: Row = {"number": frozen.number, "state": STATES[frozen.state.name]}
            row |= {"model": params.pop("model", self.config.model_name), "params": params}
            row["perplexity"] = min(frozen.intermediate_values.values(), default=None)
            row |= {key: kept[key] for key in names if key in kept}
            made.append({**row, "folder": self.path(frozen.number).name})
        return made

    def publish(self, ended: bool = False) -> list[Row]:
        """Write trials.jsonl and best.toml; at the end of the search, compare the trials and write study.html."""
        with self.guard:
            rows = compare_trials(self.rows(), self.folder) if ended else self.rows()
            files.write_rows(self.folder / "trials.jsonl", rows)
            best = rank_trials(rows)[:1]
            if best and best[0]["state"] == "complete":
                params = self._trials()[best[0]["number"]].params
                config = search_space.with_drawn_options(self.config, params)
                files.write(self.folder / "best.toml", config.to_toml())
            if ended and self.page is not None:
                ranges = self.options.ranges.items()
                logs = [name for name, values in ranges if isinstance(values, search_space.Range) and values.log]
                title = escape_hidden(self.folder.resolve().name)
                content = self.page(title, rank_trials(rows), self.options.target, logs)
                files.write(self.folder / "study.html", content)
        return rows


def trial_sampler(name: str, seed: int, number: int) -> "optuna.samplers.BaseSampler":
    """Return the sampler of one trial: its draws follow from the seed, the number and, for TPE, the earlier trials."""
    samplers = _optuna().samplers
    kind = {"random": samplers.RandomSampler, "tpe": samplers.TPESampler}[name]
    made: optuna.samplers.BaseSampler = kind(seed=int(np.random.SeedSequence((seed, number)).generate_state(1)[0]))
    return made


def rank_trials(rows: Sequence[Row]) -> list[Row]:
    """Sort complete trials by perplexity, then the pruned ones, then the others."""
    order = {"complete": 0, "pruned": 1}

    def key(row: Row) -> tuple[int, float, int]:
        perplexity = math.inf if row["perplexity"] is None else row["perplexity"]
        return order.get(row["state"], len(order)), perplexity, row["number"]

    return sorted(rows, key=key)


def describe_trial(row: Row) -> str:
    """Describe one trial in one line."""
    figures = "" if row["perplexity"] is None else f", perplexity {row['perplexity']:.2f}"
    figures += f", accuracy {row['accuracy']:.4f}" if "accuracy" in row else ""
    figures += f" ({row['error']})" if "error" in row else ""
    drawn = ", ".join(f"{name} {format_option(value)}" for name, value in row["params"].items())
    return f"trial {row['number']} {row['state']}{figures}: {row['model']}, {drawn}"


def compare_trials(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Add to each row its `gain` over the best trial on the development texts, and the figures in which it is `ahead`.

    A trial without a run or without figures of the development texts has no gain.
    """
    trained = [row for row in rank_trials(rows) if row["perplexity"] is not None]
    folders = [folder / row["folder"] for row in trained]
    texts = [saved_text_figures(path, training_facts(path).get("development_key")) for path in folders]
    found = comparison.compare_models(
        [ComparedModel("", [row], [one]) for row, one in zip(trained, texts, strict=True)]
    )
    added = {row["number"]: {name: row[name] for name in COMPARED if name in row} for row in found}
    return [{**row, "ahead": [], **added.get(row["number"], {})} for row in rows]
