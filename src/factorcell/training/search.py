"""Hyperparameter search: the trials of an Optuna study, shared by all processes that search in the same folder.

The run of each trial has its own folder, and the process that trains it holds the lock of the trial.
The operating system releases the lock when the process ends.
So a running trial whose lock is free was abandoned, and another process resumes it from its checkpoint.
The options of a trial follow from the seed of the search and the number of the trial, and with the sampler TPE
(tree-structured Parzen estimator) also from the earlier trials.
docs/tuning.md describes the files in the folder of a study.
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
from factorcell.training.fit import Notify, emit_notice, not_resumable, read_corpora, write_training_facts
from factorcell.training.loop import train
from factorcell.training.plan import Budget, ConfigLike, config_with_defaults, plan, resumed_plan

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock

# Returns the content of study.html; the arguments are a title, the rows of trials, the target column, and the options
# that are drawn on a logarithmic scale.
PageRenderer = Callable[[str, Sequence[Row], str | None, Collection[str]], str]
CorpusReader = Callable[[int], tuple[Corpus, Corpus]]  # `min_context_count` -> training and development texts

NAME = "factorcell"  # the name of the study in the journal, and of the study's attribute that describes the search
STATE_NAMES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
COMPARISON_COLUMNS = ("gain", "gain_low", "gain_high", "ahead")


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Args:
        trials: The number of trials in the whole study.
        models: The models to draw from; if empty, the config determines the model.
        ranges: The options to draw, with their ranges or choices.
        target: A context column to classify in the development table.
        sampler: "random", or "tpe", which uses the results of earlier trials.
        pruner: "median" stops a trial early if its lowest perplexity so far is above the median of the other trials at
            the same evaluation; "none" stops no trial early.
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
    config: ConfigLike,
    folder: str | Path,
    options: SearchOptions | None = None,
    *,
    notify: Notify | None = None,
    page: PageRenderer | None = None,
) -> list[Row]:
    """Train trials until the study has the required number; a search in the folder of a study continues it.

    Args:
        source: The training table.
        dev: The development table; without it, 5 % of the rows are held out.
        config: A `Config`, or a mapping of some options by section; options that are neither specified nor drawn follow
            from the table.
        folder: The folder of the study.
        options: The options of the search.
        notify: A function that receives one-line notices; with it, progress bars go to standard error.
        page: A function that returns the content of study.html, which is written when the search ends or is stopped.

    Returns:
        A row per trial, the best first.

    Raises:
        UserError: If Optuna is not installed, a table or an option is not valid, or the folder has another search.
    """
    options = options or SearchOptions()
    target = options.target
    if target and dev is None:
        raise UserError("target: expected a development table to classify, got none (--dev)")
    limits.check(trials=options.trials)
    choose("sampler", options.sampler, SAMPLERS)
    _import_optuna()
    folder = Path(folder)
    base_config = config_with_defaults(config)
    options = replace(options, ranges=search_space.applicable(options.ranges, base_config))
    search_space.check(options.ranges, base_config)

    @functools.cache
    def read_texts(min_context_count: int) -> tuple[Corpus, Corpus]:
        changed = search_space.with_drawn_options(base_config, {"min_context_count": min_context_count})
        return read_corpora(source, dev, changed, progress=notify is not None)

    corpus, dev_corpus = read_texts(base_config.data.min_context_count)
    if target:
        variable = category_variable(corpus.schema, target)
        require_labels(dev, variable, variable.values[1:], base_config.data, ACCURACY_REASON)
    study, folder_lock = open_study(folder, options.pruner)
    if (saved := study.user_attrs.get(NAME)) is None:
        complete = plan(config, corpus, dev_corpus, options.budget).config
    else:
        complete = resumed_plan(config, _saved_config(saved)).config
    description = {
        "texts": len(corpus),
        "targets": corpus.target_count,
        "source": tables.table_name(source),
        "dev": None if dev is None else tables.table_name(dev),
        "target": target,
        "models": list(options.models) or [complete.model_name],
        **{f"{part}.{key}": value for part, values in complete.to_dict().items() for key, value in values.items()},
        **{
            f"range of {key}": vars(values) if isinstance(values, search_space.Range) else values
            for key, values in options.ranges.items()
        },
    }
    with folder_lock:
        _check_same(study, folder, description)
    return Search(study, folder_lock, read_texts, source, dev, complete, folder, options, page).run(notify)


def _saved_config(description: Row) -> Config:
    """Return the config in the description of a study."""
    sections: dict[str, Row] = {section: {} for section in Config().to_dict()}
    for name, value in description.items():
        section, _, key = name.partition(".")
        if section in sections:
            sections[section][key] = value
    return Config.from_dict(sections)


def _import_optuna() -> Any:
    """Return the module `optuna`, which is an optional dependency."""
    try:
        import filelock  # noqa: F401
        import optuna
    except ImportError:
        raise UserError("Optuna is not installed; install it with: pip install 'factorcell[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(folder: Path, pruner: str) -> "tuple[optuna.Study, BaseFileLock]":
    """Open or create the study of a folder; return it with the lock of the folder."""
    optuna = _import_optuna()
    from filelock import FileLock

    pruners, journal = optuna.pruners, optuna.storages.journal
    study_pruner = pruners.NopPruner() if choose("pruner", pruner, PRUNERS) == "none" else pruners.MedianPruner()
    path = folder / "study.journal"
    if path.exists():
        input_files.check(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder_lock = FileLock(folder / "study.lock")
        with folder_lock:
            backend = journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
            storage = optuna.storages.JournalStorage(backend)
            study = optuna.create_study(storage=storage, study_name=NAME, pruner=study_pruner, load_if_exists=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path}: the study cannot be opened ({reason[0]})") from None
    return study, folder_lock


def _check_same(study: "optuna.Study", folder: Path, description: Row) -> None:
    """Raise a `UserError` if a study has another description than `description`; save it in a new study."""
    description = json.loads(json.dumps(description))
    saved = study.user_attrs.get(NAME, description)
    for key in saved | description:
        if key != "training.threads" and saved.get(key) != description.get(key):
            raise not_resumable(folder, key, saved.get(key), description.get(key))
    study.set_user_attr(NAME, description)


@dataclass
class Search:
    """A study, with the texts and options from which trials are trained."""

    study: "optuna.Study"
    folder_lock: "BaseFileLock"
    read_texts: CorpusReader
    source: Any
    dev: Any
    config: Config
    folder: Path
    options: SearchOptions
    page: PageRenderer | None = None

    def run(self, notify: Notify | None) -> list[Row]:
        """Train until the study has all trials; return a row per trial, the best first."""
        try:
            while (claim := self.claim()) is not None:
                trial, lock = claim
                try:
                    self.attempt(trial, progress=notify is not None)
                finally:
                    lock.release()
                Path(lock.lock_file).unlink(missing_ok=True)
                emit_notice(notify, describe_trial(self.publish()[trial.number]))
        finally:
            rows = self.publish(is_end=True)
        return rank_trials(rows)

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        return self.study.get_trials(deepcopy=False)

    def path(self, number: int) -> Path:
        """Return the run folder of a trial."""
        return self.folder / f"trial-{number:04}"

    def claim(self) -> "tuple[optuna.Trial, BaseFileLock] | None":
        """Lock and return an abandoned trial, or else a new one; None if the study has all trials."""
        optuna = _import_optuna()
        from filelock import FileLock, Timeout

        with self.folder_lock:
            for frozen in self._trials():
                if frozen.state.name != "RUNNING":
                    continue
                lock = FileLock(self.path(frozen.number).with_suffix(".lock"))
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    continue  # another process trains it
                if self._trials()[frozen.number].state.name == "RUNNING":
                    # `Trial` expects an id, which equals the number because the journal has only one study.
                    return optuna.Trial(self.study, frozen.number), lock
                lock.release()  # the trial ended after its state was read above
            if len(self._trials()) >= self.options.trials:
                return None
            trial = self.study.ask()
            lock = FileLock(self.path(trial.number).with_suffix(".lock"))
            lock.acquire()
            return trial, lock

    def attempt(self, trial: "optuna.Trial", progress: bool) -> None:
        """Train a trial and report its result to the study; an interrupted trial remains in the state "running"."""
        states = _import_optuna().trial.TrialState
        self.study.sampler = trial_sampler(self.options.sampler, self.config.training.seed, trial.number)
        try:
            is_pruned, result = self._train(trial, progress)
        except Exception as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=states.FAIL)
            if not isinstance(error, UserError):
                raise
            return
        for key, value in result.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial, None if is_pruned else result["perplexity"], states.PRUNED if is_pruned else None)

    def _train(self, trial: "optuna.Trial", progress: bool) -> tuple[bool, Row]:
        """Train the run of a trial; return whether the pruner stopped it early, and its figures."""
        config = search_space.draw(trial, self.options.ranges, self.options.models, self.config)
        corpus, dev_corpus = self.read_texts(config.data.min_context_count)
        folder, is_pruned = self.path(trial.number), False
        resumes = (folder / CHECKPOINT).exists()
        if resumes:
            run = Run.open(folder, trained=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed before its first checkpoint
            run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
        with closing(train(run, corpus, dev_corpus, resume=resumes, progress=progress)) as rows:
            for row in rows:
                if row["split"] == "dev" and self._report_evaluation(trial, row, config):
                    is_pruned = True
                    break
        if is_pruned:
            run.load_weights()  # the best weights, as at the end of a complete training
        write_training_facts(run, corpus, dev_corpus, self.source)
        best = run.best_evaluation()
        if best is None or not is_number(best["perplexity"]):
            raise UserError(f"{folder}: no finite perplexity on the development texts")
        result = {key: best[key] for key in ("perplexity", "perplexity_known")}
        result |= {"minutes": run.training_minutes(), "parameters": run.model.parameter_count()}
        if self.options.target and run.model.is_adapted and not is_pruned:
            accuracy = results.classify_and_save(run, self.dev, self.options.target)[0]["accuracy"]
            result |= {"accuracy": accuracy} if is_number(accuracy) else {}
        return is_pruned, result

    def _report_evaluation(self, trial: "optuna.Trial", row: Row, config: Config) -> bool:
        """Report an evaluation to the study; return whether the pruner stops the trial, if it is not the last one."""
        number = row["step"] * config.training.evaluations // row["steps"]
        if number not in self._trials()[trial.number].intermediate_values:
            trial.report(row["perplexity"], number)
        return row["step"] < row["steps"] and trial.should_prune()

    def rows(self) -> list[Row]:
        """Return a row per trial, in the order of the trials' numbers."""
        names = ("perplexity", "perplexity_known", "accuracy", "parameters", "minutes", "error")
        rows = []
        for frozen in self._trials():
            params, attributes = dict(frozen.params), frozen.user_attrs
            row: Row = {"number": frozen.number, "state": STATE_NAMES[frozen.state.name]}
            row |= {"model": params.pop("model", self.config.model_name), "params": params}
            row["perplexity"] = min(frozen.intermediate_values.values(), default=None)
            row |= {key: attributes[key] for key in names if key in attributes}
            rows.append({**row, "folder": self.path(frozen.number).name})
        return rows

    def publish(self, is_end: bool = False) -> list[Row]:
        """Write trials.jsonl and best.toml; at the end of a search, also compare the trials and write study.html."""
        with self.folder_lock:
            rows = compare_trials(self.rows(), self.folder) if is_end else self.rows()
            files.write_rows(self.folder / "trials.jsonl", rows)
            best = rank_trials(rows)[:1]
            if best and best[0]["state"] == "complete":
                params = self._trials()[best[0]["number"]].params
                config = search_space.with_drawn_options(self.config, params)
                files.write(self.folder / "best.toml", config.to_toml())
            if is_end and self.page is not None:
                ranges = self.options.ranges.items()
                log_scaled = [name for name, values in ranges if isinstance(values, search_space.Range) and values.log]
                title = escape_hidden(self.folder.resolve().name)
                content = self.page(title, rank_trials(rows), self.options.target, log_scaled)
                files.write(self.folder / "study.html", content)
        return rows


def trial_sampler(name: str, seed: int, number: int) -> "optuna.samplers.BaseSampler":
    """Return a sampler whose random numbers follow from the seed of the search and the number of the trial."""
    samplers = _import_optuna().samplers
    kind = {"random": samplers.RandomSampler, "tpe": samplers.TPESampler}[name]
    trial_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    sampler: optuna.samplers.BaseSampler = kind(seed=trial_seed)
    return sampler


def rank_trials(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of complete trials, of pruned trials and of the others, each group sorted by perplexity."""
    order = {"complete": 0, "pruned": 1}

    def key(row: Row) -> tuple[int, float, int]:
        perplexity = math.inf if row["perplexity"] is None else row["perplexity"]
        return order.get(row["state"], len(order)), perplexity, row["number"]

    return sorted(rows, key=key)


def describe_trial(row: Row) -> str:
    """Describe a trial in one line."""
    figures = "" if row["perplexity"] is None else f", perplexity {row['perplexity']:.2f}"
    figures += f", accuracy {row['accuracy']:.4f}" if "accuracy" in row else ""
    figures += f" ({row['error']})" if "error" in row else ""
    drawn = ", ".join(f"{name} {format_option(value)}" for name, value in row["params"].items())
    return f"trial {row['number']} {row['state']}{figures}: {row['model']}, {drawn}"


def compare_trials(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Return the rows with the `gain` of each trial over the best one, and the figures in which the trial is `ahead`.

    Trials are compared on the development texts. A trial without figures of these texts has no gain.
    """
    trained = [row for row in rank_trials(rows) if row["perplexity"] is not None]
    folders = [folder / row["folder"] for row in trained]
    figures = [saved_text_figures(path, training_facts(path).get("development_key")) for path in folders]
    models = [ComparedModel("", [row], [texts]) for row, texts in zip(trained, figures, strict=True)]
    columns = {
        row["number"]: {name: row[name] for name in COMPARISON_COLUMNS if name in row}
        for row in comparison.compare_models(models)
    }
    return [{**row, "ahead": [], **columns.get(row["number"], {})} for row in rows]
