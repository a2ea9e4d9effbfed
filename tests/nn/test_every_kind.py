"""Tests of models whose context has variables of every kind: scoring, classification, training and opening."""

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import Config
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.evaluation.perplexity import evaluate
from factorcell.runs.run import Run
from factorcell.runs.summary import render_card as card_of
from factorcell.training.fit import train_run
from tests.data.test_columns import CONTEXT, rows_of_all_kinds
from tests.findings import logged_progress, parse_block
from tests.small_runs import nats_of

EVERY = ("city", "lat:number", *CONTEXT)
ROWS = [{**row, "at": row["at"].isoformat()} for row in rows_of_all_kinds(12)]
DATA = Config.of(context=EVERY, min_count=1, min_context_count=1)


def write_jsonl(rows: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Make a run with random weights whose context has every kind."""
    config = Config.of(
        context=EVERY,
        min_count=1,
        min_context_count=1,
        embedding_size=5,
        hidden_size=6,
        rank=2,
        context_size=3,
        variable_size=2,
    )
    corpus = prepare(ROWS, config)
    result = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    with torch.no_grad():
        for parameter in result.model.parameters():
            parameter.normal_(0, 0.5)
    return result


def test_nats_agree_token_by_token_in_batches_and_one_by_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = run.prepare(ROWS)
    nats = run.nats(corpus)
    np.testing.assert_allclose(nats, [nat for row in ROWS for nat in nats_of(run, row)], atol=1e-5)
    monkeypatch.setattr("factorcell.runs.run.MAX_BATCH_TOKENS", 7)
    np.testing.assert_allclose(run.nats(corpus), nats, atol=1e-5)
    single = np.concatenate([run.nats(corpus.select(np.array([row]))) for row in range(len(corpus))])
    np.testing.assert_allclose(single, nats, atol=1e-5)


def test_each_kind_changes_nats_and_missing_columns_have_expected_values(run: Run) -> None:
    whole = run.nats(run.prepare(ROWS))
    for column in ("city", "lat", "at", "lon", "turn", "title", "topic"):
        rows = [{name: value for name, value in row.items() if name != column} for row in ROWS]
        assert np.abs(run.nats(run.prepare(rows, unknown="expected")) - whole).max() > 1e-3
    bare = [{"text": row["text"]} for row in ROWS]
    expected = evaluate(run, run.prepare(bare, unknown="expected")).perplexity
    result = evaluate(run, [{**row, "all": 1} for row in ROWS], by=["all"]).row
    assert result["perplexity_unknown_context"] == pytest.approx(expected, rel=1e-6)
    plain = Run(run.folder, config("at:hour", adapt=(), output_bias=()), run.tokenizer, ContextSchema())
    result = evaluate(run, ROWS, baseline=plain).row
    corpus = run.prepare(ROWS).without_context(plain.schema)
    assert result["perplexity_baseline"] == pytest.approx(evaluate(plain, corpus).perplexity, rel=1e-6)


def test_classification_in_the_presence_of_other_kinds(run: Run) -> None:
    corpus = run.prepare(ROWS)
    scores = log_likelihoods(run, corpus, [{"city": "a"}, {"city": "b"}])
    for column, city in enumerate("ab"):
        rows = [{**row, "city": city} for row in ROWS]
        expected = [-sum(nats_of(run, row)) for row in rows]
        np.testing.assert_allclose(scores[:, column], expected, atol=1e-4)
    hours = log_likelihoods(run, corpus, [{"at.hour": hour} for hour in (3, 27.0, -21)])
    rows = [{**row, "at": row["at"][:11] + "03:00:00"} for row in ROWS]
    np.testing.assert_allclose(hours, [[-sum(nats_of(run, row))] * 3 for row in rows], atol=1e-4)
    rows = [{**ROWS[0], "title": title} for title in ("sun", "moon")]  # differ only in a text
    titles = log_likelihoods(run, run.prepare(rows), [{"city": "a"}])
    np.testing.assert_allclose(titles[:, 0], [-sum(nats_of(run, row)) for row in rows], atol=1e-4)
    turns = log_likelihoods(run, corpus, [{"turn": turn} for turn in (0.25, 1e8 + 0.25)])  # needs more than 32 bits
    np.testing.assert_allclose(turns[:, 0], turns[:, 1], atol=1e-6)
    for target, message in (
        ("title", "title: expected a category, got a variable of kind text"),
        ("topic", "topic: expected a category, got a variable of kind vector"),
        ("lon", "lon: expected a category, got a variable of kind .*; to choose the nearest of named points"),
    ):
        with pytest.raises(UserError, match=message):
            classify(run, ROWS, target)
    with pytest.raises(UserError, match="title: expected a category or a number, got a variable of kind text"):
        log_likelihoods(run, corpus, [{"title": "sea"}])
    with pytest.raises(UserError, match=r"unknown numeric context variable 'title'; choose from lat, at.hour"):
        classify_points(run, ROWS, {"a": {"title": 1.0}})


def test_example_of_the_model_card_is_scored(run: Run) -> None:
    example = card_of(run).split(".score(['...'], context=")[1].split(")\n```")[0]
    context = ast.literal_eval(example)
    assert set(context) == {"city", "lat", "at", "lon", "turn", "title", "topic"}
    (result,) = run.score_rows(["..."], context=context)
    assert math.isfinite(result["nats"])
    with pytest.raises(UserError, match="context: at is 'soon', not a time of day"):
        run.score_rows(["..."], context={**context, "at": "soon"})


def config(*context: str, **model: Any) -> Config:
    sizes = {"embedding_size": 8, "hidden_size": 12, "context_size": 6, "variable_size": 6}
    return Config.of(
        **{
            "context": context,
            "min_count": 1,
            **sizes,
            **model,
            "epochs": 20,
            "batch_tokens": 500,
            "learning_rate": 0.02,
            "evaluations": 1,
        }
    )


def test_run_with_every_kind_is_trained_and_opened(tmp_path: Path) -> None:
    small = {"epochs": 1, "batch_tokens": 60, "evaluations": 1}
    request = DATA.with_options(**small)
    path = write_jsonl(ROWS, tmp_path / "rows.jsonl")
    with logged_progress() as notices:
        run = train_run(path, path, request, tmp_path / "run")
    columns = parse_block(notices)["columns"]
    assert "at: weekday such as " in columns
    assert "title: text such as sea, and, moon; 4 words" in columns
    assert "topic: vector of 3 numbers" in columns
    opened = Run.open(tmp_path / "run")
    np.testing.assert_allclose(opened.nats(opened.prepare(path)), run.nats(run.prepare(ROWS)), atol=1e-6)
    resumed = train_run(path, path, request, tmp_path / "run", resume=True)
    assert resumed.schema == run.schema
    for column, value, message in (
        ("at", "tomorrow", "row 2: at is 'tomorrow', not a time of day"),
        ("topic", [1], "row 2: topic has 1 numbers; expected 3, as in training"),
        ("title", 3, "row 2: title is 3, not a text"),
    ):
        bad = write_jsonl([ROWS[0], {**ROWS[1], column: value}], tmp_path / "bad.jsonl")
        with pytest.raises(UserError, match=f"bad.jsonl line 2, {message}"):
            run.prepare(bad)
