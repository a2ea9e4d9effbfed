"""One model per value of a column, and a shared one of all texts: what adaptation has to beat.

    FOLDER/separate.json        the column, and which run has which value
    FOLDER/value-0000           the run of all texts, for values that are rare, missing or new
    FOLDER/value-0001 ...       those of the values, the most frequent first

All are unadapted and have one vocabulary, so that their perplexities compare.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import MODELS, UserError
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.tables import name_of
from factorcell.model.run import Run, first_files
from factorcell.training.fit import HELD_OUT, Say, begun, check_same, finish, learn, read, tell
from factorcell.training.plan import Asked, Budget, plan, resumed, said_config, unsaid

INDEX = "separate.json"
FORMAT = 1  # of the folder, beside those of its runs
SHARED = 0  # the row of rare values in the schema, and the number of the run of all texts


class Separate:
    """One run per value of a context variable; scores a text by that of its own value."""

    def __init__(self, folder: Path, runs: Mapping[int, Run]) -> None:
        self.folder, self.runs = folder, runs
        self.tokenizer, self.schema = runs[SHARED].tokenizer, runs[SHARED].schema

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", precision: str = "float32") -> "Separate":
        """What `separate` left in `folder`; `UserError` where it has not come to its end."""
        folder = Path(folder)
        values = files.read_versioned(folder / INDEX, FORMAT, folder).get("values")
        if not isinstance(values, list) or not values:
            raise UserError(f"{folder / INDEX}: not separate runs (values must be a list)")
        numbers = range(len(values))
        missing = [folder_of(folder, number) for number in numbers if not _finished(folder_of(folder, number))]
        if missing:
            raise UserError(f"{folder}: {missing[0].name} is not trained to its end; the same command with --resume is")
        opened: dict[int, Run] = {}
        for number in numbers:
            opened[number] = Run.open(folder_of(folder, number), device=device, precision=precision)
            precision = opened[number].precision  # one for all of them
        return cls(folder, opened)

    @property
    def precision(self) -> str:
        """The numbers of matrix products, of all runs."""
        return self.runs[SHARED].precision

    @property
    def gain(self) -> float:
        """How many times as fast bfloat16 was found to be."""
        return self.runs[SHARED].gain

    def prepare(self, source: Any, *, unknown: str = "error") -> Corpus:
        """Texts from rows, tables or a file; `unknown` as `data.prepare`."""
        return self.runs[SHARED].prepare(source, unknown=unknown)

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Exact nats of every target of `corpus`, each text by the run of its value."""
        nats = np.zeros(corpus.targets, dtype=np.float32)
        starts, which = target_offsets(corpus), np.maximum(corpus.categories[:, 0], SHARED)
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            part = corpus.select(rows)
            ends = target_offsets(part)
            index = np.repeat(starts[rows] - ends[:-1], part.lengths) + np.arange(part.targets)
            nats[index] = self.runs[number].nats(part)
        return nats


def folder_of(folder: Path, number: int) -> Path:
    """Where the run of a value is, by the value's number in the schema."""
    return folder / f"value-{number:04d}"


def separate(
    source: Any,
    dev: Any,
    config: Asked,
    folder: str | Path,
    *,
    by: str,
    budget: Budget | None = None,
    resume: bool = False,
    say: Say | None = None,
) -> Separate:
    """Train an unadapted run on all texts, and one on those of each value of the column `by`, in folders in `folder`.

    Values under `min_context_count` get none. Without `dev`, or where it has no text of a value, 5 % are held out.
    What `config` leaves open follows from the texts of each value, as `fit` has it. `resume` resumes in a folder that
    exists.
    """
    folder = Path(folder)
    if not resume and not files.is_new(folder, (*first_files(), INDEX)):
        raise files.occupied(folder, resumable=True)
    asked = _unadapted(config, by)
    config = said_config(asked)
    corpus, held = read(source, dev, config, progress=say is not None)
    values = corpus.schema.variable(by).values
    if len(values) == 1:
        raise UserError(f"{by} has no value of at least {config.data.min_context_count} texts (--min-context-count)")
    if files.is_new(folder, (*first_files(), INDEX)):
        folder.mkdir(parents=True, exist_ok=True)
        files.list_files(folder, (INDEX,))
        files.write_versioned(folder / INDEX, {"by": by, "values": values}, FORMAT)
    else:
        _check_same(folder, by, values)
    for number, value in enumerate(values):
        path = folder_of(folder, number)
        with begun(path, resume, say) as going_on:
            own, own_held = _texts(corpus, number), _texts(held, number)
            if not len(own_held):
                own, own_held = own.split(HELD_OUT, config.training.seed)
            if going_on:
                run = Run.open(path, trained=False)
                check_same(run, resumed(asked, run.config).config, corpus)
            else:
                made = plan(asked, own, own_held, budget)
                run = Run.create(path, made.config, corpus.tokenizer, corpus.schema)
            if not _finished(path):
                tell(say, f"{'all texts' if number == SHARED else value} -> {path}")
                learn(run, own, own_held, resume=going_on, say=say)
                of = name_of(source) + ("" if number == SHARED else f", {by} {value}")
                finish(run, own, own_held, of, chosen=unsaid(asked))
    return Separate.open(folder)


def _check_same(folder: Path, by: str, values: Sequence[str]) -> None:
    """Refuse to resume with another column or other values: the runs in `folder` are told by their numbers alone."""
    kept = files.read_versioned(folder / INDEX, FORMAT, folder)
    if kept.get("by") != by:
        raise UserError(f"{folder} was begun with by = {kept.get('by')!r}, not {by!r}; nothing resumed")
    if kept.get("values") != list(values):
        causes = "other training data, or another --min-context-count"
        raise UserError(f"{folder} was begun with other values of {by} ({causes}); nothing resumed")


def _unadapted(asked: Asked, by: str) -> Asked:
    """The same options of a model without context, whose texts have the column `by`."""
    data: dict[str, Any] = {"context": (f"{by}:category",), "user": "", "time": ""}
    model: dict[str, Any] = dict(zip(("adapt", "output_bias"), MODELS["unadapted"], strict=True))
    if isinstance(asked, Mapping):
        return {**asked, "data": {**asked.get("data", {}), **data}, "model": {**asked.get("model", {}), **model}}
    config = said_config(asked)
    return config.with_options(**data, **model)


def _texts(corpus: Corpus, number: int) -> Corpus:
    return corpus if number == SHARED else corpus.select(np.flatnonzero(corpus.categories[:, 0] == number))


def _finished(folder: Path) -> bool:
    return (folder / "training.json").exists()
