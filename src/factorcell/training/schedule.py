"""The schedule of a training: the learning rate and the evaluations follow the share of the training that is done.

    share = step / steps                                                    without a time limit
    share = max(step / steps, seconds / (max_seconds - further reserve))    with one, but never less than before

With a time limit, the learning rate has always decayed when the time is used up; `steps` then is the largest number of
steps. The work after the steps takes longer on a slow or busy machine, and with a large model: about as long as the
training learns `work` targets at its recent speed.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from factorcell.config import Config, HuggingFaceOptions
from factorcell.training.rules import EVALUATION_SHARE

WARMUP, BASE_WARMUP = 0.02, 0.1  # share of the steps in which the learning rate rises; that with a pretrained base
ROUNDING = 1e-9  # a number of events that is this close to the next whole number counts as this number
# Targets whose training takes as long as the work after the steps: of each command, and for each minute of its limit
# (benchmarks/minutes.py). A new Transformer and a pretrained base learn so many times fewer targets in this time.
WORK, WORK_PER_MINUTE = 280_000, 35_000
TRANSFORMER_COST, BASE_COST = 8, 60
# The least reserve: a share of the time limit, but at most some seconds and a smaller share.
RESERVE_SHARE, FIXED_RESERVE, LONG_RESERVE_SHARE = 0.1, 8.0, 0.03
MAX_FURTHER_RESERVE = 0.35  # largest share of the remaining time by which the reserve exceeds the least one
SPEED_WINDOW = 0.1  # share of the time limit over which the speed is averaged
MIN_TRAINING_SHARE = 0.3  # share of a time limit that steps and evaluations get, even if the limit is then exceeded


class TimeLimit(NamedTuple):
    """The limit of the duration of a training."""

    seconds: float  # from `start` to the end of the last step
    start: float  # a time of `perf_counter`
    reserve: float = 0.0  # as in `Progress`
    work: float = 0.0  # as in `Progress`

    @classmethod
    def of_command(cls, minutes: float | None, start: float, config: Config) -> "TimeLimit | None":
        """Return the limit of a command that may take `minutes` from the time `start`; None if it has no limit."""
        if minutes is None:
            return None
        seconds, work = 60 * minutes, WORK + WORK_PER_MINUTE * minutes
        if isinstance(config.backbone, HuggingFaceOptions):
            work /= BASE_COST if config.backbone.is_pretrained else TRANSFORMER_COST
        reserve = min(RESERVE_SHARE * seconds, FIXED_RESERVE + LONG_RESERVE_SHARE * seconds)
        return cls(seconds - reserve, start, reserve, work)

    def remaining_seconds(self, now: float) -> float:
        """Return the seconds that a training may take that begins at the time `now`."""
        return max(MIN_TRAINING_SHARE * self.seconds, self.seconds - (now - self.start))


@dataclass
class Progress:
    """The counters of a training, which a checkpoint stores next to the tensors."""

    steps: int = 1  # of the training; with a time limit, the largest number
    max_seconds: float = math.inf  # the time limit of `seconds`
    reserve: float = 0.0  # seconds for the work after the steps, at least
    work: float = 0.0  # targets whose training takes as long as the work after the steps
    step: int = 0  # number of steps taken
    tokens: int = 0  # targets that these steps learned
    seconds: float = 0.0  # duration so far, with evaluations
    target_seconds: float = 0.0  # recent seconds of a step per target
    time_share: float = 0.0  # share of the time limit that is used, at its largest so far
    best: float = math.inf  # lowest development perplexity so far
    evaluations: int = 0  # that were due so far
    evaluations_since_best: int = 0
    evaluation_seconds: float = 0.0  # duration of all evaluations so far
    rows: int = 0  # of the log
    nats: float = 0.0  # sum of the losses of all targets since the last row of losses in the log
    tokens_at_last_row: int = 0  # `tokens` at that row

    @property
    def share(self) -> float:
        """The share of the training that is done, from 0 to 1."""
        return min(1.0, max(self.step / self.steps, self.time_share))

    def count_seconds(self, seconds: float, targets: int = 0) -> None:
        """Add the duration of an evaluation, or of a step on some `targets`."""
        self.seconds += seconds
        if math.isinf(self.max_seconds):
            return
        if targets:
            weight = -math.expm1(-seconds / (SPEED_WINDOW * self.max_seconds)) if self.target_seconds else 1.0
            self.target_seconds += weight * (seconds / targets - self.target_seconds)
        further_reserve = max(0.0, self.work * self.target_seconds - self.reserve)
        limit = self.max_seconds - min(further_reserve, MAX_FURTHER_RESERVE * self.max_seconds)
        self.time_share = max(self.time_share, self.seconds / limit)

    @property
    def total_steps(self) -> int:
        """The number of steps of the training; with a time limit, an estimate from the steps so far."""
        return self.steps if math.isinf(self.max_seconds) or not self.step else max(1, round(self.step / self.share))

    def events_due(self, count: int) -> int:
        """Return how many of `count` events are due so far, if they are evenly spread and the last is at the end."""
        return math.floor(self.share * count + ROUNDING)

    def is_evaluation_due(self, count: int) -> bool:
        """Return whether one of `count` evaluations is due.

        With a time limit, all but the last wait while the earlier ones have taken more than `EVALUATION_SHARE` of the
        time.
        """
        is_affordable = self.evaluation_seconds <= EVALUATION_SHARE * self.seconds or math.isinf(self.max_seconds)
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
        return peak * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)  # of the steps after the warm-up
    return peak * (1 + math.cos(math.pi * share)) / 2
