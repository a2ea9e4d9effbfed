"""The lines about context columns in the block of `train`."""

from datetime import date, timedelta

import pytest

from factorcell.config import Config
from factorcell.data.columns.values import cell_number
from factorcell.data.preparation import prepare
from factorcell.runs.summary import column_facts, format_cell


def test_each_column_has_a_line_with_its_kind_values_and_missing_values() -> None:
    cities = ["Oslo"] * 4 + ["Llanfairpwllgwyngyllgogerychwyrndrobwll"] * 3 + ["Riga", "Rome", ""]
    rows = [
        {
            "text": "a b",
            "city": city,
            "price": f"1.{index}00,50" if index else "",
            "when": f"{index + 1}/12/2025 9.0{index}",
            "genres": "Dramas, Kids" if index else "Kids",
            "vec": [1, index] if index < 7 else None,
            "who": f"u{index % 2}",
            "title": "x",
        }
        for index, city in enumerate(cities)
    ]
    times = ("when:hour=day-first", "when:weekday=day-first", "when:yearday=day-first")
    context = ("city", "price:number=comma", *times, "genres:text", "vec:vector", "title:prompt")
    config = Config.of(context=context, user="who", min_count=1, min_context_count=2, min_user_count=1)
    facts = list(column_facts(prepare(rows, config), "who"))
    assert [label for label, _ in facts] == ["columns", *[""] * 8]
    assert [text for _, text in facts] == [
        "city: category such as Oslo, Llanfairpwllgwyngyl…; 2 values, 2 rare (fewer than 2 texts); 1 missing",
        "price: number such as 1100.5, 1200.5, 1300.5; from 1100 to 1900, mean 1500; 1 missing",
        "when: hour such as 9:00, 9:01, 9:02; period 24, mean 9.075",
        "when: weekday such as Mon, Tue, Wed; period 7, mean 1",
        "when: yearday such as 01 Dec, 02 Dec, 03 Dec; period 365.25, mean 338.5",
        "genres: text such as kids, dramas; 2 words",
        "vec: vector of 2 numbers; 3 missing",
        "title: prompt",
        "who: category; 2 values",
    ]
    unadapted = prepare([{"text": "a"}], Config.of(min_count=1))
    assert list(column_facts(unadapted, "")) == [("columns", "none")]


@pytest.mark.parametrize("kind", ["hour", "weekday", "yearday"])
def test_times_are_shown_as_they_are_written(kind: str) -> None:
    for days in range(0, 365, 7):
        day = date(2025, 1, 1) + timedelta(days=days)
        minute = f"{days % 24}:{days % 60:02d}"
        number = cell_number(kind, f"{day}T{minute.zfill(5)}")
        assert number is not None
        expected = {"hour": minute, "weekday": f"{day:%a}", "yearday": f"{day:%d %b}"}[kind]
        assert format_cell(kind, number) == expected
