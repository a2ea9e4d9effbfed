"""The systems that a progressive evaluation compares, by name.

mpc        most popular completion of training texts
history    the user's own earlier texts, the newest weigh most
plain      a run that learns nothing of the user
online     a run that learns the user's vector, text by text
blend      the same with popular texts and the user's own; in a folder of runs, of the run that is named before it

In a folder of several runs each goes by its own name, and learns if it tells users apart.
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
    """Most popular completion: the same for every user."""

    def __init__(self, popularity: Popularity) -> None:
        self.popularity = popularity

    def suggest(self, held: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        return self.popularity.complete(prefix, k)


class UserHistory(System):
    """What the user wrote before, in the column `text`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def start(self, user: str) -> History:
        return History()

    def suggest(self, held: History, prefix: str, row: Row, k: int) -> list[Suggestion]:
        return held.complete(prefix, k)

    def learn(self, held: History, row: Row) -> History:
        return held.add(row[self.text])


class Unpersonalised(System):
    """A run as it was trained, in the context of each row except the column `user`."""

    def __init__(self, completer: Completer, user: str) -> None:
        self.completer, run = completer, completer.run
        self.text, self.columns = run.config.data.text, run.schema.columns(without=user)

    def suggest(self, held: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        if not self.completer.fits(prefix):
            return []
        return self.completer.complete(prefix, None, {name: row[name] for name in self.columns}, k)

    def nats(self, held: None, row: Row) -> tuple[float, int]:
        run, context = self.completer.run, {name: row[name] for name in self.columns}
        corpus = run.read([row[self.text]], [context], unknown=self.completer.unknown)
        return float(run.nats(corpus).sum(dtype="float64")), corpus.target_count


class Personalised(System):
    """A run whose user is learned online, or stays new unless it `learns`; its completer or blend suggests.

    `unknown` as in `Completer`, for texts that are judged and learned.
    """

    def __init__(self, run: Run, suggester: Completer | Blend, learns: bool = True, unknown: str = "error") -> None:
        self.suggester, self.learns = suggester, learns
        self.text, self.learner = run.config.data.text, Learner(run, unknown=unknown)
        self.columns = self.learner.columns

    def start(self, user: str) -> User:
        return self.learner.new()

    def suggest(self, held: User, prefix: str, row: Row, k: int) -> list[Suggestion]:
        if not self.suggester.fits(prefix):
            return []
        return self.suggester.complete(prefix, held, {name: row[name] for name in self.columns}, k)

    def nats(self, held: User, row: Row) -> tuple[float, int]:
        texts, contexts = [row[self.text]], [{name: row[name] for name in self.columns}]
        nats = self.learner.nats(held.vector[None], texts, contexts)
        return float(nats[0]), self.learner.run.read(texts, contexts, unknown=self.learner.unknown_policy).target_count

    def learn(self, held: User, row: Row) -> User:
        if not self.learns:
            return held
        (after,), _ = self.learner.learn([held], [row[self.text]], [{name: row[name] for name in self.columns}])
        return after


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the run folders of `folder` (itself, or those in it) by the names of their systems."""
    if (folder / "config.json").is_file():
        return {"plain": folder, "online": folder}
    found = {path.parent.name: path.parent for path in input_files.list_visible(folder, "*/config.json")}
    if not found:
        raise not_a_run_error(folder, "a run folder or a folder of runs")
    return found


def available_systems(folder: Path) -> list[str]:
    """Return the names of the systems that `folder` allows; its first run is the first, its last one is blended."""
    found = run_folders(folder)
    personal = {path: _personal(read_config(path)) for path in found.values()}
    popular = {path for path in found.values() if (path / POPULARITY).exists()}
    first, *others = [name for name, path in found.items() if name != "online" or personal[path]]
    last = list(found.values())[-1]
    blended = ["blend"] if last in popular and personal[last] else []
    return [first, *(["mpc"] if popular else []), "history", *others, *blended]


def _personal(config: Config) -> bool:
    """Return whether a run of this config tells users apart, as `online.tells_apart` for an open run."""
    return bool(config.data.user and (weight_adapters(config.model) or config.model.output_bias))


def reading_config(folder: Path, names: Sequence[str], user: str) -> tuple[Config, list[str]]:
    """Return how the systems `names` of `folder` read texts, and their context columns except `user`.

    All runs must read texts in one way. Where no run is among the systems, it is the way of the folder's first run.
    """
    found = run_folders(folder)
    opened = _opened(found, names)
    ways: dict[tuple[str, bool], tuple[str, Config]] = {}
    columns: list[str] = []
    for name, path in (opened or dict(list(found.items())[:1])).items():
        config = read_config(path)
        ways.setdefault((config.data.text, config.tokenizer.lowercase), (name, config))
        columns += ContextSchema.load(path / "schema.json").columns(without=user) if opened else []
    if len(ways) > 1:
        (first, _), (second, _), *_ = ways.values()
        raise UserError(
            f"{folder}: {first} and {second} read texts in two ways (text column, lower case); replay apart"
        )
    (_, config), *_ = ways.values()
    return config, list(dict.fromkeys(columns))


def user_and_time_columns(folder: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the columns of user and time with which the runs of the systems `names` were trained, or empty texts."""
    found = run_folders(folder)
    data = [read_config(path).data for path in (_opened(found, names) or dict(list(found.items())[:1])).values()]
    return next((one.user for one in data if one.user), ""), next((one.time for one in data if one.time), "")


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
    """Open the systems called `names`, of the run folder or folder of runs `folder`.

    `unknown` and `seconds` as in `Completer`, `device` and `precision` as in `Run.open`.
    """
    found, made = run_folders(folder), dict[str, System]()
    opened = _opened(found, names)

    @cache
    def completer(path: Path) -> Completer:
        nonlocal precision
        run = Run.open(path, device=device, precision=precision)
        precision = run.precision  # one for all of them
        return Completer(run, unknown=unknown, seconds=seconds)

    for name in names:
        choose("system", name, ("mpc", "history", "blend", *found))
        if name == "mpc":
            paths = list(found.values())
            made[name] = MostPopular(Popularity.load(next((p for p in paths if (p / POPULARITY).exists()), paths[0])))
            continue
        if name == "history":
            made[name] = UserHistory(reading_config(folder, names, user_column)[0].data.text)
            continue
        suggester = completer(opened[name])
        run = suggester.run
        if name == "blend":
            made[name] = Personalised(run, Blend(suggester, Popularity.from_run(run)), unknown=unknown)
        elif distinguishes_users(run):
            made[name] = Personalised(run, suggester, name != "plain", unknown)
        else:
            made[name] = Unpersonalised(suggester, user_column)
    return made


def _opened(found: Mapping[str, Path], names: Sequence[str]) -> dict[str, Path]:
    """Return the run of each of the systems `names` that has one: the blend has that of the name before it."""
    opened, latest = dict[str, Path](), list(found.values())[-1]
    for name in names:
        latest = found.get(name, latest)
        if name in found or name == "blend":
            opened[name] = latest
    return opened
