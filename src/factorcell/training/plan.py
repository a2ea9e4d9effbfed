"""Complete a partial request for a training: options that follow from the table, and how long the training takes.

Options that the user sets hold; `rules` chooses the others.
The speed of this machine is measured on the first batches with a temporary model, before the training begins.
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

WARM = 3  # first steps, which are slower
MEASURED = 3.0  # seconds of steps that are measured
JUDGED, LONG = 64, 0.5  # development texts that are evaluated first; twice as many until it takes LONG seconds
ENOUGH = 0.97  # of the minutes; reading, checkpoints and the model card take the rest

SpecifiedOptions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Budget:
    """The work of a training: a `preset`, and at most `minutes`.

    The default preset is "good", or "best" with minutes.
    """

    minutes: float | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        limits.check(minutes=self.minutes)
        if self.preset is not None:
            limits.choose("preset", self.preset, PRESETS)

    @property
    def name(self) -> str:
        """The preset."""
        return self.preset or ("good" if self.minutes is None else "best")


@dataclass(frozen=True)
class Speed:
    """Seconds of a step, the number of steps in a pass, and seconds of an evaluation."""

    step: float
    steps: int
    evaluation: float

    def seconds(self, config: Config) -> float:
        """Return how long a training takes."""
        training = config.training
        return self.step * self.steps * training.epochs + self.evaluation * training.evaluations


@dataclass(frozen=True)
class Plan:
    """A config, the names of the options that were chosen by the table, and the seconds of the training, if known.

    `gain` is the measured speed of bfloat16 relative to float32, 1 if it was not measured.
    """

    config: Config
    chosen: tuple[str, ...] = ()
    seconds: float | None = None
    gain: float = 1.0

    def for_model(self, model: str) -> "Plan":
        """Return the same plan for a named model."""
        return replace(self, config=self.config.with_model(model))

    def with_training(self, **options: Any) -> "Plan":
        """Return the same plan with other options of the section `training`."""
        return replace(self, config=replace(self.config, training=replace(self.config.training, **options)))

    def notices(self) -> list[str]:
        """Return what was chosen and how long it takes, as lines to be read before the training begins."""
        lines = []
        for section, names in AUTOMATIC_OPTIONS.items():
            if chosen := [name for name in self.chosen if name in names]:
                lines.append(f"chosen, {section}: {self.config.format_options(chosen)}")
        if self.chosen:
            lines[-1] += f"; say --{self.chosen[0].replace('_', '-')} or another to choose otherwise"
        lines += precisions.describe_speedup(self.gain)
        if self.seconds is not None:
            passes = f"{self.config.training.epochs:g} passes"
            lines.append(f"{passes}, which take about {format_duration(self.seconds)} here")
        return lines


ConfigLike = Config | Plan | SpecifiedOptions  # a Config sets all options, a mapping some of them


def plan(
    asked: ConfigLike,
    corpus: Corpus,
    held: Corpus,
    budget: Budget | None = None,
    *,
    models: Sequence[str] = (),
) -> Plan:
    """Return the plan of a training on `corpus`, or of one training of each of `models` with the same options.

    A `Config` sets all options except a precision of "auto", and takes no budget.
    """
    budget = budget or Budget()
    if isinstance(asked, Plan | Config):
        if budget != Budget():
            raise limits.UserError("a Config says all of a training; with minutes or a preset give a mapping")
        return _with_precision(asked if isinstance(asked, Plan) else Plan(asked), corpus, held)
    facts = TableFacts.of(corpus, held)
    passes = asked.get("training", {}).get("epochs")
    if passes is not None and budget.minutes is not None:
        raise limits.UserError("epochs and minutes are both given; a training has one of them")

    def measured(epochs: float) -> tuple[Plan, Speed]:
        made = _with_precision(_chosen(asked, facts, epochs), corpus, held)
        return made, measure_speed(made.config, corpus, held, models)

    made, found = measured(rules.default_passes(facts, budget.name) if passes is None else float(passes))
    seconds = found.seconds(made.config)
    if budget.minutes is None or seconds <= budget.minutes * 60:
        return replace(made, seconds=seconds)
    allowed = budget.minutes * 60
    most = made.config.training.epochs
    affordable = most * allowed / seconds  # passes of the large model; a smaller one makes more of them
    made, found = measured(affordable)
    epochs = _in_time(made, found, allowed, most).config.training.epochs
    final = _chosen(asked, facts, epochs, affordable).with_training(precision=made.config.training.precision)
    return _in_time(replace(final, gain=made.gain), found, allowed, most)


def _chosen(said: SpecifiedOptions, facts: TableFacts, epochs: float, sized_for: float | None = None) -> Plan:
    """Complete what is said by the rules for so many passes; sizes may be those of another number of passes."""
    found, chosen = rules.default_options(facts, epochs, sized_for), unspecified_options(said)
    if not head_class(config_with_defaults(said).head.kind).has_sampled_loss:
        found["training"]["loss"] = "full"
    whole = {section: {**values} for section, values in said.items()}
    for section, values in found.items():
        free = {name: value for name, value in values.items() if name in chosen}
        whole[section] = {**free, **whole.get(section, {})}
    return Plan(Config.from_dict(whole), chosen)


def _in_time(made: Plan, found: Speed, allowed: float, most: float) -> Plan:
    """Return the plan with as many passes as fit into the allowed seconds, and no more than `most`."""
    left = max(allowed * ENOUGH - found.evaluation * made.config.training.evaluations, allowed / 2)
    passes = left / (found.step * found.steps)
    made = made.with_training(epochs=min(most, float(f"{passes:.3g}")))
    return replace(made, seconds=found.seconds(made.config))


def _with_precision(made: Plan, corpus: Corpus, held: Corpus) -> Plan:
    """Return the plan with the faster precision if it is "auto"."""
    if made.config.training.precision != precisions.AUTO:
        return made

    @cache
    def probe() -> tuple[Trainer, Batch]:
        trainer = _temporary(made.config, corpus, held)
        return trainer, next(trainer.batches())

    def step(name: str) -> None:
        trainer, batch = probe()
        trainer.progress.step = 0  # a small table has fewer steps than are measured
        trainer.config = replace(trainer.config, precision=name)
        trainer.step(batch)

    gain = precisions.measure_speedup(step, find_device(made.config.training.device))
    return replace(made.with_training(precision=precisions.choose_precision(gain)), gain=gain)


def measure_speed(config: Config, corpus: Corpus, held: Corpus, models: Sequence[str] = ()) -> Speed:
    """Measure the speed of this machine on the first batches; with `models`, their mean."""
    found = [_speed(one, corpus, held) for one in [config.with_model(name) for name in models] or [config]]
    return Speed(fmean(one.step for one in found), found[0].steps, fmean(one.evaluation for one in found))


def _speed(config: Config, corpus: Corpus, held: Corpus) -> Speed:
    trainer = _temporary(config, corpus, held)
    begun, timed = perf_counter(), 0
    for number, batch in enumerate(trainer.batches(), 1):
        if number == WARM + 1:  # a shorter pass is measured with its first steps
            begun, timed = perf_counter(), 0
        trainer.step(batch)
        timed += 1
        if number > WARM and perf_counter() - begun > MEASURED:
            break
    step, count = (perf_counter() - begun) / timed, JUDGED
    while True:  # few texts would overestimate the time of all, since every evaluation has a fixed cost
        judged = held.select(np.arange(min(count, len(held))))
        begun = perf_counter()
        trainer.run.nats(judged)
        seconds = perf_counter() - begun
        if seconds > LONG or count >= len(held):
            return Speed(step, trainer.steps, seconds * held.target_count / max(1, judged.target_count))
        count *= 2


class _Temporary(Trainer):
    """A trainer that writes nothing and ignores a loss that is not finite, which the training itself reports."""

    def report_not_finite(self, batch: Batch, nats: Tensor) -> None:
        """Continue."""


def _temporary(config: Config, corpus: Corpus, held: Corpus) -> Trainer:
    """Return a trainer of one pass to measure with."""
    once = replace(config, training=replace(config.training, epochs=1.0, canaries=0))
    return _Temporary(Run(Path("measured"), once, corpus.tokenizer, corpus.schema), corpus, held)


def config_with_defaults(asked: ConfigLike) -> Config:
    """Return what is said with defaults for the rest, which is enough to read a table."""
    if isinstance(asked, Plan):
        return asked.config
    return asked if isinstance(asked, Config) else Config.from_dict(asked)


def unspecified_options(asked: ConfigLike) -> tuple[str, ...]:
    """Return the names of the options that follow from the table."""
    if isinstance(asked, Plan | Config):
        return asked.chosen if isinstance(asked, Plan) else ()
    said = {name for values in asked.values() for name in values}
    if "loss" in said:
        said.add("samples")
    types = section_types(selected_kinds(asked)).values()
    known = {field.name for made in types for field in fields(made)} - said  # not those of another kind
    return tuple(name for names in AUTOMATIC_OPTIONS.values() for name in names if name in known)


def resumed_plan(asked: ConfigLike, kept: Config) -> Plan:
    """Return the plan of a training that resumes: options chosen when it began hold unless they are said now."""
    if isinstance(asked, Plan | Config):
        made = asked if isinstance(asked, Plan) else Plan(asked)
    else:
        kinds = kept.kinds | selected_kinds(asked)  # the options of another kind do not carry over
        values = {
            section: {**(old if kinds.get(section) == old.get("kind") else {}), **asked.get(section, {})}
            for section, old in kept.to_dict().items()
        }
        made = Plan(Config.from_dict(values), unspecified_options(asked))
    automatic = made.config.training.precision == precisions.AUTO
    return made.with_training(precision=kept.training.precision) if automatic else made


def format_duration(seconds: float) -> str:
    """Format seconds for people."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
