"""Judges of generated texts: oracles over tuples of words, texts that fit by construction, charts of all rows."""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.corpus import Corpus
from factorcell.data.vocabulary import END, UNKNOWN
from factorcell.evaluation.judge import (
    COPIED,
    KINDS,
    Judge,
    JudgeOptions,
    copied,
    correlations,
    distinct,
    ngrams,
    repeated,
)
from factorcell.evaluation.statistics import correlation, rank_correlation
from factorcell.reports import charts, specificity
from factorcell.reports.specificity import specificity_against_accuracy, specificity_against_rank_and_perplexity

DATA = Config.from_dict({"data": {"text": "review", "min_count": 2, "min_context_count": 5, "max_tokens": 12}}).data
STARS = JudgeOptions("stars")
WORDS = {"1": "awful dirty rude cold", "3": "plain okay average usual", "5": "lovely clean kind warm"}


def texts(count: int, seed: int, column: str = "review") -> list[dict[str, str]]:
    """Texts of words of their rating among words of all ratings; now and then a word that nobody knows."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        rating = draw.choice(sorted(WORDS))
        words = draw.choices([*WORDS[rating].split(), "the", "room", "was", "and"], k=draw.randint(0, 16))
        rows.append(
            {column: " ".join([*words, *([f"once{seed}x{number}"] if number % 7 == 0 else [])]), "stars": rating}
        )
    return rows


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.train_on(texts(400, 1), DATA, STARS, held=texts(150, 2))


def test_the_values_that_it_tells_are_those_that_fit(judge: Judge) -> None:
    """A text fits its value exactly if that is the one told, whatever value is given."""
    rows = texts(60, 5)
    told = judge.told([row["review"] for row in rows])
    assert len(set(told)) > 1
    _, fits = judge.judge_each([{"text": row["review"], "stars": row["stars"]} for row in rows])
    assert [row["stars"] == one for row, one in zip(rows, told, strict=True)] == fits.tolist()


def tuples(corpus: Corpus, length: int) -> list[list[tuple[int, ...]]]:
    """The n-grams of every text, those with a special or unknown token left out."""
    found = []
    for text in np.split(corpus.tokens, corpus.offsets[1:-1]):
        ids = text.tolist()
        grams = [tuple(ids[place : place + length]) for place in range(len(ids) - length + 1)]
        found.append([gram for gram in grams if min(gram) > END])
    return found


def test_figures_are_those_of_tuples_in_loops(judge: Judge) -> None:
    """Variety, repetition and copies by sets and counters; the unknown word and the ends of texts are in none."""
    corpus = judge.train.select(np.arange(60))
    other = prepare(texts(80, 3), judge.data, vocabulary=judge.train.vocabulary, schema=judge.train.schema)
    assert (other.tokens == UNKNOWN).any()
    for length in (1, 2, 3, 4, 8):
        grams, theirs = tuples(corpus, length), tuples(other, length)
        flat = [gram for text in theirs for gram in text]
        seen = {gram for text in grams for gram in text}
        hashed, which = ngrams(other, length)
        assert which.tolist() == [row for row, text in enumerate(theirs) for _ in text]
        assert len(np.unique(hashed)) == len(set(flat))
        assert distinct(other, length) == len(set(flat)) / len(flat)
        again = [1 - len(set(text)) / len(text) for text in theirs if text]
        assert repeated(other, length) == pytest.approx(sum(again) / len(again))
        share = sum(gram in seen for gram in flat) / len(flat)
        assert copied(other, length, np.unique(ngrams(corpus, length)[0])) == pytest.approx(share)
    assert copied(corpus, 3, ngrams(corpus, 3)[0][:0]) == 0.0


def test_variety_is_told_of_as_many_ngrams(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first ones only, so that more texts do not look poorer."""
    monkeypatch.setattr("factorcell.evaluation.judge.LOOKED_AT", 50)
    flat = [gram for text in tuples(judge.train, 2) for gram in text][:50]
    assert distinct(judge.train, 2) == len(set(flat)) / 50


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_their_value_fit_and_others_do_not(kind: str) -> None:
    """Each value's own words, then another's: accuracy 1 and 0, the deviation what was shifted; copies of training."""
    table = texts(400, 1)
    judge = Judge.train_on(table, DATA, JudgeOptions("stars", kind), held=texts(150, 2))
    assert judge.real["accuracy"] > 0.8
    fitting = [{"text": words, "stars": rating} for rating, words in WORDS.items()] * 3
    found = judge.judge(fitting)
    assert (found["accuracy"], found["deviation"], found["texts"], found["tokens"]) == (1.0, 0.0, 9, 5.0)
    assert found["by_value"] == {"1": 1.0, "3": 1.0, "5": 1.0}
    shifted = [{"text": row["text"], "stars": {"1": 3, "3": 5.0, "5": "1"}[row["stars"]]} for row in fitting]
    found = judge.judge(shifted)
    assert (found["accuracy"], found["deviation"]) == (0.0, (2 + 2 + 4) / 3)
    labels, counts = found["confusion"]["labels"], np.array(found["confusion"]["counts"])
    assert counts[labels.index("5"), labels.index("3")] == 3
    assert counts.sum() == 9
    own = judge.judge([{"text": row["review"], "stars": row["stars"]} for row in table[:40]])
    assert [own[f"copied_{length}"] for length in COPIED] == [1.0] * len(COPIED)
    assert all(judge.real[f"copied_{length}"] < 1 for length in COPIED)
    assert own["repeated"] >= 0


def test_accuracy_is_how_often_the_confusion_is_on_its_diagonal(judge: Judge) -> None:
    rows = [{"text": row["text"], "stars": row["stars"], "seed": 3} for row in texts(90, 5, "text")]
    found = judge.judge(rows)
    counts = np.array(found["confusion"]["counts"], dtype=float)
    scale = np.array([float(name) for name in found["confusion"]["labels"]])
    assert found["accuracy"] == pytest.approx(np.trace(counts) / 90)
    assert found["deviation"] == pytest.approx((np.abs(scale[:, None] - scale) * counts).sum() / 90)
    assert found["accuracy_error"] == pytest.approx(math.sqrt(found["accuracy"] * (1 - found["accuracy"]) / 90))
    assert 0 < found["deviation"] < 2


def test_without_held_texts_a_tenth_is_held() -> None:
    """It is not learned from, and the draw is the seed's."""
    table = texts(300, 1)
    first, again, other = (Judge.train_on(table, DATA, JudgeOptions("stars", seed=seed)) for seed in (0, 0, 1))
    assert (len(first.train), first.real["texts"]) == (270, 30)
    assert first.real == again.real
    assert first.train.tokens.tolist() != other.train.tokens.tolist()


@pytest.mark.parametrize(
    ("names", "order", "scale"),
    [
        (("low", "mid", "high"), ("low", "mid", "high"), {"low": 0.0, "mid": 1.0, "high": 2.0}),
        (("1 star", "2.5 stars", "-3"), (), {"1 star": 1.0, "2.5 stars": 2.5, "-3": -3.0}),
        (("low", "2", "3"), (), None),
        (("2 to 3", "4", "5"), (), None),
    ],
)
def test_values_in_order(names: tuple[str, ...], order: tuple[str, ...], scale: Mapping[str, float] | None) -> None:
    """By the one number in each name, by the order given, or not at all."""
    table = [{**row, "stars": names["135".index(row["stars"])]} for row in texts(120, 1)]
    judge = Judge.train_on(table, DATA, JudgeOptions("stars", order=order))
    if scale is None:
        assert judge.scale is None
        assert judge.real["deviation"] is None
    else:
        assert judge.scale is not None
        assert judge.scale.tolist() == [scale[name] for name in judge.names]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no texts to judge"),
        ([{"text": "clean"}], "row 1 has no 'stars'"),
        ([{"text": "clean", "stars": "5"}, {"stars": "5"}], "row 2 has no 'text'"),
        ([{"text": "clean", "stars": "7"}], "value of stars in row 1 '7'; choose from"),
        ([{"text": None, "stars": "5"}], "not a text"),
    ],
)
def test_rows_that_cannot_be_judged(judge: Judge, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        judge.judge(rows)


def test_nobody_is_told_apart_but_by_the_target() -> None:
    """Whatever users and times the models have, of which the names may be nobody's business."""
    data = replace(DATA, user="who", anonymous=True, time="day")
    judge = Judge.train_on(texts(200, 1), data, STARS)
    assert judge.names == ("1", "3", "5")
    assert judge.judge([{"text": "clean lovely", "stars": "5"}])["accuracy"] == 1


def test_mistakes_of_a_judge() -> None:
    table = texts(100, 1)
    with pytest.raises(UserError, match="unknown judge 'fastext'"):
        JudgeOptions("stars", "fastext")
    with pytest.raises(UserError, match="the order of stars lacks '5'; it has 1, 3"):
        Judge.train_on(table, DATA, JudgeOptions("stars", order=("1", "3")))
    with pytest.raises(UserError, match="fewer than two values"):
        Judge.train_on([{**row, "stars": "5"} for row in table], DATA, STARS)


def test_correlation_against_the_sums() -> None:
    """Pearson's r from sums; the interval holds r, and 95 of 100 draws of a known one; ranks by counting."""
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        x = draw.normal(size=30)
        y = 0.6 * x + 0.8 * draw.normal(size=30)
        found = correlation(x.tolist(), y.tolist())
        sums = ((x - x.mean()) * (y - y.mean())).sum() / math.sqrt(
            ((x - x.mean()) ** 2).sum() * ((y - y.mean()) ** 2).sum()
        )
        assert found["r"] == pytest.approx(sums)
        assert found["low"] < found["r"] < found["high"]
        assert found["n"] == 30
        held += found["low"] < 0.6 < found["high"]
    assert 180 <= held <= 199
    assert rank_correlation([1, 2, 3, 10], [1, 8, 27, 1000])["r"] == 1.0
    ties = rank_correlation([1, 1, 2, 3], [4, 3, 2, 2])
    assert ties["r"] == pytest.approx(np.corrcoef([1.5, 1.5, 3, 4], [4, 3, 1.5, 1.5])[0, 1])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2], [1, 2], {"r": None, "low": None, "high": None, "n": 2}),
        ([1, 1, 1], [1, 2, 3], {"r": None, "low": None, "high": None, "n": 3}),
        ([1, 2, 3, math.nan], [3, 2, 1, 4], {"r": -1.0, "low": None, "high": None, "n": 3}),
        ([1, 2, 3, 4], [2, 4, 6, 8], {"r": 1.0, "low": 1.0, "high": 1.0, "n": 4}),
    ],
)
def test_few_points(first: list[float], second: list[float], expected: dict[str, Any]) -> None:
    assert correlation(first, second) == pytest.approx(expected)


ROWS: list[dict[str, Any]] = [
    {"model": model, "rank": rank, "perplexity": 60.0 + place, "accuracy": accuracy, "specificity": 0.2 + 0.04 * place}
    for place, (model, rank, accuracy) in enumerate(
        [("unadapted", None, None), ("softmaxbias", None, 0.3), ("concatcell", None, 0.4)]
        + [("factorcell", rank, 0.4 + rank / 100) for rank in (2, 6, 12, 20)]
    )
]


def test_correlations_of_models() -> None:
    """Over the models that have the figure."""
    found = correlations([*ROWS, {"model": "factorcell", "rank": 3, "specificity": None}])
    assert [found[name]["n"] for name in ("accuracy", "rank", "perplexity")] == [6, 4, 7]
    assert found["perplexity"]["r"] == 1.0
    expected = np.corrcoef([2, 6, 12, 20], [row["specificity"] for row in ROWS[3:]])[0, 1]
    assert found["rank"]["r"] == pytest.approx(expected)


def test_charts_have_a_mark_for_every_model() -> None:
    """At its place; r in the titles; the judge's own accuracy as a line."""
    found = correlations(ROWS)
    figure = specificity_against_accuracy(ROWS, found, 0.55)
    (axes,) = figure.axes
    places = sorted(tuple(np.asarray(line.get_xydata())[0]) for line in axes.lines if line.get_linestyle() == "None")
    expected = [(100 * row["accuracy"], 100 * row["specificity"]) for row in ROWS if row["accuracy"] is not None]
    np.testing.assert_allclose(places, sorted(expected))
    assert f"r = {found['accuracy']['r']:.2f}" in axes.get_title(loc="left")
    assert [np.asarray(line.get_ydata())[0] for line in axes.lines if line.get_linestyle() != "None"] == [
        pytest.approx(55)
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SoftmaxBias", "ConcatCell", "FactorCell"]
    figure = specificity_against_rank_and_perplexity(ROWS, found)
    rank, perplexity = figure.axes
    assert sorted(float(np.asarray(line.get_xdata())[0]) for line in rank.lines) == [2, 6, 12, 20]
    assert len(perplexity.lines) == len(ROWS)
    assert "r = 1.00" in perplexity.get_title(loc="left")
    for left, right in pairwise(figure.axes):
        assert left.get_position().x1 < right.get_position().x0
    assert Counter(charts.svg(figure, "charts"))["<"] > 100


def test_values_of_the_page_stand_in_their_order() -> None:
    """Months as in a year; the table has a column for each."""
    months = ["May", "January", "December"]
    row = {"name": "a", "texts": 3, "specificity": 0.5, "by_value": dict.fromkeys(months, 0.5)}
    shown = specificity.page("month", [row], {**row, "confusion": {"labels": months}}, {}, [])
    assert re.findall(r">month (\w+)<", shown) == ["January", "May", "December"]


def test_charts_of_few_models() -> None:
    """One model, and no rank: no r, and one panel."""
    rows = [{"model": "concatcell", "rank": None, "perplexity": 60.0, "accuracy": 0.3, "specificity": 0.4}]
    figure = specificity_against_rank_and_perplexity(rows, correlations(rows))
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "specificity by perplexity"
    assert len(specificity_against_accuracy(rows, correlations(rows)).axes[0].lines) == 1
    alike = [{**rows[0], "rank": 12, "perplexity": perplexity} for perplexity in (60.0, 62.0)]
    assert len(specificity_against_rank_and_perplexity(alike, correlations(alike)).axes) == 1, "of one rank"
