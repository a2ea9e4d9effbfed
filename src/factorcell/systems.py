"""The systems that a progressive evaluation compares, by name.

mpc        most popular completion of training texts, the file popularity.jsonl of the folder
history    the person's own earlier texts, the newest weigh most
plain      a run that learns nothing of the person; in a folder of several runs it goes by the run's own name
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell import store
from factorcell.completer import Completer
from factorcell.completion import Suggestion
from factorcell.config import Config, DataConfig, UserError, choose
from factorcell.context import ContextSchema
from factorcell.popularity import History, Popularity
from factorcell.progressive import System
from factorcell.run import Run

POPULARITY = "popularity.jsonl"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class MostPopular:
    """Most popular completion: the same for everybody."""

    popularity: Popularity

    def start(self, user: str) -> None:
        """Nothing is held."""

    def suggest(self, held: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        """The most popular training texts."""
        return self.popularity.complete(prefix, k)

    def nats(self, held: None, row: Row) -> None:
        """It is no language model."""

    def learn(self, held: None, row: Row) -> None:
        """Nothing is learned."""


@dataclass(frozen=True)
class OwnTexts:
    """What the person wrote before, in the column `text`."""

    text: str

    def start(self, user: str) -> History:
        """No text yet."""
        return History()

    def suggest(self, held: History, prefix: str, row: Row, k: int) -> list[Suggestion]:
        """The texts of the person's own that weigh most."""
        return held.complete(prefix, k)

    def nats(self, held: History, row: Row) -> None:
        """It is no language model."""

    def learn(self, held: History, row: Row) -> History:
        """One text more."""
        return held.add(row[self.text])


class Plain:
    """A run as it was trained: the context of each row but for the person, who is nobody known."""

    def __init__(self, completer: Completer, user: str) -> None:
        """`user`: the column that names the person."""
        self.completer, run = completer, completer.run
        self.text = run.config.data.text
        self.columns = [variable.source for variable in run.schema.variables if variable.source != user]
        self.nobody = tuple(variable.name for variable in run.schema.variables if variable.source == user)

    def start(self, user: str) -> None:
        """Nothing is held."""

    def suggest(self, held: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        """The most probable texts; none where the prefix is longer than any text the run completes."""
        if len(self.completer.split(prefix)) > self.completer.most:
            return []
        return self.completer.complete(prefix, {name: row[name] for name in self.columns}, k)

    def nats(self, held: None, row: Row) -> tuple[float, int]:
        """As `factorcell score` has them."""
        known = {name: row[name] for name in (self.text, *self.columns)}
        run = self.completer.run
        corpus = run.prepare([known], unknown=self.completer.unknown, optional=self.nobody)
        return float(run.nats(corpus).sum(dtype="float64")), corpus.targets

    def learn(self, held: None, row: Row) -> None:
        """Nothing is learned."""


def runs(folder: Path) -> dict[str, Path]:
    """The run folders of `folder`, by the names of their systems: itself, or those in it."""
    if (folder / "config.json").is_file():
        return {"plain": folder}
    found = {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json"))}
    if not found:
        raise UserError(f"{folder}: neither a run folder nor a folder of runs (no config.json)")
    return found


def reading(folder: Path, names: Sequence[str], user: str) -> tuple[DataConfig, list[str]]:
    """How the systems `names` of `folder` read texts, which must be one way, and their context columns but for `user`.

    Where no run is among them, it is the way of the first run of the folder.
    """
    found = runs(folder)
    chosen = [name for name in names if name in found]
    ways: dict[tuple[str, bool | None], tuple[str, DataConfig]] = {}
    columns: list[str] = []
    for name in chosen or list(found)[:1]:
        file = found[name] / "config.json"
        data = Config.from_dict(store.read_json(file), where=str(file)).data
        ways.setdefault((data.text, data.lowercase), (name, data))
        schema = ContextSchema.from_dict(store.read_json(found[name] / "schema.json"))
        columns += [variable.source for variable in schema.variables if chosen and variable.source != user]
    if len(ways) > 1:
        (first, _), (second, _), *_ = ways.values()
        raise UserError(
            f"{folder}: {first} and {second} read texts in two ways (text column, lower case); replay apart"
        )
    (_, data), *_ = ways.values()
    return data, list(dict.fromkeys(columns))


def systems(
    folder: Path,
    names: Sequence[str],
    *,
    user: str = "user",
    unknown: str = "error",
    seconds: float | None = None,
    device: str = "cpu",
    precision: str = "float32",
) -> dict[str, System]:
    """The systems called `names`, of the run folder or folder of runs `folder`.

    `unknown` and `seconds` as `Completer` has them, `device` and `precision` as `Run.open`.
    """
    found, made = runs(folder), dict[str, System]()
    for name in names:
        choose("system", name, ("mpc", "history", *found))
        if name == "mpc":
            made[name] = MostPopular(_popularity(folder))
        elif name == "history":
            made[name] = OwnTexts(reading(folder, names, user)[0].text)
        else:
            run = Run.open(found[name], device=device, precision=precision)
            made[name] = Plain(Completer(run, unknown=unknown, seconds=seconds), user)
    return made


def _popularity(folder: Path) -> Popularity:
    path = folder / POPULARITY
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; mpc needs it, Popularity.fit(texts).save(path) makes it")
    return Popularity.open(path)
