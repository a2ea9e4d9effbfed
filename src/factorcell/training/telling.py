"""The end of a training with `tell_apart`: what depends on the context learns to tell the values of columns apart.

First a model learns to write. Then all that texts of any context share stands still, and `tell_epochs` passes over the
same texts minimise the sum of `training.objective` by the rest: context vectors, what they change in the recurrent
layer, and the softmax bias. Asked for from the beginning, the same sum costs more time and perplexity and tells values
apart less well.

The last weights are kept, since the perplexity alone would choose those before. What it was worth is measured on some
development texts, by the accuracy of Bayes' rule before and after.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from factorcell import files
from factorcell.config import TrainingConfig
from factorcell.data.corpus import Corpus
from factorcell.data.schema import ContextSchema
from factorcell.evaluation import text_figures
from factorcell.evaluation.bayes_rule import judge
from factorcell.evaluation.classification import log_likelihoods
from factorcell.interrupts import Stopped
from factorcell.model import sizes
from factorcell.model.run import BEGINNING, TELLING, Run, facts
from factorcell.training.distributed import World
from factorcell.training.loop import watched
from factorcell.training.objective import told_columns
from factorcell.training.proximal import StartingPoint

PARTS = ("context", "output_bias")  # those that move
RATE = 2e-3  # of Adam, at its peak
EVALUATIONS = 2  # one before, one after
VALUES = 20  # the most frequent ones, among which the accuracy is measured
FEWEST, MOST = 200, 1000  # development texts by which it is, if there are as many
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
        before = run.log()[-1]
        try:
            last = _taught(run, corpus, dev, world, progress)
        except Stopped as stop:  # of the folder inside nobody needs to know
            raise Stopped(str(stop).replace(str(run.folder / TELLING), str(run.folder))) from None
        told = {**last, **{key: before[key] + last[key] for key in ("step", "tokens", "seconds")}}
        told["steps"] = told["step"]  # patience may have ended the first part early
    if world.first:
        files.append_row(run.log_path, told)
    return told


def _taught(run: Run, corpus: Corpus, dev: Corpus, world: World, progress: bool) -> Row:
    """Train in a folder of its own, and take its weights and figures; the row of the last evaluation."""
    folder = run.folder / TELLING
    config = replace(run.config, training=options(run.config.training))
    before: list[Row] = []
    with world.first_goes_ahead():
        if world.first:
            start = StartingPoint.read(folder)
            if start is None:
                files.new_folder(folder, BEGINNING)
                Run.create(folder, config, corpus.vocabulary, corpus.schema)
                start = StartingPoint(run.model.kept(), PARTS, 0.0)
                start.write(folder)
            start.place(run.model)  # whoever was killed late has the weights of the end already
            before = accuracies(run, dev)
    pupil = Run(folder, config, corpus.vocabulary, corpus.schema)
    name = f"{run.folder.name}, {TELLING}"
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
    return {**last, "apart": beside(before, accuracies(run, dev))} if before else last


def accuracies(run: Run, dev: Corpus) -> list[Row]:
    """For each column that `run` is to tell apart the share of some texts of `dev` whose value Bayes' rule finds.

    They take about as long as an evaluation of `dev`: `texts` of the most frequent `values`, of which there are `all`.
    """
    found = []
    for told in told_columns(run):
        variable, ids = run.schema.categories[told.column], dev.categories[:, told.column]
        names = variable.values[1 : VALUES + 1]
        known = np.flatnonzero((ids > 0) & (ids <= len(names)))
        count = max(FEWEST, min(MOST, len(dev) // len(names)))
        some = dev.select(np.sort(np.random.default_rng(run.config.training.seed).permutation(known)[:count]))
        if len(some):
            likely = log_likelihoods(run, some, [{variable.name: name} for name in names])
            truth = [variable.values[index] for index in some.categories[:, told.column]]
            judged = judge(names, likely, some.lengths, truth).under(variable.counted)
            row: Row = {"column": variable.name, "values": len(names), "all": len(variable.values) - 1}
            found.append({**row, "texts": len(some), "accuracy": float((judged.predicted == judged.truth).mean())})
    return found


def beside(before: Sequence[Row], after: Sequence[Row]) -> list[Row]:
    """The `accuracies` before telling and after it, a row for each column."""
    rows = []
    for old, new in zip(before, after, strict=True):
        rows.append({**old, "before": old["accuracy"], "after": new["accuracy"]})
        del rows[-1]["accuracy"]
    return rows


def lines(apart: Sequence[Row]) -> list[str]:
    """What `beside` found, a line for each column."""
    return [
        f"{row['column']} of {row['texts']:,} dev texts told apart"
        + (f", of its {row['values']} most frequent values" if row["values"] < row["all"] else "")
        + f": {row['before']:.1%} before, {row['after']:.1%} after"
        for row in apart
    ]


def clear(folder: Path) -> None:
    """Remove what a training in `folder` that has ended does not need."""
    shutil.rmtree(folder / TELLING, ignore_errors=True)
