"""The page of explained texts and its chart match the rows."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.lines import Line2D

from factorcell.reports import charts, explain
from factorcell.reports.charts import EXTRA_COLOURS, HIGHER, LOWER
from factorcell.reports.explain import (
    LINE_WIDTH,
    break_lines,
    explanation_page,
    running_posterior,
)
from factorcell.reports.wording import readable_token
from tests.pages import Page, texts_inside

Row = dict[str, Any]
BETWEEN = ["rating=5", "rating=<1>"]


def token(text: str, ratio: float, known: bool = True) -> Row:
    nats = dict(zip(BETWEEN, (3.0, 3.0 + ratio), strict=True))
    posterior = dict(zip(BETWEEN, (0.75, 0.25), strict=True))
    return {"token": text, "known": known, "nats": nats, "posterior": posterior, "ratio": ratio}


def row(*tokens: Row, **more: Any) -> Row:
    """Return the row of a text of words."""
    total = {name: sum(each["nats"][name] for each in tokens) for name in BETWEEN}
    text = " ".join(each["token"] for each in tokens)
    whole = {"text": text, "tokenizer": "word", "nats": total, "posterior": tokens[-1]["posterior"]}
    return {**whole, "ratio": sum(each["ratio"] for each in tokens), "tokens": list(tokens), **more}


ROW = row(token("<b>lovely</b>", 2.25), token("room", 0.1), token("kvetch", -0.6, False), token("</s>", -1.5))


def test_tokens_have_ratios_shades_and_bars() -> None:
    page = explanation_page("factorcell", [ROW])
    text = Page(page).text
    assert "Explanations by FactorCell" in text
    spans = re.findall(r'<span style="([^"]*)" title="([^"]*)">(.*?)</span>', page)
    assert [title for _, title, _ in spans] == [
        "+2.2500 nats",
        "+0.1000 nats",
        "-0.6000 nats; out of vocabulary",
        "-1.5000 nats",
    ]
    bars = [re.findall(r"border-(top|bottom): (\d)px", style) for style, *_ in spans]
    assert bars == [[("top", "3")], [], [("bottom", "1")], [("bottom", "2")]]
    opacities = [float(re.findall(r"rgba\([^)]*, ([\d.]+)\)", style)[0]) for style, *_ in spans]
    assert opacities[0] > opacities[3] > opacities[2] > opacities[1] > 0
    assert [content for *_, content in spans] == ["&lt;b&gt;lovely&lt;/b&gt;", "room", "<i>kvetch</i>", "¶"]
    assert "+0.25 nats in total" in text
    assert "rating=<1>" in text


def strongest(page: str) -> list[list[str]]:
    """Return the cells of the tables of the tokens with the largest ratios."""
    section = page[page.index("<h2>Tokens with the largest") :].partition("</section>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", part) for part in section.split("<h3>")[1:]]


def test_strongest_tokens_of_both_contexts_are_listed_with_preceding_tokens() -> None:
    first, second = strongest(explanation_page("run", [ROW]))
    lovely = "&lt;b&gt;lovely&lt;/b&gt;"
    assert first == [lovely, "–", "1", "2.25", "room", lovely, "1", "0.10"]
    assert second[:4] == ["¶", f"{lovely} room kvetch", "1", "1.50"]
    many = [token(f"w{index}", index + 1.0) for index in range(20)]
    cells, _ = strongest(explanation_page("run", [row(*many)]))
    assert cells[::4] == [f"w{index}" for index in range(19, 19 - explain.TABLE_TOKENS, -1)]
    assert cells[1] == "… w15 w16 w17 w18"


def test_tokens_with_small_ratios_are_not_listed() -> None:
    page = explanation_page(
        "run", [row(token("loud", -2.0), token("low", -0.04), token("faint", 0.02), token("</s>", 0.0))]
    )
    assert strongest(page) == [[], ["loud", "1", "2.00"]]
    assert page.count("No token with evidence has a ratio of 0.1 nats or more.") == 1


def test_the_page_of_an_ensemble_says_that_values_are_means() -> None:
    assert "mean log likelihoods of 3 runs" in Page(explanation_page("run", [ROW], 3)).text
    assert "mean log likelihoods" not in Page(explanation_page("run", [ROW])).text


def test_several_models_and_many_contexts() -> None:
    page = explanation_page("run", [{**ROW, "model": "one"}, {**ROW, "model": "<two>"}])
    assert "<h3>one</h3>" in page
    assert "<h3>&lt;two&gt;</h3>" in page
    assert "1 text, scored given rating=5 and rating=<1>." in Page(page).text
    names = ["FR", "DE", "ES"]
    posterior = dict.fromkeys(names, 1 / 3)
    tokens = [{**ROW["tokens"][1], "nats": dict.fromkeys(names, 2.5), "posterior": posterior}]
    text = Page(explanation_page("run", [{**ROW, "posterior": posterior, "tokens": tokens}])).text
    assert "scored given FR, DE and ES" in text
    assert "Token by token" not in text
    assert "2.500" in text


def test_the_page_of_three_contexts_has_no_ratios() -> None:
    posterior = {"a": 0.2, "b": 0.7, "c": 0.1}
    word = {"token": "x", "known": True, "nats": dict.fromkeys(posterior, 2.0), "posterior": posterior}
    row = {"text": "x", "tokenizer": "word", "tokens": [word], "posterior": posterior}
    text = Page(explanation_page("model", [row])).text
    assert "probability of b given the text70.0%" in text
    assert "ratio" not in text


@given(st.lists(st.text(min_size=1, max_size=70), max_size=80), st.sampled_from(["word", "char"]))
def test_lines_contain_every_token_once_without_overlap(texts: list[str], tokenizer: str) -> None:
    lines = break_lines({"tokens": [{"token": text} for text in texts], "tokenizer": tokenizer})
    assert [number for line in lines for number, *_ in line] == list(range(len(texts)))
    for line in lines:
        positions = [position for _, position, _ in line]
        assert positions == sorted(positions)
        assert 0 < positions[0] <= positions[-1] < LINE_WIDTH


def test_wide_characters_take_two_columns_and_combining_marks_none() -> None:
    ((*_,),) = (
        line := break_lines({"tokens": [{"token": text} for text in ("日本", "e\u0301", "a")], "tokenizer": "word"})
    )
    assert [position for _, position, _ in line[0]] == [2.0, 5.5, 7.5]
    assert readable_token("</s>") == "¶"
    assert readable_token("a\nb") == "a b"


def ys(line: Line2D) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata(), dtype=np.float64)]


def test_the_posterior_starts_at_the_prior_and_covers_all_lines() -> None:
    names = [f"country {index}" for index in range(8)]
    shares = np.random.default_rng(0).dirichlet(np.ones(8), size=70)
    shares[:, 2] += 1
    shares /= shares.sum(1, keepdims=True)
    tokens = [{"token": "x", "posterior": dict(zip(names, share, strict=True))} for share in shares.tolist()]
    figure = running_posterior([{"tokenizer": "char", "tokens": tokens, "posterior": tokens[-1]["posterior"]}])
    texts = texts_inside(figure)
    assert "country 2" in texts
    assert sum(name in texts for name in names) == 6
    first, second = figure.axes
    for index in range(8):
        upper, lower = (ys(axes.lines[index]) for axes in (first, second))
        assert upper[0] == pytest.approx(1 / 8)
        assert lower[0] == upper[-1]
        assert np.allclose([*upper[1:], *lower[1:]], shares[:, index])
    coloured = [line for line in first.lines[:8] if line.get_color() in EXTRA_COLOURS]
    assert len({(line.get_color(), str(vars(line)["_unscaled_dash_pattern"])) for line in coloured}) == 6


def test_posteriors_of_two_contexts_have_the_colours_of_the_ratios() -> None:
    pair = {
        "tokenizer": "word",
        "tokens": [{"token": "x", "posterior": {"a": 0.9, "b": 0.1}}],
        "posterior": {"a": 1, "b": 0},
    }
    figure = running_posterior([{**pair, "model": "factorcell"}, {**pair, "model": "concatcell"}])
    assert [line.get_color() for line in figure.axes[0].lines[:2]] == [HIGHER, LOWER]
    assert {"FactorCell", "ConcatCell"} <= set(texts_inside(figure))


def test_dollar_signs_ends_and_empty_texts_are_drawn() -> None:
    price = {"token": "$\\no$", "posterior": {"$\\a$": 0.5, "$\\b$": 0.5}}
    dollars = {"tokenizer": "word", "tokens": [price], "posterior": price["posterior"], "model": "$\\m$"}
    end = {**dollars, "tokens": [{**price, "token": "</s>"}]}
    for rows in ([dollars, end], [{**dollars, "tokens": []}]):
        assert "</svg>" in charts.svg(running_posterior(rows), "x")
