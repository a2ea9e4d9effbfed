"""Runs and n-gram models read lists and columns of texts, and the public functions are methods of runs."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import factorcell
from factorcell.config import Config
from factorcell.errors import UserError
from factorcell.ngram.ngram import NGram
from factorcell.runs.run import Run
from tests.findings import expected_finding
from tests.small_runs import ROWS, make_run

TEXTS = [row["text"] for row in ROWS]
FRAME = pd.DataFrame(ROWS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run") / "run")


def nats_with(run: Run, contexts: list[dict[str, Any]]) -> Any:
    """Return the nats of `TEXTS` in these contexts; columns without a value have their expected values."""
    corpora = [run.read([text], [context]) for text, context in zip(TEXTS, contexts, strict=True)]
    return pytest.approx([float(run.nats(corpus).sum()) for corpus in corpora], abs=1e-4)


@pytest.mark.parametrize(
    "source",
    [
        TEXTS,
        tuple(TEXTS),
        FRAME["text"],
        np.array(TEXTS),
        np.array(TEXTS, object),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS]),
    ],
    ids=["list", "tuple", "series", "array", "objects", "arrow", "chunks"],
)
def test_texts_without_a_context_are_scored_with_expected_values(run: Run, source: Any) -> None:
    assert run.score(source).tolist() == nats_with(run, [{}] * len(TEXTS))


def test_texts_can_have_one_context_or_a_context_each(run: Run) -> None:
    shared = {"city": "Nice", "stars": 5}
    assert run.score(TEXTS, context=shared).tolist() == nats_with(run, [shared] * len(TEXTS))
    contexts = [{"city": row["city"], "lat": row["lat"]} for row in ROWS]
    expected = nats_with(run, contexts)
    for context in (contexts, FRAME[["city", "lat"]], {"city": FRAME["city"], "lat": FRAME["lat"]}):
        assert run.score(FRAME["text"], context=context).tolist() == expected
    expected = nats_with(run, [{"city": "Nice"}] * len(TEXTS))
    for context in ({"city": np.str_("Nice")}, pd.Series({"city": "Nice"})):
        assert run.score(TEXTS, context=context).tolist() == expected
    columns = [name for name in FRAME.columns if name != "text"]
    assert run.score_rows(FRAME["text"], context=FRAME[columns]) == run.score_rows(ROWS)
    assert run.score_rows(FRAME["text"].head(0)) == []


@pytest.mark.parametrize(
    ("source", "context", "problem"),
    [
        (["a", None], None, "texts: value 2: expected a text, got None"),
        (FRAME["lat"], None, "texts: value 1: expected a text, got 59.9"),
        (ROWS, {"stars": 5}, "context: expected a list of texts as the source, got a table"),
        (["a"], {"star": 5}, r"unknown context column 'star' \(did you mean 'stars'\?\)"),
        (["a", "b"], [{"stars": 5}], "context: expected one, or one for each of 2 texts, got 1"),
        ("a", None, "to read a text, pass a list of texts"),
    ],
)
def test_a_wrong_source_or_context_is_reported(run: Run, source: Any, context: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        run.score_rows(source, context=context)


def test_values_that_training_did_not_see_are_refused_in_contexts_and_counted_in_tables(run: Run) -> None:
    rome = {"city": "Rome"}
    with pytest.raises(UserError, match=r"^context: city 'Rome' was never seen"):
        run.read(["a"], [rome])
    in_table, typed, in_list = ([{**ROWS[0], **rome}], None), (["a"], rome), (["a"], [rome])
    for (source, context), default in zip((in_table, typed, in_list), ("group", "error", "group"), strict=True):
        if default == "group":
            with expected_finding("unseen values"):
                run.score_rows(source, context=context)
        with pytest.raises(UserError, match="city 'Rome' was never seen"):
            run.score_rows(source, context=context, unknown=None if default == "error" else "error")


def test_contexts_may_have_different_columns(run: Run) -> None:
    texts, contexts = ["a", "b", "a"], [{"city": "Oslo"}, {}, {"stars": "5", "city": None}]
    nats = run.nats(run.read(texts, contexts))
    alone = [run.nats(run.read([text], [context])) for text, context in zip(texts, contexts, strict=True)]
    np.testing.assert_allclose(nats, np.concatenate(alone), rtol=1e-5)


def test_an_n_gram_model_reads_lists_of_texts(tmp_path: Path) -> None:
    model = NGram.fit(ROWS, Config.of(min_count=1), tmp_path / "ngram")
    expected = model.nats(model.prepare([{"text": text} for text in TEXTS]))
    assert model.nats(model.prepare(TEXTS)).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["predict", "evaluate", "explain", "generate"])
def test_public_functions_are_methods_of_a_run(run: Run, name: str) -> None:
    function, method = getattr(factorcell, "classify" if name == "predict" else name), getattr(run, name)
    assert getattr(Run, name) is function
    first, *others = inspect.signature(function).parameters
    assert first in ("run", "runs")
    assert list(inspect.signature(method).parameters) == others


def test_methods_return_what_the_functions_return(run: Run) -> None:
    assert run.evaluate(ROWS).row == factorcell.evaluate(run, ROWS).row
    assert run.evaluate(FRAME["text"]).row["texts"] == len(ROWS)
    assert np.array_equal(
        run.predict(ROWS, "stars").log_posterior, factorcell.classify(run, ROWS, "stars").log_posterior
    )
    assert not run.predict(TEXTS, "stars").has_labels
    assert next(run.generate({"stars": "5"})) == next(factorcell.generate(run, {"stars": "5"}))
    contexts = {"good": {"stars": "5"}, "bad": {"stars": "1"}}
    assert run.explain(FRAME["text"], contexts) == factorcell.explain(run, TEXTS, contexts)
