"""A training with users holds out whole users, and fits the settings with which the run completes their texts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.bootstrap import Interval
from factorcell.completion.blend import DEFAULT_WEIGHTS, Blend, BlendWeights, new_suggester
from factorcell.completion.online import SETTINGS, LearningRule, User
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.evaluation.diagnostics import run_findings
from factorcell.io import files
from factorcell.runs.run import Run, training_facts
from factorcell.training import fit as fitting
from factorcell.training.fit import train_run

TEXTS = ["abc", "abba", "cab", "bac", "acc"]
OPTIONS: dict[str, Any] = {
    "data": {"user": "user", "time": "time", "min_user_count": 3, "min_context_count": 1},
    "model": {"adapt": ["factor"], "output_bias": [], "embedding_size": 4, "rank": 2, "context_size": 3,
              "variable_size": 3},
    "backbone": {"hidden_size": 6},
    "training": {"threads": 1, "epochs": 2.0, "batch_tokens": 60},
    "tokenizer": {"kind": "char", "min_count": 1},
}  # fmt: skip


def rows_of(users: int, texts: int = 6, name: str = "user") -> list[dict[str, Any]]:
    """Return rows of users, in reversed order of time; all users often enter the same text."""
    random = np.random.default_rng(users)
    return [
        {
            "text": str(random.choice(TEXTS, p=[0.5, 0.2, 0.1, 0.1, 0.1])),
            "user": f"{name} {number}",
            "time": f"2026-01-0{time}T08:00",
        }
        for time in range(texts, 0, -1)
        for number in range(users)
    ]


def test_whole_users_are_held_out_and_unknown_to_the_schema() -> None:
    config = Config.from_dict(OPTIONS)
    rows = [*rows_of(40), {"text": "cc", "user": None, "time": "2026-01-01T08:00"}, *rows_of(3, 1, "rare")]
    corpus = prepare(rows, config)
    train, held_out = fitting.hold_out(corpus, config)
    assert len(train) + len(held_out) == len(rows)
    train_users, dev_users = ({rows[row]["user"] for row in part.source_rows} for part in (train, held_out))
    assert not train_users & dev_users
    assert None in train_users
    assert 0.05 * len(rows) <= len(held_out) <= 0.05 * len(rows) + 6
    variable = train.schema.variable("user")
    assert train.schema == held_out.schema
    assert len(variable.values) == len(variable.counts) == 1 + 40 - len({u for u in dev_users if "rare" not in str(u)})
    assert not dev_users & set(variable.values)
    column = train.schema.categories.index(variable)
    for part in (train, held_out):
        for row, value in zip(part.source_rows, part.categories[:, column], strict=True):
            user = rows[row]["user"]
            expected = -1 if user is None else variable.index_by_value.get(user, 0)
            assert value == expected
    assert not held_out.categories[:, column].any()
    for part in (train, held_out):
        texts = [
            part.tokenizer.join(part.tokenizer.decode(ids[1:-1])) for ids in np.split(part.tokens, part.offsets[1:-1])
        ]
        assert texts == [rows[row]["text"] for row in part.source_rows]


def test_a_fine_tuning_holds_out_whole_users_and_keeps_the_schema() -> None:
    config = Config.from_dict(OPTIONS)
    rows = rows_of(40)
    corpus = prepare(rows, config)
    train, held_out = fitting.hold_out(corpus, config, keeps_schema=True)
    assert train.schema == held_out.schema == corpus.schema
    train_users, dev_users = ({rows[row]["user"] for row in part.source_rows} for part in (train, held_out))
    assert dev_users
    assert not train_users & dev_users
    assert np.array_equal(held_out.categories, corpus.categories[held_out.source_rows])


def test_a_user_with_many_texts_is_not_held_out() -> None:
    corpus = prepare([*rows_of(40), *rows_of(1, 9, "busy") * 40], Config.from_dict(OPTIONS))
    for seed in range(40):
        _, held_out = corpus.split_users(0.05, seed, "user")
        assert 0 < len(held_out) <= 0.05 * len(corpus) + 6


def test_single_texts_of_few_users_are_held_out() -> None:
    config = Config.from_dict(OPTIONS)
    corpus = prepare(rows_of(fitting.MIN_USERS - 1), config)
    train, held_out = fitting.hold_out(corpus, config)
    assert set(train.users) >= set(held_out.users)
    assert len(held_out) == round(0.05 * len(corpus))


def test_development_texts_without_users_fit_no_settings(tmp_path: Path) -> None:
    dev = [{"text": "abc", "user": None, "time": "2026-01-01T08:00"}] * 3
    run = train_run(rows_of(30), dev, OPTIONS, tmp_path / "run")
    assert not (run.folder / SETTINGS).exists()


def test_single_texts_are_held_out_if_each_user_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MAX_HELD_OUT", 4)
    config = Config.from_dict(OPTIONS)
    corpus = prepare(rows_of(fitting.MIN_USERS), config)
    train, held_out = fitting.hold_out(corpus, config)
    assert (len(train), len(held_out)) == (len(corpus) - 4, 4)


@pytest.mark.parametrize("has_dev_table", [True, False])
def test_training_saves_fitted_settings(has_dev_table: bool, tmp_path: Path) -> None:
    dev = rows_of(10, name="new") if has_dev_table else None
    run = train_run(rows_of(60), dev, OPTIONS, tmp_path / "run")
    facts = training_facts(run.folder)["completion"]
    assert facts["users"] == (10 if dev else 3)
    weights = BlendWeights.load(run.folder)
    assert weights != DEFAULT_WEIGHTS
    assert LearningRule.load(run.folder).optimizer == "adagrad"
    suggester = new_suggester(Run.open(run.folder))
    assert isinstance(suggester, Blend)
    assert suggester.weights == weights
    assert suggester.complete("a", User.new(run))[0].text == "abc", "half of all texts"
    assert not [finding for finding in run_findings(run, []) if finding.name == "unknown users"]


def test_texts_are_read_in_order_of_time(tmp_path: Path) -> None:
    run = train_run(rows_of(60), None, OPTIONS, tmp_path / "run")
    rows = [*rows_of(4, name="new"), {"text": "a", "user": None, "time": "2026-01-03T08:00"}]
    rows.append({"text": "a", "user": "new 1", "time": None})
    held_out = run.prepare(rows, unknown="expected")
    streams = fitting.completion_streams(run, rows, held_out)
    assert [stream.user for stream in streams] == [f"new {number}" for number in range(4)]
    for stream in streams:
        assert [row["time"][9] for row in stream.rows] == list("123456")
        assert all(row["text"] in TEXTS for row in stream.rows)


def test_runs_without_users_have_no_settings(tmp_path: Path) -> None:
    options = {**OPTIONS, "data": {"context": ["user"], "min_context_count": 1}}
    run = train_run(rows_of(10), None, options, tmp_path / "run")
    assert not (run.folder / SETTINGS).exists()
    unadapted = {**OPTIONS, "model": {**OPTIONS["model"], "adapt": []}}
    run = train_run(rows_of(30), None, unadapted, tmp_path / "unadapted")
    assert not (run.folder / SETTINGS).exists()
    assert (run.folder / "popularity.jsonl").exists()


def test_a_model_that_adds_nothing_to_known_texts_is_reported(tmp_path: Path) -> None:
    run = train_run(rows_of(60), rows_of(10, name="new"), OPTIONS, tmp_path / "run")
    facts = files.read_json(run.folder / "training.json")
    differences = [Interval(-0.1), Interval(0.1, -0.1, 0.2), Interval(0.001, -0.001, 0.003)]
    for difference, is_reported in zip(differences, (False, False, True), strict=True):
        facts["completion"] |= {"mrr_known": 0.2, **difference.to_row("gain_over_known")}
        files.write_json(run.folder / "training.json", facts)
        names = [finding.name for finding in run_findings(run, [])]
        assert ("weak model" in names) == is_reported


@pytest.mark.parametrize("minutes", [None, 1.0])
def test_only_minutes_limit_the_time_of_the_fit(
    minutes: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the settings would depend on the speed of the machine."""
    limits = list[float]()
    monkeypatch.setattr(fitting, "fit_settings", lambda run, streams, texts, seconds: limits.append(seconds))
    train_run(rows_of(40), None, OPTIONS, tmp_path / "run", minutes=minutes)
    assert [math.isfinite(seconds) for seconds in limits] == [minutes is not None]
