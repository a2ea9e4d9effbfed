"""Searches: each trial is a run of `fit`, and a stopped or killed search resumes."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.torchrun import ProcessEndedError
from factorcell.runs.run import Run
from factorcell.training import fit as fitting
from factorcell.training import trainer as trainer_module
from factorcell.training import tuning
from factorcell.training.fit import fit
from factorcell.training.trainer import train
from tests.checkpoints import checkpoints_every_step
from tests.processes import requires_fork, run_and_kill
from tests.small_runs import CONTEXT, ROWS

frequent_checkpoints = checkpoints_every_step()

CONFIG = Config.of(
    context=CONTEXT,
    min_count=1,
    min_context_count=1,
    variable_size=2,
    epochs=3,
    batch_tokens=12,
    evaluations=3,
    threads=1,
    precision="float32",
)
SPACE: dict[str, Any] = {
    "hidden_size": {"low": 3, "high": 9},
    "embedding_size": [4, 6],
    "rank": {"low": 1, "high": 8, "log": True},
    "adapt": ["concat", "concat+factor"],
    "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
}


def search(folder: Path, trials: int, config: Config = CONFIG, **more: Any) -> list[files.Row]:
    """Search with the table `ROWS`."""
    return tuning.tune(ROWS, ROWS[:5], config, folder, trials=trials, **{"space": SPACE, **more})


def test_every_trial_is_a_run_and_the_best_is_a_recipe(tmp_path: Path) -> None:
    rows = search(tmp_path / "s", 4)
    assert files.read_rows(tmp_path / "s" / "trials.jsonl") == rows
    assert {row["trial"] for row in rows} == {f"trial-000{number}" for number in range(4)}
    assert [row["perplexity"] for row in rows] == sorted(row["perplexity"] for row in rows)
    for row in rows:
        run = Run.open(tmp_path / "s" / row["trial"])
        sampled = {name: row[name] for name in SPACE} | {"adapt": tuple(row["adapt"].split("+"))}
        assert run.config == CONFIG.with_options(**sampled)
        assert row["perplexity"] == min(entry["perplexity"] for entry in run.log() if entry["split"] == "dev")
        assert row["state"] == "complete"
        assert 3 <= row["hidden_size"] <= 9
        assert isinstance(row["rank"], int)
        assert 1e-3 <= row["learning_rate"] <= 1e-1
    recipe = Config.of(config=tmp_path / "s" / "best.toml")
    again = fit(ROWS, dev=ROWS[:5], out=tmp_path / "again", config=recipe).best_evaluation()
    assert again is not None
    assert again["perplexity"] == rows[0]["perplexity"]


def test_a_resumed_search_samples_the_same_options(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole", 4)
    for trials in range(1, 5):
        steps = search(tmp_path / "steps", trials)
    assert steps == whole
    assert len({json.dumps(row["learning_rate"]) for row in whole}) == 4
    other = search(tmp_path / "other", 4, CONFIG.with_options(seed=1))
    assert {row["learning_rate"] for row in other}.isdisjoint(row["learning_rate"] for row in whole)


def test_a_stopped_search_resumes_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "LOG_EVERY", 1)
    config = CONFIG.with_options(dropout_input=0.2)
    whole = search(tmp_path / "whole", 3, config)
    trained: list[tuple[str, list[int]]] = []

    def interrupted_train(run: Run, *others: Any, **keywords: Any) -> Iterator[files.Row]:
        steps: list[int] = []
        trained.append((run.folder.name, steps))
        for row in train(run, *others, **keywords):
            yield row
            steps.append(row["step"])
            if run.folder.name == "trial-0001" and row["split"] == "dev" and len(trained) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "train", interrupted_train)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "stopped", 3, config)
    assert [row["trial"] for row in files.read_rows(tmp_path / "stopped" / "trials.jsonl")] == ["trial-0000"]
    assert search(tmp_path / "stopped", 3, config) == whole
    assert [name for name, _ in trained] == ["trial-0000", "trial-0001", "trial-0001", "trial-0002"]
    assert trained[2][1][0] == trained[1][1][-1], "resumed from the last checkpoint, before that evaluation"


def die_in_a_trial(folder: Path) -> None:
    """Search, and kill this process at the first evaluation."""

    def deadly_train(*others: Any, **keywords: Any) -> Iterator[files.Row]:
        for row in train(*others, **keywords):
            yield row
            if row["split"] == "dev":
                os.kill(os.getpid(), signal.SIGKILL)

    fitting.train = deadly_train  # type: ignore[attr-defined, assignment]
    search(folder, 6)


@requires_fork
def test_a_killed_trial_is_resumed(tmp_path: Path) -> None:
    assert run_and_kill(partial(die_in_a_trial, tmp_path / "killed"))
    assert search(tmp_path / "killed", 2) == search(tmp_path / "whole", 2)


def test_a_trial_that_diverges_fails_and_the_search_continues(tmp_path: Path) -> None:
    rows = search(tmp_path / "s", 6, space={"learning_rate": [1e38, 1e-2]})
    states = {row["learning_rate"]: row["state"] for row in rows}
    assert states == {1e38: "fail", 1e-2: "complete"}
    assert all(("is not finite" in row.get("error", "")) == (row["state"] == "fail") for row in rows)
    assert rows[0]["state"] == "complete"


def test_a_trial_with_an_infinite_perplexity_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Run.best_evaluation
    monkeypatch.setattr(Run, "best_evaluation", lambda run: {**(original(run) or {}), "perplexity": None})
    (row,) = search(tmp_path / "s", 1)
    assert (row["state"], row["error"]) == ("fail", "the development perplexity is not finite")


def test_a_trial_whose_processes_end_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*arguments: Any, **options: Any) -> None:
        raise ProcessEndedError("torchrun: another process of 2 ended")

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train_run", end)
        with pytest.raises(ProcessEndedError):
            search(tmp_path / "s", 1)
    (row,) = search(tmp_path / "s", 1)
    assert (row["trial"], row["state"]) == ("trial-0000", "complete")


def test_a_searched_seed_needs_a_development_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="search space: seed: expected a development table"):
        tuning.tune(ROWS, None, CONFIG, tmp_path / "s", space={"seed": [0, 1]})


def test_a_search_with_other_options_is_not_resumed(tmp_path: Path) -> None:
    rows = search(tmp_path / "s", 1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"config": CONFIG.with_options(epochs=4)}, "expected training.epochs = 3.0 as before, got 4.0"),
        ({"space": {**SPACE, "rank": [1, 2]}}, r"expected range of rank = .*'high': 8.* as before, got \[1, 2\]"),
        ({"space": {"rank": [1, 2]}}, "expected range of hidden_size = .* as before, got None"),
        ({"minutes": 3.0}, "expected minutes = None as before, got 3.0"),
    ]
    for more, message in cases:
        with pytest.raises(UserError, match=message):
            search(tmp_path / "s", 2, **more)
    assert files.read_rows(tmp_path / "s" / "trials.jsonl") == rows
    assert len(search(tmp_path / "s", 2, CONFIG.with_options(threads=2))) == 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"rank": {"low": -1, "high": 3}}, "search space: rank: .*rank is -1"),
        ({"rank": {"low": 5, "high": 3}}, "search space: rank: .*low"),
        ({"rank": {"low": 5}}, "search space: rank: expected a list of choices or a range"),
        ({"rank": {"low": 1, "high": 2, "step": 1}}, "search space: rank: expected a list"),
        ({"rank": []}, "search space: rank: expected a list"),
        ({"rank": 3}, "search space: rank: expected a list"),
        ({"learning_rate": {"low": 0, "high": 1, "log": True}}, "search space: learning_rate: .*low"),
        ({"adapt": ["facter"]}, "did you mean 'factor'"),
        ({"ranks": [1]}, "did you mean 'rank'"),
        ({"max_tokens": [10, 20]}, "perplexities with different values of this option are not comparable"),
    ],
)
def test_invalid_spaces_are_refused_before_training(space: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        search(tmp_path / "s", 1, space=space)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_the_default_space_has_the_options_of_the_model() -> None:
    assert {"hidden_size", "rank", "learning_rate"} <= {*tuning.default_space(CONFIG)}
    frozen = CONFIG.with_options(base="a", tokenizer="pretrained")
    assert "hidden_size" not in tuning.default_space(frozen)
    rates = [
        tuning.default_space(config)["learning_rate"]
        for config in (CONFIG, frozen, frozen.with_options(train_base=True))
    ]
    assert rates == [tuning.DEFAULT_SPACE["learning_rate"], tuning.ADAPTER_RATES, tuning.BASE_RATES]
    new = CONFIG.with_options(architecture="gpt2")
    assert tuning.default_space(new)["learning_rate"] == tuning.DEFAULT_SPACE["learning_rate"]


def test_an_unreadable_study_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.journal").write_text("no journal\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"study\.journal: the study cannot be opened"):
        search(tmp_path / "s", 1)
    with pytest.raises(UserError, match="trials is 0; it must be a "):
        search(tmp_path / "t", 0)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="optuna, which is not installed"):
        search(tmp_path / "t", 1)
