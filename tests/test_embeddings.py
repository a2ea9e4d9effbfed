"""What is read from embeddings and softmax biases, against loops over all pairs, closed forms and planted groups."""

import itertools
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell import embeddings
from factorcell.config import Config, UserError
from factorcell.embeddings import Column, Embeddings
from factorcell.experiment import fit
from factorcell.run import Run
from factorcell.vocabulary import START, UNKNOWN
from small import make_letters, make_run

Row = dict[str, Any]


def clouds(sizes: tuple[int, ...] = (12, 9, 7), apart: float = 5.0, width: int = 4, seed: int = 0) -> Embeddings:
    """Values v0, v1, ... in clouds of unit deviation, `apart` from each other along an axis each."""
    random = np.random.default_rng(seed)
    centres = np.eye(width)[: len(sizes)] * apart
    vectors = np.concatenate([random.normal(size=(n, width)) * 0.3 + c for n, c in zip(sizes, centres, strict=True)])
    names = tuple(f"v{place}" for place in range(len(vectors)))
    return Embeddings("place", "place", names, np.arange(len(names)) + 10, vectors)


def groups_of(sizes: tuple[int, ...] = (12, 9, 7)) -> Column:
    """The cloud of each value."""
    return Column("theme", tuple(f"g{place}" for place, size in enumerate(sizes) for _ in range(size)))


# --- which embeddings ---


def test_embeddings_are_the_rows_of_the_table_without_the_rare_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    for place, name in enumerate(("city", "stars")):
        found, variable = Embeddings.of(run, name), run.schema.variable(name)
        assert found.values == variable.values[1:]
        assert found.counts.tolist() == list(variable.counts[1:])
        assert run.model.encoder is not None
        np.testing.assert_array_equal(found.vectors, run.model.encoder.tables[place].detach().numpy()[1:])


def test_the_variable_is_the_one_that_knows_the_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    assert Embeddings.of(run, values=["Oslo"]).variable == "city"
    assert Embeddings.of(run, values=[5]).variable == "stars"  # type: ignore[list-item]  # a number names a category too
    assert Embeddings.of(run, "stars", ["Oslo"]).variable == "stars"
    wider = make_run(tmp_path / "wider", context=("stars", "city", "text:category"), adapt=["concat"])
    assert Embeddings.of(wider).variable == "text"  # with the most values


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
        Embeddings.of(make_run(tmp_path / "run", context=context, **model))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_embeddings_that_only_the_low_rank_bias_reads_are_learned(tmp_path: Path) -> None:
    for name in ("low_rank", "low_rank_each"):
        assert Embeddings.of(make_run(tmp_path / name, adapt=[], output_bias=[name])).vectors.shape[1] == 2


def test_a_value_that_is_not_there_names_the_nearest() -> None:
    known = replace(clouds((3,)), values=("nba", "NBA2k", "Python"))
    for wrong, near in (("NBA", "'nba'"), ("pyton", "'Python'"), ("nba2K", "'NBA2k'")):
        with pytest.raises(UserError, match=f"did you mean {near}"):
            known.row(wrong)
    with pytest.raises(UserError, match="such as nba, NBA2k, Python"):
        known.row("qqqqqqq")


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


def test_neighbours_of_several_values_and_of_few() -> None:
    known = clouds((3,))
    rows = known.neighbours(["v2", "v0"], count=10)
    assert [row["value"] for row in rows] == ["v2", "v2", "v0", "v0"]
    assert {(row["value"], row["near"]) for row in rows} == {("v2", "v0"), ("v2", "v1"), ("v0", "v1"), ("v0", "v2")}
    assert known.neighbours([]) == []
    with pytest.raises(UserError, match="unknown measure 'cos'"):
        known.neighbours(["v0"], measure="cos")


# --- words ---


def logs_at_zero(run: Run, row: Row) -> np.ndarray[Any, Any]:
    """Log probabilities when the hidden state is zero, which makes the softmax that of the bias alone."""
    corpus = run.prepare([{"text": "", **row}], optional=tuple(set(run.schema.columns()) - set(row)))
    with torch.no_grad():
        bias = run.model.output.fold(run.model.condition(corpus.context(np.array([0]))).tilt).bias
    assert bias is not None
    return torch.log_softmax(bias[0].double(), -1).numpy()


@pytest.mark.parametrize(
    "bias", [["low_rank"], ["low_rank_each"], ["one_hot"], ["sparse"], ["hash"], ["low_rank", "one_hot", "hash"]]
)
def test_shift_is_the_difference_of_the_folded_biases(tmp_path: Path, bias: list[str]) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"], output_bias=bias)
    context, against = {"city": "Oslo", "stars": "5"}, {"city": "Nice"}
    found = embeddings.shift(run, context, against)
    there = np.arange(len(found)) != START
    expected = logs_at_zero(run, context)[there] - logs_at_zero(run, against)[there]
    np.testing.assert_allclose(found[there], expected, atol=1e-5)
    assert found[START] == 0
    assert abs(found[there]).max() > 0.01
    np.testing.assert_allclose(embeddings.shift(run, against, context), -found, atol=1e-6)
    assert not embeddings.shift(run, context, context).any()


def test_shift_of_the_softmax_bias_model_is_q_c(tmp_path: Path) -> None:
    """TACL 2018, equation 6: differences between tokens are those of Q (c - c')."""
    run = make_run(tmp_path / "run", context=("city", "stars"), adapt=[])
    found = embeddings.shift(run, {"city": "Oslo", "stars": 1}, {"city": "Nice", "stars": 1})
    encoder = run.model.encoder
    assert encoder is not None
    one = run.schema.variable("stars").values.index("1")
    with torch.no_grad():
        c, other = (
            torch.tanh(encoder.joint(torch.cat([encoder.tables[0][city], encoder.tables[1][one]])))
            for city in map(run.schema.variable("city").values.index, ("Oslo", "Nice"))
        )
        table = run.model.output.adapters["low_rank"].weight
        assert isinstance(table, torch.Tensor)
        shifted = (table @ (c - other)).numpy()
    np.testing.assert_allclose(np.delete(found - found[0], START), np.delete(shifted - shifted[0], START), atol=1e-5)


def test_shift_of_a_run_with_an_adaptive_softmax(tmp_path: Path) -> None:
    """Its log probabilities are a distribution in both contexts, and differ."""
    run = make_run(tmp_path / "run", adapt=["concat"], softmax="adaptive", cutoffs=["5"])
    found = embeddings.shift(run, {"city": "Oslo"})
    assert np.isfinite(found).all()
    assert (found > 0).any()
    assert (found < 0).any()


def test_words_are_the_ends_of_the_shift(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", adapt=["concat"])
    nats = dict(zip(run.vocabulary.tokens, embeddings.shift(run, {"city": "Oslo"}).tolist(), strict=True))
    del nats[run.vocabulary.tokens[UNKNOWN]], nats[run.vocabulary.tokens[START]]
    order = sorted(nats, key=lambda token: -nats[token])
    assert nats[order[0]] > 0 > nats[order[-2]]
    found = embeddings.words(run, {"city": "Oslo"}, count=2)
    assert [row["token"] for row in found] == [*(t for t in order[:2] if nats[t] > 0), order[-1], order[-2]]
    assert [row["nats"] for row in found] == [nats[row["token"]] for row in found]
    everything = embeddings.words(run, {"city": "Oslo"}, count=100)
    assert {row["token"] for row in everything} == set(nats)
    frequent = embeddings.words(run, {"city": "Oslo"}, count=100, frequent=3)
    assert {row["token"] for row in frequent} == {"</s>", *run.vocabulary.tokens[3:6]}
    assert embeddings.words(run, {"city": "Oslo"}, {"city": "Oslo"}) == []


@pytest.mark.parametrize("options", [{"count": 0}, {"frequent": 0}])
def test_words_take_numbers_above_zero(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must be at least 1"):
        embeddings.words(make_run(tmp_path / "run"), {}, **options)  # type: ignore[arg-type]


def test_words_of_a_run_whose_softmax_bias_is_its_own(tmp_path: Path) -> None:
    for place, adapt in enumerate((["concat"], [])):
        model: Row = {"adapt": adapt, "output_bias": []}
        with pytest.raises(UserError, match="no context changes its softmax bias"):
            embeddings.words(make_run(tmp_path / str(place), **model), {"city": "Oslo"})


def test_words_of_numbers_and_of_letters(tmp_path: Path) -> None:
    """A context need not be a category, nor a token a word."""
    run = make_run(tmp_path / "run", adapt=["concat"])
    assert embeddings.words(run, {"lat": 60.0, "lon": 10.0}, {"lat": 43.0, "lon": 7.0})
    assert {len(row["token"]) for row in embeddings.words(make_letters(), {"city": "Oslo"}, frequent=1)} <= {1, 4}


# --- columns of a table ---


def test_a_column_of_names_says_the_most_frequent() -> None:
    known = clouds((4,))
    said = {"v0": "a b b", "v1": "b", "v3": "a a b", "elsewhere": "c c c"}
    rows = [{"place": value, "theme": name} for value, names in said.items() for name in names.split()]
    gaps: list[Row] = [{"place": "v1", "theme": ""}, {"place": None, "theme": "a"}, {"place": "v2", "theme": None}]
    found = embeddings.read_column(known, [*rows, *gaps], "theme")
    assert found == Column("theme", ("b", "b", None, "a"))
    assert found.known.tolist() == [0, 1, 3]


def test_a_column_of_numbers_says_the_mean() -> None:
    known = clouds((3,))
    rows: list[Row] = [
        {"place": f"v{place}", "stars": stars} for place, stars in ((0, "5"), (0, "1.5"), (2, "2"), (2, "2"))
    ]
    found = embeddings.read_column(known, rows, "stars")
    assert found.numbers is not None
    np.testing.assert_array_equal(found.numbers, [3.25, math.nan, 2.0])
    assert found.known.tolist() == [0, 2]
    assert embeddings.read_column(known, rows, "stars:category").names == ("5", None, "2")
    assert embeddings.read_column(known, [*rows, {"place": "v1", "stars": "four"}], "stars").names == ("5", "four", "2")
    with pytest.raises(UserError, match="stars of 'v1' is 'four', not a number"):
        embeddings.read_column(known, [*rows, {"place": "v1", "stars": "four"}], "stars:number")


def test_a_column_that_says_nothing_is_an_error() -> None:
    known = clouds((3,))
    with pytest.raises(UserError, match="no column 'them'"):
        embeddings.read_column(known, [{"place": "v0", "theme": "a"}], "them")
    with pytest.raises(UserError, match="name none of the values"):
        embeddings.read_column(known, [{"place": "V0", "theme": "a"}], "theme")
    with pytest.raises(UserError, match="choose from category, number"):
        embeddings.read_column(known, [{"place": "v0", "theme": "a"}], "theme:text")
    nested = embeddings.read_column(known, [{"place": "v0", "theme": [1, 2]}], "theme")
    assert nested.names == ("[1, 2]", None, None)


# --- maps ---


def test_project_keeps_distances_of_what_lies_in_a_plane() -> None:
    """Points of a plane, turned into five dimensions, have the distances that they had, and all of the variance."""
    random = np.random.default_rng(0)
    flat = random.normal(size=(20, 2)) * (3, 1)
    turn, _ = np.linalg.qr(random.normal(size=(5, 5)))
    places, shares = embeddings.project(flat @ turn[:2] + 7)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1]
    for one, other in itertools.combinations(range(20), 2):
        assert math.dist(places[one], places[other]) == pytest.approx(math.dist(flat[one], flat[other]))
    np.testing.assert_allclose(places.mean(0), 0, atol=1e-9)


def test_project_finds_the_variances_of_the_covariance_and_the_same_signs() -> None:
    vectors = clouds().vectors
    places, shares = embeddings.project(vectors)
    values = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
    np.testing.assert_allclose(places.var(0, ddof=1), values[:2])
    np.testing.assert_allclose(shares, values[:2] / values.sum())
    shuffled = np.random.default_rng(1).permutation(len(vectors))
    np.testing.assert_allclose(embeddings.project(vectors[shuffled])[0], places[shuffled], atol=1e-9)
    np.testing.assert_allclose(embeddings.project(vectors + 3)[0], places, atol=1e-9)
    axes = np.linalg.lstsq(vectors - vectors.mean(0), places, rcond=None)[0].T  # an axis a row
    assert all(axis[np.abs(axis).argmax()] > 0 for axis in axes)


def test_a_map_takes_three_values_and_two_numbers() -> None:
    for shape in ((2, 4), (9, 1)):
        with pytest.raises(UserError, match="a map needs 3 of 2 at least"):
            embeddings.project(np.ones(shape))


def test_points_are_those_that_the_column_tells_of() -> None:
    known = clouds((3, 3))
    places, _ = embeddings.project(known.vectors)
    rows = embeddings.points(known, Column("theme", ("a", None, "b", "a", None, "a")))
    assert [row["value"] for row in rows] == ["v0", "v2", "v3", "v5"]
    assert [row["group"] for row in rows] == ["a", "b", "a", "a"]
    np.testing.assert_allclose([(row["x"], row["y"]) for row in rows], places[[0, 2, 3, 5]])
    numbers = Column("stars", numbers=np.array([1.0, 2, math.nan, 4, 5, 6]))
    assert [row["number"] for row in embeddings.points(known, numbers)] == [1, 2, 4, 5, 6]


def test_an_ellipse_has_the_deviations_of_its_group() -> None:
    """Points on the two axes of a turned cross: half axes, angle and centre in closed form."""
    turn, far, near = math.radians(30), 4.0, 1.0
    along, across = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
    cross = [*(side * far * along for side in (-1, 1)), *(side * near * across for side in (-1, 1))]
    rows = [{"x": x + 10, "y": y - 5, "group": "a"} for x, y in cross]
    (found,) = embeddings.ellipses(rows, sigma=1.5)
    assert (found["group"], found["count"]) == ("a", 4)
    assert (found["x"], found["y"]) == pytest.approx((10, -5))
    assert found["wide"] == pytest.approx(1.5 * math.sqrt(2 * far**2 / 3))
    assert found["high"] == pytest.approx(1.5 * math.sqrt(2 * near**2 / 3))
    assert found["angle"] == pytest.approx(30)


def test_an_ellipse_of_gaussian_points_holds_its_share() -> None:
    """Within 1.5 deviations lie 1 - exp(-1.125) of a Gaussian in two dimensions."""
    cloud = np.random.default_rng(0).normal(size=(20000, 2)) @ np.array([[2.0, 0.3], [0.0, 0.5]])
    rows = [{"x": x, "y": y, "group": "a"} for x, y in cloud.tolist()]
    (found,) = embeddings.ellipses(rows)
    turn = math.radians(found["angle"])
    local = (cloud - (found["x"], found["y"])) @ np.array(
        [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
    )
    inside = ((local / (found["wide"], found["high"])) ** 2).sum(1) < 1
    assert inside.mean() == pytest.approx(1 - math.exp(-(1.5**2) / 2), abs=0.01)


def test_ellipses_are_of_the_largest_groups() -> None:
    rows = embeddings.points(clouds((4, 6, 2, 5)), groups_of((4, 6, 2, 5)))
    assert [row["group"] for row in embeddings.ellipses(rows)] == ["g1", "g3", "g0"]  # two points have no ellipse
    assert [(row["group"], row["count"]) for row in embeddings.ellipses(rows, 2)] == [("g1", 6), ("g3", 5)]
    with pytest.raises(UserError, match="groups is 0"):
        embeddings.ellipses(rows, 0)


# --- agreement and prediction ---


@pytest.mark.parametrize("measure", ["cosine", "distance"])
def test_agreement_against_a_loop(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, names = clouds(apart=0.5), (*groups_of().names[:-3], None, None, "alone")
    row = embeddings.agreement(known, Column("theme", names), measure)
    there = [place for place, name in enumerate(names) if name is not None]
    part = replace(known, values=tuple(known.values[p] for p in there), vectors=known.vectors[there])
    nearest = [part.neighbours([value], 1, measure)[0]["near"] for value in part.values]
    same = [
        names[known.values.index(near)] == names[known.values.index(value)]
        for value, near in zip(part.values, nearest, strict=True)
    ]
    pairs = list(itertools.permutations(there, 2))
    assert row["same"] == pytest.approx(sum(same) / len(same))
    assert 0.2 < row["same"] < 0.95, "neither all nor none, or the loop would show little"
    assert row["chance"] == pytest.approx(sum(names[a] == names[b] for a, b in pairs) / len(pairs))
    assert (row["values"], row["groups"], row["measure"]) == (26, 4, measure)
    monkeypatch.setattr(embeddings, "AT_ONCE", 60)  # in many parts
    assert embeddings.agreement(known, Column("theme", names), measure) == row


def test_agreement_of_numbers_is_that_of_neighbours() -> None:
    """On a line the nearest neighbour has nearly the same number; of random numbers it tells nothing."""
    line = np.linspace(0, 10, 40)[:, None] * (1.0, 2.0)
    known = Embeddings("place", "place", tuple(map(str, range(40))), np.ones(40, dtype=np.int64), line)
    row = embeddings.agreement(known, Column("height", numbers=np.arange(40.0)), "distance")
    assert row["correlation"] > 0.99
    random = np.random.default_rng(0).normal(size=40)
    assert abs(embeddings.agreement(known, Column("height", numbers=random), "distance")["correlation"]) < 0.5
    assert embeddings.agreement(known, Column("height", numbers=np.ones(40)), "distance")["correlation"] == 0
    with pytest.raises(UserError, match="known of 2 values"):
        embeddings.agreement(clouds((3,)), Column("theme", ("a", "b", None)))


def test_predict_tells_planted_groups_and_not_random_ones() -> None:
    known = clouds((14, 9), width=3)
    found = embeddings.predict(known, groups_of((14, 9)), seed=3)
    assert found["accuracy"] > 0.9
    assert found["majority"] == pytest.approx(14 / 23)
    assert (found["values"], found["groups"]) == (23, 2)
    assert found["deviation"] >= 0
    assert embeddings.predict(known, groups_of((14, 9)), seed=3) == found
    names = np.random.default_rng(0).permutation(np.array(groups_of((14, 9)).names)).tolist()
    assert embeddings.predict(known, Column("theme", tuple(names)))["accuracy"] < 0.8


def test_predict_leaves_out_groups_that_are_not_in_every_fold() -> None:
    known = clouds((10, 10, 3))
    found = embeddings.predict(known, groups_of((10, 10, 3)))
    assert (found["values"], found["groups"], found["majority"]) == (20, 2, 0.5)
    with pytest.raises(UserError, match="in groups of at least 5"):
        embeddings.predict(known, Column("theme", tuple(f"g{place % 7}" for place in range(23))))
    with pytest.raises(UserError, match="that differ"):
        embeddings.predict(known, Column("theme", ("a",) * 23))


def test_predict_numbers() -> None:
    known = clouds((20, 20))
    high = Column("height", numbers=known.vectors[:, 0] * 2 + 1)
    found = embeddings.predict(known, high)
    assert found["r2"] > 0.9
    assert found["correlation"] > 0.95
    noise = Column("height", numbers=np.random.default_rng(0).normal(size=40))
    assert embeddings.predict(known, noise)["r2"] < 0.2
    with pytest.raises(UserError, match=r"height has 9 values; to predict it takes 10"):
        embeddings.predict(known, Column("height", numbers=np.array([*range(9), *[math.nan] * 31], dtype=float)))


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"pip install 'factorcell\[analysis\]'"):
        embeddings.predict(clouds(), groups_of())


def test_trained_embeddings_find_the_planted_kinship(tmp_path: Path) -> None:
    """Six values write in two ways: after a short training each is nearest to one of its kind, whose words rise."""
    random = np.random.default_rng(0)
    lexicon = {"sea": "wave salt sail reef".split(), "hill": "rock snow pine goat".split()}
    kinds = {f"{kind}{number}": kind for kind in lexicon for number in range(3)}
    rows = [
        {"text": " ".join(random.choice(lexicon[kinds[value]], size=5)), "place": value}
        for value in kinds
        for _ in range(60)
    ]
    config = Config.from_dict(
        {
            "data": {"context": ["place"], "min_count": 1, "min_context_count": 1},
            "model": {
                "adapt": ["concat"],
                "embedding_size": 8,
                "hidden_size": 8,
                "context_size": 4,
                "variable_size": 4,
            },
            "training": {"epochs": 6, "batch_tokens": 120, "learning_rate": 0.02, "threads": 1},
        }
    )
    run = fit(rows, rows[::7], config, tmp_path / "run")
    known = Embeddings.of(run)
    table = [{"place": value, "kind": kind} for value, kind in kinds.items()]
    agreed = embeddings.agreement(known, embeddings.read_column(known, table, "kind"))
    assert agreed["same"] == 1
    assert agreed["chance"] == pytest.approx(2 / 5)
    for value, kind in kinds.items():
        raised = [row["token"] for row in embeddings.words(run, {"place": value}, count=4) if row["nats"] > 0]
        assert Counter(token in lexicon[kind] for token in raised)[True] >= 3
