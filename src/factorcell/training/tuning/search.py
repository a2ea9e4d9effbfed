"""Hyperparameter search: the trials of an Optuna study, shared by all processes that search in the same folder.

The run of each trial has its own folder, and the process that trains it holds the lock of the trial. The operating
system releases the lock when the process ends, so another process can resume an interrupted trial. The options of a
trial follow from the seed of the search and the number of the trial, and with the sampler TPE (tree-structured Parzen
estimator) also from the earlier trials. docs/tuning.md describes the files in the folder of a study.
"""

import functools
import json
import math
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.tables import tables
from factorcell.errors import UserError, check_choice
from factorcell.evaluation import comparison, results
from factorcell.evaluation.classification import ACCURACY_REASON, category_variable, require_labels
from factorcell.evaluation.results import Row, development_text_figures
from factorcell.io import files, input_files, lock
from factorcell.io.escapes import escape_hidden
from factorcell.io.extras import missing_package_error
from factorcell.io.findings import LOG
from factorcell.io.finite import format_option, is_number
from factorcell.options import limits
from factorcell.options.choices import PRUNERS, SAMPLERS
from factorcell.runs.run import Run
from factorcell.runs.saved_results import BASELINE_GAIN
from factorcell.runs.training_state import CHECKPOINT
from factorcell.training.fit import (
    completion_streams,
    dev_sample,
    not_resumable_error,
    read_corpora,
    save_other_models,
    write_training_facts,
)
from factorcell.training.loop import train
from factorcell.training.plan import Budget, ConfigLike, config_with_defaults, plan, resumed_plan
from factorcell.training.schedule import TimeLimit
from factorcell.training.tuning import search_space

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock

# (title, rows of trials, target column, options that are drawn on a logarithmic scale) -> content of study.html
PageRenderer = Callable[[str, Sequence[Row], str | None, Collection[str]], str]
CorpusReader = Callable[[int], tuple[Corpus, Corpus]]  # `min_context_count` -> training and development texts

STUDY = "factorcell"  # name of the study in the journal of Optuna
DESCRIPTION = "factorcell"  # attribute of the study that stores the description of the search
STATE_NAMES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Args:
        trials: The number of trials in the whole study.
        models: The names of the models to draw from; if empty, the config determines the model.
        ranges: The options to draw, with their ranges or choices.
        target: A context column whose value is inferred from each development text, to report the accuracy.
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
    page: PageRenderer | None = None,
) -> list[Row]:
    """Train trials until the study in `folder` has the required number; an existing study is continued.

    Args:
        source: The training table.
        dev: The development table; if None, 5 % of the training rows are held out.
        config: A `Config`, or a mapping of some options by section; other options are drawn or chosen from the table.
        folder: The folder of the study.
        options: The options of the search.
        page: A function that returns the content of study.html, which is written when the search ends or is stopped.

    Returns:
        A row per trial, the best first.

    Raises:
        UserError: If Optuna is not installed, an input is not valid, or the study has other tables or options.
    """
    options = options or SearchOptions()
    if options.target and dev is None:
        raise UserError("target: expected a development table to classify, got none (--dev)")
    [trials] = limits.check(trials=options.trials)
    check_choice("sampler", options.sampler, SAMPLERS)
    _import_optuna()
    folder = Path(folder)
    base_config = config_with_defaults(config)
    options = replace(options, trials=trials, ranges=search_space.applicable(options.ranges, base_config))
    search_space.check(options.ranges, base_config)

    @functools.cache
    def read_texts(min_context_count: int) -> tuple[Corpus, Corpus]:
        config_for_count = search_space.with_drawn_options(base_config, {"min_context_count": min_context_count})
        return read_corpora(source, dev, config_for_count)

    corpus, dev_corpus = read_texts(base_config.data.min_context_count)
    if options.target:
        variable = category_variable(corpus.schema, options.target)
        _, *frequent_values = variable.values  # the first is the unknown value
        require_labels(dev, variable, frequent_values, base_config.data, ACCURACY_REASON)
    study, folder_lock = open_study(folder, options.pruner)
    if (saved_description := study.user_attrs.get(DESCRIPTION)) is None:
        complete_config = plan(config, corpus, dev_corpus, options.budget).config
    else:
        complete_config = resumed_plan(config, _saved_config(saved_description)).config
    description = {
        "texts": len(corpus),
        "targets": corpus.target_count,
        "source": tables.table_name(source),
        "dev": None if dev is None else tables.table_name(dev),
        **_describe_options(complete_config, options),
    }
    with folder_lock:
        _save_or_check_description(study, folder, description)
    return Search(study, folder_lock, read_texts, source, dev, complete_config, folder, options, page).run()


def _describe_options(config: Config, options: SearchOptions) -> Row:
    """Return the part of the description of a study that follows from its options."""
    description: Row = {"target": options.target, "models": list(options.models) or [config.model_name]}
    for section, values in config.to_dict().items():
        description |= {f"{section}.{name}": value for name, value in values.items()}
    for name, choices in options.ranges.items():
        description[f"range of {name}"] = vars(choices) if isinstance(choices, search_space.Range) else choices
    return description


def _saved_config(description: Row) -> Config:
    """Return the config in the description of a study."""
    sections: dict[str, Row] = {section: {} for section in Config().to_dict()}
    for key, value in description.items():
        section, _, name = key.partition(".")
        if section in sections:
            sections[section][name] = value
    return Config.from_dict(sections)


def _import_optuna() -> Any:
    try:
        import filelock  # noqa: F401
        import optuna
    except ImportError as error:
        raise missing_package_error("a search for options", error.name, "tune") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(folder: Path, pruner: str) -> "tuple[optuna.Study, BaseFileLock]":
    """Open or create the study in a folder; return the study and the lock of the folder."""
    optuna = _import_optuna()
    from filelock import FileLock

    pruners, journal = optuna.pruners, optuna.storages.journal
    study_pruner = pruners.NopPruner() if check_choice("pruner", pruner, PRUNERS) == "none" else pruners.MedianPruner()
    path = folder / "study.journal"
    if path.exists():
        input_files.check(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder_lock = FileLock(folder / "study.lock")
        with folder_lock:
            backend = journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
            storage = optuna.storages.JournalStorage(backend)
            study = optuna.create_study(storage=storage, study_name=STUDY, pruner=study_pruner, load_if_exists=True)
    except (OSError, ValueError) as error:
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path}: the study cannot be opened ({reason})") from None
    return study, folder_lock


def _save_or_check_description(study: "optuna.Study", folder: Path, description: Row) -> None:
    """Save `description` in a new study; raise a `UserError` if an existing study has another description."""
    description = json.loads(json.dumps(description))  # with lists instead of tuples, as in the journal
    saved = study.user_attrs.get(DESCRIPTION, description)
    for key in saved | description:
        if key != "training.threads" and saved.get(key) != description.get(key):
            raise not_resumable_error(folder, key, saved.get(key), description.get(key))
    study.set_user_attr(DESCRIPTION, description)


@dataclass
class Search:
    """A study, with the texts and options for training its trials."""

    study: "optuna.Study"
    folder_lock: "BaseFileLock"
    read_texts: CorpusReader
    source: Any
    dev: Any
    config: Config
    folder: Path
    options: SearchOptions
    page: PageRenderer | None = None

    def run(self) -> list[Row]:
        """Train until the study has all trials; return a row per trial, the best first."""
        try:
            while (claim := self.claim()) is not None:
                trial, lock = claim
                try:
                    self.attempt(trial)
                finally:
                    lock.release()
                Path(lock.lock_file).unlink(missing_ok=True)
                rows = self.publish()
                LOG.info("%s", describe_trial(rows[trial.number]))
        finally:
            rows = self.publish(is_end=True)
        return rank_trials(rows)

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        return self.study.get_trials(deepcopy=False)

    def run_folder(self, number: int) -> Path:
        """Return the run folder of a trial."""
        return self.folder / f"trial-{number:04}"

    def claim(self) -> "tuple[optuna.Trial, BaseFileLock] | None":
        """Lock and return a running trial whose process ended, or else a new one; None if the study has all trials."""
        optuna = _import_optuna()
        from filelock import FileLock, Timeout

        with self.folder_lock:
            for existing in self._trials():
                if existing.state.name != "RUNNING":
                    continue
                lock = FileLock(self.run_folder(existing.number).with_suffix(".lock"))
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    continue  # another process trains this trial
                if self._trials()[existing.number].state.name == "RUNNING":
                    # `Trial` expects an id, which equals the number because the journal has only one study.
                    return optuna.Trial(self.study, existing.number), lock
                lock.release()  # the trial ended after its state was read above
            if len(self._trials()) >= self.options.trials:
                return None
            trial = self.study.ask()
            lock = FileLock(self.run_folder(trial.number).with_suffix(".lock"))
            lock.acquire()
            return trial, lock

    def attempt(self, trial: "optuna.Trial") -> None:
        """Train a trial and report its result to the study; an interrupted trial remains in the state "running"."""
        trial_states = _import_optuna().trial.TrialState
        self.study.sampler = trial_sampler(self.options.sampler, self.config.training.seed, trial.number)
        try:
            is_pruned, result = self._train(trial)
        except Exception as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=trial_states.FAIL)
            if not isinstance(error, UserError):
                raise
            return
        for key, value in result.items():
            trial.set_user_attr(key, value)
        if is_pruned:
            self.study.tell(trial, state=trial_states.PRUNED)
        else:
            self.study.tell(trial, result["perplexity"])

    def _train(self, trial: "optuna.Trial") -> tuple[bool, Row]:
        """Train the run of a trial; return whether the pruner stopped it early, and the figures of the run."""
        config = search_space.draw(trial, self.options.ranges, self.options.models, self.config)
        corpus, dev_corpus = self.read_texts(config.data.min_context_count)
        folder = self.run_folder(trial.number)
        has_checkpoint = (folder / CHECKPOINT).exists()
        if has_checkpoint:
            run = Run.open(folder, trained=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed before its first checkpoint
            run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
        is_pruned = False
        limit = TimeLimit.of_command((self.options.budget or Budget()).minutes, perf_counter())
        dev_corpus = dev_sample(dev_corpus, run.config)
        log_rows = train(run, corpus, dev_corpus, resume=has_checkpoint, limit=limit)
        with lock.training_lock(folder), closing(log_rows):
            for row in log_rows:
                if row["split"] == "dev" and self._report_evaluation(trial, row, config):
                    is_pruned = True
                    break
        if is_pruned:
            run.load_weights()  # the best weights, as at the end of a complete training
        streams = completion_streams(run, self.source, self.dev, dev_corpus)
        facts = save_other_models(run, corpus, dev_corpus, streams)
        write_training_facts(run, corpus, dev_corpus, self.source, facts)
        best = run.best_evaluation()
        if best is None or not is_number(best["perplexity"]):
            raise UserError(f"{folder}: no finite perplexity on the development texts")
        result = {key: best[key] for key in ("perplexity", "perplexity_known")}
        result |= {"minutes": run.training_minutes(), "parameters": run.model.parameter_count()}
        if self.options.target and run.model.is_adapted and not is_pruned:
            scores, _ = results.classify_and_save(run, self.dev, self.options.target)
            if is_number(scores["accuracy"]):
                result["accuracy"] = scores["accuracy"]
        return is_pruned, result

    def _report_evaluation(self, trial: "optuna.Trial", row: Row, config: Config) -> bool:
        """Report an evaluation to the study; return whether the pruner stops the trial before its last step."""
        evaluation_number = row["step"] * config.training.evaluations // row["steps"]
        if evaluation_number not in self._trials()[trial.number].intermediate_values:
            trial.report(row["perplexity"], evaluation_number)
        return row["step"] < row["steps"] and trial.should_prune()

    def rows(self) -> list[Row]:
        """Return a row per trial, in the order of the trials' numbers."""
        result_names = ("perplexity", "perplexity_known", "accuracy", "parameters", "minutes", "error")
        rows = []
        for trial in self._trials():
            params, attributes = dict(trial.params), trial.user_attrs
            row: Row = {"number": trial.number, "state": STATE_NAMES[trial.state.name]}
            row |= {"model": params.pop("model", self.config.model_name), "params": params}
            row["perplexity"] = min(trial.intermediate_values.values(), default=None)
            row |= {name: attributes[name] for name in result_names if name in attributes}
            rows.append({**row, "folder": self.run_folder(trial.number).name})
        return rows

    def publish(self, is_end: bool = False) -> list[Row]:
        """Write trials.jsonl and best.toml; at the end, compare the trials and write study.html. Return the rows."""
        with self.folder_lock:
            rows = compare_trials(self.rows(), self.folder) if is_end else self.rows()
            files.write_rows(self.folder / "trials.jsonl", rows)
            ranked = rank_trials(rows)
            if ranked and ranked[0]["state"] == "complete":
                best_trial = self._trials()[ranked[0]["number"]]
                config = search_space.with_drawn_options(self.config, best_trial.params)
                files.write(self.folder / "best.toml", config.to_toml())
            if is_end and self.page is not None:
                ranges = self.options.ranges.items()
                log_scaled = [name for name, values in ranges if isinstance(values, search_space.Range) and values.log]
                title = escape_hidden(self.folder.resolve().name)
                content = self.page(title, ranked, self.options.target, log_scaled)
                files.write(self.folder / "study.html", content)
        return rows


def trial_sampler(name: str, seed: int, number: int) -> "optuna.samplers.BaseSampler":
    """Return a sampler whose random numbers follow from the seed of the search and the number of the trial."""
    samplers = _import_optuna().samplers
    sampler_class = {"random": samplers.RandomSampler, "tpe": samplers.TPESampler}[name]
    [trial_seed] = np.random.SeedSequence((seed, number)).generate_state(1).tolist()
    sampler: optuna.samplers.BaseSampler = sampler_class(seed=trial_seed)
    return sampler


def rank_trials(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of complete trials, of pruned trials and of the others, each group sorted by perplexity."""
    state_ranks = {"complete": 0, "pruned": 1}

    def sort_key(row: Row) -> tuple[int, float, int]:
        perplexity = math.inf if row["perplexity"] is None else row["perplexity"]
        return state_ranks.get(row["state"], len(state_ranks)), perplexity, row["number"]

    return sorted(rows, key=sort_key)


def describe_trial(row: Row) -> str:
    """Describe a trial in one line."""
    result = "" if row["perplexity"] is None else f", perplexity {row['perplexity']:.2f}"
    result += f", accuracy {row['accuracy']:.4f}" if "accuracy" in row else ""
    result += f" ({row['error']})" if "error" in row else ""
    drawn_options = ", ".join(f"{name} {format_option(value)}" for name, value in row["params"].items())
    return f"trial {row['number']} {row['state']}{result}: {row['model']}, {drawn_options}"


def compare_trials(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Return `rows` with comparisons of the trials on the development texts.

    Each row gets the gain of its trial over the best trial, `gain_over_best`, unless the trial has no figures of these
    texts, and a list `ahead` of the figures in which the trial is significantly better than all others.
    """
    trained_rows = [row for row in rank_trials(rows) if row["perplexity"] is not None]
    models = []
    for row in trained_rows:
        figures = development_text_figures(folder / row["folder"])
        models.append(comparison.ComparedModel("", [row], [figures]))
    keys = {f"{BASELINE_GAIN}{end}": f"gain_over_best{end}" for end in ("", "_low", "_high")} | {"ahead": "ahead"}
    columns_by_trial: dict[int, Row] = {
        row["number"]: {new: row[name] for name, new in keys.items() if name in row}
        for row in comparison.compare_models(models)
    }
    return [{**row, "ahead": [], **columns_by_trial.get(row["number"], {})} for row in rows]
