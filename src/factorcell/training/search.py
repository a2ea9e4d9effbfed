"""Hyper-parameter search: trials of one study, shared by as many processes as are started on it.

Every trial is a run folder. A process holds the lock of the trial that it trains; the kernel drops the lock with the
process, so a running trial whose lock is free was abandoned, and whoever finds it resumes from its checkpoint. What a
trial draws follows from (seed, its number) alone: no two processes draw alike, and any number of them draw the same.

study.journal   study.json   trials.jsonl   best.toml   study.html   trial-0000/   trial-0001/   ...
"""

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorcell import files, inputs, limits
from factorcell.choices import PRUNERS, SAMPLERS
from factorcell.config import Config, UserError, choose
from factorcell.data import tables
from factorcell.data.corpus import Corpus
from factorcell.evaluation import results
from factorcell.evaluation.classification import ACCURACY, category, must_tell
from factorcell.evaluation.results import Row
from factorcell.finite import is_number
from factorcell.model.run import CHECKPOINT, Run
from factorcell.progress import progress_bar
from factorcell.training import search_space, trials
from factorcell.training.fit import Say, finish, read
from factorcell.training.loop import watched
from factorcell.training.plan import Asked, Budget, plan, resumed, said_config
from factorcell.training.trials import ranked, told
from factorcell.visible import visible

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock

# The content of study.html from the name of the study, rows of trials, the target, and the options drawn by ratio.
Page = Callable[[str, Sequence[Row], str | None, Collection[str]], str]

BEGUN = "factorcell"  # the attribute of a study that says what it searches
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass(frozen=True)
class SearchOptions:
    """What a search does: how many `trials` in all, which draw from `models`, if any, and `ranges`, and how.

    `target` names the context column to classify in the development table. `storage`: a database's URL or a journal's
    path. `study`: its name, by default that of the folder. `budget`: of each trial.
    """

    trials: int = 50
    models: Sequence[str] = ()
    ranges: search_space.Space = field(default_factory=lambda: search_space.DEFAULT)
    target: str | None = None
    sampler: str = "random"
    pruner: str = "median"
    storage: str | None = None
    study: str | None = None
    budget: Budget | None = None


def search(
    source: Any,
    dev: Any,
    asked: Asked,
    folder: str | Path,
    options: SearchOptions | None = None,
    *,
    say: Say | None = None,
    page: Page | None = None,
) -> list[Row]:
    """Train trials in `folder` until their study has all of them; its rows, the best first. Begun searches resume.

    What is neither searched nor `asked` follows from the table, as `fit` has it.
    `page` makes the content of study.html, which is written when the search ends or is stopped.
    """
    options = options or SearchOptions()
    count, target = options.trials, options.target
    if target and dev is None:
        raise UserError("texts are classified in a development table: give --dev with --target")
    limits.check(trials=count)
    choose("sampler", options.sampler, SAMPLERS)
    _optuna()
    folder = Path(folder)
    config = said_config(asked)
    search_space.check(options.ranges, config)
    texts = SearchTexts(source, dev, config, progress=say is not None)
    corpus, held = texts.counted(config.data.min_context_count)
    if target:
        variable = category(corpus.schema, target)
        must_tell(dev, variable, variable.values[1:], config.data, ACCURACY)
    name = options.study or visible(folder.resolve().name)
    if not name.isprintable():  # half of a surrogate pair neither
        raise UserError(f"the study is named {name!r:.60}; a name has no control characters and is valid Unicode")
    study, guard = opened(folder, options.storage, name, options.pruner)
    config = _settled(asked, study.user_attrs.get(BEGUN), corpus, held, options.budget)
    begun = {
        "study": name,
        "texts": len(corpus),
        "targets": corpus.targets,
        "source": tables.name_of(source),
        "dev": None if dev is None else tables.name_of(dev),
        "target": target,
        "models": list(options.models) or [config.model_name],
        **{f"{part}.{key}": value for part, values in config.to_dict().items() for key, value in values.items()},
        **{f"range of {key}": vars(v) if isinstance(v, search_space.Range) else v for key, v in options.ranges.items()},
    }
    with guard:
        _same(study, folder, begun)
    return Search(study, guard, texts, config, folder, options, page).go(say)


def _optuna() -> Any:
    """The library of the search, which not everybody has."""
    try:
        import filelock  # noqa: F401
        import optuna
    except ImportError:
        raise UserError("a search needs Optuna, which is not installed: pip install 'factorcell[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def opened(folder: Path, storage: str | None, name: str, pruner: str) -> "tuple[optuna.Study, BaseFileLock]":
    """The study, made where there is none, and the lock of `folder`. `UserError` on a storage that cannot be read."""
    optuna = _optuna()
    from filelock import FileLock
    from sqlalchemy.exc import SQLAlchemyError

    pruners = optuna.pruners
    kinds = {"median": pruners.MedianPruner, "halving": pruners.SuccessiveHalvingPruner, "none": pruners.NopPruner}
    chosen = kinds[choose("pruner", pruner, PRUNERS)]()
    where = storage or str(folder / "study.journal")
    if "://" not in where and Path(where).exists():
        inputs.check(Path(where))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        guard = FileLock(folder / "study.lock")
        with guard:
            if "://" in where:
                kept = optuna.storages.RDBStorage(where)
            else:
                journal = optuna.storages.journal
                lock = journal.JournalFileOpenLock(where)
                kept = optuna.storages.JournalStorage(journal.JournalFileBackend(where, lock))
            study = optuna.create_study(storage=kept, study_name=name, pruner=chosen, load_if_exists=True)
    except (OSError, ValueError, ImportError, SQLAlchemyError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{where}: the study cannot be opened ({reason[0]})") from None
    return study, guard


def _settled(asked: Asked, begun: Row | None, corpus: Corpus, held: Corpus, budget: Budget | None) -> Config:
    """The options of all trials that are not searched: those that the study was begun with, else those of a plan."""
    if begun is None:
        return plan(asked, corpus, held, budget).config
    kept = {part: {key: begun[f"{part}.{key}"] for key in values} for part, values in Config().to_dict().items()}
    return resumed(asked, Config.from_dict(kept)).config


def _same(study: "optuna.Study", folder: Path, begun: Row) -> None:
    """Refuse to resume with other texts, options or ranges than those that study and folder were begun with."""
    path, begun = folder / "study.json", json.loads(json.dumps(begun))
    known = {f"study {study.study_name}": study.user_attrs.get(BEGUN)}
    known[str(folder)] = files.read_json(path) if path.exists() else None
    for where, old in known.items():
        if old is None:
            continue
        for key in old | begun:
            if key != "training.threads" and old.get(key) != begun.get(key):
                raise UserError(
                    f"{where} was begun with {key} = {old.get(key)!r}, not {begun.get(key)!r}; "
                    "choose another --out, and another --study in a shared storage"
                )
    study.set_user_attr(BEGUN, begun)
    files.write_json(path, begun)


class SearchTexts:
    """Training and development texts, read once for each minimum count of a context value."""

    def __init__(self, source: Any, dev: Any, config: Config, progress: bool) -> None:
        self.source, self.dev, self.config, self.progress = source, dev, config, progress
        self.read: dict[int, tuple[Corpus, Corpus]] = {}

    def counted(self, least: int) -> tuple[Corpus, Corpus]:
        """Both corpora, values of fewer than `least` texts grouped."""
        if least not in self.read:
            config = search_space.configured(self.config, {"min_context_count": least})
            self.read[least] = read(self.source, self.dev, config, progress=self.progress)
        return self.read[least]


class Search:
    """A study and what its trials are made of."""

    def __init__(
        self,
        study: "optuna.Study",
        guard: "BaseFileLock",
        texts: SearchTexts,
        config: Config,
        folder: Path,
        options: SearchOptions,
        page: Page | None,
    ) -> None:
        self.study, self.guard, self.texts, self.config, self.folder = study, guard, texts, config, folder
        self.options, self.page = options, page

    def go(self, say: Say | None) -> list[Row]:
        """Train until the study has all trials; then, or when stopped, write the page. Rows, the best first."""
        count = self.options.trials
        with progress_bar(desc="trials", total=count, unit="trials", show=say is not None) as bar:
            try:
                while (claimed := self.claim(count)) is not None:
                    trial, lock = claimed
                    self._show(bar)
                    try:
                        self.attempt(trial, progress=say is not None)
                    finally:
                        lock.release()
                    Path(lock.lock_file).unlink(missing_ok=True)
                    rows = self.publish()
                    if say is not None:
                        with bar.external_write_mode():
                            say(told(rows[trial.number]))
                self._show(bar)
            finally:
                rows = self.publish(ended=True)
        return ranked(rows)

    def _show(self, bar: Any) -> None:
        """The bar says how many trials have ended, and the best of them."""
        rows = self.rows()
        bar.update(sum(row["state"] not in ("running", "waiting") for row in rows) - bar.n)
        if (best := ranked(rows)[:1]) and best[0]["state"] == "complete":
            bar.set_postfix_str(f"best {best[0]['perplexity']:.2f} (trial {best[0]['number']})")

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        """All trials of the study as they stand now, by number."""
        return self.study.get_trials(deepcopy=False)

    def path(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.folder / f"trial-{number:04}"

    def claim(self, count: int) -> "tuple[optuna.Trial, BaseFileLock] | None":
        """A trial to train, locked: one abandoned in this folder, else a new one; None if there are `count`."""
        optuna = _optuna()
        from filelock import FileLock, Timeout

        with self.guard:
            for frozen in self._trials():
                if frozen.state.name != "RUNNING" or not self.path(frozen.number).exists():
                    continue  # it has ended, or belongs to another folder
                lock = FileLock(self.path(frozen.number).with_suffix(".lock"))
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    continue  # another process is training it
                if self._trials()[frozen.number].state.name == "RUNNING":
                    return optuna.Trial(self.study, frozen._trial_id), lock
                lock.release()  # it ended between the two looks
            if len(self._trials()) >= count:
                return None
            trial = self.study.ask()
            self.path(trial.number).mkdir(exist_ok=True)
            lock = FileLock(self.path(trial.number).with_suffix(".lock"))
            lock.acquire()
            return trial, lock

    def attempt(self, trial: "optuna.Trial", progress: bool) -> None:
        """Train one trial and report to the study how it ended; when interrupted it stays as it is, to be resumed."""
        states = _optuna().trial.TrialState
        self.study.sampler = sampler(self.options.sampler, self.config.training.seed, trial.number)
        try:
            pruned, result = self.trained(trial, progress)
        except Exception as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=states.FAIL)
            if not isinstance(error, UserError):
                raise
            return
        for key, value in result.items():
            trial.set_user_attr(key, value)
        if pruned:
            self.study.tell(trial, state=states.PRUNED)
        else:
            self.study.tell(trial, result["perplexity"])

    def trained(self, trial: "optuna.Trial", progress: bool) -> tuple[bool, Row]:
        """Train the run of `trial`, from its checkpoint if there is one: whether it was pruned, and its figures."""
        config = search_space.draw(trial, self.options.ranges, self.options.models, self.config)
        corpus, held = self.texts.counted(config.data.min_context_count)
        folder, pruned = self.path(trial.number), False
        going_on = (folder / CHECKPOINT).exists()
        if going_on:
            run = Run.open(folder, trained=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # what a process left that was killed before the first checkpoint
            run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
        with closing(watched(run, corpus, held, resume=going_on, progress=progress)) as rows:
            for row in rows:
                if row["split"] == "dev" and self._hopeless(trial, row, config):
                    pruned = True
                    break
        if pruned:
            run.load_weights()  # the best ones, with which a training ends that comes to its end
        finish(run, corpus, held, self.texts.source)
        best = run.best()
        if best is None or not is_number(best["perplexity"]):
            raise UserError(f"{folder}: no finite perplexity on the development texts")
        result = {key: best[key] for key in ("perplexity", "perplexity_known")}
        result |= {"minutes": run.minutes(), "parameters": run.model.parameter_count()}
        if self.options.target and run.model.adapted and not pruned:
            accuracy = results.told_apart(run, self.texts.dev, self.options.target)[0]["accuracy"]
            result |= {"accuracy": accuracy} if is_number(accuracy) else {}
        return pruned, result

    def _hopeless(self, trial: "optuna.Trial", row: Row, config: Config) -> bool:
        """Report an evaluation by its number, which all trials share, and ask the pruner, but for the last one."""
        number = row["step"] * config.training.evaluations // row["steps"]
        if number not in self._trials()[trial.number].intermediate_values:
            trial.report(row["perplexity"], number)
        return row["step"] < row["steps"] and trial.should_prune()

    def rows(self) -> list[Row]:
        """One row a trial, by number."""
        made = []
        for frozen in self._trials():
            params, kept = dict(frozen.params), frozen.user_attrs
            row: Row = {"number": frozen.number, "state": STATES[frozen.state.name]}
            row["model"] = params.pop("model", self.config.model_name)
            row |= {"params": params, "perplexity": min(frozen.intermediate_values.values(), default=None)}
            row |= {
                key: kept[key]
                for key in ("perplexity", "perplexity_known", "accuracy", "parameters", "minutes", "error")
                if key in kept
            }
            path = self.path(frozen.number)
            made.append({**row, "folder": path.name if path.exists() else None})  # None: in another folder
        return made

    def publish(self, ended: bool = False) -> list[Row]:
        """Write trials.jsonl and best.toml; the rows. Once the search has `ended`, compared, and study.html too."""
        with self.guard:
            rows = trials.compared(self.rows(), self.path) if ended else self.rows()
            files.write_rows(self.folder / "trials.jsonl", rows)
            best = ranked(rows)[:1]
            if best and best[0]["state"] == "complete":
                params = self._trials()[best[0]["number"]].params
                config = search_space.configured(self.config, params)
                files.write(self.folder / "best.toml", config.to_toml())
            if ended and self.page is not None:
                ranges = self.options.ranges.items()
                logs = [name for name, values in ranges if isinstance(values, search_space.Range) and values.log]
                content = self.page(self.study.study_name, ranked(rows), self.options.target, logs)
                files.write(self.folder / "study.html", content)
        return rows


def sampler(name: str, seed: int, number: int) -> "optuna.samplers.BaseSampler":
    """The sampler of one trial: its draws follow from the seed, the number and, for TPE, the trials before."""
    samplers = _optuna().samplers
    kind = {"random": samplers.RandomSampler, "tpe": samplers.TPESampler}[name]
    own: optuna.samplers.BaseSampler = kind(seed=int(np.random.SeedSequence((seed, number)).generate_state(1)[0]))
    return own
