"""With a time limit, the learning rate and the evaluations follow the share of the time that is used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import Config
from factorcell.data.corpus import Corpus
from factorcell.data.preparation import prepare
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training import schedule
from factorcell.training import trainer as trainers
from factorcell.training.fit import train_run
from factorcell.training.rules import minutes_after_steps, ordinary_target_seconds, seconds_after_steps
from factorcell.training.schedule import Progress, TimeLimit, learning_rate
from factorcell.training.trainer import Row, Trainer, train
from tests import synthetic
from tests.checkpoints import checkpoints_every_step, interrupted_before_step

frequent_checkpoints = checkpoints_every_step()

SECONDS = 100.0  # the time limit of the trainings in this file
LIMIT = TimeLimit(SECONDS, start=0.0)


class Machine:
    """A clock that advances by steps and evaluations; the speed of the steps changes with the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, early: float, late: float, change: float = SECONDS / 2) -> None:
        self.now, original_step, original_evaluate = 0.0, Trainer.step, Trainer.evaluate

        def timed_step(trainer: Trainer, batch: Any) -> None:
            original_step(trainer, batch)
            self.now += early if trainer.progress.seconds < change else late

        def timed_evaluation(trainer: Trainer) -> Row:
            row = original_evaluate(trainer)
            self.now += 1.0
            return row

        monkeypatch.setattr(Trainer, "step", timed_step)
        monkeypatch.setattr(Trainer, "evaluate", timed_evaluation)
        monkeypatch.setattr(trainers, "perf_counter", lambda: self.now)


@pytest.fixture(scope="module", autouse=True)
def frequent_rows() -> Iterator[None]:
    """Log a row of losses every few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainers, "LOG_EVERY", 5)
        yield


def make_config(**options: Any) -> Config:
    """Return the config of a small model whose training has at most about 240 steps, and four evaluations."""
    return Config.of(
        context=["dialect"],
        min_count=1,
        **{"embedding_size": 4, "hidden_size": 5, "context_size": 2, "variable_size": 2, "rank": 1},
        **{"epochs": 40.0, "batch_tokens": 300, "evaluations": 4, "threads": 1},
        **{"precision": "float32", "samples": 8, **options},
    )


def read_texts(config: Config) -> tuple[Corpus, Corpus]:
    """Return training and development texts."""
    corpus = prepare(synthetic.two_dialects(120, 1)[0], config)
    return corpus, prepare(synthetic.two_dialects(30, 2)[0], config, tokenizer=corpus.tokenizer, schema=corpus.schema)


def train_in(folder: Path, *, resume: bool = False, limit: TimeLimit | None = LIMIT, **options: Any) -> list[Row]:
    """Train in `folder`, from the start or from its checkpoint; return the rows of the log."""
    config = make_config(**options)
    corpus, dev = read_texts(config)
    if resume:
        list(train(Run.open(folder, trained=False), corpus, dev, resume=True))
    else:
        list(train(Run.create(folder, config, corpus.tokenizer, corpus.schema), corpus, dev, limit=limit))
    return files.read_rows(folder / "log.jsonl")


@pytest.mark.parametrize(("early", "late"), [(1.0, 1.0), (1.0, 3.0), (3.0, 1.0), (0.6, 0.6), (0.6, 2.0)])
def test_a_training_ends_in_time_on_a_machine_that_changes_its_speed(
    early: float, late: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, early, late)
    rows = train_in(tmp_path / "run")
    assert SECONDS <= rows[-1]["seconds"] <= SECONDS + max(early, late) + 2.0
    assert rows[-1]["step"] == rows[-1]["steps"]
    evaluations = [row for row in rows if row["split"] == "dev"]
    assert len(evaluations) == 4
    assert evaluations[-1]["step"] == rows[-1]["step"]
    if early == late:
        assert [row["seconds"] for row in evaluations] == pytest.approx([25, 50, 75, 100], abs=early + 2.2)
    run = Run.open(tmp_path / "run")
    assert run.config.training.steps == rows[-1]["step"]
    assert Trainer(run, *read_texts(run.config)).progress.steps == rows[-1]["step"]


def test_a_fast_machine_does_not_exceed_the_largest_number_of_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, 0.1, 0.1)
    corpus, _ = read_texts(make_config())
    rows = train_in(tmp_path / "run")
    steps_per_pass = len(corpus.batches(300, seed=0))
    assert rows[-1]["step"] == rows[-1]["steps"] == 40 * steps_per_pass
    assert rows[-1]["seconds"] < SECONDS


def test_without_a_limit_the_number_of_steps_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Machine(monkeypatch, 9.0, 9.0)
    rows = train_in(tmp_path / "run", limit=None)
    assert len({row["steps"] for row in rows}) == 1
    assert rows[-1]["seconds"] > SECONDS


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_the_option_steps_sets_the_number_of_steps(
    limit: TimeLimit | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, 1.0, 1.0)
    rows = train_in(tmp_path / "run", limit=limit, steps=17)
    assert rows[-1]["step"] == rows[-1]["steps"] == 17


def test_a_training_takes_exactly_its_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps, original = [], Trainer.step

    def counted_step(trainer: Trainer, batch: Any) -> None:
        steps.append(trainer.progress.step)
        original(trainer, batch)

    monkeypatch.setattr(Trainer, "step", counted_step)
    options: dict[str, Any] = {
        "data": {"context": ["dialect"], "min_context_count": 1},
        "tokenizer": {"min_count": 1},
        "training": {"epochs": 1.0, "threads": 1},
    }
    run = train_run(synthetic.two_dialects(120, 1)[0], synthetic.two_dialects(30, 2)[0], options, tmp_path / "run")
    assert steps == list(range(run.log()[-1]["step"]))


@pytest.mark.parametrize("samples", [8, 0])
@pytest.mark.parametrize("step", [0, 1, 13, 14, 40])
def test_an_interrupted_training_with_a_limit_resumes_to_the_same_result(
    step: int, samples: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        Machine(patch, 1.5, 0.7)
        rows = train_in(tmp_path / "whole", samples=samples)
    with monkeypatch.context() as patch:
        Machine(patch, 1.5, 0.7)
        with interrupted_before_step(step):
            train_in(tmp_path / "run", samples=samples)
        resumed_rows = train_in(tmp_path / "run", resume=True, samples=samples)
    speeds = ("tokens_per_second",)
    assert [{**row, **dict.fromkeys(speeds)} for row in resumed_rows] == [
        {**row, **dict.fromkeys(speeds)} for row in rows
    ]
    (tensors, facts), (others, other_facts) = (
        files.load_tensors(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "run")
    )
    assert facts == other_facts
    assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []


@pytest.mark.parametrize(("early", "late"), [(1.0, 1.0), (1.0, 3.0), (3.0, 1.0), (0.1, 0.1)])
def test_the_learning_rate_follows_the_estimated_share(
    early: float, late: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Machine(monkeypatch, early, late)
    rates: list[float] = []
    shares: list[float] = []
    timed_step = Trainer.step

    def recorded_step(trainer: Trainer, batch: Any) -> None:
        shares.append(trainer.progress.share)
        timed_step(trainer, batch)
        rates.append(trainer.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(Trainer, "step", recorded_step)
    monkeypatch.setattr(schedule, "WARMUP", 0.0)
    train_in(tmp_path / "run", learning_rate=1.0)
    true_shares = np.arange(len(shares)) / len(shares)
    end = len(shares) * 9 // 10  # until then, the estimate has followed the change of the speed
    assert np.abs(shares - true_shares)[end:].max() < 0.06
    if early == late:
        assert np.diff(shares).min() > 0
    np.testing.assert_allclose(
        rates[1:], (1 + np.cos(np.pi * np.array(shares[1:]))) / 2, atol=0.01
    )  # the first step is the warm-up
    assert rates[-1] < 0.06


def count(progress: Progress, target_seconds: float, steps: int) -> list[float]:
    """Count steps of a second, each with an evaluation, which does not change the speed; return the shares."""
    shares = []
    for _ in range(steps):
        progress.tokens += round(1 / target_seconds)
        progress.count_seconds(1.0, round(1 / target_seconds))
        progress.count_seconds(0.05)
        progress.evaluation_seconds += 0.05
        shares.append(progress.share)
    return shares


def limited_progress() -> Progress:
    return Progress(1000, 100.0, fixed_reserve=5.0, reserve=4.0, bounded_reserve=6.0, ordinary_target_seconds=0.1)


@pytest.mark.parametrize(("target_seconds", "reserve"), [(0.05, 15.0), (0.2, 25.0), (0.5, 37.0), (1.0, 40.0)])
def test_at_a_constant_speed_the_share_is_that_of_the_time(target_seconds: float, reserve: float) -> None:
    """The reserve is that of an ordinary machine, of a slow one, and of very slow ones, which do less work."""
    progress = limited_progress()
    count(progress, target_seconds, 40)
    assert progress.share == pytest.approx(progress.seconds / (100 - reserve))


@pytest.mark.parametrize("steps", [1, 60, 100, 601])
def test_no_learning_rate_exceeds_the_peak(steps: int) -> None:
    """With a time limit, positions need not be whole numbers."""
    assert max(learning_rate(step, steps, 0.5, 0.02) for step in np.linspace(0, steps, 1000)) <= 0.5


def test_a_first_evaluation_that_takes_long_does_not_shorten_the_expected_training() -> None:
    """Later evaluations wait until they have taken at most `MAX_EVALUATION_SHARE` of the time."""
    progress = Progress(1000, max_seconds=100.0)
    progress.tokens = 10
    progress.count_seconds(6.0, 10)
    progress.count_seconds(4.0)
    progress.evaluation_seconds += 4.0
    assert progress.share == pytest.approx(10 / (10 + 0.95 * 90 / 0.6))


def test_the_share_follows_the_speed_and_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SPEED_WINDOW", 0.02)
    progress = limited_progress()
    count(progress, 0.05, 15)
    assert progress.share == pytest.approx(15.75 / 85)  # the reserve is 15 seconds
    slow = count(progress, 0.2, 20)
    assert progress.tokens == 400
    steps_left = (75 - 36.75) / 1.05  # the reserve is 25 seconds now
    assert slow[-1] == pytest.approx(400 / (400 + 5 * steps_left), rel=0.001)
    fast = count(progress, 0.05, 20)
    assert fast[-1] == pytest.approx(800 / (800 + 20 * (85 - 57.75) / 1.05), rel=0.001)
    assert fast[-1] < slow[-1], "many more targets are expected now"
    progress.count_seconds(28.0)
    assert progress.share == 1.0
    assert Progress(10, step=5, seconds=5.0).share == 0.5


def test_a_moment_in_which_the_machine_is_slow_changes_the_share_for_a_moment() -> None:
    progress, undisturbed = limited_progress(), limited_progress()
    for each, targets in ((progress, 1), (undisturbed, 40)):
        count(each, 0.05, 40)
        each.tokens += targets
        each.count_seconds(2.0, targets)
    assert 0.02 < progress.share - undisturbed.share < 0.1
    count(progress, 0.05, 20)
    count(undisturbed, 0.05, 20)
    assert progress.share == pytest.approx(undisturbed.share, abs=0.02)


def test_large_models_learn_fewer_targets_in_a_second() -> None:
    configs = [
        Config.of(hidden_size=50),
        Config.of(hidden_size=300, layers=2),
        Config.of(backbone="huggingface", architecture="llama"),
        Config.of(backbone="huggingface", base="some-base"),
    ]
    seconds = [ordinary_target_seconds(config) for config in configs]
    assert seconds == pytest.approx([cost * 60 / 1.5e6 for cost in (1, 3, 8, 60)])


def test_a_slow_machine_does_less_after_the_steps() -> None:
    config, base = Config.of(hidden_size=50), Config.of(backbone="huggingface", base="some-base")
    ordinary = ordinary_target_seconds(config)
    minutes = [minutes_after_steps(6.0, config, slowness * ordinary) for slowness in (0.0, 1.0, 2.0, 3.0, 8.0)]
    assert minutes == pytest.approx([6.0, 6.0, 6.0, 4.0, 1.5])
    assert minutes_after_steps(6.0, base, 1.0) == 6.0


def test_the_work_after_the_steps_is_longer_with_more_counts_and_categories() -> None:
    expected = {
        (0, False, 0): 0.0,
        (1_000_000, True, 0): 1.0,
        (1_000_000, False, 1): 1.0 + 2.4 + 1.2,
        (1_000_000, True, 1): 1.0 + 2.4 + 3.0,
        (5_000_000, True, 1): 5.0 + 2.4 + 2 * 5 * 2.5,
        (5_000_000, False, 3): 5.0 + 2.4 + 5 * 1.2 + 3 * 2.4,
    }
    for facts, seconds in expected.items():
        assert seconds_after_steps(2.0, *facts) == pytest.approx((3.4, seconds))


@pytest.mark.parametrize(("steps", "count"), [(1, 1), (5, 3), (10, 10), (3, 7), (1001, 10), (12, 4), (997, 991)])
def test_events_are_evenly_spread_and_the_last_is_at_the_end(steps: int, count: int) -> None:
    totals = [Progress(steps, step=step).events_due(count) for step in range(steps + 1)]
    assert totals == [step * count // steps for step in range(steps + 1)]


def test_with_a_time_limit_evaluations_wait_until_they_are_affordable() -> None:
    progress, due_seconds = Progress(100, max_seconds=100.0), list[float]()
    for _ in range(50):
        progress.tokens += 1
        progress.count_seconds(2.0, 1)
        if progress.is_evaluation_due(10):
            due_seconds.append(progress.seconds)
            progress.count_seconds(2.0)
            progress.evaluation_seconds += 2.0
            progress.evaluations = progress.events_due(10)
        if progress.share >= 1:
            break
    assert due_seconds == [10, 40, 80, 100]
    assert Progress(100, step=50, evaluations=4, seconds=1.0, evaluation_seconds=1.0).is_evaluation_due(10)
