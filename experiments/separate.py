"""Separate models as a baseline for adaptation: one for each value of a column, and a shared one for all texts.

    FOLDER/value-0000           the run trained on all texts, which scores texts with a rare, missing or new value
    FOLDER/value-0001 ...       the run trained on the texts of each value, the most frequent value first
    FOLDER/mixture.json         a mixture that gives the run of the value of each text the weight 1

All runs are unadapted and have the same vocabulary, so their perplexities are comparable.

    python experiments/separate.py TRAIN --dev DEV --by COLUMN --out FOLDER [--config CONFIG] [--resume]
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

from factorcell.config import MODELS, Config
from factorcell.data.corpus import Corpus
from factorcell.data.tables.tables import table_name
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.findings import LOG
from factorcell.io.input_files import CONFIG
from factorcell.ngram.mixture import FILE
from factorcell.runs.run import Run, initial_files
from factorcell.training.fit import (
    HELD_OUT_SHARE,
    locked_run_folder,
    prepare_to_resume,
    read_corpora,
    save_other_models,
    train_and_log,
    write_training_facts,
)
from factorcell.training.mixture import MixedModels
from factorcell.training.rules import SpecifiedOptions, add_options, plan, resumed_config, unspecified_options

SHARED = 0  # index of the unknown value in the schema, and of the run trained on all texts


def run_folder(folder: Path, index: int) -> Path:
    """Return the run folder of a value, by the index of the value in the schema."""
    return folder / f"value-{index:04d}"


def separate_models(mixture: MixedModels) -> list[Run]:
    """Return the runs of a mixture that `separate` made."""
    return [model for model in mixture.models if isinstance(model, Run)]


def separate(
    source: Any,
    dev: Any,
    config: Config | SpecifiedOptions,
    folder: str | Path,
    *,
    by: str,
    preset: str | None = None,
    resume: bool = False,
) -> MixedModels:
    """Train an unadapted run on all texts, and one on the texts of each value of a column.

    Args:
        source: The training table.
        dev: The development table. If it is None or has no texts of a value, 5 % of the training texts are held out.
        config: A `Config`, which sets all options, or a mapping of some options by section; the other options are
            chosen from the texts of each value.
        folder: The folder that will contain the run folders.
        by: The column whose values get separate runs, except values with fewer than `min_context_count` texts.
        preset: The number of passes of each training, as in `fit`.
        resume: Whether to resume stopped trainings in `folder`.

    Returns:
        The mixture of the trained runs, which scores each text with the run of its value.

    Raises:
        UserError: If the folder exists, the column has no frequent value, or a table or an option is not valid.
    """
    folder = Path(folder)
    is_resumable = resume and not (folder / CONFIG).exists()
    if not is_resumable:
        files.check_new(folder, initial_files(), resumable=True)
    specified = config.to_dict() if isinstance(config, Config) else config
    user, options = Config.from_dict(specified).data.user, _unadapted_options(specified, by)
    base_config = Config.from_dict(options)
    corpus, dev_corpus = read_corpora(source, dev, base_config)
    variable = corpus.schema.variable(by)
    values = variable.values
    if variable.is_all_rare:
        minimum = variable.min_count
        raise UserError(f"{by}: no value has at least {minimum} texts; lower the minimum (--min-context-count)")
    runs = list[Run]()
    for index, value in enumerate(values):
        path = run_folder(folder, index)
        with locked_run_folder(path, resume) as should_resume:
            train_texts, dev_texts = _texts_of(corpus, index), _texts_of(dev_corpus, index)
            if not len(dev_texts):
                train_texts, dev_texts = train_texts.split(HELD_OUT_SHARE, base_config.training.seed)
            if should_resume:
                run = Run.open(path, trained=False)
                prepare_to_resume(run, resumed_config(options, run.config), corpus)
            else:
                run_config = plan(options, train_texts, dev_texts, preset=preset)
                run = Run.create(path, run_config, corpus.tokenizer, corpus.schema)
            if not _is_trained(path):
                value_name = f"user {index}" if by == user else value
                LOG.info("%s -> %s", "all texts" if index == SHARED else value_name, path)
                train_and_log(run, train_texts, dev_texts, resume=should_resume)
                source_name = table_name(source) + ("" if index == SHARED else f", {by} {value}")
                facts = save_other_models(run, train_texts)
                chosen = unspecified_options(options)
                write_training_facts(run, train_texts, dev_texts, source_name, facts, chosen=chosen)
        runs.append(Run.open(path))
    mixture = MixedModels(folder, runs, by, np.eye(len(values)))
    if not (folder / FILE).exists():
        mixture.save()
    return mixture


def _unadapted_options(specified: SpecifiedOptions, by: str) -> SpecifiedOptions:
    """Return the options for a model without adaptation and mixture, with `by` as the only context column."""
    adapt, output_bias = MODELS["unadapted"]
    data = {"context": (f"{by}:category",), "user": "", "time": ""}
    return add_options(specified, {**data, "adapt": adapt, "output_bias": output_bias, "ngram_mixture": False})


def _texts_of(corpus: Corpus, index: int) -> Corpus:
    """Return the texts with the value of this index, or all texts for the index `SHARED`."""
    return corpus if index == SHARED else corpus.select(np.flatnonzero(corpus.categories[:, 0] == index))


def _is_trained(folder: Path) -> bool:
    return (folder / "training.json").exists()


def main(argv: list[str] | None = None) -> int:
    """Train the models of a table; return an exit status."""
    parser = argparse.ArgumentParser(description="Train one unadapted model for each value of a column.")
    parser.add_argument("train", type=Path, help="training table")
    parser.add_argument("--dev", type=Path, help="development table (default: 5 %% of the texts are held out)")
    parser.add_argument("--by", required=True, help="column whose values get separate models")
    parser.add_argument("--out", required=True, type=Path, help="folder of the run folders")
    parser.add_argument("--config", type=Path, help="file of options, as for `factorcell train`")
    parser.add_argument("--resume", action="store_true", help="resume stopped trainings in --out")
    options = parser.parse_args(argv)

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config: Config | SpecifiedOptions = Config.of(config=options.config) if options.config else {}
        separate(options.train, options.dev, config, options.out, by=options.by, resume=options.resume)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
