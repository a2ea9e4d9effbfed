"""The page of explained texts and its charts match the rows."""

import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from factorcell.reports import charts
from factorcell.reports.charts import EXTRA_COLOURS, HIGHER, LOWER
from factorcell.reports.explain import WORD_COUNT, explanation_page, running_posterior, word_charts
from factorcell.reports.wording import readable_token
from tests.pages import Page, texts_inside
from tests.reports.examples import ROW, row, token

Row = dict[str, Any]


def test_tokens_have_ratios_shades_and_bars() -> None:
    page = explanation_page("factorcell", [ROW])
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
    parsed = Page(page)
    (shown,) = [
        text for text, p in zip(parsed.texts["p"], parsed.attributes_of("p"), strict=True) if "tokens" in str(p)
    ]
    assert shown == "<b>lovely</b> room kvetch ¶ +0.25 nats in total"


def test_the_page_of_a_text_has_its_figures_charts_and_tables() -> None:
    content = explanation_page("factorcell", [ROW])
    page = Page(content)
    assert page.texts["h1"] == ["Explanations by FactorCell"]
    assert page.charts == [
        "Words that favour rating=5 (right) or rating=<1> (left), nats",
        f"Probability after every token: {ROW['text']}",
    ]
    assert content.rindex("<svg") < content.index("<table")
    assert [ROW["text"], "75.0%", "25.0%", "+0.25"] in page.rows
    assert ["kvetch", "3.000", "2.400", "-0.600", "0.750", "0.250"] in page.rows


def bar_lengths(rows: list[Row]) -> dict[str, float]:
    """Return the lengths of the bars of the chart of words."""
    (chart,) = word_charts({"": rows}, "words")
    axes = chart.figure.axes[0]
    bars: Any = axes.patches
    for label, bar in zip(axes.get_yticklabels(), bars, strict=True):
        assert to_hex(bar.get_facecolor()) == (HIGHER if bar.get_width() > 0 else LOWER), label
    return {label.get_text(): bar.get_width() for label, bar in zip(axes.get_yticklabels(), bars, strict=True)}


def test_the_ratios_of_a_word_are_added_over_all_texts() -> None:
    assert bar_lengths([ROW, ROW]) == pytest.approx({"<b>lovely</b>": 4.5, "room": 0.2, "kvetch": -1.2, "¶": -3.0})
    many = [token(f"w{index}", index - 19.5) for index in range(40)]
    names = [f"w{index}" for index in [*range(39, 39 - WORD_COUNT, -1), *range(WORD_COUNT - 1, -1, -1)]]
    assert list(bar_lengths([row(*many)])) == names
    assert list(word_charts({"": [row(token("a", 0.09), token("b", -0.09))]}, "words")) == []


def test_words_without_evidence_have_no_bar() -> None:
    lava = {**token("lava", -2.0), "counts": dict.fromkeys(ROW["posterior"], 0)}
    assert bar_lengths([row(lava, token("sea", 1.0))]) == {"sea": 1.0}


def test_the_page_of_an_ensemble_says_that_values_are_means() -> None:
    assert [remark for remark in Page(explanation_page("run", [ROW], 3)).texts["li"] if "3 runs" in remark]
    assert "runs" not in Page(explanation_page("run", [ROW])).text


def test_several_models_and_texts_have_a_figure_each() -> None:
    rows = [{**ROW, "model": "one"}, {**ROW, "model": "<two>"}]
    page = Page(explanation_page("run", rows))
    assert page.texts["h3"] == ["one", "<two>"]
    assert len([chart for chart in page.charts if chart.startswith("Words that favour")]) == 2


def test_the_page_of_three_contexts_has_no_ratios() -> None:
    posterior = {"a": 0.2, "b": 0.7, "c": 0.1}
    word = {"token": "x", "known": True, "nats": dict.fromkeys(posterior, 2.5), "posterior": posterior}
    page = Page(
        explanation_page("model", [{"text": "x", "tokenizer": "word", "tokens": [word], "posterior": posterior}])
    )
    assert page.charts == ["Probability after every token: x"]
    assert ["x", "20.0%", "70.0%", "10.0%"] in page.rows
    assert ["x", "2.500", "2.500", "2.500", "0.200", "0.700", "0.100"] in page.rows
    assert "ratio" not in page.text


def test_ends_and_control_characters_are_readable() -> None:
    assert readable_token("</s>") == "¶"
    assert readable_token("a\nb") == "a b"


def ys(line: Line2D) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata(), dtype=np.float64)]


def test_the_posterior_starts_at_the_prior() -> None:
    names = [f"country {index}" for index in range(8)]
    shares = np.random.default_rng(0).dirichlet(np.ones(8), size=70)
    shares[:, 2] += 1
    shares /= shares.sum(1, keepdims=True)
    tokens = [
        {"token": f"t{n}", "posterior": dict(zip(names, row, strict=True))} for n, row in enumerate(shares.tolist())
    ]
    figure = running_posterior({"tokens": tokens, "posterior": tokens[-1]["posterior"]})
    texts = texts_inside(figure)
    assert "country 2" in texts
    assert sum(name in texts for name in names) == 6
    lines = figure.axes[0].lines
    for index in range(8):
        assert ys(lines[index]) == pytest.approx([1 / 8, *shares[:, index]])
    coloured = [line for line in lines if line.get_color() in EXTRA_COLOURS]
    assert len({(line.get_color(), str(vars(line)["_unscaled_dash_pattern"])) for line in coloured}) == 6
    ticks = zip(figure.axes[0].get_xticks(), figure.axes[0].get_xticklabels(), strict=True)
    assert [(position, label.get_text()) for position, label in ticks] == [(n + 1, f"t{n}") for n in range(0, 70, 2)]


def test_posteriors_of_two_contexts_have_the_colours_of_the_ratios() -> None:
    pair = {"tokens": [{"token": "x", "posterior": {"a": 0.1, "b": 0.9}}], "posterior": {"a": 0.1, "b": 0.9}}
    lines = running_posterior(pair).axes[0].lines
    assert [(line.get_label(), line.get_color()) for line in lines] == [("a", HIGHER), ("b", LOWER)]


def test_dollar_signs_ends_and_empty_texts_are_drawn() -> None:
    price = {"token": "$\\no$", "posterior": {"$\\a$": 0.5, "$\\b$": 0.5}}
    for tokens in ([price], [{**price, "token": "</s>"}], []):
        figure = running_posterior({"tokens": tokens, "posterior": price["posterior"]})
        assert "</svg>" in charts.svg(figure, "x")
