"""What is read from embeddings and softmax biases, against loops over pairs, folded biases and a planted kinship."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import UserError
from factorcell.data.vocabulary import START, UNKNOWN
from factorcell.evaluation import embeddings
from factorcell.evaluation.embeddings import Embeddings, ValueColumn
from factorcell.model.run import Run
from tests.small_runs import as_any, make_run

Row = dict[str, Any]


def clouds(sizes: tuple[int, ...] = (12, 9, 7), apart: float = 5.0, width: int = 4, seed: int = 0) -> Embeddings:
    """Values v0, v1, ... in clouds of unit deviation, `apart` from each other along an axis each."""
    random = np.random.default_rng(seed)
    centres = np.eye(width)[: len(sizes)] * apart
    vectors = np.concatenate([random.normal(size=(n, width)) * 0.3 + c for n, c in zip(sizes, centres, strict=True)])
    names = tuple(f"v{place}" for place in range(len(vectors)))
    return Embeddings("place", "place", names, np.arange(len(names)) + 10, vectors)


def groups_of(sizes: tuple[int, ...] = (12, 9, 7)) -> ValueColumn:
    return ValueColumn("theme", tuple(f"g{place}" for place, size in enumerate(sizes) for _ in range(size)))


# --- which embeddings ---


def test_embeddings_are_the_rows_of_the_table_without_the_rare_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    for place, name in enumerate(("city", "stars")):
        found, variable = Embeddings.from_run(run, name), run.schema.variable(name)
        assert found.values == variable.values[1:]
        assert found.counts.tolist() == list(variable.counts[1:])
        assert run.model.encoder is not None
        np.testing.assert_array_equal(found.vectors, run.model.encoder.tables[place].detach().numpy()[1:])


def test_the_variable_is_the_one_that_knows_the_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    assert Embeddings.from_run(run, values=["Oslo"]).variable == "city"
    assert Embeddings.from_run(run, values=[5]).variable == "stars"  # type: ignore[list-item]  # a number names a category too
    assert Embeddings.from_run(run, "stars", ["Oslo"]).variable == "stars"
    with pytest.raises(UserError, match=r"'Olso' was never seen in training .*did you mean 'Oslo'"):
        Embeddings.from_run(run, values=["Olso"]).row("Olso")
    wider = make_run(tmp_path / "wider", context=("stars", "city", "text:category"), adapt=["concat"])
    assert Embeddings.from_run(wider).variable == "text"  # with the most values


@pytest.mark.parametrize(
    ("model", "context", "words"),
    [
        ({"adapt": [], "output_bias": []}, ("city",), "not adapted"),
        ({"adapt": ["prefix"], "output_bias": []}, ("city",), "read as a prefix"),
        ({"adapt": ["factor"], "rank": 0, "output_bias": []}, ("city",), "not adapted"),
        ({"adapt": [], "output_bias": ["one_hot"]}, ("city",), "bias of each value"),
        ({"adapt": [], "output_bias": ["hash", "sparse"]}, ("city",), "bias of each value"),
        ({"adapt": ["factor"], "rank": 0, "output_bias": ["hash"]}, ("city",), "bias of each value"),
        ({"adapt": ["concat"]}, ("lat:number", "text:text"), "lat (number), text (text)"),
    ],
)
def test_a_run_without_embeddings_says_so(tmp_path: Path, model: Row, context: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError) as error:
        Embeddings.from_run(make_run(tmp_path / "run", context=context, **model))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_embeddings_that_only_the_low_rank_bias_reads_are_learned(tmp_path: Path) -> None:
    for name in ("low_rank", "low_rank_each"):
        assert Embeddings.from_run(make_run(tmp_path / name, adapt=[], output_bias=[name])).vectors.shape[1] == 2


def test_a_value_that_is_not_there_names_the_nearest() -> None:
    known = replace(clouds((3,)), values=("nba", "NBA2k", "Python"))
    with pytest.raises(UserError, match="did you mean 'Python'"):
        known.row("pyton")
    with pytest.raises(UserError, match=r"the run has 3 values$"):
        known.row("qqqqqqq")


def test_people_are_not_named() -> None:
    known = Embeddings("user", "user", ("ann", "bob"), np.array([3, 2]), np.eye(2), are_users=True)
    assert known.row("bob") == 1
    with pytest.raises(UserError, match=r"the run has 2 values$"):
        known.row("an")


# --- neighbours ---


@pytest.mark.parametrize("measure", ["cosine", "distance"])
def test_neighbours_against_a_loop_over_all_pairs(measure: str) -> None:
    known = clouds()

    def nearness(one: int, other: int) -> float:
        a: list[float] = known.vectors[one].tolist()
        b: list[float] = known.vectors[other].tolist()
        if measure == "distance":
            return -math.dist(a, b)
        return float(np.dot(a, b)) / math.hypot(*a) / math.hypot(*b)

    for own in (0, 13, 27):
        others = sorted((o for o in range(28) if o != own), key=lambda o: -nearness(own, o))[:5]
        found = known.neighbours([f"v{own}"], 5, measure)
        assert [row["near"] for row in found] == [f"v{other}" for other in others]
        assert [row["count"] for row in found] == [other + 10 for other in others]
        for row, other in zip(found, others, strict=True):
            assert row["value"] == f"v{own}"
            assert abs(row[measure]) == pytest.approx(abs(nearness(own, other)))
            assert row[measure] > 0


# --- words ---


def logs_at_zero(run: Run, row: Row) -> np.ndarray[Any, Any]:
    """Log probabilities when the hidden state is zero, which makes the softmax that of the bias alone."""
    corpus = run.prepare([{"text": "", **row}], optional=tuple(set(run.schema.columns()) - set(row)))
    with torch.no_grad():
        bias = run.model.head.fold(run.model.condition(corpus.context(np.array([0]))).head).bias
    assert bias is not None
    return torch.log_softmax(bias[0].double(), -1).numpy()


@pytest.mark.parametrize(
    "bias", [["low_rank"], ["low_rank_each"], ["one_hot"], ["sparse"], ["hash"], ["low_rank", "one_hot", "hash"]]
)
def test_shift_is_the_difference_of_the_folded_biases(tmp_path: Path, bias: list[str]) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"], output_bias=bias)
    context, against = {"city": "Oslo", "stars": "5"}, {"city": "Nice"}
    found = embeddings.bias_shift(run, context, against)
    there = np.arange(len(found)) != START
    expected = logs_at_zero(run, context)[there] - logs_at_zero(run, against)[there]
    np.testing.assert_allclose(found[there], expected, atol=1e-5)
    assert found[START] == 0
    assert abs(found[there]).max() > 0.01
    np.testing.assert_allclose(embeddings.bias_shift(run, against, context), -found, atol=1e-6)
    assert not embeddings.bias_shift(run, context, context).any()


def test_shift_of_the_softmax_bias_model_is_q_c(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", context=("city", "stars"), adapt=[])
    found = embeddings.bias_shift(run, {"city": "Oslo", "stars": 1}, {"city": "Nice", "stars": 1})
    encoder = run.model.encoder
    assert encoder is not None
    assert encoder.joint is not None
    one = run.schema.variable("stars").values.index("1")
    with torch.no_grad():
        c, other = (
            torch.tanh(encoder.joint(torch.cat([encoder.tables[0][city], encoder.tables[1][one]])))
            for city in map(run.schema.variable("city").values.index, ("Oslo", "Nice"))
        )
        table = as_any(run.model.head).adapters["low_rank"].weight
        assert isinstance(table, torch.Tensor)
        shifted = (table @ (c - other)).numpy()
    np.testing.assert_allclose(np.delete(found - found[0], START), np.delete(shifted - shifted[0], START), atol=1e-5)


def test_words_are_the_ends_of_the_shift(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    nats = dict(zip(run.tokenizer.tokens, embeddings.bias_shift(run, {"city": "Oslo"}).tolist(), strict=True))
    del nats[run.tokenizer.tokens[UNKNOWN]], nats[run.tokenizer.tokens[START]]
    order = sorted(nats, key=lambda token: -nats[token])
    assert nats[order[0]] > 0 > nats[order[-2]]
    found = embeddings.most_shifted_tokens(run, {"city": "Oslo"}, count=2)
    assert [row["token"] for row in found] == [*(t for t in order[:2] if nats[t] > 0), order[-1], order[-2]]
    assert [row["nats"] for row in found] == [nats[row["token"]] for row in found]
    everything = embeddings.most_shifted_tokens(run, {"city": "Oslo"}, count=100)
    assert {row["token"] for row in everything} == set(nats)
    frequent = embeddings.most_shifted_tokens(run, {"city": "Oslo"}, count=100, frequent=3)
    assert {row["token"] for row in frequent} == {"</s>", *run.tokenizer.tokens[3:6]}
    assert embeddings.most_shifted_tokens(run, {"city": "Oslo"}, {"city": "Oslo"}) == []


def test_words_of_a_run_whose_softmax_bias_is_its_own(tmp_path: Path) -> None:
    for place, adapt in enumerate((["concat"], [])):
        model: Row = {"adapt": adapt, "output_bias": []}
        with pytest.raises(UserError, match="the context does not change the softmax bias"):
            embeddings.most_shifted_tokens(make_run(tmp_path / str(place), **model), {"city": "Oslo"})


# --- a whole training ---
