"""Fine-tuning: train a run further on few texts of one domain; some of its parts move, the others are frozen."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from factorcell import limits
from factorcell.choices import SMALL_DATA_DEFAULTS
from factorcell.config import TrainingConfig, UserError
from factorcell.model.run import Run
from factorcell.training import rules
from factorcell.training.fit import (
    HELD_OUT,
    Notify,
    check_resumable,
    locked_run_folder,
    train_with_notices,
    write_training_facts,
)
from factorcell.training.proximal import ALL, StartingPoint, select_parts


def finetune(
    base: Run | str | Path,
    source: Any,
    dev: Any,
    folder: str | Path,
    *,
    parts: Sequence[str] = (ALL,),
    l1: float = 0.0,
    training: TrainingConfig | Mapping[str, Any] | None = None,
    unknown: str = "error",
    resume: bool = False,
    notify: Notify | None = None,
) -> Run:
    """Train `parts` of the run `old` further on the table `source`; return the new run with its best weights.

    Args:
        base: The run to begin from.
        source: The training table.
        dev: The development table; without it, 5 % of the rows are held out.
        folder: The run folder to write.
        parts: The parts that move: "embedding", "context", "backbone", "output_bias", "projection", or "all".
        l1: The penalty, in nats, on the distance that a value moves.
        training: The training options, or some of them; the others are those of `old` with gentler defaults.
        unknown: What to do with context values that `old` does not know: "error", "group" or "expected".
        resume: Whether to resume in a folder that exists.
        notify: A function that takes lines about the progress.
    """
    base, folder = base if isinstance(base, Run) else Run.open(base), Path(folder)
    limits.check(l1=l1)
    values = {name: tensor.detach().cpu().clone() for name, tensor in base.model.saved_tensors().items()}
    start = StartingPoint(values, select_parts(base.model, parts), l1)
    said = vars(training) if isinstance(training, TrainingConfig) else training or {}
    with locked_run_folder(folder, resume, notify) as resumes:
        options = dataclasses.replace(base.config.training, **{**SMALL_DATA_DEFAULTS, **said})
        corpus = base.prepare(source, unknown=unknown, progress=notify is not None)
        if dev is None:
            corpus, held = corpus.split(HELD_OUT, options.seed)
        else:
            held = base.prepare(dev, unknown=unknown, progress=notify is not None)
        if "batch_tokens" not in said:
            size = rules.batch_tokens(
                corpus.target_count, SMALL_DATA_DEFAULTS["epochs"], rules.GENTLE_STEPS, options.batch_tokens
            )
            options = dataclasses.replace(options, batch_tokens=size)
        config = dataclasses.replace(base.config, training=options)
        if resumes:
            run = Run.open(folder, trained=False)
            check_resumable(run, config, corpus)
            _check_start(folder, start)
        else:
            run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
            start.write(folder)
        start.place(run.model)  # as the training does, which continues from its checkpoint if there is one
        train_with_notices(run, corpus, held, resume=resumes, notify=notify)
        facts = {"from": str(base.folder), "parts": start.parts, "l1": l1, "moved": start.count_moved(run.model)}
        write_training_facts(run, corpus, held, source, finetuned=facts)
    return run


def _check_start(folder: Path, start: StartingPoint) -> None:
    """Refuse to resume a fine-tuning from another start."""
    begun_from = StartingPoint.read(folder)
    if begun_from is None:
        raise UserError(f"{folder} was begun without fine-tuning; nothing resumed")
    if (begun_from.parts, begun_from.l1) != (start.parts, start.l1):
        old = f"with parts {', '.join(begun_from.parts)} and l1 {begun_from.l1:g}"
        raise UserError(f"{folder} was begun {old}, not {', '.join(start.parts)} and {start.l1:g}; nothing resumed")
    if not all(torch.equal(value, start.values[name]) for name, value in begun_from.values.items()):
        raise UserError(f"{folder} was begun from other weights than those given; nothing resumed")
