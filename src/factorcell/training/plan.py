"""Plan a training: choose the options that the user did not specify, and estimate how long the training takes.

The module `rules` chooses the options from properties of the table, and the module `speed` measures this machine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from time import perf_counter
from typing import Any

from factorcell import limits
from factorcell.choices import AUTOMATIC_OPTIONS, ONLY_WITH_BASE, PRESETS
from factorcell.config import Config, section_types, selected_kinds
from factorcell.data.corpus import Batch, Corpus
from factorcell.model import devices
from factorcell.model import precision as precisions
from factorcell.model.devices import find_device
from factorcell.model.language_model import head_class
from factorcell.option_fields import HuggingFaceOptions
from factorcell.training import rules
from factorcell.training.rules import TableFacts
from factorcell.training.schedule import MIN_TRAINING_SHARE, Progress, TimeLimit
from factorcell.training.speed import Speed, measure_finishing, measure_speed, temporary_trainer
from factorcell.training.trainer import Trainer

STEPS_SHARE = 0.97  # share of the minutes for steps and evaluations, if the minutes do not include other work
UNADAPTED = "unadapted"  # the model whose speed determines the sizes

SpecifiedOptions = Mapping[str, Mapping[str, Any]]  # section of the config -> option -> value


@dataclass(frozen=True)
class Budget:
    """How long a training may last: the longest duration, the number of passes, or both.

    Args:
        minutes: The longest duration; None sets no limit.
        preset: "quick", "good" or "best", which determines the number of passes; "best" also mixes the model with
            n-gram counts, except in a training with users. The default is "good", or "best" with `minutes`.
    """

    minutes: float | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        limits.make_plain(self)
        limits.check(minutes=self.minutes)
        if self.preset is not None:
            limits.check_choice("preset", self.preset, PRESETS)

    @property
    def preset_or_default(self) -> str:
        """The preset; if none is set, its default."""
        return self.preset or ("good" if self.minutes is None else "best")


@dataclass(frozen=True)
class Plan:
    """All options of a training, which of them were chosen automatically, and the expected duration.

    Attributes:
        config: All options.
        chosen: The names of the options that were chosen automatically.
        seconds: The expected duration of the training, if known.
        limit: The time limit of the command that trains the model, if it has one.
        limit_notice: How the time of this limit is expected to be used; empty without a limit.
        bfloat16_speedup: The measured speed of bfloat16 relative to float32; 1 if it was not measured.
        is_device_measured: Whether the device was chosen by measurement.
    """

    config: Config
    chosen: tuple[str, ...] = ()
    seconds: float | None = None
    limit: TimeLimit | None = None
    limit_notice: str = ""
    bfloat16_speedup: float = 1.0
    is_device_measured: bool = False

    def for_model(self, model: str) -> "Plan":
        """Return this plan with the adaptations of the model called `model`."""
        return replace(self, config=self.config.with_model(model))

    def with_training(self, **options: Any) -> "Plan":
        """Return this plan with other options of the section `training`."""
        return replace(self, config=replace(self.config, training=replace(self.config.training, **options)))

    def with_measurements_of(self, other: "Plan") -> "Plan":
        """Return this plan with the precision and the device that were measured for another."""
        new_plan = self.with_training(precision=other.config.training.precision, device=other.config.training.device)
        speedup, is_device_measured = other.bfloat16_speedup, other.is_device_measured
        return replace(new_plan, bfloat16_speedup=speedup, is_device_measured=is_device_measured)

    def notices(self, unused: Collection[str] = ()) -> list[str]:
        """Return one-line notices about the chosen options, except the `unused` ones, and the expected duration."""
        lines = []
        chosen = [name for name in self.chosen if name not in unused]
        for section, names in AUTOMATIC_OPTIONS.items():
            if names_of_section := [name for name in chosen if name in names]:
                lines.append(f"chosen {section} options: {self.config.format_options(names_of_section)}")
        if chosen:
            lines[-1] += f"; to override, set --{chosen[0].replace('_', '-')} or any other option"
        if self.is_device_measured:
            lines.append(devices.describe_device(self.config.training.device))
        lines += precisions.describe_speedup(self.bfloat16_speedup)
        if self.seconds is not None:
            passes = "1 pass" if self.config.training.epochs == 1 else f"{self.config.training.epochs:g} passes"
            duration = self.limit_notice or f"about {format_duration(self.seconds)} for its steps and evaluations"
            lines.append(f"{passes}, {duration}")
        return lines


ConfigLike = Config | Plan | SpecifiedOptions  # a Config sets all options, a mapping sets some of them


def plan(
    config: ConfigLike,
    corpus: Corpus,
    dev: Corpus,
    budget: Budget | None = None,
    *,
    models: Sequence[str] = (),
    start: float | None = None,
    with_ngrams: bool = False,
) -> Plan:
    """Plan a training on `corpus`, or one training of each of `models` with the same options.

    Args:
        config: A `Plan` or a `Config`, which sets all options, or a mapping of some options by section. A precision or
            a device of "auto" is replaced by the faster one.
        corpus: The training texts.
        dev: The development texts.
        budget: The limit on the duration, or the number of passes; only allowed if `config` is a mapping.
        models: The models whose mean duration is estimated; if empty, the config determines the model.
        start: The time of `perf_counter` from which the minutes of the budget count. By default, planning and the work
            after the training do not count, as for several trainings that are planned once.
        with_ngrams: Whether n-grams are counted after the training even if the option `ngram_mixture` is false.

    Returns:
        The plan, with an expected duration if `config` is a mapping, and with a time limit if the budget has minutes
        and `start` is set.

    Raises:
        UserError: If options and budget contradict each other.
    """
    budget = budget or Budget()
    if isinstance(config, Plan | Config):
        if budget != Budget():
            raise limits.UserError(
                "config: a Config sets all options of a training; pass a mapping of options to use minutes or a preset"
            )
        return _with_measured_options(config if isinstance(config, Plan) else Plan(config), corpus, dev)
    facts = TableFacts.of(corpus, dev, user=config_with_defaults(config).data.user)
    passes = config.get("training", {}).get("epochs")
    if passes is not None and budget.minutes is not None:
        raise limits.UserError("epochs and minutes: both are set; set only one of them")
    preset = budget.preset_or_default
    max_passes = rules.default_passes(facts, preset) if passes is None else float(passes)
    plans = [_with_defaults(_set_device(config, name), facts, max_passes, preset) for name in ("cuda", "cpu")]
    large_plan = _with_device(_with_defaults(config, facts, max_passes, preset), plans, corpus, dev)
    config = _set_device(config, large_plan.config.training.device)
    if budget.minutes is None:
        large_plan = _with_precision(large_plan, corpus, dev)
        speed = measure_speed(large_plan.config, corpus, dev, models)
        return replace(large_plan, seconds=speed.total_seconds(large_plan.config))
    # The sizes are those for the passes that an unadapted model of the large sizes can make in the minutes, so that
    # models with different adaptations have the same sizes. The model then makes as many passes as it can.
    unadapted_config = _with_precision(large_plan.for_model(UNADAPTED), corpus, dev).config
    unadapted_seconds = measure_speed(unadapted_config, corpus, dev).total_seconds(unadapted_config)
    passes_for_sizes = max_passes * min(1.0, budget.minutes * 60 / unadapted_seconds)
    small_plan = _with_defaults(config, facts, passes_for_sizes, preset)
    small_plan = _with_precision(replace(small_plan, is_device_measured=large_plan.is_device_measured), corpus, dev)
    speed = measure_speed(small_plan.config, corpus, dev, models)
    finishing_seconds = 0.0
    if start is not None:
        has_ngrams = with_ngrams or small_plan.config.training.ngram_mixture
        finishing_seconds = measure_finishing(small_plan.config, corpus, dev, speed, has_ngrams=has_ngrams)
    limit = _time_limit(budget.minutes * 60, start, max_passes, speed, finishing_seconds)
    epochs = _with_possible_passes(small_plan, speed, limit).config.training.epochs
    final_plan = _with_defaults(config, facts, epochs, preset, passes_for_sizes).with_measurements_of(small_plan)
    final_plan = _with_possible_passes(final_plan, speed, limit)
    if start is None:
        return final_plan
    notice = _describe_limit(limit, speed.total_seconds(final_plan.config), finishing_seconds)
    return replace(final_plan, limit=limit, limit_notice=notice)


def _time_limit(
    seconds: float, start: float | None, max_passes: float, speed: Speed, finishing_seconds: float
) -> TimeLimit:
    """Return the limit of a command that started at `start`; if it is None, only the training counts."""
    evaluation_steps, finishing_steps = (
        work_seconds / speed.step_seconds for work_seconds in (speed.evaluation_seconds, finishing_seconds)
    )
    if start is None:
        start, seconds = perf_counter(), STEPS_SHARE * seconds
    return TimeLimit(seconds, start, max_passes, evaluation_steps, finishing_steps)


def _with_defaults(
    specified: SpecifiedOptions,
    facts: TableFacts,
    epochs: float,
    preset: str,
    epochs_for_sizes: float | None = None,
) -> Plan:
    """Return a plan with the `specified` options and, for all others, those that `rules.default_options` chooses."""
    config, chosen = config_with_defaults(specified), unspecified_options(specified)
    defaults = rules.default_options(facts, epochs, epochs_for_sizes, on_gpu=config.training.device == "cuda")
    # The counts would reproduce what single users wrote.
    defaults["training"]["ngram_mixture"] = preset == "best" and not config.data.user
    if isinstance(config.backbone, HuggingFaceOptions):
        for section, options in rules.transformer_options(config.backbone, facts).items():
            defaults[section] |= options
    if not head_class(config.head.kind).has_sampled_loss:
        defaults["training"]["loss"] = "full"
    complete = {section: {**options} for section, options in specified.items()}
    for section, options in defaults.items():
        added = {name: value for name, value in options.items() if name in chosen}
        complete[section] = {**added, **complete.get(section, {})}
    return Plan(Config.from_dict(complete), chosen)


def _with_possible_passes(draft: Plan, speed: Speed, limit: TimeLimit) -> Plan:
    """Return the plan `draft` with as many passes as `limit` permits."""
    progress = Progress()
    progress.set_limit(limit, perf_counter(), speed.steps_per_pass)
    steps = progress.possible_steps(speed.step_seconds, draft.config.training.evaluations)
    rounded_passes = float(f"{steps / speed.steps_per_pass:.3g}")  # three significant digits
    draft = draft.with_training(epochs=min(limit.max_epochs, rounded_passes))
    return replace(draft, seconds=speed.total_seconds(draft.config))


def _describe_limit(limit: TimeLimit, training_seconds: float, finishing_seconds: float) -> str:
    """Return a clause that says how the time of a command is expected to be used."""
    elapsed_seconds = perf_counter() - limit.start
    total_minutes = (elapsed_seconds + training_seconds + finishing_seconds) / 60
    parts = [
        f"{elapsed_seconds / 60:.1f} for reading and planning",
        f"{training_seconds / 60:.1f} for training",
        f"{finishing_seconds / 60:.1f} for the work after it",
    ]
    reason = f" (training takes at least {MIN_TRAINING_SHARE:.0%} of the limit)"
    exceeds = total_minutes > 1.05 * limit.seconds / 60
    minutes = f"about {total_minutes:.1f} minutes with a limit of {limit.seconds / 60:g}{reason if exceeds else ''}"
    return f"{minutes}: {', '.join(parts)}"


def _set_device(specified: SpecifiedOptions, device: str) -> SpecifiedOptions:
    """Return the `specified` options with a device."""
    return {**specified, "training": {**specified.get("training", {}), "device": device}}


class _TrialSteps:
    """Training steps of a temporary model on its first batch; the model is created at the first step."""

    def __init__(self, config: Config, corpus: Corpus, dev: Corpus) -> None:
        self.config, self.corpus, self.dev = config, corpus, dev

    @cached_property
    def _trainer_and_batch(self) -> tuple[Trainer, Batch]:
        trainer = temporary_trainer(self.config, self.corpus, self.dev)
        return trainer, next(trainer.batches())

    def take(self, precision: str | None = None) -> int:
        """Take a step in `precision`, by default that of the config; return the number of tokens."""
        trainer, batch = self._trainer_and_batch
        trainer.progress.step = 0  # the measurement takes more steps than a training on a small table has
        trainer.config = replace(trainer.config, precision=precision or self.config.training.precision)
        trainer.step(batch)
        return int(batch.lengths.sum())


def _with_measured_options(draft: Plan, corpus: Corpus, dev: Corpus) -> Plan:
    """Replace a device and a precision of "auto" by the faster ones."""
    plans = [draft.with_training(device=name) for name in ("cuda", "cpu")]
    return _with_precision(_with_device(draft, plans, corpus, dev), corpus, dev)


def _with_device(draft: Plan, plans: Sequence[Plan], corpus: Corpus, dev: Corpus) -> Plan:
    """Return `draft` if its device is specified, or if there is no GPU; otherwise the faster one of two `plans`.

    The faster one is the plan for a device whose training steps read more tokens per second.
    """
    if draft.config.training.device != devices.AUTO or not devices.has_gpu():
        return draft
    plans_by_device = {plan.config.training.device: plan for plan in plans}
    works = {device: _TrialSteps(plan.config, corpus, dev).take for device, plan in plans_by_device.items()}
    return replace(plans_by_device[devices.choose_device(works)], is_device_measured=True)


def _with_precision(draft: Plan, corpus: Corpus, dev: Corpus) -> Plan:
    """Replace a precision of "auto" by the faster one of float32 and bfloat16, measured on training steps."""
    training = draft.config.training
    if training.precision != precisions.AUTO:
        return draft
    steps = _TrialSteps(draft.config, corpus, dev)
    speedup = precisions.measure_speedup(steps.take, find_device(training.device))
    faster_precision = precisions.choose_precision(speedup)
    return replace(draft.with_training(precision=faster_precision), bfloat16_speedup=speedup)


def config_with_defaults(config: ConfigLike) -> Config:
    """Return `config` as a `Config` for reading tables; unspecified options have the defaults of their fields."""
    if isinstance(config, Plan):
        return config.config
    return config if isinstance(config, Config) else Config.from_dict(config)


def unspecified_options(config: ConfigLike) -> tuple[str, ...]:
    """Return the names of the options that are chosen automatically."""
    if isinstance(config, Plan | Config):
        return config.chosen if isinstance(config, Plan) else ()
    specified = {name for values in config.values() for name in values}
    if "loss" in specified:
        # The rules choose `samples` together with the loss. With a specified loss, `samples` keeps its default.
        specified.add("samples")
    backbone = config_with_defaults(config).backbone
    if not (isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained):
        specified |= {*ONLY_WITH_BASE}  # the defaults of their fields
    # Only options of the selected kinds exist: for example, another backbone may have no `hidden_size`.
    types = section_types(selected_kinds(config)).values()
    unspecified = {field.name for section_type in types for field in fields(section_type)} - specified
    return tuple(name for names in AUTOMATIC_OPTIONS.values() for name in names if name in unspecified)


def resumed_plan(config: ConfigLike, saved: Config) -> Plan:
    """Plan a training that resumes: `config` overrides the options of the `saved` config."""
    if isinstance(config, Plan | Config):
        resumed = config if isinstance(config, Plan) else Plan(config)
    else:
        kinds = saved.kinds | selected_kinds(config)
        options_by_section = {}
        for section, saved_options in saved.to_dict().items():
            # The saved options of another kind, such as another tokenizer, are not used.
            has_same_kind = kinds.get(section) == saved_options.get("kind")
            options_by_section[section] = {**(saved_options if has_same_kind else {}), **config.get(section, {})}
        resumed = Plan(Config.from_dict(options_by_section), unspecified_options(config))
        if "device" not in config.get("training", {}) and not devices.has_gpu():
            resumed = resumed.with_training(device=devices.AUTO)  # the training may have begun on a GPU
    if resumed.config.training.precision != precisions.AUTO:
        return resumed
    return resumed.with_training(precision=saved.training.precision)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
