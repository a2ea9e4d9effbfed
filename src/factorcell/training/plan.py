"""Plan a training: choose the options that the user did not specify, and estimate how long the training takes.

`rules` chooses the options from properties of the table.
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

WARMUP_STEPS = 3  # the first steps are slower, so they are not measured
MEASURED_SECONDS = 3.0  # steps are measured for at least this time
# An evaluation is first measured on 64 development texts. The number of texts is doubled until one takes half a second.
FIRST_DEV_TEXTS, MIN_EVALUATION_SECONDS = 64, 0.5
STEPS_SHARE = 0.97  # share of the minutes that steps and evaluations may take; reading and saving take the rest

SpecifiedOptions = Mapping[str, Mapping[str, Any]]  # section of the config -> option -> value


@dataclass(frozen=True)
class Budget:
    """The work that a training may take.

    Args:
        minutes: The longest duration; None sets no limit.
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
    """All options of a training, which of them were chosen automatically, and the expected duration.

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

    Args:
        config: A `Plan` or a `Config`, which sets all options (a precision of "auto" is replaced by the faster one), or
            a mapping of some options by section.
        corpus: The training texts.
        dev: The development texts.
        budget: The time or work; only with a mapping.
        models: The models whose mean duration is estimated; if empty, the config determines the model.

    Raises:
        UserError: If options and budget contradict each other.
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
    # There is too little time for all passes of the large model. The sizes are chosen for the passes that the large
    # model can make, which gives a smaller and faster model. Then as many passes as possible are made with that model.
    allowed_seconds = budget.minutes * 60
    max_passes = large.config.training.epochs
    large_passes = max_passes * allowed_seconds / seconds
    small, speed = plan_and_measure(large_passes)
    epochs = _fit_passes(small, speed, allowed_seconds, max_passes).config.training.epochs
    final = _with_defaults(config, facts, epochs, large_passes)
    final = final.with_training(precision=small.config.training.precision)
    return _fit_passes(replace(final, bfloat16_speedup=small.bfloat16_speedup), speed, allowed_seconds, max_passes)


def _with_defaults(
    specified: SpecifiedOptions, facts: TableFacts, epochs: float, sized_for: float | None = None
) -> Plan:
    """Add the options that `rules` chooses for `epochs` passes, with layer sizes for `sized_for` passes."""
    defaults, chosen = rules.default_options(facts, epochs, sized_for), unspecified_options(specified)
    if not head_class(config_with_defaults(specified).head.kind).has_sampled_loss:
        defaults["training"]["loss"] = "full"
    complete = {section: {**values} for section, values in specified.items()}
    for section, values in defaults.items():
        added = {name: value for name, value in values.items() if name in chosen}
        complete[section] = {**added, **complete.get(section, {})}
    return Plan(Config.from_dict(complete), chosen)


def _fit_passes(draft: Plan, speed: Speed, allowed_seconds: float, max_passes: float) -> Plan:
    """Return the plan with as many passes as fit into `allowed_seconds`, at most `max_passes`."""
    evaluation_seconds = speed.evaluation_seconds * draft.config.training.evaluations
    # Steps get at least half of the time, even if the evaluations then exceed the limit.
    seconds_for_steps = max(allowed_seconds * STEPS_SHARE - evaluation_seconds, allowed_seconds / 2)
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
    """Measure the speed of this machine on the first batches: that of `config`, or the mean over `models`."""
    configs = [config.with_model(name) for name in models] or [config]
    speeds = [_measure_model(config, corpus, dev) for config in configs]
    return Speed(
        fmean(speed.step_seconds for speed in speeds),
        speeds[0].steps_per_pass,
        fmean(speed.evaluation_seconds for speed in speeds),
    )


def _measure_model(config: Config, corpus: Corpus, dev: Corpus) -> Speed:
    trainer = _temporary_trainer(config, corpus, dev)
    start, measured_steps = perf_counter(), 0
    for number, batch in enumerate(trainer.batches(), 1):
        if number == WARMUP_STEPS + 1:  # if the pass is shorter, its first steps are measured
            start, measured_steps = perf_counter(), 0
        trainer.step(batch)
        measured_steps += 1
        if number > WARMUP_STEPS and perf_counter() - start > MEASURED_SECONDS:
            break
    step_seconds, count = (perf_counter() - start) / measured_steps, FIRST_DEV_TEXTS
    # Each evaluation has a fixed cost, so a measurement on few texts would overestimate the time for all texts.
    while True:
        part = dev.select(np.arange(min(count, len(dev))))
        start = perf_counter()
        trainer.run.nats(part)
        seconds = perf_counter() - start
        if seconds > MIN_EVALUATION_SECONDS or count >= len(dev):
            return Speed(step_seconds, trainer.steps, seconds * dev.target_count / max(1, part.target_count))
        count *= 2


class _TemporaryTrainer(Trainer):
    """A trainer for measurements: if the loss is not finite, it continues, and the actual training raises the error."""

    raises_if_not_finite = False


def _temporary_trainer(config: Config, corpus: Corpus, dev: Corpus) -> Trainer:
    """Return a trainer of one pass for measurements."""
    one_pass = replace(config, training=replace(config.training, epochs=1.0, canaries=0))
    return _TemporaryTrainer(Run(Path("measured"), one_pass, corpus.tokenizer, corpus.schema), corpus, dev)


def config_with_defaults(config: ConfigLike) -> Config:
    """Return the specified options, completed by the defaults of the fields, as a config for reading a table."""
    if isinstance(config, Plan):
        return config.config
    return config if isinstance(config, Config) else Config.from_dict(config)


def unspecified_options(config: ConfigLike) -> tuple[str, ...]:
    """Return the names of the options that are chosen automatically."""
    if isinstance(config, Plan | Config):
        return config.chosen if isinstance(config, Plan) else ()
    specified = {name for values in config.values() for name in values}
    if "loss" in specified:
        # The rules choose `samples` for the loss that they choose, so it has its default with a specified loss.
        specified.add("samples")
    # Only options of the selected kinds exist: for example, another backbone may have no `hidden_size`.
    types = section_types(selected_kinds(config)).values()
    unspecified = {field.name for section_type in types for field in fields(section_type)} - specified
    return tuple(name for names in AUTOMATIC_OPTIONS.values() for name in names if name in unspecified)


def resumed_plan(config: ConfigLike, saved: Config) -> Plan:
    """Plan a training that resumes: `config` overrides the options of the `saved` config."""
    if isinstance(config, Plan | Config):
        resumed = config if isinstance(config, Plan) else Plan(config)
    else:
        # If `config` selects another kind of a section, such as another tokenizer, its saved options are not used.
        kinds = saved.kinds | selected_kinds(config)
        values = {
            section: {**(options if kinds.get(section) == options.get("kind") else {}), **config.get(section, {})}
            for section, options in saved.to_dict().items()
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
