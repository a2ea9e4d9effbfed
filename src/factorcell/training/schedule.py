"""The schedule of a training: the learning rate and the evaluations follow the share of the training that is done.

    share = step / steps                      without a time limit
    share = max(step / steps, targets / (targets + expected targets))     with one

With a time limit, `steps` is the largest number of steps, and the expected targets are those of the time that remains
until the work after the steps begins, at the recent speed. So the learning rate has always decayed when the time is
used up, and its decay follows the steps: it rises again if the machine gets faster. The work after the steps takes as
many times longer on a slow or busy machine as the recent steps do; a part of it gets smaller, so that its duration has
a limit (`rules.minutes_after_steps`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from factorcell.config import Config
from factorcell.training.rules import MAX_SLOWNESS

WARMUP, BASE_WARMUP = 0.02, 0.1  # share of the steps in which the learning rate rises; that with a pretrained base
ROUNDING = 1e-9  # a number of events that is this close to the next whole number counts as this number
MAX_RESERVE = 0.4  # largest share of the remaining time that is for the work after the steps
SPEED_WINDOW = 0.1  # share of the time limit over which the speed is averaged
MAX_EVALUATION_SHARE = 0.05  # largest share of the time so far that evaluations take before the last one
MIN_TRAINING_SHARE = 0.3  # share of a time limit that steps and evaluations get, even if the limit is then exceeded


class TimeLimit(NamedTuple):
    """The limit of the duration of a training."""

    seconds: float  # from `start` to the end of the work after the steps
    start: float  # a time of `perf_counter`
    reserves: Mapping[str, Any] = MappingProxyType({})  # fields of `Progress`

    def remaining_seconds(self, now: float) -> float:
        """Return the seconds that a training may take that begins at the time `now`."""
        return max(MIN_TRAINING_SHARE * self.seconds, self.seconds - (now - self.start))


@dataclass
class Progress:
    """The counters of a training, which a checkpoint stores next to the tensors."""

    steps: int = 1  # of the training; with a time limit, the largest number
    max_seconds: float = math.inf  # the time limit of `seconds` and the work after the steps
    fixed_reserve: float = 0.0  # seconds of the work after the steps that do not depend on the speed
    reserve: float = 0.0  # seconds of other work on a machine of ordinary speed
    bounded_reserve: float = 0.0  # seconds of the work that gets smaller on a slow machine
    ordinary_target_seconds: float = math.inf  # seconds of a step per target on such a machine
    step: int = 0  # number of steps taken
    tokens: int = 0  # targets that these steps learned
    seconds: float = 0.0  # duration so far, with evaluations
    recent_seconds: float = 0.0  # duration of the recent steps; older ones count less
    recent_targets: float = 0.0  # that these steps learned
    best: float = math.inf  # lowest development perplexity so far
    evaluations: int = 0  # that were due so far
    evaluations_since_best: int = 0
    evaluation_seconds: float = 0.0  # duration of all evaluations so far
    rows: int = 0  # of the log
    nats: float = 0.0  # sum of the losses of all targets since the last row of losses in the log
    tokens_at_last_row: int = 0  # `tokens` at that row

    @property
    def share(self) -> float:
        """The share of the training that is done, from 0 to 1; with a time limit, an estimate."""
        of_steps, remaining = min(1.0, self.step / self.steps), self._remaining_seconds()
        if remaining <= 0:
            return 1.0
        if math.isinf(remaining) or not self.recent_seconds:
            return of_steps
        of_evaluations = min(MAX_EVALUATION_SHARE, self.evaluation_seconds / self.seconds)
        expected = remaining * (1 - of_evaluations) * self.recent_targets / self.recent_seconds
        return max(of_steps, self.tokens / (self.tokens + expected))

    def count_seconds(self, seconds: float, targets: int = 0) -> None:
        """Add the duration of an evaluation, or of a step on some `targets`."""
        self.seconds += seconds
        if targets and math.isfinite(self.max_seconds):
            decay = math.exp(-seconds / (SPEED_WINDOW * self.max_seconds))
            self.recent_seconds = decay * self.recent_seconds + seconds
            self.recent_targets = decay * self.recent_targets + targets

    def _remaining_seconds(self) -> float:
        """Return the seconds until the work after the steps begins."""
        target_seconds = self.recent_seconds / max(1.0, self.recent_targets)
        slowness = max(1.0, target_seconds / self.ordinary_target_seconds)
        bounded = min(slowness, MAX_SLOWNESS) * self.bounded_reserve
        reserve = self.fixed_reserve + slowness * self.reserve + bounded
        return self.max_seconds - min(reserve, MAX_RESERVE * self.max_seconds) - self.seconds

    @property
    def total_steps(self) -> int:
        """The number of steps of the training; with a time limit, an estimate from the steps so far."""
        return self.steps if math.isinf(self.max_seconds) or not self.step else max(1, round(self.step / self.share))

    def events_due(self, count: int) -> int:
        """Return how many of `count` events are due so far, if they are evenly spread and the last is at the end."""
        return math.floor(self.share * count + ROUNDING)

    def is_evaluation_due(self, count: int) -> bool:
        """Return whether one of `count` evaluations is due.

        With a time limit, all but the last wait while earlier ones have taken more than `MAX_EVALUATION_SHARE` of the
        time.
        """
        is_affordable = self.evaluation_seconds <= MAX_EVALUATION_SHARE * self.seconds or math.isinf(self.max_seconds)
        return self.events_due(count) > self.evaluations and (is_affordable or self.share >= 1)


def warmup_share(config: Config) -> float:
    """Return the share of the steps in which the learning rate rises."""
    return BASE_WARMUP if getattr(config.backbone, "is_pretrained", False) else WARMUP


def learning_rate(step: float, steps: int, peak: float, warmup: float) -> float:
    """Return the learning rate at position `step` (from 0): a linear warm-up to `peak`, then a cosine decay.

    The warm-up takes the share `warmup` of all steps. It prevents large steps at the start, where gradients are large,
    because they can make a training diverge.
    """
    warmup_steps = max(1, round(warmup * steps))
    if step < warmup_steps:
        return peak * min(1.0, (step + 1) / warmup_steps)
    share = (step - warmup_steps) / max(1, steps - warmup_steps)  # of the steps after the warm-up
    return peak * (1 + math.cos(math.pi * share)) / 2
