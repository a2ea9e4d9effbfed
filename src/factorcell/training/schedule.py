"""The schedule and the progress of a training, whose number of steps a time limit may change while it runs.

The learning rate and the evaluations depend on the position of a step s in a training of S steps. The position is s
until the number of steps changes. A change to S' steps after step r, at position p, maps the remaining steps to the
remaining positions, so that the same share of the decay is left:

    position(s) = p' + (S' - p') (s - r) / (S' - r)        p' = p S' / S

Therefore the learning rate does not jump, and its decay ends at the last step.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from factorcell.config import TrainingConfig

ROUNDING = 1e-9  # a number of events that is this close to the next whole number counts as this number
MIN_TRAINING_SHARE = 0.3  # share of a time limit that steps and evaluations get, even if the limit is then exceeded


@dataclass(frozen=True)
class TimeLimit:
    """The time limit of a command that trains one model.

    The costs of evaluations and of the work after the training are numbers of steps: on a machine that gets slower or
    faster, they are assumed to change like the duration of a step.

    Attributes:
        seconds: The longest duration of the command.
        start: The time of `perf_counter` at the start of the command.
        max_epochs: The largest number of passes, even if there is time for more.
        evaluation_steps: The cost of an evaluation.
        finishing_steps: The cost of the work after the last step and evaluation, such as counting n-grams.
    """

    seconds: float
    start: float
    max_epochs: float
    evaluation_steps: float
    finishing_steps: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """The positions of the steps of a training.

    Attributes:
        steps: The number of steps, S.
        changed_at: The step after which the number of steps was last changed, r; 0 if it was not changed.
        changed_position: The position of this step, p'.
    """

    steps: int
    changed_at: int = 0
    changed_position: float = 0.0

    def position(self, step: int) -> float:
        """Return the position of a step, from 0 to the number of steps."""
        remaining_positions, remaining_steps = self.steps - self.changed_position, self.steps - self.changed_at
        return self.changed_position + remaining_positions * (step - self.changed_at) / remaining_steps

    def events_until(self, step: int, count: int) -> int:
        """Return how many events are due until `step`, if `count` events are evenly spread and the last is at the end.

        Events are spread over positions, not over steps.
        """
        return math.floor(self.position(step) * count / self.steps + ROUNDING)

    def with_steps(self, steps: int, step: int) -> "Schedule":
        """Return the schedule with another number of steps, after step number `step`."""
        return Schedule(steps, step, self.position(step) * steps / self.steps)


@dataclass
class Progress:
    """The counters of a training, which a checkpoint stores next to the tensors.

    Attributes:
        step: The number of steps taken.
        tokens: The number of targets that these steps learned.
        seconds: The duration of the training so far.
        best: The lowest development perplexity so far.
        evaluations_since_best: The number of evaluations since the one with the lowest perplexity.
        rows: The number of rows of the log.
        nats: The sum of the losses of all targets since the last row of losses in the log.
        tokens_at_last_row: The value of `tokens` when the last row of losses was written.
        schedule: The number of steps, and how they follow the decay of the learning rate.
        planned_steps: The number of steps planned at the start of a training with a time limit; 0 without a limit.
        evaluations: The number of evaluations that were due so far.
        evaluation_steps: The duration of the last evaluation in steps; before the first, the expected duration.
        finishing_steps: The expected duration of the work after the training, in steps.
        measured_steps: A weighted number of the steps so far, in which later steps count more.
        measured_seconds: The duration of these steps with the same weights.
        planned_at: The value of `seconds` when the schedule was last planned.
        max_seconds: The time limit of `seconds`, including the work after the training.
        min_seconds: The duration that the steps and evaluations may take even if the limit is then exceeded.
        max_steps: The largest number of steps that the schedule may have.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = math.inf
    evaluations_since_best: int = 0
    rows: int = 0
    nats: float = 0.0
    tokens_at_last_row: int = 0
    schedule: Schedule = field(default_factory=lambda: Schedule(1))
    planned_steps: int = 0
    evaluations: int = 0
    evaluation_steps: float = 0.0
    finishing_steps: float = 0.0
    measured_steps: float = 0.0
    measured_seconds: float = 0.0
    planned_at: float = 0.0
    max_seconds: float = math.inf
    min_seconds: float = 0.0
    max_steps: int = 0

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Progress":
        """Return the counters whose `asdict` a checkpoint stores as `facts`."""
        return cls(**{**facts, "schedule": Schedule(**facts["schedule"])})

    def set_limit(self, limit: TimeLimit, now: float, steps_per_pass: int) -> None:
        """Set the time limit of a training that starts at the time `now` of `perf_counter`."""
        self.planned_steps = self.schedule.steps
        self.max_seconds = limit.seconds - (now - limit.start)
        self.min_seconds = MIN_TRAINING_SHARE * limit.seconds
        self.max_steps = max(1, round(limit.max_epochs * steps_per_pass))
        self.evaluation_steps, self.finishing_steps = limit.evaluation_steps, limit.finishing_steps

    def possible_steps(self, step_seconds: float, evaluations: int) -> int:
        """Return the number of steps of a training within the limit, if all further steps take `step_seconds`.

        The training has `evaluations` evaluations. It has at least one further step, and steps get at least half of the
        time.
        """
        later_steps = (evaluations - self.evaluations) * self.evaluation_steps
        steps_in_limit = (self.max_seconds - self.seconds) / step_seconds - self.finishing_steps
        available_steps = max(steps_in_limit, (self.min_seconds - self.seconds) / step_seconds)
        further_steps = max(available_steps - later_steps, available_steps / 2)
        return min(self.step + max(1, int(further_steps)), self.max_steps)


def learning_rate(step: float, steps: int, config: TrainingConfig) -> float:
    """Return the learning rate at position `step` (from 0): a linear warm-up, then cosine, linear or no decay.

    The warm-up takes the share `config.warmup` of all steps. It prevents large steps at the start, where gradients are
    large, because they can make a training diverge.
    """
    warmup_steps = max(1, round(config.warmup * steps))
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)  # of the steps after the warm-up
    factor = {"cosine": (1 + math.cos(math.pi * share)) / 2, "linear": 1 - share, "none": 1.0}[config.decay]
    return config.learning_rate * factor
