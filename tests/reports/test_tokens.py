"""Charts of texts draw what the rows say: every token once, in its place, with its own shade, bar and height."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from factorcell.reports import charts
from factorcell.reports.charts import OTHERS
from factorcell.reports.tokens import (
    COLUMN,
    COLUMNS,
    FIRST,
    FULL,
    SECOND,
    SHADE,
    lines,
    ratio_text,
    running_posterior,
    shade,
)
from factorcell.reports.wording import readable
from tests.reports.test_replay import texts_inside

WORDS = "my boyfriend and i ate here and there was nothing left , so we did not stay at this place again </s>".split()
RATIOS = np.linspace(-4, 4, len(WORDS)).tolist()


def ratio_row(**more: Any) -> dict[str, Any]:
    """One text, from what speaks most for the second context to what speaks most for the first."""
    tokens = [
        {"token": word, "ratio": ratio, "known": word != "left"} for word, ratio in zip(WORDS, RATIOS, strict=True)
    ]
    return {"unit": "word", "tokens": tokens, **more}


def xs(line: Line2D) -> list[float]:
    """Where its points are, across."""
    return [float(x) for x in np.asarray(line.get_xdata(), dtype=np.float64)]


def ys(line: Line2D) -> list[float]:
    """And up or down."""
    return [float(y) for y in np.asarray(line.get_ydata(), dtype=np.float64)]


def boxes(figure: Figure) -> list[Rectangle]:
    """The boxes of tokens, without those of the scale."""
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)][24:]


@given(st.lists(st.text(min_size=1, max_size=70), max_size=80), st.sampled_from(["word", "char"]))
def test_lines_hold_every_token_once(tokens: list[str], unit: str) -> None:
    """In their order, none over another, none beyond the line, and words apart."""
    laid = lines(tokens, unit)
    assert [place for line in laid for place, *_ in line] == list(range(len(tokens)))
    for line in laid:
        assert line[0][1] == 0
        assert line[-1][1] + line[-1][2] <= COLUMNS
        for (_, begin, width, _), (_, after, *_) in pairwise(line):
            assert after == begin + width + (unit == "word")


def test_letters_break_between_words() -> None:
    """A line of letters ends with a space where it can; one long word is cut anyway."""
    text = "the quick brown fox jumps over the lazy dog and runs away from it to the woods"
    broken = ["".join(shown for *_, shown in line) for line in lines(list(text), "char")]
    assert "".join(broken) == text
    assert len(broken) == 2
    assert broken[0].endswith(" ")
    assert all(len(line) <= COLUMNS for line in broken)
    assert [len(line) for line in lines(list("x" * 100), "char")] == [COLUMNS, 100 - COLUMNS]


def test_wide_letters_take_two_columns_and_accents_none() -> None:
    assert [width for line in lines(["日本", "e\u0301", "a"], "word") for _, _, width, _ in line] == [4, 1, 1]
    assert readable("</s>") == "¶"
    assert readable("a\nb") == "a b"


@given(st.floats(-9, 9), st.floats(-9, 9))
def test_the_shade_grows_with_the_ratio(one: float, other: float) -> None:
    """In the colour of its side, up to the full shade."""
    small, large = sorted((one, other), key=abs)
    assert shade(small)[3] <= shade(large)[3] <= SHADE
    assert shade(large)[:3] == to_rgba(FIRST if large > 0 else SECOND)[:3]
    assert shade(0)[3] == 0
    assert shade(FULL)[3] == shade(FULL + 1)[3] == SHADE


def test_tokens_have_their_shades_and_bars() -> None:
    """A bar over what speaks for the first context, one under what speaks for the second, none on weak ones."""
    figure = ratio_text([ratio_row()], ["rating=5", "rating=1"])
    texts = texts_inside(figure)
    assert texts[-len(WORDS) :] == [readable(word) for word in WORDS]
    assert {"▔ rating=5", "▁ rating=1"} <= set(texts)
    found = boxes(figure)
    assert [patch.get_facecolor() for patch in found] == [shade(ratio) for ratio in RATIOS]
    assert len(figure.axes[0].lines) == sum(abs(ratio) >= 0.5 for ratio in RATIOS)
    barred = {xs(line)[0] for line in figure.axes[0].lines}
    strong = zip(found, RATIOS, strict=True)
    assert barred == {patch.get_x() for patch, ratio in strong if abs(ratio) >= 0.5}
    styles = {text.get_text(): text.get_fontstyle() for text in figure.axes[0].texts}
    assert (styles["left"], styles["stay"]) == ("italic", "normal")


def test_bars_stand_over_and_under() -> None:
    """Y grows downwards: a bar over a token has a smaller one than its box's middle."""
    row = {
        "unit": "word",
        "tokens": [{"token": "good", "ratio": 2.5}, {"token": "bad", "ratio": -0.7}, {"token": "a", "ratio": 0.1}],
    }
    figure = ratio_text([row], ["x", "y"])
    good, bad, _ = boxes(figure)
    over, under = figure.axes[0].lines
    middle = good.get_y() + good.get_height() / 2
    assert ys(over)[0] < middle < ys(under)[0]
    assert xs(over) == [good.get_x(), good.get_x() + good.get_width()]
    assert xs(under) == [bad.get_x(), bad.get_x() + bad.get_width()]
    assert over.get_linewidth() == 3 * under.get_linewidth()
    assert (over.get_color(), under.get_color()) == (FIRST, SECOND)
    assert good.get_width() == pytest.approx(4 * COLUMN)


def test_models_stand_one_above_the_other() -> None:
    figure = ratio_text([ratio_row(model="factorcell"), ratio_row(model="concatcell")], ["a", "b"])
    texts = texts_inside(figure)
    assert texts.index("FactorCell") < texts.index("my") < texts.index("ConcatCell")
    assert len(boxes(figure)) == 2 * len(WORDS)


def test_short_texts_stand_beside_each_other() -> None:
    """Where they fit; a text of two lines, and models with their names, stand alone. All tokens are there."""
    words = ["Paris", "Grünbach", "a" * 30, "Villeneuve-sur-Lot and more than one line of letters can hold", "Nice"]
    rows = [
        {"unit": "char", "tokens": [{"token": mark, "ratio": 1.0, "value": 0.5} for mark in word]} for word in words
    ]
    figure = ratio_text(rows, ["a", "b"])
    texts_inside(figure)
    tops = [patch.get_y() for patch in boxes(figure)]
    begins = [tops[sum(map(len, words[:number]))] for number in range(len(words))]
    assert begins[0] == begins[1] == begins[2] < begins[3] < begins[4]
    assert len(tops) == len("".join(words))
    alone = boxes(ratio_text([{**row, "model": "m"} for row in rows[:2]], ["a", "b"]))
    assert alone[0].get_y() < alone[5].get_y()


def test_a_posterior_runs_from_the_prior_over_all_lines() -> None:
    """The curve of each value begins where the line before left it; a legend has the highest ones."""
    names = [f"country {index}" for index in range(8)]
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(8), size=70)
    shares[:, 2] += 1
    shares /= shares.sum(1, keepdims=True)
    tokens = [{"token": "x", "posterior": dict(zip(names, share, strict=True))} for share in shares.tolist()]
    figure = running_posterior([{"unit": "char", "tokens": tokens, "posterior": tokens[-1]["posterior"]}])
    texts = texts_inside(figure)
    assert "country 2" in texts
    assert sum(name in texts for name in names) == 6
    first, second = figure.axes[1:]
    for index in range(8):
        one, two = (ys(axes.lines[index]) for axes in (first, second))
        assert one[0] == pytest.approx(1 / 8)
        assert two[0] == one[-1]
        assert np.allclose([*one[1:], *two[1:]], shares[:, index])
    pair: dict[str, Any] = {
        "unit": "word",
        "tokens": [{"token": "x", "posterior": {"a": 0.9, "b": 0.1}}],
        "posterior": {"a": 0.9, "b": 0.1},
    }
    named = running_posterior([{**pair, "model": "factorcell"}, {**pair, "model": "concatcell"}])
    assert [line.get_color() for line in named.axes[1].lines[:2]] == [FIRST, SECOND]  # as in the chart of ratios
    assert {"FactorCell", "ConcatCell"} <= set(texts_inside(named))
    coloured = [line.get_color() for line in first.lines[:8]]
    assert sorted(set(coloured) & set(OTHERS)) == sorted(OTHERS[:6])
    dashed = [line for line in first.lines[:8] if line.get_color() in OTHERS]
    assert len({str(vars(line)["_unscaled_dash_pattern"]) for line in dashed}) == 6


def test_charts_can_be_written() -> None:
    """As SVG and PNG, with nothing but an end too, and dollars that are no formula."""
    row = {
        "unit": "word",
        "tokens": [{"token": "</s>", "ratio": 0.0, "value": 0.0, "posterior": {"$a": 0.5, "$b": 0.5}}],
    }
    price = {"token": "$\\no$", "ratio": 1.0, "value": 1.0, "posterior": {"$\\a$": 0.5, "$\\b$": 0.5}}
    dollars = {"unit": "word", "tokens": [price], "posterior": price["posterior"], "model": "$\\m$"}
    for figure in (
        ratio_text([row, dollars], ["$\\a$", "$\\b$"]),
        running_posterior([dollars]),
        running_posterior([{**row, "posterior": {"$a": 0.5, "$b": 0.5}}]),
    ):
        assert charts.png(figure)[:4] == b"\x89PNG"
        assert "</svg>" in charts.svg(figure, "x")
