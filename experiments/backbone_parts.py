"""The texts of the stages of the study of backbones: training, development and test texts, and a cold start.

train, dev, test      texts whose values and combinations of values may occur in training
cold                  texts with a value of the column `cold` that no training text has
pairs                 texts with a combination of the values of `pairs` that no training text has
judged                texts whose value of `target` Bayes' rule infers, in column "truth"

A hash of the values chooses those that training never sees. All texts are cut at a space, so that all methods read the
same tokens; the number of characters of each part is limited, and the texts of a part are drawn with a fixed seed.
The column "task" has the value that decides the task of Poly.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import corpora
from backbone_training import Rows
from corpora import Tables

MAX_CHARACTERS = 160
MAX_TRAIN_TEXTS = 150_000
HELD_OUT = 10  # one of this many values, and of this many pairs of values, is not in training
MIN_TARGET_TEXTS = 50  # values of the target with fewer training texts are not candidates
CHARACTERS = {"dev": 25_000, "test": 50_000, "cold": 30_000, "pairs": 20_000}
JUDGED_CHARACTERS = 80_000  # of all candidates of all judged texts
IDENTIFIER_LETTERS = 6
TASK = "task"


@dataclass(frozen=True)
class StagedSet:
    """A data set of the stages, in backbones.toml.

    Attributes:
        source: The folder of the data set.
        categories: The context columns with names.
        numbers: The context columns with numbers, such as "lon:longitude".
        identifiers: The categories whose values are identifiers, which the default does not read as names.
        target: The category that Bayes' rule infers; empty: none.
        judged: The part with the judged texts.
        cold: The column whose values are held out.
        pairs: The columns whose combinations are held out.
        task: The column whose values are tasks; the numbers are divided by `task_step` instead, if that is not zero.
        digits: Decimal places of the numbers in a text.
    """

    source: str
    categories: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    target: str = ""
    judged: str = "test"
    cold: str = ""
    pairs: tuple[str, ...] = ()
    task: str = ""
    task_step: float = 0.0
    digits: int = 0
    characters: Mapping[str, int] = field(default_factory=lambda: CHARACTERS)

    @property
    def number_names(self) -> tuple[str, ...]:
        return tuple(name.partition(":")[0] for name in self.numbers)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.categories, *self.number_names)

    @property
    def declarations(self) -> tuple[str, ...]:
        """The context columns with their kinds."""
        return (*(f"{name}:category" for name in self.categories), *self.numbers)

    def task_of(self, row: Mapping[str, Any]) -> str:
        """Return the task of a text."""
        if self.task_step:
            return " ".join(f"{float(row[name]) // self.task_step:g}" for name in self.number_names)
        return str(row[self.task])


def stage_tables(data_set: StagedSet, data: Path, folder: Path, share: float) -> Tables:
    """Write the tables of a data set once."""

    @cache
    def parts() -> dict[str, Rows]:
        return make_parts(data_set, corpora.parts(data, folder, data_set.source, share))

    names = ["train", "dev", "test", "cold"]
    names += ["pairs"] if data_set.pairs else []
    names += ["judged"] if data_set.target else []
    return {
        name: corpora.create_once(
            folder / f"stages-{data_set.source}-{share:g}-{name}.parquet", partial(_table, parts, name)
        )
        for name in names
    }


def _table(parts: Callable[[], dict[str, Rows]], name: str) -> pa.Table:
    return pa.Table.from_pylist(parts()[name])


def make_parts(data_set: StagedSet, paths: Tables) -> dict[str, Rows]:
    """Return the rows of each part; the training and the test texts of the source are disjoint."""
    columns = [*dict.fromkeys(("text", *data_set.columns, data_set.cold, *data_set.pairs))]
    rows = {
        part: [_row(data_set, row) for row in corpora.read(paths[part]).select(columns).to_pylist()]
        for part in ("train", "test")
    }
    parts: dict[str, Rows] = {name: [] for name in ("train", "dev", "test", "cold", "pairs")}
    for source, source_rows in rows.items():
        for row in source_rows:
            parts[_part_of(data_set, row, source)].append(row)
    parts = {name: _sample(part_rows) for name, part_rows in parts.items()}
    parts["train"] = parts["train"][:MAX_TRAIN_TEXTS]
    if data_set.target:
        names = target_names(parts["train"], data_set.target)
        judged = [row for row in parts[data_set.judged] if row[data_set.target] in names]
        parts["judged"] = _within(judged, JUDGED_CHARACTERS // max(1, len(names)))
    return {
        name: _within(part_rows, data_set.characters[name]) if name in data_set.characters else part_rows
        for name, part_rows in parts.items()
    }


def _row(data_set: StagedSet, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that models read, with its text cut at a space."""
    text = str(row["text"])
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rpartition(" ")[0] or text[:MAX_CHARACTERS]
    values = {name: str(row[name]) for name in dict.fromkeys((*data_set.categories, data_set.cold, *data_set.pairs))}
    numbers = {name: round(float(row[name]), 4) for name in data_set.number_names}
    for name in data_set.identifiers:  # without their prefix, such as the project of a user
        values[name] = values[name].rpartition(":")[2][:IDENTIFIER_LETTERS]
    return {"text": text, **values, **numbers, TASK: data_set.task_of({**values, **numbers})}


def _part_of(data_set: StagedSet, row: Mapping[str, Any], source: str) -> str:
    """Return the part of a row: a hash of the held-out values, and then of the text."""
    if _is_held_out(str(row[data_set.cold])):
        return "cold"
    if data_set.pairs and _is_held_out("\n".join(str(row[name]) for name in data_set.pairs)):
        return "pairs"
    if source == "train":
        return "train"
    return ("dev", "test")[corpora.text_hash(row["text"]) % 2]


def _is_held_out(value: str) -> bool:
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8], "big") % HELD_OUT == 0


def _sample(rows: Rows) -> Rows:
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows)).tolist()]


def _within(rows: Rows, characters: int) -> Rows:
    """Return the first rows whose texts have at most this many characters, at least one row."""
    ends = np.cumsum([len(row["text"]) for row in rows])
    return rows[: max(1, int((ends <= characters).sum()))]


def target_names(train: Rows, target: str) -> list[str]:
    """Return the candidates, the most frequent first."""
    counts = Counter(row[target] for row in train)
    return [name for name, count in counts.most_common() if count >= MIN_TARGET_TEXTS]


def value_text(data_set: StagedSet, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return values as text, with a line such as "city: Oslo" for each column."""
    numbers = data_set.number_names
    texts = {name: f"{row[name]:.{data_set.digits}f}" if name in numbers else row[name] for name in columns}
    return "".join(f"{name}: {text}\n" for name, text in texts.items())
