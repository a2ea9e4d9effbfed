"""The completion systems that a replay compares, by name.

mpc        most popular completion: the training texts that begin with the prefix, the most frequent first
history    the earlier texts of the user; newer texts have larger weights
plain      a run without online learning, for the unknown user
online     a run that learns the vector of each user, text by text
blend      the run that is named before it, blended with popular texts and the history of the user

In a folder of several runs, the name of each run is also the name of a system. This system learns users online if the
run distinguishes users.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from factorcell import input_files
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, distinguishes_users
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay.streams import System
from factorcell.completion.search import Suggestion
from factorcell.config import Config, UserError, choose
from factorcell.data.counts import POPULARITY
from factorcell.data.schema import ContextSchema
from factorcell.folders import not_a_run_error
from factorcell.model.adapters import weight_adapters
from factorcell.model.run import Run, read_config

Row = Mapping[str, Any]


class MostPopular(System):
    """Completion by popular training texts, which is the same for all users."""

    def __init__(self, popularity: Popularity) -> None:
        self.popularity = popularity

    def suggest(self, state: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        return self.popularity.complete(prefix, k)


class UserHistory(System):
    """Completion by the earlier texts of the user; `text_column` is the column of the texts."""

    def __init__(self, text_column: str) -> None:
        self.text_column = text_column

    def start(self, user: str) -> History:
        return History()

    def suggest(self, state: History, prefix: str, row: Row, k: int) -> list[Suggestion]:
        return state.complete(prefix, k)

    def learn(self, state: History, row: Row) -> History:
        return state.add(row[self.text_column])


class Unpersonalised(System):
    """Completion by a run without online learning, which reads all context columns of a row except `user_column`."""

    def __init__(self, completer: Completer, user_column: str) -> None:
        self.completer, run = completer, completer.run
        self.text_column, self.columns = run.config.data.text, run.schema.columns(without=user_column)

    def suggest(self, state: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        if not self.completer.fits(prefix):
            return []
        return self.completer.complete(prefix, None, {name: row[name] for name in self.columns}, k)

    def nats(self, state: None, row: Row) -> tuple[float, int]:
        run, context = self.completer.run, {name: row[name] for name in self.columns}
        corpus = run.read([row[self.text_column]], [context], unknown=self.completer.unknown)
        return float(run.nats(corpus).sum(dtype="float64")), corpus.target_count


class Personalised(System):
    """Completion by a run with online learning.

    Args:
        run: The run.
        suggester: The completer or blend of the run.
        learns: Whether to learn users; if False, every user stays the unknown user.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
    """

    def __init__(self, run: Run, suggester: Completer | Blend, learns: bool = True, unknown: str = "error") -> None:
        self.suggester, self.learns = suggester, learns
        self.text_column, self.learner = run.config.data.text, Learner(run, unknown=unknown)
        self.columns = self.learner.columns

    def start(self, user: str) -> User:
        return self.learner.new()

    def suggest(self, state: User, prefix: str, row: Row, k: int) -> list[Suggestion]:
        if not self.suggester.fits(prefix):
            return []
        return self.suggester.complete(prefix, state, {name: row[name] for name in self.columns}, k)

    def nats(self, state: User, row: Row) -> tuple[float, int]:
        texts, contexts = [row[self.text_column]], [{name: row[name] for name in self.columns}]
        nats = self.learner.nats(state.vector[None], texts, contexts)
        corpus = self.learner.run.read(texts, contexts, unknown=self.learner.unknown_policy)
        return float(nats[0]), corpus.target_count

    def learn(self, state: User, row: Row) -> User:
        if not self.learns:
            return state
        context = {name: row[name] for name in self.columns}
        (learned,), _ = self.learner.learn([state], [row[self.text_column]], [context])
        return learned


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the run folder of each system that is a run; `folder` is a run folder or a folder of runs."""
    if (folder / "config.json").is_file():
        return {"plain": folder, "online": folder}
    folders = {path.parent.name: path.parent for path in input_files.list_visible(folder, "*/config.json")}
    if not folders:
        raise not_a_run_error(folder, "a run folder or a folder of runs")
    return folders


def available_systems(folder: Path) -> list[str]:
    """Return the names of all systems that `folder` allows, its first run first; `blend` uses its last run."""
    folders = run_folders(folder)
    has_users = {path: _distinguishes_users(read_config(path)) for path in folders.values()}
    has_popularity = {path for path in folders.values() if (path / POPULARITY).exists()}
    first, *others = [name for name, path in folders.items() if name != "online" or has_users[path]]
    last = list(folders.values())[-1]
    blended = ["blend"] if last in has_popularity and has_users[last] else []
    return [first, *(["mpc"] if has_popularity else []), "history", *others, *blended]


def _distinguishes_users(config: Config) -> bool:
    """Return whether a run with this config distinguishes users, without opening the run."""
    return bool(config.data.user and (weight_adapters(config.model) or config.model.output_bias))


def find_config_and_columns(folder: Path, names: Sequence[str], user_column: str) -> tuple[Config, list[str]]:
    """Return the config with which the systems `names` read texts, and the context columns that they read.

    Args:
        folder: A run folder or a folder of runs.
        names: Names of systems. If no system is a run, the config is that of the first run of the folder.
        user_column: The column of users, which is not among the returned columns.

    Raises:
        UserError: The runs have different text columns or lower-casing.
    """
    folders = run_folders(folder)
    selected = _selected_runs(folders, names)
    configs: dict[tuple[str, bool], tuple[str, Config]] = {}
    columns: list[str] = []
    for name, path in (selected or dict(list(folders.items())[:1])).items():
        config = read_config(path)
        configs.setdefault((config.data.text, config.tokenizer.lowercase), (name, config))
        columns += ContextSchema.load(path / "schema.json").columns(without=user_column) if selected else []
    if len(configs) > 1:
        (first, _), (second, _), *_ = configs.values()
        raise UserError(
            f"{folder}: {first} and {second} have different text columns or lower-casing; replay them separately"
        )
    (_, config), *_ = configs.values()
    return config, list(dict.fromkeys(columns))


def user_and_time_columns(folder: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the user and time columns of the trainings of the systems `names`; "" for a column that none has."""
    folders = run_folders(folder)
    selected = _selected_runs(folders, names) or dict(list(folders.items())[:1])
    data = [read_config(path).data for path in selected.values()]
    user_column = next((options.user for options in data if options.user), "")
    return user_column, next((options.time for options in data if options.time), "")


def open_systems(
    folder: Path,
    names: Sequence[str],
    *,
    user_column: str = "user",
    unknown: str = "error",
    seconds: float | None = None,
    device: str = "cpu",
    precision: str = "float32",
) -> dict[str, System]:
    """Open the runs of the systems `names` and return the systems by name.

    Args:
        folder: A run folder or a folder of runs.
        names: Names of systems.
        user_column: The column of users.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
        seconds: Time limit of each search.
        device: The device of the runs, as in `Run.open`.
        precision: The precision of the runs, as in `Run.open`. With `auto`, the precision chosen for the first run is
            used for all runs.

    Raises:
        UserError: A name is unknown, or a system needs popular texts that its run does not have.
    """
    folders, systems = run_folders(folder), dict[str, System]()
    selected = _selected_runs(folders, names)

    @cache
    def open_completer(path: Path) -> Completer:
        nonlocal precision
        run = Run.open(path, device=device, precision=precision)
        precision = run.precision  # all other runs use the precision that `auto` has chosen for the first
        return Completer(run, unknown=unknown, seconds=seconds)

    for name in names:
        choose("system", name, ("mpc", "history", "blend", *folders))
        if name == "mpc":
            paths = list(folders.values())
            path = next((path for path in paths if (path / POPULARITY).exists()), paths[0])
            systems[name] = MostPopular(Popularity.load(path))
            continue
        if name == "history":
            systems[name] = UserHistory(find_config_and_columns(folder, names, user_column)[0].data.text)
            continue
        completer = open_completer(selected[name])
        run = completer.run
        if name == "blend":
            systems[name] = Personalised(run, Blend(completer, Popularity.from_run(run)), unknown=unknown)
        elif distinguishes_users(run):
            systems[name] = Personalised(run, completer, name != "plain", unknown)
        else:
            systems[name] = Unpersonalised(completer, user_column)
    return systems


def _selected_runs(folders: Mapping[str, Path], names: Sequence[str]) -> dict[str, Path]:
    """Return the run folder of each system of `names` that has one; `blend` uses the run named before it."""
    selected, latest = dict[str, Path](), list(folders.values())[-1]
    for name in names:
        latest = folders.get(name, latest)
        if name in folders or name == "blend":
            selected[name] = latest
    return selected
