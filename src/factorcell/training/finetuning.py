"""Fine-tuning: continue the training of a run on few texts of one domain.

Some parts of the model are trained, the others are frozen.
"""

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
    not_resumable,
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
    """Fine-tune a run: train some of its parts further on another table.

    Args:
        base: The run to start from, or its folder; it is not changed.
        source: The training table.
        dev: The development table; without it, 5 % of the rows are held out.
        folder: The run folder to write.
        parts: The parts to train: "embedding", "context", "backbone", "output_bias", "projection", or "all".
        l1: The penalty on the distance of a weight from its start, in nats per unit of distance.
        training: A `TrainingConfig`, or a mapping of some training options. Other options have the values of
            `choices.SMALL_DATA_DEFAULTS`, or else those of `base`.
        unknown: How to read context values that `base` does not know: "error", "group" or "expected".
        resume: Whether to resume in a folder that exists.
        notify: A function that receives one-line notices; with it, progress bars go to standard error.

    Returns:
        The new run with its best weights.

    Raises:
        UserError: If the folder exists and `resume` is false, a table or an option is not valid, or the loss is not
            finite.
    """
    base, folder = base if isinstance(base, Run) else Run.open(base), Path(folder)
    limits.check(l1=l1)
    values = {name: tensor.detach().cpu().clone() for name, tensor in base.model.saved_tensors().items()}
    start = StartingPoint(values, select_parts(base.model, parts), l1)
    specified = vars(training) if isinstance(training, TrainingConfig) else training or {}
    with locked_run_folder(folder, resume, notify) as resumes:
        options = dataclasses.replace(base.config.training, **{**SMALL_DATA_DEFAULTS, **specified})
        corpus = base.prepare(source, unknown=unknown, progress=notify is not None)
        if dev is None:
            corpus, dev_corpus = corpus.split(HELD_OUT, options.seed)
        else:
            dev_corpus = base.prepare(dev, unknown=unknown, progress=notify is not None)
        if "batch_tokens" not in specified:
            size = rules.batch_tokens(
                corpus.target_count, SMALL_DATA_DEFAULTS["epochs"], rules.MIN_FINETUNING_STEPS, options.batch_tokens
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
        start.apply_to(run.model)  # the trainer repeats this before it loads a checkpoint
        train_with_notices(run, corpus, dev_corpus, resume=resumes, notify=notify)
        facts = {"from": str(base.folder), "parts": start.parts, "l1": l1, "moved": start.count_moved(run.model)}
        write_training_facts(run, corpus, dev_corpus, source, finetuned=facts)
    return run


def _check_start(folder: Path, start: StartingPoint) -> None:
    """Raise a `UserError` if the stopped fine-tuning in `folder` had other starting weights, parts or penalty."""
    saved = StartingPoint.read(folder)
    if saved is None:
        raise UserError(f"{folder}: cannot resume; expected a fine-tuning, got a training; choose another folder")
    if saved.parts != start.parts:
        raise not_resumable(folder, "parts", ", ".join(saved.parts), ", ".join(start.parts))
    if saved.l1 != start.l1:
        raise not_resumable(folder, "l1", saved.l1, start.l1)
    if not all(torch.equal(value, start.values[name]) for name, value in saved.values.items()):
        raise UserError(f"{folder}: cannot resume with other starting weights; choose another folder")
