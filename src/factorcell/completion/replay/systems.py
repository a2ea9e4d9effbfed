"""The completion systems that a replay compares, by name.

mpc        most popular completion: the popular texts of the run that begin with the prefix, the most frequent first
history    the earlier texts of the user; newer texts have larger weights
plain      a run without online learning, for the unknown user
online     a run that learns the vector of each user, text by text
blend      a run blended with popular texts and the history of the user

In a list of names, `blend` uses the run that is named before it. In a folder of several runs, the name of each run is
also the name of a system. This system learns users online if the run distinguishes users. An item NAME=FOLDER of the
list adds a run of another folder as a system; `blend` never uses this run.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from factorcell.adapters.adapters import weight_adapters
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, distinguishes_users
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay.streams import System
from factorcell.completion.suggestions import Suggestion
from factorcell.config import Config
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.counts import POPULARITY
from factorcell.errors import UserError, check_choice
from factorcell.io import input_files
from factorcell.io.input_files import not_a_run_error
from factorcell.runs.run import Run, read_config

Row = Mapping[str, Any]


class MostPopular(System):
    """Completion by popular training texts, without regard to the user."""

    def __init__(self, popularity: Popularity) -> None:
        self.popularity = popularity

    def suggest(self, state: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        return self.popularity.complete(prefix, k)


class UserHistory(System):
    """Completion by the earlier texts of the user.

    Args:
        text_column: The column of the texts.
    """

    def __init__(self, text_column: str) -> None:
        self.text_column = text_column

    def start(self, user: str) -> History:
        return History()

    def suggest(self, state: History, prefix: str, row: Row, k: int) -> list[Suggestion]:
        return state.complete(prefix, k)

    def learn(self, state: History, row: Row) -> History:
        return state.add(row[self.text_column])


class Unpersonalised(System):
    """Completion by a run without online learning.

    Args:
        completer: The completer of the run.
        user_column: The column of users; all other context columns of the run are read.
    """

    def __init__(self, completer: Completer, user_column: str) -> None:
        self.completer, run = completer, completer.run
        self.text_column, self.columns = run.config.data.text, run.schema.columns(without=user_column)

    def suggest(self, state: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        if not self.completer.fits(prefix):
            return []
        context = {name: row[name] for name in self.columns}
        return self.completer.complete(prefix, context=context, k=k)

    def nats(self, state: None, row: Row) -> tuple[float, int]:
        run, context = self.completer.run, {name: row[name] for name in self.columns}
        corpus = run.read([row[self.text_column]], [context], unknown=self.completer.unknown)
        return float(run.nats(corpus).sum(dtype="float64")), corpus.target_count


class Personalised(System):
    """Completion by a run with online learning.

    Args:
        run: The run.
        suggester: The completer or blend of the run.
        learns: Whether to learn users; if False, the vector of every user stays that of the unknown user.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
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
        context = {name: row[name] for name in self.columns}
        return self.suggester.complete(prefix, state, context, k)

    def nats(self, state: User, row: Row) -> tuple[float, int] | None:
        if isinstance(self.suggester, Blend):
            return None  # a blend ranks texts, but is not a language model
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


SYSTEMS_WITHOUT_MODEL = ("mpc", "history")  # their suggestions do not depend on options of models
BUILT_IN_SYSTEMS = (*SYSTEMS_WITHOUT_MODEL, "blend")  # systems that are not the name of a run


def split_item(item: str) -> tuple[str, Path | None]:
    """Return the name of a system in a list of systems, and the run folder of an item NAME=FOLDER."""
    name, separator, folder = item.partition("=")
    return name, Path(folder) if separator else None


def add_runs(folders: Mapping[str, Path], items: Sequence[str]) -> dict[str, Path]:
    """Return the folders of `folders` and those of the items NAME=FOLDER.

    Raises:
        UserError: The name of such an item is that of another system, or its folder is not a run folder.
    """
    all_folders = dict(folders)
    for name, path in map(split_item, items):
        if path is None:
            continue
        if not name or name in (*all_folders, *BUILT_IN_SYSTEMS):
            raise UserError(f"{name}={path}: expected a name that no other system has, got {name!r}")
        if not (path / "config.json").is_file():
            raise not_a_run_error(path, "a run folder")
        all_folders[name] = path
    return all_folders


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each system that is a run; `folder` is one run folder or a folder of runs."""
    if (folder / "config.json").is_file():
        return {"plain": folder, "online": folder}
    folders = {path.parent.name: path.parent for path in input_files.list_visible(folder, "*/config.json")}
    if not folders:
        raise not_a_run_error(folder, "a run folder or a folder of runs")
    return folders


def available_systems(folder: Path) -> list[str]:
    """Return the names of all systems for which `folder` has the files; the first run comes first, and `blend` last."""
    folders = run_folders(folder)
    user_paths = {path for path in folders.values() if _distinguishes_users(read_config(path))}
    popularity_paths = {path for path in folders.values() if (path / POPULARITY).exists()}
    first, *others = [name for name, path in folders.items() if name != "online" or path in user_paths]
    last_path = list(folders.values())[-1]  # `blend` uses the run that is named before it
    popular = ["mpc"] if popularity_paths else []
    blend = ["blend"] if last_path in popularity_paths and last_path in user_paths else []
    return [first, *popular, "history", *others, *blend]


def _distinguishes_users(config: Config) -> bool:
    """Return whether a run with this config distinguishes users, without opening the run."""
    return bool(config.data.user and (weight_adapters(config.model) or config.model.output_bias))


def find_config_and_columns(folder: Path, names: Sequence[str], user_column: str) -> tuple[Config, list[str]]:
    """Return the config with which the systems `names` read texts, and the context columns that these systems read.

    Args:
        folder: A run folder or a folder of runs.
        names: Names of systems, or items NAME=FOLDER. If no system is a run, the config is that of the first run of the
            folder.
        user_column: The column of users, which is not among the returned columns.

    Raises:
        UserError: The runs have different text columns or lower-casing.
    """
    folders = run_folders(folder)
    selected = _select_runs(folders, names)
    # Text column and lower-casing -> name and config of the first run that reads texts in this way.
    configs: dict[tuple[str, bool], tuple[str, Config]] = {}
    columns: list[str] = []
    for name, path in (selected or _first_run(folders)).items():
        config = read_config(path)
        configs.setdefault((config.data.text, config.tokenizer.lowercase), (name, config))
        if selected:
            columns += ContextSchema.load(path / "schema.json").columns(without=user_column)
    if len(configs) > 1:
        (first, _), (second, _), *_ = configs.values()
        reason = f"the runs {first} and {second} have different text columns or lower-casing"
        raise UserError(f"{folder}: {reason}; replay them separately")
    (_, config), *_ = configs.values()
    return config, list(dict.fromkeys(columns))


def user_and_time_columns(folder: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the user and time columns of the runs of the systems `names`; "" for a column that no run has."""
    folders = run_folders(folder)
    selected = _select_runs(folders, names) or _first_run(folders)
    data_options = [read_config(path).data for path in selected.values()]
    user_column = next((options.user for options in data_options if options.user), "")
    time_column = next((options.time for options in data_options if options.time), "")
    return user_column, time_column


def open_systems(
    folder: Path,
    names: Sequence[str],
    *,
    user_column: str = "user",
    unknown: str = "error",
    seconds: float | None = None,
    open_run: Callable[..., Run] = Run.open,
) -> dict[str, System]:
    """Open the runs of the systems `names` and return the systems by name.

    Args:
        folder: A run folder or a folder of runs.
        names: Names of systems, or items NAME=FOLDER.
        user_column: The column of users.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        seconds: Time limit of each search.
        open_run: Opens the run in a folder: `Run.open`, or a partial call of it with more arguments.

    Raises:
        UserError: A name is unknown, a system needs popular texts that its run does not have, or the run of `online`
            does not distinguish users.
    """
    folders, systems = run_folders(folder), dict[str, System]()
    selected = select_folders(folder, names)

    @cache
    def open_completer(path: Path) -> Completer:
        return Completer(open_run(path), unknown=unknown, seconds=seconds)

    choices = (*BUILT_IN_SYSTEMS, *add_runs(folders, names))
    for name, _ in map(split_item, names):
        check_choice("system", name, choices)
        if name == "mpc":
            systems[name] = MostPopular(Popularity.load(selected[name]))
            continue
        if name == "history":
            config, _ = find_config_and_columns(folder, names, user_column)
            systems[name] = UserHistory(config.data.text)
            continue
        completer = open_completer(selected[name])
        run = completer.run
        if name == "blend":
            systems[name] = Personalised(run, Blend(completer, Popularity.from_run(run)), unknown=unknown)
        elif distinguishes_users(run):
            systems[name] = Personalised(run, completer, learns=name != "plain", unknown=unknown)
        else:
            systems[name] = Unpersonalised(completer, user_column)
    return systems


def select_folders(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the run folder that each system of `names` reads; `history` reads none.

    Args:
        folder: A run folder or a folder of runs.
        names: Names of systems, or items NAME=FOLDER.

    Returns:
        Name of a system -> its run folder.

    Raises:
        UserError: A folder is not a run folder, or the run of `online` or `blend` does not distinguish users.
    """
    folders = run_folders(folder)
    selected = _select_runs(folders, names)
    if "mpc" in names:
        paths = list(folders.values())
        selected["mpc"] = next((path for path in paths if (path / POPULARITY).exists()), paths[0])
    return selected


def find_runs(systems: Mapping[str, System]) -> list[Run]:
    """Return the runs that the systems read, each once."""
    runs = {}
    for system in systems.values():
        if isinstance(system, Personalised):
            runs[system.learner.run.folder] = system.learner.run
        elif isinstance(system, Unpersonalised):
            runs[system.completer.run.folder] = system.completer.run
    return list(runs.values())


def _select_runs(folders: Mapping[str, Path], names: Sequence[str]) -> dict[str, Path]:
    """Return the run folder of each system of `names` that is a run.

    `blend` has the run of the last name of `folders` before it, or without such a name, the last run of `folders`.

    Raises:
        UserError: The system `online` or `blend` has a run that does not distinguish users.
    """
    all_folders = add_runs(folders, names)
    selected, latest_path = dict[str, Path](), list(folders.values())[-1]
    for name, _ in map(split_item, names):
        latest_path = folders.get(name, latest_path)
        if name in all_folders:
            selected[name] = all_folders[name]
        elif name == "blend":
            selected[name] = latest_path
        learns_users = name in ("online", "blend") and name in selected
        if learns_users and not _distinguishes_users(read_config(selected[name])):
            problem = "the run does not distinguish users"
            raise UserError(f"{selected[name]}: {problem}; train it with --user COLUMN, or leave out the system {name}")
    return selected


def _first_run(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return only the first entry of `folders`."""
    name, path = next(iter(folders.items()))
    return {name: path}
