"""The duration of work on all texts, extrapolated from samples, with a made-up clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from queue import Queue
from types import SimpleNamespace

import pytest

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.training import fit, speed

CORPUS = prepare([{"text": "abc"}] * 5000, Config.of(tokenizer="char", min_count=1))
STARTING, FIXED, PER_TEXT = 4.0, 0.3, 0.002  # additional seconds of one call; seconds of each call, and of each text


@dataclass
class Work:
    """Work that takes the seconds of the constants, `slowdown` times as long by the clock of the wall.

    The call with the number `starting_call` takes `STARTING` seconds longer.
    """

    slowdown: float = 1.0
    starting_call: int = 0
    processor_seconds: float = 0.0
    calls: int = 0

    def __call__(self, sample: Corpus) -> None:
        self.processor_seconds += FIXED + PER_TEXT * len(sample) + (STARTING if self.calls == self.starting_call else 0)
        self.calls += 1

    def use_as_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(speed, "process_time", lambda: self.processor_seconds)
        monkeypatch.setattr(speed, "perf_counter", lambda: self.processor_seconds * self.slowdown)


@pytest.mark.parametrize("starting_call", [0, 1])
@pytest.mark.parametrize("slowdown", [1.0, 3.0])
def test_fixed_costs_are_not_multiplied(slowdown: float, starting_call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the last sample alone would give up to 3 times as many seconds, the first calls 30 to 300."""
    work = Work(slowdown, starting_call)
    work.use_as_clock(monkeypatch)
    expected = slowdown * (FIXED + PER_TEXT * len(CORPUS))
    assert speed._extrapolate_seconds(work, CORPUS, slowdown) == pytest.approx(expected, rel=0.5)
    assert work.calls > 1


class SlowTrainer:
    """A trainer whose steps take the given seconds, and whose first step takes twice as long."""

    steps = 100
    run = SimpleNamespace(nats=len)

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.taken = seconds, 0.0, 0

    def batches(self) -> Iterator[object]:
        yield from range(self.steps)

    def step(self, batch: object) -> None:
        self.now += self.seconds * (2 if self.taken == 0 else 1)
        self.taken += 1


@pytest.mark.parametrize(("seconds", "expected_steps"), [(20.0, 2), (2.0, 3), (0.5, 3 + 7)])
def test_few_slow_steps_are_measured(seconds: float, expected_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SlowTrainer(seconds)
    monkeypatch.setattr(speed, "temporary_trainer", lambda *_: trainer)
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(speed, clock, lambda: trainer.now)
    measured = speed.measure_speed(Config.of(), CORPUS, CORPUS)
    assert measured.step_seconds == pytest.approx(seconds)
    assert trainer.taken == expected_steps


def test_only_slow_work_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    notices = Queue[str]()
    with fit.notice_if_slow(notices.put, "slow"):
        pass
    assert notices.empty()
    monkeypatch.setattr(fit, "SLOW_SECONDS", 0.001)
    with fit.notice_if_slow(notices.put, "slow"):
        assert notices.get(timeout=30) == "slow"


def test_work_on_few_texts_is_measured_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    work.use_as_clock(monkeypatch)
    few = speed._evenly_spaced(CORPUS, 50)
    assert speed._extrapolate_seconds(work, few, 1.0) == pytest.approx(STARTING + FIXED + PER_TEXT * 50)
    assert work.calls == 1
