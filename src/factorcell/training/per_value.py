"""Separate models as a baseline for adaptation: one for each value of a column, and a shared one for all texts.

    FOLDER/separate.json        the column and its values; the index of a value is the number of its run
    FOLDER/value-0000           the run trained on all texts, which scores texts with a rare, missing or new value
    FOLDER/value-0001 ...       the run trained on the texts of each value, the most frequent value first

All runs are unadapted and have the same vocabulary, so their perplexities are comparable.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import MODELS, UserError
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.tables import table_name
from factorcell.findings import LOG
from factorcell.model.devices import AUTO
from factorcell.model.run import Run, initial_files
from factorcell.training.fit import (
    HELD_OUT_SHARE,
    locked_run_folder,
    not_resumable_error,
    prepare_to_resume,
    read_corpora,
    train_and_log,
    write_training_facts,
)
from factorcell.training.plan import Budget, ConfigLike, config_with_defaults, plan, resumed_plan, unspecified_options
from factorcell.training.schedule import TimeLimit

INDEX_FILE = "separate.json"
FORMAT = 1  # version of the index file
SHARED = 0  # index of the unknown value in the schema, and of the run trained on all texts


class SeparateRuns:
    """One run per value of a context variable; each text is scored by the run of its value.

    Args:
        folder: The folder that contains the run folders.
        runs: The runs by the index of their value in the schema; the run trained on all texts has index 0.
    """

    def __init__(self, folder: Path, runs: Mapping[int, Run]) -> None:
        self.folder, self.runs = folder, runs
        shared = runs[SHARED]
        self.tokenizer, self.schema = shared.tokenizer, shared.schema
        self.precision = shared.precision

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", precision: str = AUTO) -> "SeparateRuns":
        """Open the runs that `separate` wrote.

        Args:
            folder: The folder that contains the run folders.
            device: The device to compute on: "cpu", "cuda" or "auto".
            precision: The precision of matrix products: "float32", "bfloat16" or "auto".

        Raises:
            UserError: If a run is not completely trained.
        """
        folder = Path(folder)
        values = files.read_versioned(folder / INDEX_FILE, FORMAT, folder).get("values")
        if not isinstance(values, list) or not values:
            raise UserError(f"{folder / INDEX_FILE}: expected a list of values, got {values!r}")
        runs: dict[int, Run] = {}
        for index in range(len(values)):
            path = run_folder(folder, index)
            if not _is_trained(path):
                raise UserError(f"{folder}: the training of {path.name} is not complete; resume it with --resume")
            runs[index] = Run.open(path, device=device, precision=precision)
        return cls(folder, runs)

    def prepare(self, source: Any, *, unknown: str = "group") -> Corpus:
        """Read texts from rows, a table or a file; `unknown` is the policy for values that training never saw."""
        return self.runs[SHARED].prepare(source, unknown=unknown)

    def nats(self, corpus: Corpus) -> NDArray[np.float32]:
        """Return the nats of all targets of `corpus`; each text is scored by the run of its value."""
        nats = np.zeros(corpus.target_count, dtype=np.float32)
        offsets = target_offsets(corpus)
        run_of_text = np.maximum(corpus.categories[:, 0], SHARED)  # a missing or new value has the index -1
        for index in np.unique(run_of_text).tolist():
            rows = np.flatnonzero(run_of_text == index)
            selected = corpus.select(rows)
            # The position in `nats` of each target of `selected`: the texts of `selected` have other offsets there.
            shifts = offsets[rows] - target_offsets(selected)[:-1]
            positions = np.repeat(shifts, selected.lengths) + np.arange(selected.target_count)
            nats[positions] = self.runs[index].nats(selected)
        return nats


def run_folder(folder: Path, index: int) -> Path:
    """Return the run folder of a value, by the index of the value in the schema."""
    return folder / f"value-{index:04d}"


def separate(
    source: Any,
    dev: Any,
    config: ConfigLike,
    folder: str | Path,
    *,
    by: str,
    budget: Budget | None = None,
    resume: bool = False,
) -> SeparateRuns:
    """Train an unadapted run on all texts, and one on the texts of each value of a column.

    Args:
        source: The training table.
        dev: The development table. If it is None or has no texts of a value, 5 % of the training texts are held out.
        config: A `Config`, which sets all options, or a mapping of some options by section; the other options are
            chosen from the texts of each value.
        folder: The folder that will contain the run folders.
        by: The column whose values get separate runs, except values with fewer than `min_context_count` texts.
        budget: The time or work of each training.
        resume: Whether to resume stopped trainings in `folder`.

    Returns:
        The trained runs.

    Raises:
        UserError: If the folder exists, the column has no frequent value, or a table or an option is not valid.
    """
    folder = Path(folder)
    if not resume and not files.is_new(folder, (*initial_files(), INDEX_FILE)):
        raise files.folder_exists_error(folder, resumable=True)
    options = _unadapted_options(config, by)
    base_config = config_with_defaults(options)
    corpus, dev_corpus = read_corpora(source, dev, base_config)
    values = corpus.schema.variable(by).values
    if len(values) == 1:
        minimum = base_config.data.min_context_count
        raise UserError(f"{by}: no value has at least {minimum} texts; lower the minimum (--min-context-count)")
    if files.is_new(folder, (*initial_files(), INDEX_FILE)):
        folder.mkdir(parents=True, exist_ok=True)
        files.create_manifest(folder, (INDEX_FILE,))
        files.write_versioned(folder / INDEX_FILE, {"by": by, "values": values}, FORMAT)
    else:
        _check_same_values(folder, by, values)
    for index, value in enumerate(values):
        path = run_folder(folder, index)
        with locked_run_folder(path, resume) as should_resume:
            train_texts, dev_texts = _texts_of(corpus, index), _texts_of(dev_corpus, index)
            if not len(dev_texts):
                train_texts, dev_texts = train_texts.split(HELD_OUT_SHARE, base_config.training.seed)
            limit = None
            if should_resume:
                run = Run.open(path, trained=False)
                prepare_to_resume(run, resumed_plan(options, run.config).config, corpus)
            else:
                value_plan = plan(options, train_texts, dev_texts, budget)
                limit = TimeLimit.of_command(value_plan.minutes, perf_counter())
                run = Run.create(path, value_plan.config, corpus.tokenizer, corpus.schema)
            if not _is_trained(path):
                value_name = f"user {index}" if by == config_with_defaults(config).data.user else value
                LOG.info("%s -> %s", "all texts" if index == SHARED else value_name, path)
                train_and_log(run, train_texts, dev_texts, resume=should_resume, limit=limit)
                source_name = table_name(source) + ("" if index == SHARED else f", {by} {value}")
                write_training_facts(run, train_texts, dev_texts, source_name, chosen=unspecified_options(options))
    return SeparateRuns.open(folder)


def _check_same_values(folder: Path, by: str, values: Sequence[str]) -> None:
    """Raise a `UserError` if the stopped call of `separate` had another column or other values.

    The name of a run folder contains the index of a value, so with other values the wrong runs would be resumed.
    """
    saved = files.read_versioned(folder / INDEX_FILE, FORMAT, folder)
    if saved.get("by") != by:
        raise not_resumable_error(folder, "by", saved.get("by"), by)
    if saved.get("values") != list(values):
        causes = "other training data, or another --min-context-count"
        raise UserError(f"{folder}: cannot resume with other values of {by} ({causes}); choose another folder")


def _unadapted_options(config: ConfigLike, by: str) -> ConfigLike:
    """Return the options for a model without adaptation and mixture, with `by` as the only context column."""
    adapt, output_bias = MODELS["unadapted"]
    data: dict[str, Any] = {"context": (f"{by}:category",), "user": "", "time": ""}
    model: dict[str, Any] = {"adapt": adapt, "output_bias": output_bias}
    sections = {"data": data, "model": model, "training": {"ngram_mixture": False}}
    if isinstance(config, Mapping):
        return {**config, **{name: {**config.get(name, {}), **options} for name, options in sections.items()}}
    return config_with_defaults(config).with_options(**data, **model, ngram_mixture=False)


def _texts_of(corpus: Corpus, index: int) -> Corpus:
    """Return the texts with the value of this index, or all texts for the index `SHARED`."""
    return corpus if index == SHARED else corpus.select(np.flatnonzero(corpus.categories[:, 0] == index))


def _is_trained(folder: Path) -> bool:
    return (folder / "training.json").exists()
