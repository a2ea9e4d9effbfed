"""What a training is made of that was asked for in part: options that follow from its table, and how long it takes.

What is said holds; the rest of what `rules` has is chosen. The speed of this machine is measured on the first batches,
by a model that is thrown away, so that the time is known beforehand and a schedule can be made to end in time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from torch import Tensor

from factorcell import limits
from factorcell.choices import CHOSEN, PRESETS
from factorcell.config import Config, kinds_in, section_types
from factorcell.data.corpus import Batch, Corpus
from factorcell.model import precision as precisions
from factorcell.model.devices import find_device
from factorcell.model.kinds import head_class
from factorcell.model.run import Run
from factorcell.training import rules
from factorcell.training.rules import Facts
from factorcell.training.trainer import Trainer

WARM = 3  # first steps, which are slower
MEASURED = 3.0  # seconds of steps by which their speed is known
JUDGED, LONG = 64, 0.5  # development texts that show the speed of an evaluation: twice as many, until it is LONG
ENOUGH = 0.97  # of the minutes: reading, checkpoints and the card take the rest

Said = Mapping[str, Mapping[str, Any]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Budget:
    """How much work a training is worth: a `preset`, and `minutes` at most.

    Without a preset it is "good"; with minutes "best", which uses them as far as the data deserves it.
    """

    minutes: float | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None:
            limits.check(minutes=self.minutes)
        if self.preset is not None:
            limits.choose("preset", self.preset, PRESETS)

    @property
    def name(self) -> str:
        """The preset."""
        return self.preset or ("good" if self.minutes is None else "best")


@dataclass(frozen=True)
class Speed:
    """Seconds of a step, how many steps a pass has, and seconds of an evaluation."""

    step: float
    steps: int
    evaluation: float

    def shared(self, share: Callable[[float], float]) -> "Speed":
        """The speed that all processes go by."""
        return replace(self, step=share(self.step), evaluation=share(self.evaluation))

    def seconds(self, config: Config) -> float:
        """How long a training takes."""
        training = config.training
        return self.step * self.steps * training.epochs + self.evaluation * training.evaluations


@dataclass(frozen=True)
class Plan:
    """A config of which the options `chosen` follow from the table, and the seconds that a training takes, if known.

    `gain` is how many times as fast bfloat16 was found to be, 1 where nobody looked.
    """

    config: Config
    chosen: tuple[str, ...] = ()
    seconds: float | None = None
    gain: float = 1.0

    def of(self, model: str) -> "Plan":
        """The same plan of a named model."""
        return replace(self, config=self.config.with_model(model))

    def seeded(self, seed: int) -> "Plan":
        """The same plan from another seed."""
        return replace(self, config=replace(self.config, training=replace(self.config.training, seed=seed)))

    def lines(self) -> list[str]:
        """What was chosen and how long it takes, to be read before the training begins."""
        lines = []
        for section, names in CHOSEN.items():
            if chosen := [name for name in self.chosen if name in names]:
                lines.append(f"chosen, {section}: {self.config.listed(chosen)}")
        if self.chosen:
            lines[-1] += f"; say --{self.chosen[0].replace('_', '-')} or another to choose otherwise"
        lines += precisions.told(self.gain)
        if self.seconds is not None:
            passes = f"{self.config.training.epochs:g} passes"
            lines.append(f"{passes}, which take about {duration(self.seconds)} here")
        return lines


Asked = Config | Plan | Said  # a Config says all, a mapping some options


def plan(
    asked: Asked,
    corpus: Corpus,
    held: Corpus,
    budget: Budget | None = None,
    *,
    models: Sequence[str] = (),
    share: Callable[[float], float] = float,
    clock: Clock = time.perf_counter,
) -> Plan:
    """The plan of a training on `corpus`, or of one of each of `models` with the same options.

    A `Config` says all, so nothing is chosen then but a precision that is auto, and it has no budget. Of several
    processes each has measured times of its own, of seconds that `clock` counts; `share` makes one of them for all.
    """
    budget = budget or Budget()

    def measure(made: Plan) -> Plan:
        return _precise(made, corpus, held, share, clock)

    if isinstance(asked, Plan | Config):
        if budget != Budget():
            raise limits.UserError("a Config says all of a training; with minutes or a preset give a mapping")
        return measure(asked if isinstance(asked, Plan) else Plan(asked))
    facts = Facts.of(corpus, held)
    passes = asked.get("training", {}).get("epochs")
    if passes is not None and budget.minutes is not None:
        raise limits.UserError("epochs and minutes are both given; a training has one of them")
    made = measure(_made(asked, facts, rules.passes(facts, budget.name) if passes is None else float(passes)))
    found = speed(made.config, corpus, held, models, clock).shared(share)
    seconds = found.seconds(made.config)
    if budget.minutes is None or seconds <= budget.minutes * 60:
        return replace(made, seconds=seconds)
    allowed = budget.minutes * 60
    deserved = made.config.training.epochs
    affordable = deserved * allowed / seconds  # passes, for which another model may be the best
    made = measure(_made(asked, facts, affordable))
    found = speed(made.config, corpus, held, models, clock).shared(share)
    more = _in_time(made, found, allowed, deserved).config.training.epochs  # than affordable, by a smaller model
    again = _made(asked, facts, more, affordable)
    precise = replace(again.config.training, precision=made.config.training.precision)
    return _in_time(replace(made, config=replace(again.config, training=precise)), found, allowed, deserved)


def _made(said: Said, facts: Facts, epochs: float, sized_for: float | None = None) -> Plan:
    """What is said, and for the rest what the rules say of so many passes, sizes as for another number if given."""
    found, chosen = rules.options(facts, epochs, sized_for), unsaid(said)
    if not head_class(said_config(said).head.kind).has_sampled_loss:
        found["training"]["loss"] = "full"
    whole = {section: {**values} for section, values in said.items()}
    for section, values in found.items():
        free = {name: value for name, value in values.items() if name in chosen}
        whole[section] = {**free, **whole.get(section, {})}
    return Plan(Config.from_dict(whole), chosen)


def _in_time(made: Plan, found: Speed, allowed: float, most: float) -> Plan:
    """The plan with the passes that take the seconds that are allowed, or `most` of them; most are for writing."""
    training = made.config.training
    left = max(allowed * ENOUGH - found.evaluation * training.evaluations, allowed / 2)
    passes = left / (found.step * found.steps)
    epochs = min(most, float(f"{passes:.3g}"))
    config = replace(made.config, training=replace(training, epochs=epochs))
    return replace(made, config=config, seconds=found.seconds(config))


def _precise(made: Plan, corpus: Corpus, held: Corpus, share: Callable[[float], float], clock: Clock) -> Plan:
    """The plan with the precision of the faster steps, where it is auto."""
    if made.config.training.precision != precisions.AUTO:
        return made

    @cache
    def probe() -> tuple[Trainer, Batch]:
        trainer = _thrown_away(made.config, corpus, held)
        return trainer, next(trainer.batches())

    def step(name: str) -> None:
        trainer, batch = probe()
        trainer.progress.step = 0  # of a small table there are fewer steps than are measured
        trainer.config = replace(trainer.config, precision=name)
        trainer.step(batch)

    gain = share(precisions.gain(step, find_device(made.config.training.device), clock))
    training = replace(made.config.training, precision=precisions.chosen(gain))
    return replace(made, config=replace(made.config, training=training), gain=gain)


def speed(
    config: Config, corpus: Corpus, held: Corpus, models: Sequence[str] = (), clock: Clock = time.perf_counter
) -> Speed:
    """That of this machine, on the first batches; of `models` on average, if there are any."""
    found = [_speed(one, corpus, held, clock) for one in [config.with_model(name) for name in models] or [config]]
    step, evaluation = (fmean(getattr(one, name) for one in found) for name in ("step", "evaluation"))
    return Speed(step, found[0].steps, evaluation)


def _speed(config: Config, corpus: Corpus, held: Corpus, clock: Clock) -> Speed:
    trainer = _thrown_away(config, corpus, held)
    begun, timed = clock(), 0
    for number, batch in enumerate(trainer.batches(), 1):
        if number == WARM + 1:  # where there are no more, the first ones have to do
            begun, timed = clock(), 0
        trainer.step(batch)
        timed += 1
        if number > WARM and clock() - begun > MEASURED:
            break
    step = (clock() - begun) / timed
    return Speed(step, trainer.steps, _evaluation(trainer.run, held, clock))


class _Measured(Trainer):
    """A trainer of which nothing is written, and no loss is looked at: the training itself tells what is not finite."""

    def stop_at(self, batch: Batch, nats: Tensor) -> None:
        """Go on."""


def _thrown_away(config: Config, corpus: Corpus, held: Corpus) -> Trainer:
    """A trainer of one pass to measure with."""
    once = replace(config, training=replace(config.training, epochs=1.0, canaries=0))
    return _Measured(Run(Path("measured"), once, corpus.tokenizer, corpus.schema), corpus, held)


def _evaluation(run: Run, held: Corpus, clock: Clock) -> float:
    """Seconds of an evaluation on all of the texts: a few of them say more of what every evaluation begins with."""
    count = JUDGED
    while True:
        judged = held.select(np.arange(min(count, len(held))))
        begun = clock()
        run.nats(judged)
        spent = clock() - begun
        if spent > LONG or count >= len(held):
            return spent * held.targets / max(1, judged.targets)
        count *= 2


def said_config(asked: Asked) -> Config:
    """What is said, and for the rest the defaults: enough to read a table by."""
    if isinstance(asked, Plan):
        return asked.config
    return asked if isinstance(asked, Config) else Config.from_dict(asked)


def unsaid(asked: Asked) -> tuple[str, ...]:
    """The options that follow from the table."""
    if isinstance(asked, Plan | Config):
        return asked.chosen if isinstance(asked, Plan) else ()
    said = {name for values in asked.values() for name in values}
    if "loss" in said:
        said |= {"loss", "samples"}
    types = section_types(kinds_in(asked)).values()
    known = {field.name for made in types for field in fields(made)} - said  # not those of another kind
    return tuple(name for names in CHOSEN.values() for name in names if name in known)


def resumed(asked: Asked, kept: Config) -> Plan:
    """The plan of a training that goes on: what was chosen when it began holds, what is said now is said anew."""
    if isinstance(asked, Plan | Config):
        made = asked if isinstance(asked, Plan) else Plan(asked)
        return replace(made, config=_of_precision(made.config, kept))
    values = {section: {**old, **asked.get(section, {})} for section, old in kept.to_dict().items()}
    return Plan(_of_precision(Config.from_dict(values), kept), unsaid(asked))


def _of_precision(config: Config, kept: Config) -> Config:
    """The config, with the precision that was found for `kept` where it is auto."""
    found = kept.training.precision if config.training.precision == precisions.AUTO else config.training.precision
    return replace(config, training=replace(config.training, precision=found))


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
