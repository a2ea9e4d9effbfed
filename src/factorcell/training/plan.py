"""Plan a training: choose the options that the user did not specify, from the table and the time that it may take.

Nothing is measured, so that the same command gives the same plan on every machine; the rules are in `rules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from factorcell.config import RECORDED, Config, section_types, selected_kinds
from factorcell.data.corpus import Corpus
from factorcell.errors import UserError, check_choice
from factorcell.nn.devices import find_device
from factorcell.nn.language_model import head_class
from factorcell.nn.output import SoftmaxHead
from factorcell.options import limits
from factorcell.options.choices import AUTOMATIC_OPTIONS, PRESETS
from factorcell.options.option_fields import HuggingFaceOptions
from factorcell.runs.run import Run
from factorcell.training import rules
from factorcell.training.rules import TableFacts

# Parameters of `fit` and `compare`, which the error about an unknown option may suggest.
PLAN_ARGUMENTS = ("dev", "minutes", "out", "preset", "resume", "test", "models", "seeds", "target", "ngram")
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
            check_choice("preset", self.preset, PRESETS)


@dataclass(frozen=True)
class Plan:
    """All options of a training, which of them were chosen automatically, and the longest duration.

    Attributes:
        config: All options.
        chosen: The names of the options that were chosen automatically.
        minutes: The longest duration of the command that trains the model; None sets no limit.
    """

    config: Config
    chosen: tuple[str, ...] = ()
    minutes: float | None = None

    def with_options(self, **options: Any) -> "Plan":
        """Return this plan with changed options."""
        return replace(self, config=self.config.with_options(**options))

    def with_steps_of(self, run: Run | None) -> "Plan":
        """Return this plan with the steps of a trained run, without a time limit; unchanged if `run` is None."""
        if run is None:
            return self
        training = run.config.training
        return replace(self.with_options(epochs=training.epochs, steps=training.steps), minutes=None)


ConfigLike = Config | Plan | SpecifiedOptions  # a Config sets all options, a mapping sets some of them


def plan(config: ConfigLike, corpus: Corpus, dev: Corpus, budget: Budget | None = None) -> Plan:
    """Plan a training on `corpus`.

    Args:
        config: A `Plan` or a `Config`, which sets all options, or a mapping of some options by section.
        corpus: The training texts.
        dev: The development texts.
        budget: The limit on the duration, or the number of passes; only allowed if `config` is a mapping.

    Returns:
        The plan. With minutes, its number of passes is the largest that the training makes.

    Raises:
        UserError: If options and budget contradict each other.
    """
    budget = budget or Budget()
    if isinstance(config, Plan | Config):
        if budget != Budget():
            raise UserError(
                "config: a Config sets all options of a training; pass a mapping of options to use minutes or a preset"
            )
        return config if isinstance(config, Plan) else Plan(config)
    complete = config_with_defaults(config)
    facts = TableFacts.of(corpus, dev, user=complete.data.user)
    preset, training = budget.preset or ("good" if budget.minutes is None else "best"), config.get("training", {})
    max_passes = float(training.get("epochs") or rules.default_passes(facts, preset))
    if steps := training.get("steps"):
        max_passes = steps / rules.steps_per_pass(facts, training.get("batch_tokens"))
    if budget.minutes is None:
        return _with_defaults(config, facts, max_passes, preset)
    dev_targets = rules.dev_targets_in(budget.minutes, complete)
    facts = replace(facts, dev_targets=min(facts.dev_targets, dev_targets))
    planned = _with_defaults(config, facts, min(max_passes, rules.passes_in(budget.minutes, facts)), preset)
    config = planned.config.with_options(epochs=max_passes)
    config = replace(config, training=replace(config.training, max_dev_targets=dev_targets))
    return replace(planned, config=config, minutes=budget.minutes)


def _with_defaults(specified: SpecifiedOptions, facts: TableFacts, epochs: float, preset: str) -> Plan:
    """Return a plan with the `specified` options and, for all others, those that `rules.default_options` chooses."""
    config, chosen = config_with_defaults(specified), unspecified_options(specified)
    defaults = rules.default_options(facts, epochs)
    # The counts would reproduce what single users wrote.
    defaults["ngram_mixture"] = preset == "best" and not config.data.user
    if isinstance(config.backbone, HuggingFaceOptions):
        defaults |= rules.transformer_options(config.backbone, facts)
    if not issubclass(head_class(config.head.kind), SoftmaxHead):  # only this head has a sampled loss
        defaults["samples"] = 0
    drafted = config.with_options(**{name: defaults[name] for name in chosen if name in defaults})
    if "batch_tokens" in chosen and find_device(drafted.training.device, drafted.backbone).type == "cuda":
        drafted = drafted.with_options(batch_tokens=rules.gpu_batch_tokens(facts, epochs))
    return Plan(drafted, chosen)


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
    # Only options of the selected kinds exist: for example, another backbone may have no `hidden_size`.
    types = section_types(selected_kinds(config)).values()
    unspecified = {field.name for section_type in types for field in fields(section_type)} - specified
    return tuple(name for names in AUTOMATIC_OPTIONS.values() for name in names if name in unspecified)


def resumed_plan(config: ConfigLike, saved: Config) -> Plan:
    """Plan a training that resumes: `config` overrides the options of the `saved` config."""
    if isinstance(config, Plan | Config):
        resumed = config if isinstance(config, Plan) else Plan(config)
    else:
        options = {
            section if name == "kind" else name: value
            for section, values in config.items()
            for name, value in values.items()
            if name not in RECORDED
        }
        resumed = Plan(saved.with_options(**options), unspecified_options(config))
    return resumed
