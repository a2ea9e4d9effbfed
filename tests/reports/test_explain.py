"""The page of explained texts and its charts match the rows."""

import re
from typing import Any

import pytest
from matplotlib.colors import to_hex

from factorcell.evaluation.explaining.token_evidence import readable_token
from factorcell.reports.charts import HIGHER, LOWER
from factorcell.reports.explaining import WORD_COUNT, explanation_page, word_chart
from tests.pages import Page
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
    assert page.texts["h1"] == ["Explanations by factorcell"]
    assert page.charts == ["Words that favour rating=5 (right) or rating=<1> (left), nats"]
    assert content.rindex("<svg") < content.index("<table")
    assert [ROW["text"], "75.0%", "25.0%", "+0.25"] in page.rows
    assert ["kvetch", "3.000", "2.400", "-0.600", "0.750", "0.250"] in page.rows


def bar_lengths(rows: list[Row]) -> dict[str, float]:
    """Return the lengths of the bars of the chart of words."""
    chart = word_chart(rows, "words")
    assert chart is not None
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
    assert word_chart([row(token("a", 0.09), token("b", -0.09))], "words") is None


def test_words_without_evidence_have_no_bar() -> None:
    lava = {**token("lava", -2.0), "counts": dict.fromkeys(ROW["posterior"], 0)}
    assert bar_lengths([row(lava, token("sea", 1.0))]) == {"sea": 1.0}


def test_the_page_of_three_contexts_has_no_ratios() -> None:
    posterior = {"a": 0.2, "b": 0.7, "c": 0.1}
    word = {"token": "x", "known": True, "nats": dict.fromkeys(posterior, 2.5), "posterior": posterior}
    page = Page(
        explanation_page("model", [{"text": "x", "tokenizer": "word", "tokens": [word], "posterior": posterior}])
    )
    assert page.charts == []
    assert ["x", "20.0%", "70.0%", "10.0%"] in page.rows
    assert ["x", "2.500", "2.500", "2.500", "0.200", "0.700", "0.100"] in page.rows
    assert "ratio" not in page.text


def test_ends_and_control_characters_are_readable() -> None:
    assert readable_token("</s>") == "¶"
    assert readable_token("a\nb") == "a b"
