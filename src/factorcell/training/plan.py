"""Complete the options of a training: options that follow from the table, and how long the training takes.

Options that the user specified are used as they are; `rules` chooses the others.
The speed of this machine is measured on the first batches with a temporary model, before the training starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from factorcell import limits
from factorcell.choices import AUTOMATIC_OPTIONS, PRESETS
from factorcell.config import Config, section_types, selected_kinds
from factorcell.data.corpus import Batch, Corpus
from factorcell.model import precision as precisions
from factorcell.model.devices import find_device
from factorcell.model.language_model import head_class
from factorcell.model.run import Run
from factorcell.training import rules
from factorcell.training.rules import TableFacts
from factorcell.training.trainer import Trainer

WARMUP_STEPS = 3  # the first steps are slower and not measured
MEASURED_SECONDS = 3.0  # duration of the steps that are measured
# An evaluation is measured on 64 development texts first, then on twice as many until it takes half a second.
FIRST_DEV_TEXTS, MIN_EVALUATION_SECONDS = 64, 0.5
STEPS_SHARE = 0.97  # share of the minutes for steps and evaluations; reading and saving take the rest

SpecifiedOptions = Mapping[str, Mapping[str, Any]]  # section of the config -> option -> value


@dataclass(frozen=True)
class Budget:
    """The work that a training may take.

    Args:
        minutes: The largest duration; None: no limit.
        preset: The number of passes: "quick", "good" or "best". The default is "good", or "best" with `minutes`.
    """

    minutes: float | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        limits.check(minutes=self.minutes)
        if self.preset is not None:
            limits.choose("preset", self.preset, PRESETS)

    @property
    def preset_or_default(self) -> str:
        """The preset, or its default."""
        return self.preset or ("good" if self.minutes is None else "best")


@dataclass(frozen=True)
class Speed:
    """The measured speed of a training: seconds per step, steps per pass, and seconds per evaluation."""

    step_seconds: float
    steps_per_pass: int
    evaluation_seconds: float

    def total_seconds(self, config: Config) -> float:
        """Return the duration of a training with `config`."""
        training = config.training
        steps = self.steps_per_pass * training.epochs
        return self.step_seconds * steps + self.evaluation_seconds * training.evaluations


@dataclass(frozen=True)
class Plan:
    """A complete config for a training.

    Attributes:
        config: All options.
        chosen: The names of the options that were chosen automatically.
        seconds: The expected duration of the training, if known.
        bfloat16_speedup: The measured speed of bfloat16 relative to float32; 1 if it was not measured.
    """

    config: Config
    chosen: tuple[str, ...] = ()
    seconds: float | None = None
    bfloat16_speedup: float = 1.0

    def for_model(self, model: str) -> "Plan":
        """Return this plan with the options of the named model."""
        return replace(self, config=self.config.with_model(model))

    def with_training(self, **options: Any) -> "Plan":
        """Return this plan with other options of the section `training`."""
        return replace(self, config=replace(self.config, training=replace(self.config.training, **options)))

    def notices(self) -> list[str]:
        """Return one-line notices about the chosen options and the expected duration."""
        lines = []
        for section, names in AUTOMATIC_OPTIONS.items():
            if chosen := [name for name in self.chosen if name in names]:
                lines.append(f"chosen {section} options: {self.config.format_options(chosen)}")
        if self.chosen:
            lines[-1] += f"; to override, set --{self.chosen[0].replace('_', '-')} or any other"
        lines += precisions.describe_speedup(self.bfloat16_speedup)
        if self.seconds is not None:
            passes = f"{self.config.training.epochs:g} passes"
            lines.append(f"{passes}, about {format_duration(self.seconds)} on this machine")
        return lines


ConfigLike = Config | Plan | SpecifiedOptions  # a Config sets all options, a mapping sets some of them


def plan(
    config: ConfigLike,
    corpus: Corpus,
    dev: Corpus,
    budget: Budget | None = None,
    *,
    models: Sequence[str] = (),
) -> Plan:
    """Plan a training on `corpus`, or one training of each of `models` with the same options.

    A `Config` sets all options except a precision of "auto"; it cannot be combined with a budget.
    """
    budget = budget or Budget()
    if isinstance(config, Plan | Config):
        if budget != Budget():
            raise limits.UserError(
                "config: a Config sets all options of a training; pass a mapping of options to use minutes or a preset"
            )
        return _with_precision(config if isinstance(config, Plan) else Plan(config), corpus, dev)
    facts = TableFacts.of(corpus, dev)
    passes = config.get("training", {}).get("epochs")
    if passes is not None and budget.minutes is not None:
        raise limits.UserError("epochs and minutes: both are set; set only one of them")

    def plan_and_measure(epochs: float) -> tuple[Plan, Speed]:
        complete = _with_precision(_with_defaults(config, facts, epochs), corpus, dev)
        return complete, measure_speed(complete.config, corpus, dev, models)

    preset = budget.preset_or_default
    large, speed = plan_and_measure(rules.default_passes(facts, preset) if passes is None else float(passes))
    seconds = speed.total_seconds(large.config)
    if budget.minutes is None or seconds <= budget.minutes * 60:
        return replace(large, seconds=seconds)
    allowed = budget.minutes * 60
    max_passes = large.config.training.epochs
    affordable = max_passes * allowed / seconds  # with the large model; a smaller model can make more passes
    small, speed = plan_and_measure(affordable)
    epochs = _fit_passes(small, speed, allowed, max_passes).config.training.epochs
    final = _with_defaults(config, facts, epochs, affordable).with_training(precision=small.config.training.precision)
    return _fit_passes(replace(final, bfloat16_speedup=small.bfloat16_speedup), speed, allowed, max_passes)


def _with_defaults(
    specified: SpecifiedOptions, facts: TableFacts, epochs: float, sized_for: float | None = None
) -> Plan:
    """Complete the specified options by the rules for `epochs` passes, with sizes for `sized_for` passes."""
    defaults, chosen = rules.default_options(facts, epochs, sized_for), unspecified_options(specified)
    if not head_class(config_with_defaults(specified).head.kind).has_sampled_loss:
        defaults["training"]["loss"] = "full"
    complete = {section: {**values} for section, values in specified.items()}
    for section, values in defaults.items():
        added = {name: value for name, value in values.items() if name in chosen}
        complete[section] = {**added, **complete.get(section, {})}
    return Plan(Config.from_dict(complete), chosen)


def _fit_passes(draft: Plan, speed: Speed, allowed: float, max_passes: float) -> Plan:
    """Return the plan with as many passes as fit into `allowed` seconds, at most `max_passes`."""
    evaluation_seconds = speed.evaluation_seconds * draft.config.training.evaluations
    seconds_for_steps = max(allowed * STEPS_SHARE - evaluation_seconds, allowed / 2)
    passes = seconds_for_steps / (speed.step_seconds * speed.steps_per_pass)
    draft = draft.with_training(epochs=min(max_passes, float(f"{passes:.3g}")))
    return replace(draft, seconds=speed.total_seconds(draft.config))


def _with_precision(draft: Plan, corpus: Corpus, dev: Corpus) -> Plan:
    """Replace a precision of "auto" by the faster one, measured on training steps."""
    if draft.config.training.precision != precisions.AUTO:
        return draft

    @cache
    def probe() -> tuple[Trainer, Batch]:
        trainer = _temporary_trainer(draft.config, corpus, dev)
        return trainer, next(trainer.batches())

    def step(name: str) -> None:
        trainer, batch = probe()
        trainer.progress.step = 0  # a small table has fewer steps than are measured
        trainer.config = replace(trainer.config, precision=name)
        trainer.step(batch)

    speedup = precisions.measure_speedup(step, find_device(draft.config.training.device))
    precision = precisions.choose_precision(speedup)
    return replace(draft.with_training(precision=precision), bfloat16_speedup=speedup)


def measure_speed(config: Config, corpus: Corpus, dev: Corpus, models: Sequence[str] = ()) -> Speed:
    """Measure the speed of this machine on the first batches; with `models`, return the mean over them."""
    configs = [config.with_model(name) for name in models] or [config]
    speeds = [_measure_one(config, corpus, dev) for config in configs]
    return Speed(
        fmean(speed.step_seconds for speed in speeds),
        speeds[0].steps_per_pass,
        fmean(speed.evaluation_seconds for speed in speeds),
    )


def _measure_one(config: Config, corpus: Corpus, dev: Corpus) -> Speed:
    trainer = _temporary_trainer(config, corpus, dev)
    start, timed = perf_counter(), 0
    for number, batch in enumerate(trainer.batches(), 1):
        if number == WARMUP_STEPS + 1:  # in a shorter pass, the first steps are measured too
            start, timed = perf_counter(), 0
        trainer.step(batch)
        timed += 1
        if number > WARMUP_STEPS and perf_counter() - start > MEASURED_SECONDS:
            break
    step_seconds, count = (perf_counter() - start) / timed, FIRST_DEV_TEXTS
    while (
        True
    ):  # each evaluation has a fixed cost, so a measurement on few texts would overestimate the time for all texts
        part = dev.select(np.arange(min(count, len(dev))))
        start = perf_counter()
        trainer.run.nats(part)
        seconds = perf_counter() - start
        if seconds > MIN_EVALUATION_SECONDS or count >= len(dev):
            return Speed(step_seconds, trainer.steps, seconds * dev.target_count / max(1, part.target_count))
        count *= 2


class _TemporaryTrainer(Trainer):
    """A trainer that writes no files and ignores a loss that is not finite; the training itself reports it."""

    def report_not_finite(self, batch: Batch, nats: Tensor) -> None:
        """Continue."""


def _temporary_trainer(config: Config, corpus: Corpus, dev: Corpus) -> Trainer:
    """Return a trainer of one pass for measurements."""
    one_pass = replace(config, training=replace(config.training, epochs=1.0, canaries=0))
    return _TemporaryTrainer(Run(Path("measured"), one_pass, corpus.tokenizer, corpus.schema), corpus, dev)


def config_with_defaults(config: ConfigLike) -> Config:
    """Return the specified options with the defaults of their fields, which is enough to read a table."""
    if isinstance(config, Plan):
        return config.config
    return config if isinstance(config, Config) else Config.from_dict(config)


def unspecified_options(config: ConfigLike) -> tuple[str, ...]:
    """Return the names of the options that are chosen automatically."""
    if isinstance(config, Plan | Config):
        return config.chosen if isinstance(config, Plan) else ()
    specified = {name for values in config.values() for name in values}
    if "loss" in specified:
        specified.add("samples")
    types = section_types(selected_kinds(config)).values()
    existing = {field.name for section_type in types for field in fields(section_type)}  # of the selected kinds only
    free = existing - specified
    return tuple(name for names in AUTOMATIC_OPTIONS.values() for name in names if name in free)


def resumed_plan(config: ConfigLike, saved: Config) -> Plan:
    """Plan a training that resumes: `config` overrides the options of the `saved` config."""
    if isinstance(config, Plan | Config):
        resumed = config if isinstance(config, Plan) else Plan(config)
    else:
        kinds = saved.kinds | selected_kinds(config)  # options of another kind are not reused
        values = {
            section: {**(old if kinds.get(section) == old.get("kind") else {}), **config.get(section, {})}
            for section, old in saved.to_dict().items()
        }
        resumed = Plan(Config.from_dict(values), unspecified_options(config))
    if resumed.config.training.precision != precisions.AUTO:
        return resumed
    return resumed.with_training(precision=saved.training.precision)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
