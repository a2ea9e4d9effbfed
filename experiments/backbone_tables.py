"""The texts of the study of backbones: six tables for each data set.

train, dev and test have the context columns and two prompts: `names`, such as "section: Sports", and `identifiers`,
a random word for each value. `shuffled` has the test texts with the contexts of other texts, `without` has them
without contexts. `candidates` has some test texts with each value of the target, and its log prior given the other
columns. Sets with users also have `unseen`, the texts of users who are not in train. All texts are cut, so that
every tokenizer reads the same texts.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import corpora
from commits import first_per_user
from corpora import Tables
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.evaluation.linear_classifier import MAX_VALUES, LinearClassifier, training_log_prior

MAX_CHARACTERS = 300  # texts are cut at a word before this length
MIN_JUDGED_TEXTS = 100
UNSEEN_USERS, TEXTS_PER_USER = 40, 20
NAMES, IDENTIFIERS = "names", "identifiers"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class DataSet:
    """A data set of backbones.toml."""

    source: str
    context: tuple[str, ...]
    target: str
    frequency: str
    user: str = ""
    separate: bool = False
    values: int = 0
    min_context_count: int = 50

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.context, *([self.user] if self.user else []))


class Counts(NamedTuple):
    """The largest numbers of texts of each part."""

    train: int
    test: int
    dev: int  # if the set has no users
    pairs: int  # about the number of rows of `candidates`; more if few texts would be judged (`MIN_JUDGED_TEXTS`)


def text_tables(data_set: DataSet, data: Path, folder: Path, share: float, counts: Counts) -> Tables:
    """Write the tables of a data set once.

    Args:
        data_set: The data set.
        data: The folder of all data sets.
        folder: The folder to write.
        share: The share of the texts to read.
        counts: The numbers of texts.
    """

    @cache
    def parts() -> dict[str, Rows]:
        return _parts(data_set, corpora.parts(data, folder, data_set.source, share), counts)

    @cache
    def candidates() -> Rows:
        judged = parts()["unseen" if data_set.user else "test"]
        return list(candidate_rows(data_set, parts()["train"], judged, counts.pairs))

    def rows(name: str) -> pa.Table:
        if name == "candidates":
            return pa.Table.from_pylist(candidates())
        return pa.Table.from_pylist(
            {
                "shuffled": lambda: shuffle_contexts(data_set, parts()["test"]),
                "without": lambda: [without_context(data_set, row) for row in parts()["test"]],
            }.get(name, lambda: parts()[name])(),
            schema=pa.schema([(column, pa.string()) for column in _columns(data_set)]),
        )

    names = ["train", "dev", "test", "shuffled", "without", "candidates", *(["unseen"] if data_set.user else [])]
    stem = f"backbones-{data_set.source}-{share:g}-" + "-".join(map(str, counts))
    return {name: corpora.create_once(folder / f"{stem}-{name}.parquet", partial(rows, name)) for name in names}


def _columns(data_set: DataSet) -> tuple[str, ...]:
    time = ("time",) if data_set.user else ()
    return ("text", *data_set.columns, *time, NAMES, IDENTIFIERS)


def _parts(data_set: DataSet, paths: Tables, counts: Counts) -> dict[str, Rows]:
    tables = {part: corpora.read(path) for part, path in paths.items()}
    if data_set.values:
        names = spread_values(tables["train"][data_set.target].to_pylist(), data_set.values)
        tables = {
            part: table.filter(pa.array([name in names for name in table[data_set.target].to_pylist()]))
            for part, table in tables.items()
        }
        tables |= divide(pa.concat_tables([tables["dev"], tables["test"]]), counts.dev)
    if data_set.user:  # half of the unseen users choose the weights and the learning rate
        halves = unseen_users(tables["dev"], data_set.user)
        tables |= {"dev": halves[0], "unseen": halves[1]}
    dev_count = len(tables["dev"]) if data_set.user else counts.dev
    limits = {"train": counts.train, "test": counts.test, "dev": dev_count}
    rows = {part: _sample(table, limits.get(part, len(table))).to_pylist() for part, table in tables.items()}
    return {part: [with_prompts(data_set, cut(row, data_set)) for row in part_rows] for part, part_rows in rows.items()}


def _sample(table: pa.Table, count: int) -> pa.Table:
    return table.take(np.sort(np.random.default_rng(0).permutation(len(table))[:count]))


def divide(table: pa.Table, dev_texts: int) -> dict[str, pa.Table]:
    """Return `dev_texts` random texts as `dev`, and the others as `test`."""
    order = np.random.default_rng(2).permutation(len(table))
    return {"dev": table.take(np.sort(order[:dev_texts])), "test": table.take(np.sort(order[dev_texts:]))}


def spread_values(values: Sequence[str], count: int) -> set[str]:
    """Return `count` values that are evenly spread over the ranks of all values by frequency."""
    ranked = [value for value, _ in sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))]
    return {ranked[place] for place in np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int)}


def unseen_users(table: pa.Table, column: str) -> tuple[pa.Table, pa.Table]:
    """Return the first texts of two disjoint groups of users, chosen by a hash of their names."""
    users = sorted(set(table[column].to_pylist()), key=corpora.text_hash)
    groups = [set(users[start : 2 * UNSEEN_USERS : 2]) for start in (0, 1)]
    first = first_per_user(table, TEXTS_PER_USER)
    names = first[column].to_pylist()
    development, unseen = (first.filter(pa.array([name in group for name in names])) for group in groups)
    return development, unseen


def cut(row: Mapping[str, Any], data_set: DataSet) -> dict[str, Any]:
    """Return the columns of a row that models read, with its text cut at a space."""
    text = row["text"]
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rpartition(" ")[0] or text[:MAX_CHARACTERS]
    times = {"time": str(row["time"])} if data_set.user else {}
    return {"text": text, **{column: row[column] for column in data_set.columns}, **times}


def with_prompts(data_set: DataSet, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its values as readable names, and as random words."""
    values = [(column, row[column]) for column in data_set.columns if row[column] is not None]
    names = ", ".join(f"{column}: {value}" for column, value in values)
    return {**row, NAMES: names, IDENTIFIERS: " ".join(random_word(f"{column}={value}") for column, value in values)}


def random_word(value: str) -> str:
    """Return five letters that a hash of `value` chooses."""
    return "".join(LETTERS[byte % len(LETTERS)] for byte in hashlib.sha256(value.encode()).digest()[:5])


def shuffle_contexts(data_set: DataSet, rows: Rows) -> Rows:
    """Return the texts with the contexts of other texts, drawn without replacement."""
    order = np.random.default_rng(0).permutation(len(rows))
    contexts = [{column: rows[place][column] for column in data_set.columns} for place in order]
    return [with_prompts(data_set, {**row, **context}) for row, context in zip(rows, contexts, strict=True)]


def without_context(data_set: DataSet, row: Mapping[str, Any]) -> dict[str, Any]:
    return with_prompts(data_set, {**row, **dict.fromkeys(data_set.columns)})


def candidate_rows(data_set: DataSet, train: Rows, judged: Rows, pairs: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of some judged texts for each candidate, the candidate with its log prior given other columns."""
    minimum = data_set.min_context_count
    names = [name for name, count in Counter(row[data_set.target] for row in train).items() if count >= minimum]
    labelled = [row for row in judged if row[data_set.target] in names]
    judged_count = max(MIN_JUDGED_TEXTS, pairs // max(1, len(names)))
    order = np.sort(np.random.default_rng(1).permutation(len(labelled))[:judged_count])
    labelled = [labelled[place] for place in order]
    priors = log_priors(data_set, train, labelled, names) if len(names) > 1 else np.zeros((len(labelled), len(names)))
    for place, name in enumerate(names):
        for row, prior in zip(labelled, priors[:, place].tolist(), strict=True):
            context = {**row, data_set.target: name}
            yield {**with_prompts(data_set, context), "candidate": name, "truth": row[data_set.target], "prior": prior}


def log_priors(data_set: DataSet, train: Rows, rows: Rows, names: Sequence[str]) -> Any:
    """Return the log prior (texts, candidates) of each candidate given the other columns."""
    config = Config.of(
        context=tuple(f"{column}:category" for column in data_set.columns),
        tokenizer="char",
        min_count=1,
        min_context_count=data_set.min_context_count,
    )
    corpus = prepare([{**row, "text": "a"} for row in train], config)
    variable = corpus.schema.variable(data_set.target)
    if not (len(corpus.schema.embedded.variables) > 1 and 2 <= len(variable.values) - 1 <= MAX_VALUES):
        return np.broadcast_to(training_log_prior(variable, names), (len(rows), len(names)))
    prior = LinearClassifier.fit(corpus, data_set.target, reads_text=False)
    texts = [{**row, "text": "a"} for row in rows]
    judged = prepare(texts, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="group")
    return prior.candidate_log_probs(judged, names)
