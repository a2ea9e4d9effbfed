"""Separate models: one for each value of a column, and a shared one of all texts; the baseline of adaptation.

    FOLDER/separate.json        the column, and which run has which value
    FOLDER/value-0000           the run of all texts, for values that are rare, missing or new
    FOLDER/value-0001 ...       those of the values, the most frequent first

All are unadapted and have the same vocabulary, so that their perplexities are comparable.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import MODELS, UserError
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.tables import table_name
from factorcell.model.run import Run, initial_files
from factorcell.training.fit import (
    HELD_OUT,
    Notify,
    check_resumable,
    emit_notice,
    locked_run_folder,
    read_corpora,
    train_with_notices,
    write_training_facts,
)
from factorcell.training.plan import Budget, ConfigLike, config_with_defaults, plan, resumed_plan, unspecified_options

INDEX_FILE = "separate.json"
FORMAT = 1  # of the folder, beside those of its runs
SHARED = 0  # the row of rare values in the schema, and the number of the run of all texts


class SeparateRuns:
    """One run per value of a context variable; each text is scored by the run of its value."""

    def __init__(self, folder: Path, runs: Mapping[int, Run]) -> None:
        self.folder, self.runs = folder, runs
        shared = runs[SHARED]
        self.tokenizer, self.schema = shared.tokenizer, shared.schema
        self.precision, self.bfloat16_speedup = shared.precision, shared.bfloat16_speedup

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", precision: str = "float32") -> "SeparateRuns":
        """Open the runs that `separate` wrote. `UserError` if they are not all trained."""
        folder = Path(folder)
        values = files.read_versioned(folder / INDEX_FILE, FORMAT, folder).get("values")
        if not isinstance(values, list) or not values:
            raise UserError(f"{folder / INDEX_FILE}: not separate runs (values must be a list)")
        opened: dict[int, Run] = {}
        for number in range(len(values)):
            path = run_folder(folder, number)
            if not _finished(path):
                raise UserError(f"{folder}: {path.name} is not trained to its end; the same command with --resume is")
            opened[number] = Run.open(path, device=device, precision=precision)
            precision = opened[number].precision  # all runs use the precision of the first
        return cls(folder, opened)

    def prepare(self, source: Any, *, unknown: str = "error") -> Corpus:
        """Read texts from rows, tables or a file."""
        return self.runs[SHARED].prepare(source, unknown=unknown)

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the nats of every target of `corpus`, each text by the run of its value."""
        nats = np.zeros(corpus.target_count, dtype=np.float32)
        starts, which = target_offsets(corpus), np.maximum(corpus.categories[:, 0], SHARED)
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            part = corpus.select(rows)
            ends = target_offsets(part)
            index = np.repeat(starts[rows] - ends[:-1], part.lengths) + np.arange(part.target_count)
            nats[index] = self.runs[number].nats(part)
        return nats


def run_folder(folder: Path, number: int) -> Path:
    """Return the folder of the run of a value, by the number of the value in the schema."""
    return folder / f"value-{number:04d}"


def separate(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: str | Path,
    *,
    by: str,
    budget: Budget | None = None,
    resume: bool = False,
    notify: Notify | None = None,
) -> SeparateRuns:
    """Train an unadapted run on all texts, and one on the texts of each value of the column `by`.

    Args:
        source: The training table.
        dev: The development table; without it, or if it has no text of a value, 5 % of the rows are held out.
        config: A `Config`, or a mapping of some options; the others follow from the texts of each value.
        folder: The folder of the run folders.
        by: The column. Values under `min_context_count` get no run.
        budget: The time or work of each training.
        resume: Whether to resume in a folder that exists.
        notify: A function that takes lines about the progress.
    """
    folder = Path(folder)
    if not resume and not files.is_new(folder, (*initial_files(), INDEX_FILE)):
        raise files.folder_exists_error(folder, resumable=True)
    asked = _unadapted(config, by)
    config = config_with_defaults(asked)
    corpus, held = read_corpora(source, dev, config, progress=notify is not None)
    values = corpus.schema.variable(by).values
    if len(values) == 1:
        raise UserError(f"{by} has no value of at least {config.data.min_context_count} texts (--min-context-count)")
    if files.is_new(folder, (*initial_files(), INDEX_FILE)):
        folder.mkdir(parents=True, exist_ok=True)
        files.create_manifest(folder, (INDEX_FILE,))
        files.write_versioned(folder / INDEX_FILE, {"by": by, "values": values}, FORMAT)
    else:
        _check_same(folder, by, values)
    for number, value in enumerate(values):
        path = run_folder(folder, number)
        with locked_run_folder(path, resume, notify) as resumes:
            own, own_held = _texts(corpus, number), _texts(held, number)
            if not len(own_held):
                own, own_held = own.split(HELD_OUT, config.training.seed)
            if resumes:
                run = Run.open(path, trained=False)
                check_resumable(run, resumed_plan(asked, run.config).config, corpus)
            else:
                made = plan(asked, own, own_held, budget)
                run = Run.create(path, made.config, corpus.tokenizer, corpus.schema)
            if not _finished(path):
                emit_notice(notify, f"{'all texts' if number == SHARED else value} -> {path}")
                train_with_notices(run, own, own_held, resume=resumes, notify=notify)
                of = table_name(source) + ("" if number == SHARED else f", {by} {value}")
                write_training_facts(run, own, own_held, of, chosen=unspecified_options(asked))
    return SeparateRuns.open(folder)


def _check_same(folder: Path, by: str, values: Sequence[str]) -> None:
    """Refuse to resume with another column or other values, since runs are named by the numbers of values."""
    kept = files.read_versioned(folder / INDEX_FILE, FORMAT, folder)
    if kept.get("by") != by:
        raise UserError(f"{folder} was begun with by = {kept.get('by')!r}, not {by!r}; nothing resumed")
    if kept.get("values") != list(values):
        causes = "other training data, or another --min-context-count"
        raise UserError(f"{folder} was begun with other values of {by} ({causes}); nothing resumed")


def _unadapted(asked: ConfigLike, by: str) -> ConfigLike:
    """Return the same options for a model without context, with `by` as the only context column."""
    data: dict[str, Any] = {"context": (f"{by}:category",), "user": "", "time": ""}
    model: dict[str, Any] = dict(zip(("adapt", "output_bias"), MODELS["unadapted"], strict=True))
    if isinstance(asked, Mapping):
        return {**asked, "data": {**asked.get("data", {}), **data}, "model": {**asked.get("model", {}), **model}}
    config = config_with_defaults(asked)
    return config.with_options(**data, **model)


def _texts(corpus: Corpus, number: int) -> Corpus:
    return corpus if number == SHARED else corpus.select(np.flatnonzero(corpus.categories[:, 0] == number))


def _finished(folder: Path) -> bool:
    return (folder / "training.json").exists()
