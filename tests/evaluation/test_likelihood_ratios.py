"""Likelihood ratios and posteriors against single steps of the model, scores and classification."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.errors import UserError
from factorcell.evaluation.classification import classify
from factorcell.evaluation.explaining.token_evidence import explain, strength
from factorcell.runs.run import Run
from tests.small_runs import make_letters, make_run, nats_of

TEXTS = ("the sea is cold", "sun", "", "the kvetching sea", "the sun the sea the sand the cold")
OSLO, NICE = {"city": "Oslo", "stars": "5"}, {"city": "Nice", "stars": "1"}
TWO = {"there": OSLO, "here": NICE}
LETTERS = {"Oslo": {"city": "Oslo"}, "Nice": {"city": "Nice"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return make_run(folder, ("city", "stars"), adapt=["concat", "factor"], output_bias=["low_rank", "one_hot"])


def columns(rows: list[dict[str, Any]], name: str) -> list[list[Any]]:
    return [[token[name] for token in row["tokens"]] for row in rows]


def test_ratios_equal_those_of_single_steps(run: Run) -> None:
    rows = explain(run, TEXTS, TWO)
    for text, row in zip(TEXTS, rows, strict=True):
        first_nats, second_nats = (nats_of(run, {"text": text, **context}) for context in (OSLO, NICE))
        assert [token["ratio"] for token in row["tokens"]] == pytest.approx(
            [b - a for a, b in zip(first_nats, second_nats, strict=True)], abs=1e-5
        )
        assert [token["nats"]["here"] for token in row["tokens"]] == pytest.approx(second_nats, abs=1e-5)
        assert [token["token"] for token in row["tokens"]] == [*text.split(), "</s>"]
        assert [token["known"] for token in row["tokens"]] == [token != "kvetching" for token in [*text.split(), ""]]
        assert (row["text"], row["tokenizer"]) == (text, "word")
    assert max(abs(ratio) for ratios in columns(rows, "ratio") for ratio in ratios) > 0.1


def test_long_texts_are_not_truncated() -> None:
    texts = ["abcab", "abcac", "abc"]
    rows, longer = (explain(make_letters(max_tokens=max_tokens), texts, LETTERS) for max_tokens in (4, 50))
    assert rows == longer
    assert [token["token"] for token in rows[0]["tokens"]] == ["a", "b", "c", "a", "b", "</s>"]
    assert rows[0]["ratio"] != rows[1]["ratio"]


def test_posterior_equals_bayes_rule_over_the_prefix(run: Run) -> None:
    rows = explain(run, TEXTS, {"five": OSLO, "one": {"city": "Oslo", "stars": "1"}})
    assert max(abs(p["five"] - 0.5) for row in columns(rows, "posterior") for p in row) > 0.01
    for row in rows:
        joint = {"five": 1.0, "one": 1.0}
        for token in row["tokens"]:
            joint = {name: share * math.exp(-token["nats"][name]) for name, share in joint.items()}
            total = sum(joint.values())
            assert token["posterior"] == pytest.approx({name: share / total for name, share in joint.items()})
        assert row["posterior"] == row["tokens"][-1]["posterior"]
    classification = classify(
        run, [{"text": text, "city": "Oslo"} for text in TEXTS], "stars", values=["5", "1"], priors="uniform"
    )
    posteriors = [[row["posterior"]["five"], row["posterior"]["one"]] for row in rows]
    assert np.allclose(classification.probabilities, posteriors, atol=1e-5)


def test_unset_columns_have_their_expected_value(run: Run) -> None:
    (row,) = explain(run, ["the sea"], {"Oslo": {"city": "Oslo"}, "none": {}, "one": {"stars": 1}})
    assert "ratio" not in row
    corpus = run.prepare([{"text": "the sea"}], optional=("city", "stars"))
    assert row["nats"]["none"] == pytest.approx(float(run.nats(corpus).sum()))
    (known,) = run.score_rows({"text": "the sea", "city": "Oslo", "stars": "1"})
    assert all(row["nats"][name] != pytest.approx(known["nats"], abs=1e-3) for name in row["nats"])


@settings(max_examples=30)
@given(st.floats(-5, 5))
def test_strength_counts_the_levels_that_a_ratio_reaches(ratio: float) -> None:
    assert strength(ratio) == -strength(-ratio)
    assert abs(strength(ratio)) == (3 if abs(ratio) >= 2 else 2 if abs(ratio) >= 1 else 1 if abs(ratio) >= 0.5 else 0)
    assert strength(ratio) * ratio >= 0


@pytest.mark.parametrize(
    ("texts", "contexts", "message"),
    [
        ([], LETTERS, "texts: expected at least one, got none"),
        (["a"], {"Oslo": {"city": "Oslo"}}, "contexts: expected at least two, got 1"),
        (["a"], {"x": {"city": "Oslo"}, "y": {"city": "Oslo"}}, "expected different contexts, got city=Oslo twice"),
        (["a"], {"x": {"city": "Oslo"}, "y": {"city": "Osla"}}, "'Osla' was never seen in training.*Oslo"),
        (["a"], {"x": {"town": "Oslo"}, "y": {"town": "Nice"}}, "unknown context column 'town'.* city"),
        (["a", None], LETTERS, "text is None, not a text"),
    ],
)
def test_invalid_arguments_are_errors(texts: Any, contexts: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        explain(make_letters(), texts, contexts)
