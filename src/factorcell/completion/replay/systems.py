"""The systems that a progressive evaluation compares, by name.

mpc        most popular completion of training texts
history    the person's own earlier texts, the newest weigh most
plain      a run that learns nothing of the person
online     a run that learns the person's vector, text by text
blend      the same with popular texts and the person's own; in a folder of runs, of the run that is named before it

In a folder of several runs each goes by its own name, and learns if it tells users apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from factorcell import inputs
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, tells_apart
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay.streams import System
from factorcell.completion.search import Suggestion
from factorcell.config import Config, UserError, choose
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.data.schema import ContextSchema
from factorcell.folders import not_a_run
from factorcell.model.adapters import shifting
from factorcell.model.run import Run, read_config

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
class OwnHistory:
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


class Unpersonalised:
    """A run as it was trained: the context of each row but for the person, who is nobody known."""

    def __init__(self, completer: Completer, user: str) -> None:
        """`user`: the column that names the person."""
        self.completer, run = completer, completer.run
        self.text, self.columns = run.config.data.text, run.schema.columns(without=user)

    def start(self, user: str) -> None:
        """Nothing is held."""

    def suggest(self, held: None, prefix: str, row: Row, k: int) -> list[Suggestion]:
        """The most probable texts; none where the prefix is longer than any text the run completes."""
        if not self.completer.fits(prefix):
            return []
        return self.completer.complete(prefix, None, {name: row[name] for name in self.columns}, k)

    def nats(self, held: None, row: Row) -> tuple[float, int]:
        """Nats and targets of the text as it is read in training: cut after `max_tokens` tokens."""
        run, context = self.completer.run, {name: row[name] for name in self.columns}
        corpus = run.read([row[self.text]], [context], unknown=self.completer.unknown)
        return float(run.nats(corpus).sum(dtype="float64")), corpus.targets

    def learn(self, held: None, row: Row) -> None:
        """Nothing is learned."""


class Personalised:
    """A run whose user is learned online, or stays new where it never `learns`; its completer or blend suggests.

    `unknown` as `Completer` has it, for texts that are judged and learned.
    """

    def __init__(self, run: Run, suggester: Completer | Blend, learns: bool = True, unknown: str = "error") -> None:
        self.suggester, self.learns = suggester, learns
        self.text, self.learner = run.config.data.text, Learner(run, unknown=unknown)
        self.columns = self.learner.columns

    def start(self, user: str) -> User:
        """Somebody new."""
        return self.learner.new()

    def suggest(self, held: User, prefix: str, row: Row, k: int) -> list[Suggestion]:
        """The best texts; none where the prefix is longer than any text the run completes."""
        if not self.suggester.fits(prefix):
            return []
        return self.suggester.complete(prefix, held, {name: row[name] for name in self.columns}, k)

    def nats(self, held: User, row: Row) -> tuple[float, int]:
        """For the user as it is now."""
        texts, contexts = [row[self.text]], [{name: row[name] for name in self.columns}]
        nats = self.learner.nats(held.vector[None], texts, contexts)
        return float(nats[0]), self.learner.run.read(texts, contexts, unknown=self.learner.unseen).targets

    def learn(self, held: User, row: Row) -> User:
        """The user moves by one text."""
        if not self.learns:
            return held
        (after,), _ = self.learner.learn([held], [row[self.text]], [{name: row[name] for name in self.columns}])
        return after


def runs(folder: Path) -> dict[str, Path]:
    """The run folders of `folder`, by the names of their systems: itself, or those in it."""
    if (folder / "config.json").is_file():
        return {"plain": folder, "online": folder}
    found = {path.parent.name: path.parent for path in inputs.visible(folder, "*/config.json")}
    if not found:
        raise not_a_run(folder, "a run folder or a folder of runs")
    return found


def fitting(folder: Path) -> list[str]:
    """The names of the systems that can be had of `folder`; its first run is the first, its last one is blended."""
    found = runs(folder)
    personal = {path: _personal(read_config(path)) for path in found.values()}
    popular = {path for path in found.values() if (path / POPULARITY).exists()}
    first, *others = [name for name, path in found.items() if name != "online" or personal[path]]
    last = list(found.values())[-1]
    blended = ["blend"] if last in popular and personal[last] else []
    return [first, *(["mpc"] if popular else []), "history", *others, *blended]


def _personal(config: Config) -> bool:
    """Whether a run of this config tells users apart, as `online.tells_apart` has it of one that is open."""
    return bool(config.data.user and (shifting(config.model) or config.model.output_bias))


def reading(folder: Path, names: Sequence[str], user: str) -> tuple[Config, list[str]]:
    """How the systems `names` of `folder` read texts, which must be one way, and their context columns but for `user`.

    Where no run is among them, it is the way of the first run of the folder.
    """
    chosen = _opened(runs(folder), names)
    ways: dict[tuple[str, bool], tuple[str, Config]] = {}
    columns: list[str] = []
    for name, path in _asked(folder, names).items():
        config = read_config(path)
        ways.setdefault((config.data.text, config.tokenizer.lowercase), (name, config))
        schema = ContextSchema.load(path / "schema.json")
        columns += schema.columns(without=user) if chosen else []
    if len(ways) > 1:
        (first, _), (second, _), *_ = ways.values()
        raise UserError(
            f"{folder}: {first} and {second} read texts in two ways (text column, lower case); replay apart"
        )
    (_, config), *_ = ways.values()
    return config, list(dict.fromkeys(columns))


def who_and_when(folder: Path, names: Sequence[str]) -> tuple[str, str]:
    """The columns of user and time that the runs of the systems `names` were trained with, empty where none was."""
    found = [read_config(path).data for path in _asked(folder, names).values()]
    return next((data.user for data in found if data.user), ""), next((data.time for data in found if data.time), "")


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
            made[name] = MostPopular(_popularity(found))
        elif name == "history":
            made[name] = OwnHistory(reading(folder, names, user)[0].data.text)
        elif name == "blend":
            own = completer(opened[name])
            made[name] = Personalised(own.run, Blend(own, Popularity.of(own.run)), unknown=unknown)
        else:
            made[name] = _of_run(completer(opened[name]), user, learns=name != "plain")
    return made


def _opened(found: Mapping[str, Path], names: Sequence[str]) -> dict[str, Path]:
    """The run that each of the systems `names` opens, if it opens one: the blend that of the name before it."""
    opened, latest = dict[str, Path](), list(found.values())[-1]
    for name in names:
        latest = found.get(name, latest)
        if name in found or name == "blend":
            opened[name] = latest
    return opened


def _asked(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The runs that the systems `names` open; where they open none, the first run of the folder."""
    found = runs(folder)
    return _opened(found, names) or dict(list(found.items())[:1])


def _of_run(completer: Completer, user: str, learns: bool) -> System:
    """Of a run that tells users apart, or of one that does not."""
    if tells_apart(completer.run):
        return Personalised(completer.run, completer, learns, completer.unknown)
    return Unpersonalised(completer, user)


def _popularity(found: Mapping[str, Path]) -> Popularity:
    """Of the training texts of any of the runs."""
    paths = [path / POPULARITY for path in found.values() if (path / POPULARITY).exists()]
    if not paths:
        folders = ", ".join(dict.fromkeys(map(str, found.values())))
        raise UserError(
            f"no {POPULARITY} in {folders}; training keeps it with --user COLUMN and --unit char or grapheme"
        )
    return Popularity(TextCounts.open(paths[0]))
