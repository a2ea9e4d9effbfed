"""The layout of pages: tables, charts, escaped texts, no requests, and the content security policy."""

from typing import Any

import pytest
from matplotlib.figure import Figure

from factorcell.reports.page import Chart, Page, make_table, split_interval
from tests import pages
from tests.reports.examples import HOSTILE


def test_a_page_has_its_parts_in_order() -> None:
    page = Page("Title", "factorcell report", "A lead.", [(f"{n}.5 [1, 2]", f"caption {n}") for n in range(6)])
    page.add_findings(["first finding", "second finding"])
    page.add("Pictures", [Chart(Figure(), "one chart", "A caption."), None])
    page.add("Tables", tables=[make_table([{"a": 1}], ["a"]), None])
    page.add("Nothing", [], [None])
    page.remarks.append("third")
    parsed = pages.Page(page.render())
    assert parsed.texts["h2"] == ["Pictures", "Tables"]
    assert parsed.figures == {f"caption {n}": f"{n}.5 [1, 2]" for n in range(4)}
    assert "first finding." in parsed.texts["p"]
    assert parsed.texts["li"] == ["second finding.", "third."]
    assert parsed.texts["summary"] == ["Remarks"]
    assert parsed.charts == ["one chart"]
    assert parsed.texts["figcaption"] == ["one chart A caption."]
    assert parsed.rows == [["a"], ["1"]]


def test_all_texts_are_escaped() -> None:
    rows = [{HOSTILE: HOSTILE, "b": f"1 [{HOSTILE}]"}]
    tables = [make_table(rows, [HOSTILE, "b"], HOSTILE, is_folded=is_folded) for is_folded in (False, True)]
    page = Page(HOSTILE, HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], HOSTILE, remarks=[HOSTILE, "\u202e"])
    page.add(HOSTILE, [Chart(Figure(), HOSTILE, HOSTILE)], tables)
    content = page.render()
    parsed = pages.Page(content)
    assert "<script" not in content
    assert parsed.charts == [HOSTILE]
    assert {text for tag in ("h1", "h2", "h3", "dt", "dd", "th") for text in parsed.texts[tag]} == {HOSTILE, "b"}
    assert parsed.texts["td"][0] == HOSTILE
    assert r"\u202e" in parsed.text


def test_tables_align_numbers_highlight_the_best_and_omit_empty_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "x_y": "2.0*", "z": None, "w": "few"},
        {"name": "b*", "x_y": 1.0, "z": float("nan"), "w": 3},
        {"name": "1", "x_y": "+1.2 pt [+0.9, +1.5] not significant"},
    ]
    page = Page("A")
    page.add("B", tables=[make_table(rows, {"name": "", "x_y": ".1f", "z": ".2f", "w": ""})])
    parsed = pages.Page(page.render())
    assert parsed.rows == [
        ["name", "x y", "w"],
        ["a", "2.0*", "few"],
        ["b*", "1.0", "3"],
        ["1", "+1.2 pt [+0.9, +1.5] not significant", "–"],
    ]
    assert [cell.get("class") for cell in parsed.attributes_of("th")] == [None, "num", None]
    classes = [cell.get("class") for cell in parsed.attributes_of("td")]
    assert classes == [None, "num best", None, None, "num", None, None, "num", "none"]
    assert parsed.texts["small"] == ["[+0.9, +1.5] not significant"]
    assert make_table([], ["a"]) is None


@pytest.mark.parametrize(("count", "is_list"), [(3, False), (4, True)])
def test_each_row_of_a_wide_table_is_a_list_on_a_phone(count: int, is_list: bool) -> None:
    names = [f"column {index}" for index in range(count)]
    page = Page("A")
    page.add("B", tables=[make_table([dict.fromkeys(names, "x")], names)])
    parsed = pages.Page(page.render())
    assert [table.get("class") for table in parsed.attributes_of("table")] == ["wide" if is_list else None]
    assert [cell.get("data-title") for cell in parsed.attributes_of("td")] == (names if is_list else [None] * count)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("72.0", ("72.0", "")),
        ("72.0* [70, 74]", ("72.0*", "[70, 74]")),
        ("+1.2% [+0.9, +1.5] not significant", ("+1.2%", "[+0.9, +1.5] not significant")),
    ],
)
def test_intervals_are_split_from_numbers(text: str, parts: tuple[str, str]) -> None:
    assert split_interval(text) == parts


def test_charts_follow_the_theme() -> None:
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.5, "seen", color="#1c2733")
    page = Page("A")
    page.add("B", [Chart(figure, "one"), Chart(figure, "two")])
    content = page.render()
    parsed = pages.Page(content)  # checks that ids are unique
    assert parsed.charts == ["one", "two"]
    svg = content[content.index("<svg") :]
    assert "var(--ink)" in svg
    assert "var(--text)" in svg
    assert "DejaVu" not in svg
    assert ">seen</text>" in svg
    assert 'pt"' not in svg


@pytest.mark.parametrize(
    "bad",
    ['<img src="https://x.org/a.png">', '<script src="a.js"></script>', "<style>@import 'a.css';</style>"],
)
def test_the_page_parser_detects_requests(bad: str) -> None:
    content = Page("A").render().replace("<main>", f"<main>{bad}")
    assert pages.requests(pages.Page(content), content)


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [
        "<script>console.error('it ran')</script>",
        "<img src='data:,x' onerror='console.error(1)'>",
        "<img src='http://127.0.0.1:9/x.png'>",
        "<link rel='stylesheet' href='http://127.0.0.1:9/x.css'>",
    ],
)
def test_the_content_security_policy_blocks_injected_content(browser: Any, planted: str) -> None:
    tab = browser.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.set_content(Page("A").render().replace("<main>", f"<main>{planted}"))
    tab.close()
    assert any("Content Security Policy" in message for message in messages)
    assert "it ran" not in messages
