"""Fine-tuning: a trained run is trained further on few texts of one domain; some parts move, the others are frozen."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from factorcell import limits
from factorcell.choices import GENTLE
from factorcell.config import Config, TrainingConfig, UserError
from factorcell.data.corpus import Corpus
from factorcell.model.run import Run
from factorcell.training import rules
from factorcell.training.fit import HELD_OUT, Say, begun, check_same, finish, learn
from factorcell.training.proximal import ALL, StartingPoint, parts_named


def gentle(training: TrainingConfig, targets: int | None = None) -> TrainingConfig:
    """The options by which a run is fine-tuned on so many targets that was trained with `training`."""
    most = training.batch_tokens
    size = most if targets is None else rules.gentle_batch(targets, GENTLE["epochs"], most)
    return dataclasses.replace(training, **GENTLE, batch_tokens=size)


def finetune(
    old: Run | str | Path,
    source: Any,
    dev: Any,
    folder: str | Path,
    *,
    parts: Sequence[str] = (ALL,),
    l1: float = 0.0,
    training: TrainingConfig | Mapping[str, Any] | None = None,
    unknown: str = "error",
    resume: bool = False,
    say: Say | None = None,
) -> Run:
    """Train `parts` of the run `old` further on the table `source`; the new run in `folder`, with its best weights.

    `l1` is a penalty of nats on how far a value moves, `training` the options, or some of them instead of those of
    `gentle`, `unknown` what to do with a context value that `old` does not know. Without `dev`, 5 % of the rows are
    held out.
    """
    old, folder = old if isinstance(old, Run) else Run.open(old), Path(folder)
    limits.check(l1=l1)
    values = {name: tensor.detach().cpu().clone() for name, tensor in old.model.kept().items()}
    start = StartingPoint(values, parts_named(old.model, parts), l1)
    with begun(folder, resume, say) as going_on:
        seed = _options(old, training).seed
        corpus, held = _read(old, source, dev, seed, unknown, progress=say is not None)
        config = dataclasses.replace(old.config, training=_options(old, training, corpus.targets))
        run = _resumed(folder, config, corpus, start) if going_on else _created(folder, config, corpus, start)
        start.place(run.model)  # as the training does, which goes on from its checkpoint if there is one
        learn(run, corpus, held, resume=going_on, say=say)
        moved = start.moved(run.model)
        tuned = {"from": str(old.folder), "parts": start.parts, "l1": l1, "moved": moved}
        finish(run, corpus, held, source, finetuned=tuned)
    return run


def _options(old: Run, given: TrainingConfig | Mapping[str, Any] | None, targets: int | None = None) -> TrainingConfig:
    """The options of a fine-tuning on so many targets, of which some or all are given."""
    if isinstance(given, TrainingConfig):
        return given
    return dataclasses.replace(gentle(old.config.training, targets), **(given or {}))


def _read(old: Run, source: Any, dev: Any, seed: int, unknown: str, progress: bool) -> tuple[Corpus, Corpus]:
    """Training and development texts; without `dev` the latter are held out."""
    corpus = old.prepare(source, unknown=unknown, progress=progress)
    if dev is None:
        return corpus.split(HELD_OUT, seed)
    return corpus, old.prepare(dev, unknown=unknown, progress=progress)


def _created(folder: Path, config: Config, corpus: Corpus, start: StartingPoint) -> Run:
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    start.write(folder)
    return run


def _resumed(folder: Path, config: Config, corpus: Corpus, start: StartingPoint) -> Run:
    """The run in `folder`, if it was begun from this very start."""
    run = Run.open(folder, trained=False)
    check_same(run, config, corpus)
    begun_from = StartingPoint.read(folder)
    if begun_from is None:
        raise UserError(f"{folder} was begun without fine-tuning; nothing resumed")
    if (begun_from.parts, begun_from.l1) != (start.parts, start.l1):
        told = f"with parts {', '.join(begun_from.parts)} and l1 {begun_from.l1:g}"
        raise UserError(f"{folder} was begun {told}, not {', '.join(start.parts)} and {start.l1:g}; nothing resumed")
    if not all(torch.equal(value, start.values[name]) for name, value in begun_from.values.items()):
        raise UserError(f"{folder} was begun from other weights than those given; nothing resumed")
    return run
