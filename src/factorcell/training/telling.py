"""The end of a training with `tell_apart`: what depends on the context learns to tell the values of columns apart.

First a model learns to write. Then all that texts of any context share stands still, and `tell_epochs` passes over the
same texts minimise the sum of `training.objective` by the rest: context vectors, what they change in the recurrent
layer, and the softmax bias. Asked for from the beginning, the same sum costs more time and perplexity and tells values
apart less well.

The last weights are kept, since the perplexity alone would choose those before.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.config import TrainingConfig
from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema
from factorcell.evaluation import text_figures
from factorcell.model import sizes
from factorcell.model.run import BEGINNING, Run, facts
from factorcell.training.distributed import World
from factorcell.training.loop import watched
from factorcell.training.objective import told_columns
from factorcell.training.proximal import StartingPoint

FOLDER = "telling"  # of the run's folder, until the training has ended
PARTS = ("context", "output_bias")  # those that move
RATE = 2e-3  # of Adam, at its peak
EVALUATIONS = 2  # one before, one after
PACE = 0.6  # of a step's time, for each time that it reads its texts: it has fewer gradients than others

Row = dict[str, Any]


def options(training: TrainingConfig) -> TrainingConfig:
    """The options of the last passes of a training."""
    return replace(training, epochs=training.tell_epochs, learning_rate=RATE, evaluations=1, patience=0)


def passes(training: TrainingConfig, schema: ContextSchema) -> float:
    """How many passes of another training take as long."""
    reads = sizes.times_read(training, schema)
    return training.tell_epochs * PACE * reads if reads > 1 else 0.0


def teach(run: Run, corpus: Corpus, dev: Corpus, *, progress: bool, world: World | None = None) -> Row | None:
    """Teach `run`, which has its best weights, to tell values apart; the row that ends its log. None: nothing asked.

    What was stopped goes on; what has ended before is not done again.
    """
    if not (told_columns(run) and run.config.training.tell_epochs):
        return None
    world = world or World()
    told: Row | None = facts(run.folder).get("told")
    if told is None:
        before, last = run.log()[-1], _taught(run, corpus, dev, world, progress)
        told = {**last, **{key: before[key] + last[key] for key in ("step", "tokens", "seconds")}}
        told["steps"] = told["step"]  # patience may have ended the first part early
    if world.first:
        files.append_row(run.log_path, told)
    return told


def _taught(run: Run, corpus: Corpus, dev: Corpus, world: World, progress: bool) -> Row:
    """Train in a folder of its own, and take its weights and figures; the row of the last evaluation."""
    folder = run.folder / FOLDER
    config = replace(run.config, training=options(run.config.training))
    with world.first_goes_ahead():
        if world.first and StartingPoint.read(folder) is None:
            files.new_folder(folder, BEGINNING)
            Run.create(folder, config, corpus.vocabulary, corpus.schema)
            StartingPoint(run.model.kept(), PARTS, 0.0).write(folder)
    pupil = Run(folder, config, corpus.vocabulary, corpus.schema)
    name = f"{run.folder.name}, {FOLDER}"
    for _ in watched(pupil, corpus, dev, world, resume=True, progress=progress, name=name):
        pass
    last = pupil.best()
    assert last is not None  # it ends with an evaluation
    with world.first_goes_ahead():
        if world.first:
            run.model.load_state_dict(pupil.model.state_dict())
            run.save_weights(last)
            text_figures.keep(run.folder, text_figures.read(folder, text_figures.key_of(dev)))
        run.load_weights()
    return last


def clear(folder: Path) -> None:
    """Remove what a training in `folder` that has ended does not need."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
