"""Embeddings and softmax biases against loops over pairs and folded biases."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.data.tokenizers.tokenizer import START, UNKNOWN
from factorcell.errors import UserError
from factorcell.evaluation.explaining import embeddings
from factorcell.evaluation.explaining.embeddings import Embeddings
from factorcell.evaluation.explaining.token_evidence import most_shifted_tokens
from factorcell.runs.run import Run
from tests.small_runs import as_any, make_run

Row = dict[str, Any]


def clouds(sizes: tuple[int, ...] = (12, 9, 7), apart: float = 5.0, width: int = 4, seed: int = 0) -> Embeddings:
    """Return values v0, v1, ... in clouds with standard deviation 0.3, each `apart` from the origin on its own axis."""
    random = np.random.default_rng(seed)
    centres = np.eye(width)[: len(sizes)] * apart
    vectors = np.concatenate([random.normal(size=(n, width)) * 0.3 + c for n, c in zip(sizes, centres, strict=True)])
    names = tuple(f"v{place}" for place in range(len(vectors)))
    return Embeddings("place", "place", names, np.arange(len(names)) + 10, vectors)


def groups_of(sizes: tuple[int, ...] = (12, 9, 7)) -> dict[str, str]:
    """Return the cloud of each value of `clouds`."""
    groups = [f"g{place}" for place, size in enumerate(sizes) for _ in range(size)]
    return {f"v{place}": group for place, group in enumerate(groups)}


def test_embeddings_are_the_table_without_the_unknown_value(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    for index, name in enumerate(("city", "stars")):
        embedded, variable = Embeddings.from_run(run, name), run.schema.variable(name)
        assert embedded.values == variable.values[1:]
        assert embedded.counts.tolist() == list(variable.counts[1:])
        assert run.model.encoder is not None
        np.testing.assert_array_equal(embedded.vectors, run.model.encoder.tables[index].detach().numpy()[1:])


def test_the_default_variable_has_the_most_of_the_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    assert Embeddings.from_run(run, values=["Oslo"]).variable == "city"
    assert Embeddings.from_run(run, values=[5]).variable == "stars"  # type: ignore[list-item]  # numbers are accepted as names of categories
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
def test_a_run_without_embeddings_is_an_error(tmp_path: Path, model: Row, context: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError) as error:
        Embeddings.from_run(make_run(tmp_path / "run", context=context, **model))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_low_rank_bias_alone_has_embeddings(tmp_path: Path) -> None:
    for name in ("low_rank", "low_rank_each"):
        assert Embeddings.from_run(make_run(tmp_path / name, adapt=[], output_bias=[name])).vectors.shape[1] == 2


def test_an_unknown_value_suggests_a_similar_one() -> None:
    embedded = replace(clouds((3,)), values=("nba", "NBA2k", "Python"))
    with pytest.raises(UserError, match="did you mean 'Python'"):
        embedded.row("pyton")
    with pytest.raises(UserError, match=r"the run has 3 values$"):
        embedded.row("qqqqqqq")


def test_an_unknown_user_suggests_no_user() -> None:
    embedded = Embeddings("user", "user", ("ann", "bob"), np.array([3, 2]), np.eye(2), are_users=True)
    assert embedded.row("bob") == 1
    with pytest.raises(UserError, match=r"the run has 2 values$"):
        embedded.row("an")


def test_neighbours_equal_a_loop_over_all_pairs() -> None:
    embedded = clouds()

    def nearness(first: int, other: int) -> float:
        a: list[float] = embedded.vectors[first].tolist()
        b: list[float] = embedded.vectors[other].tolist()
        return float(np.dot(a, b)) / math.hypot(*a) / math.hypot(*b)

    for index in (0, 13, 27):
        others = sorted((o for o in range(28) if o != index), key=lambda o: -nearness(index, o))[:5]
        neighbours = embedded.neighbours([f"v{index}"], 5)
        assert [row["near"] for row in neighbours] == [f"v{other}" for other in others]
        assert [row["count"] for row in neighbours] == [other + 10 for other in others]
        for row, other in zip(neighbours, others, strict=True):
            assert row["value"] == f"v{index}"
            assert row["cosine"] == pytest.approx(nearness(index, other))


def logs_at_zero(run: Run, row: Row) -> np.ndarray[Any, Any]:
    """Return the log probabilities at hidden state zero, where the softmax depends on the bias only."""
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
    shift = embeddings.bias_shift(run, context, against)
    possible = np.arange(len(shift)) != START
    expected = logs_at_zero(run, context)[possible] - logs_at_zero(run, against)[possible]
    np.testing.assert_allclose(shift[possible], expected, atol=1e-5)
    assert shift[START] == 0
    assert abs(shift[possible]).max() > 0.01
    np.testing.assert_allclose(embeddings.bias_shift(run, against, context), -shift, atol=1e-6)
    assert not embeddings.bias_shift(run, context, context).any()


def test_shift_of_the_softmax_bias_model_is_q_c(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", context=("city", "stars"), adapt=[])
    shift = embeddings.bias_shift(run, {"city": "Oslo", "stars": 1}, {"city": "Nice", "stars": 1})
    encoder = run.model.encoder
    assert encoder is not None
    assert encoder.joint is not None
    stars = run.schema.variable("stars").values.index("1")
    with torch.no_grad():
        c, other = (
            torch.tanh(encoder.joint(torch.cat([encoder.tables[0][city], encoder.tables[1][stars]])))
            for city in map(run.schema.variable("city").values.index, ("Oslo", "Nice"))
        )
        table = as_any(run.model.head).adapters["low_rank"].weight
        assert isinstance(table, torch.Tensor)
        expected = (table @ (c - other)).numpy()
    np.testing.assert_allclose(np.delete(shift - shift[0], START), np.delete(expected - expected[0], START), atol=1e-5)


def test_most_shifted_tokens_are_the_ends_of_the_sorted_shift(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    nats = dict(zip(run.tokenizer.tokens, embeddings.bias_shift(run, {"city": "Oslo"}).tolist(), strict=True))
    del nats[run.tokenizer.tokens[UNKNOWN]], nats[run.tokenizer.tokens[START]]
    order = sorted(nats, key=lambda token: -nats[token])
    assert nats[order[0]] > 0 > nats[order[-2]]
    rows = most_shifted_tokens(run, {"city": "Oslo"}, count=2)
    assert [row["token"] for row in rows] == [*(t for t in order[:2] if nats[t] > 0), order[-1], order[-2]]
    assert [row["nats"] for row in rows] == [nats[row["token"]] for row in rows]
    all_rows = most_shifted_tokens(run, {"city": "Oslo"}, count=100)
    assert {row["token"] for row in all_rows} == set(nats)
    assert most_shifted_tokens(run, {"city": "Oslo"}, {"city": "Oslo"}) == []


def test_shifted_tokens_need_an_adapted_softmax_bias(tmp_path: Path) -> None:
    for place, adapt in enumerate((["concat"], [])):
        model: Row = {"adapt": adapt, "output_bias": []}
        with pytest.raises(UserError, match="the context does not change the softmax bias"):
            most_shifted_tokens(make_run(tmp_path / str(place), **model), {"city": "Oslo"})
