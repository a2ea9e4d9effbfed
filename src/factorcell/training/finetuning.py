"""Fine-tuning: continue the training of a run on few texts of one domain, and freeze some parts of the model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from factorcell.config import TrainingConfig, TrainingOptions, option_fields
from factorcell.errors import UserError, check_choice
from factorcell.nn.devices import AUTO
from factorcell.options import limits
from factorcell.options.limits import SMALL_DATA_DEFAULTS, check_unknown
from factorcell.runs.run import Run
from factorcell.training import rules
from factorcell.training.fit import (
    HELD_OUT_SHARE,
    completion_streams,
    locked_run_folder,
    not_resumable_error,
    prepare_to_resume,
    save_other_models,
    train_and_log,
    write_training_facts,
)
from factorcell.training.proximal import ALL, StartingPoint, select_parts


def finetune(
    run: Run | str | Path,
    source: Any,
    *,
    out: str | Path,
    dev: Any = None,
    parts: Sequence[str] = (ALL,),
    l1: float = 0.0,
    unknown: str = "group",
    resume: bool = False,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Fine-tune a run: train some of its parts further on another table.

    Args:
        run: The run to start from, or its folder; it is not changed.
        source: The training table.
        out: The run folder to write.
        dev: The development table; if None, 5 % of the training rows are held out.
        parts: The parts to train: "embedding", "context", "backbone", "output_bias", "projection", or "all".
        l1: The penalty on the distance of a weight from its starting value, in nats per unit of distance.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        resume: Whether to resume a stopped fine-tuning in `out`.
        **options: Options of the section `training`, such as `epochs`. The other options have the values in
            `limits.SMALL_DATA_DEFAULTS`; options that are not in it have those of `run`.

    Returns:
        The new run with its best weights.

    Raises:
        UserError: If the folder exists and `resume` is false, a table or an option is not valid, or the loss is not
            finite.
    """
    base_run = run if isinstance(run, Run) else Run.open(run)
    folder, base_config = Path(out), base_run.config
    [l1] = limits.check(l1=l1)
    check_unknown(unknown)
    starting_values = {name: tensor.detach().cpu().clone() for name, tensor in base_run.model.saved_tensors().items()}
    start = StartingPoint(starting_values, select_parts(base_run.model, parts), l1)
    for name in options:
        check_choice("option of fine-tuning", name, [field.name for field in option_fields(TrainingConfig)])
    with locked_run_folder(folder, resume) as should_resume:
        # The training of `base_run` may have computed on a device that this machine lacks.
        training = replace(base_config.training, **{**SMALL_DATA_DEFAULTS, "device": AUTO, **options})
        corpus = base_run.prepare(source, unknown=unknown)
        if dev is None:
            corpus, dev_corpus = corpus.split(HELD_OUT_SHARE, training.seed)
        else:
            dev_corpus = base_run.prepare(dev, unknown=unknown)
        if "batch_tokens" not in options:
            tokens_per_batch = rules.batch_tokens(
                corpus.target_count, SMALL_DATA_DEFAULTS["epochs"], rules.MIN_FINETUNING_STEPS, training.batch_tokens
            )
            training = replace(training, batch_tokens=tokens_per_batch)
        config = replace(base_config, training=training)
        if should_resume:
            tuned = Run.open(folder, trained=False)
            prepare_to_resume(tuned, config, corpus)
            _check_start(folder, start)
        else:
            tuned = Run.create(folder, config, corpus.tokenizer, corpus.schema)
            start.write(folder)
        train_and_log(tuned, corpus, dev_corpus, resume=should_resume)
        facts = {"from": str(base_run.folder), "parts": start.parts, "l1": l1, "moved": start.count_moved(tuned.model)}
        streams = completion_streams(tuned, source if dev is None else dev, dev_corpus)
        other_facts = save_other_models(tuned, corpus, streams)
        write_training_facts(tuned, corpus, dev_corpus, source, {"finetuned": facts, **other_facts})
    return tuned


def _check_start(folder: Path, start: StartingPoint) -> None:
    """Raise a `UserError` if the stopped fine-tuning in `folder` had other starting weights, parts or penalty."""
    saved = StartingPoint.read(folder)
    if saved is None:
        raise UserError(f"{folder}: cannot resume; expected a fine-tuning, got a training; choose another folder")
    if saved.parts != start.parts:
        raise not_resumable_error(folder, "parts", ", ".join(saved.parts), ", ".join(start.parts))
    if saved.l1 != start.l1:
        raise not_resumable_error(folder, "l1", saved.l1, start.l1)
    if not all(torch.equal(value, start.values[name]) for name, value in saved.values.items()):
        raise UserError(f"{folder}: cannot resume with other starting weights; choose another folder")
