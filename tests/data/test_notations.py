"""Notations of numbers and times, and what is reported about columns whose kind is guessed."""

from datetime import date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data.columns.declarations import guess_kind
from factorcell.data.columns.values import read_times, to_number, to_time
from factorcell.data.preparation import prepare
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import training_table_findings
from factorcell.io.findings import Finding
from tests.findings import expected_finding, no_findings

DAY = 86_400.0  # seconds

NUMBERS: list[tuple[str, float | None, float | None, float | None]] = [  # a text without notation, with point and comma
    ("9.99", 9.99, 9.99, None),
    ("9,99", None, None, 9.99),
    ("1,299", None, 1299, 1.299),
    ("1.299", 1.299, 1.299, 1299),
    ("0.125", 0.125, 0.125, None),
    ("1.299,00", None, None, 1299),
    ("1,299.00", None, 1299, None),
    ("1'299.00", None, 1299, None),
    ("1’299", None, 1299, 1299),
    ("1\u202f299,5", None, None, 1299.5),
    ("12,34,567.5", None, 1234567.5, None),  # lakhs
    ("19.99 €", None, 19.99, None),
    ("€ 1.000.000", None, None, 1e6),
    ("-$5", None, -5, -5),
    ("CHF 5", None, 5, 5),
    ("5%", None, 5, 5),
    ("\u22125.5", -5.5, -5.5, None),
    ("1e5", 1e5, 1e5, 1e5),
    ("1,23E+05", None, None, 1.23e5),
    (",5", None, None, 0.5),
    ("٣٫٥", None, None, None),
    *(
        (text, None, None, None)
        for text in ("1,2,3", "1.2.3", "1,29,9", "--5", "-€-5", "5-", "€", "%", ",", "1 2", "1_0")
    ),
    *((text, None, None, None) for text in ("five", "5 apples", "1,299,00", "1.29.999", "5€€", "1e999", "nan", "")),
]


@pytest.mark.parametrize(("text", "plain", "point", "comma"), NUMBERS)
def test_numbers_are_read_in_their_notation(
    text: str, plain: float | None, point: float | None, comma: float | None
) -> None:
    assert [to_number(text, notation) for notation in ("", "point", "comma")] == [plain, point, comma]


def test_long_texts_are_not_numbers_or_times_and_are_read_in_linear_time() -> None:
    begin = perf_counter()
    for text in ("1 " * 200_000 + "x", "1," * 200_000, "9" * 400_000, "1.Jan " * 100_000):
        assert [to_number(text, notation) for notation in ("", "point", "comma")] == [None] * 3
        assert [to_time(text, notation) for notation in ("", "day-first", "month-first")] == [None] * 3
        assert guess_kind("x", [text]) == ("category", "")
    assert perf_counter() - begin < 5  # 100 s with a regular expression that backtracks


@given(st.floats(-1e9, 1e9), st.sampled_from(["'", "’", " ", "\u00a0", "\u202f", ""]))
def test_formatted_numbers_are_read_as_themselves(number: float, mark: str) -> None:
    expected = float(f"{number:.3f}")
    text = f"{number:,.3f}"
    assert to_number(text, "point") == expected
    assert to_number(text.replace(",", mark), "point") == expected
    assert to_number(text.replace(",", "x").replace(".", ",").replace("x", "."), "comma") == expected
    assert to_number(text.replace(",", mark).replace(".", ",") + " %", "comma") == expected
    assert to_number(number, "comma") == number  # not a text


TIMES: list[tuple[Any, ...]] = [  # a text without notation, with day-first and month-first
    ("24-02-2015 11.35", None, datetime(2015, 2, 24, 11, 35), None),
    ("25-Sep-21", *[date(2021, 9, 25)] * 3),
    ("1/31/2026", None, None, date(2026, 1, 31)),
    ("01/02/2026", None, date(2026, 2, 1), date(2026, 1, 2)),
    ("05.05.2026", *[date(2026, 5, 5)] * 3),
    ("05.06.2026 7:30", *[datetime(2026, 6, 5, 7, 30)] * 2, datetime(2026, 5, 6, 7, 30)),
    ("2026/1/31", *[date(2026, 1, 31)] * 3),
    ("Sep 25, 2021", *[date(2021, 9, 25)] * 3),
    ("25 sept. 1969", *[date(1969, 9, 25)] * 3),
    ("25 Sep 69", *[date(1969, 9, 25)] * 3),
    ("September 25 2021 3:15 PM", *[datetime(2021, 9, 25, 15, 15)] * 3),
    ("1/2/26 12:05 a.m.", None, datetime(2026, 2, 1, 0, 5), datetime(2026, 1, 2, 0, 5)),
    ("3:15 pm", *[time(15, 15)] * 3),
    ("2026-01-31T24:00:00", *[datetime(2026, 2, 1)] * 3),
    ("2026-01-31 24:00", *[datetime(2026, 2, 1)] * 3),
    ("24:00:00", *[time(0)] * 3),
    *((text, None, None, None) for text in ("9999-12-31T24:00", "2026-01-31T24:00:01", "24:30", "13:15 pm", "12.30")),
    *((text, None, None, None) for text in ("31.02.2021", "5/6/7", "30 Foo 2021", "1-2", "2024", "Sep 2021", "x", "")),
]


@pytest.mark.parametrize(("text", "plain", "day_first", "month_first"), TIMES)
def test_times_are_read_in_their_notation(text: str, plain: Any, day_first: Any, month_first: Any) -> None:
    assert [to_time(text, notation) for notation in ("", "day-first", "month-first")] == [plain, day_first, month_first]


@given(st.dates(date(1000, 1, 1)), st.sampled_from("-./ "), st.booleans())
def test_written_dates_are_read_as_themselves(day: date, mark: str, is_padded: bool) -> None:
    digits = "02d" if is_padded else "d"
    texts = [
        mark.join(map(str, (f"{a:{digits}}", f"{b:{digits}}", day.year)))
        for a, b in ((day.day, day.month), (day.month, day.day))
    ]
    assert [to_time(texts[0], "day-first"), to_time(texts[1], "month-first")] == [day, day]
    assert to_time(texts[0]) in (None, day)  # never another day
    assert to_time(f"{day.year}{mark}{day.month}{mark}{day.day}") == day
    assert to_time(f"{day:%d %B %Y}") == to_time(f"{day:%b %d, %Y}") == day


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (["1/2/1970", "13/1/1970", None, 5, "2.1.1970"], [31 * DAY, 12 * DAY, -1, 5, DAY]),
        (["1/2/1970", "1/13/1970", "1970-01-03", ""], [DAY, 12 * DAY, 2 * DAY, -1]),
        ([], []),
        (["3.1.1970", "1/2/1970", "3/3/1970"], "row 2 is '1/2/1970'; expected a number or a time such as"),
        (["13/1/1970", "14/1/1970", "1/14/1970"], "row 3 is '1/14/1970'"),  # most have the day first
        (["soon", "1.2.2026"], "row 1 is 'soon'"),
    ],
)
def test_a_day_above_12_shows_the_order_of_the_dates_of_a_column(times: list[Any], seconds: list[float] | str) -> None:
    if isinstance(seconds, list):
        assert read_times(times, str, missing=-1) == seconds
        return
    with pytest.raises(UserError, match=seconds):
        read_times(times, "row {}".format, missing=-1)


DAYS = [date(2026, 1, 1) + timedelta(days=number) for number in range(60)]
GUESSES: list[tuple[list[Any], str, str]] = [  # values, the kind, and a part of the finding
    (
        [f"{number},99" for number in range(40)],
        "category",
        "'0,99' looks like a number; set x:number=comma, or x:category",
    ),
    (["9,99", "19,99", "1.299,00", "4,50"], "category", "set x:number=comma, or x:category"),
    (
        [f"{number},299" for number in range(1, 40)],
        "category",
        "x:number=point ('1,299' is 1299) or x:number=comma ('1,299' is 1.299)",
    ),
    (
        [f"{number}.299" for number in range(1, 40)],
        "number",
        "its notation is ambiguous; set x:number ('1.299' is 1.299) or x:number=comma ('1.299' is 1299)",
    ),
    (["999", "1.299", "2.500"] * 9, "number", "its notation is ambiguous"),
    (["0.125", "1.299", "2.500"] * 9, "number", ""),
    ([1.299, 2.5], "number", ""),
    ([f"{number}'299.00" for number in range(1, 40)], "category", "set x:number=point, or"),
    ([f"{number}.99 €" for number in range(40)], "category", "set x:number=point, or"),
    ([f"{number}%" for number in range(40)], "category", "set x:number=point, or"),
    ([f"\u2212{number}.5" for number in range(40)], "number", ""),
    (
        [f"{number},5" for number in range(40)] + ["n/a"],
        "category",
        "x:number=comma and correct other values, such as 'n/a' in row 41",
    ),
    (
        [f"{number:05d}" for number in range(990, 1030)],
        "category",
        "'00990' begins with 0; set x:number, or x:category",
    ),
    (["01067", "80331", "99999"] * 9, "category", "begins with 0"),
    (["0", "5", "10"] * 9, "category", ""),
    ([f"{day:%d.%m.%Y}" for day in DAYS], "category", "looks like a date; set x:weekday (yearday"),
    ([f"{day:%d/%m/%Y}" for day in DAYS], "category", "looks like a date; set x:weekday=day-first"),
    ([f"{day:%m/%d/%Y}" for day in DAYS], "category", "set x:weekday=month-first"),
    (
        [f"{day:%d/%m/%Y}" for day in DAYS[:12]],
        "category",
        "x:weekday=day-first ('02/01/2026' is 2026-01-02) or x:weekday=month-first",
    ),
    ([f"{day:%d-%b-%y}" for day in DAYS], "category", "set x:weekday (yearday and hour"),
    ([day.isoformat() for day in DAYS], "category", "set x:weekday (yearday and hour"),
    (DAYS, "category", "looks like a date; set x:weekday"),
    ([f"{hour}:30 pm" for hour in range(1, 13)], "category", "looks like a time of day; set x:hour, or"),
    (
        ["Dramas, Comedies", "Comedies, Dramas", "Dramas", "Kids, Dramas, Comedies"],
        "category",
        "looks like a list; set x:text",
    ),
    (["a|b", "b|a", "b"] * 3, "category", "'a|b' looks like a list"),
    (["['a', 'b']", "['b', 'a']", "['b']"], "category", "looks like a list"),
    (["Oslo, Norway", "Nice, France", "Monaco", "Paris, France"], "category", ""),
    (["Smith, Ann", "Jones, Bob"], "category", ""),
    (["nice, clean and quiet", "clean rooms", "a nice place, really"], "category", ""),
    (["v1", "v2", "10 to 20"], "category", ""),
    ([["a"], ["b"]], "category", ""),
    (["", None], "category", ""),
]


@pytest.mark.parametrize(("values", "kind", "text"), GUESSES)
def test_values_that_suggest_another_kind_are_reported(values: list[Any], kind: str, text: str) -> None:
    guessed, doubt = guess_kind("x", values)
    assert guessed == kind
    assert text in doubt
    assert bool(doubt) == bool(text)


def test_values_that_no_notation_reads_are_reported() -> None:
    _, doubt = guess_kind("x", [*map(str, range(5, 23)), "12.50", "12,50"])
    assert "x:number ('12.50' is 12.5) or x:number=comma ('12.50' is not read) and correct" in doubt
    _, doubt = guess_kind("x", [*(f"{number},5" for number in range(40)), pd.NA, "n/a"])
    assert "set x:number=comma and correct other values, such as 'n/a' in row 42" in doubt


def table_of(values: list[Any], name: str = "x") -> list[dict[str, Any]]:
    return [{"text": f"a b {index % 3}", name: value} for index, value in enumerate(values)]


@pytest.mark.parametrize(("values", "kind", "text"), [case for case in GUESSES if case[2] and "row 41" not in case[2]])
def test_each_remedy_is_a_declaration_that_silences_its_finding(values: list[Any], kind: str, text: str) -> None:
    _, doubt = guess_kind("x", values)
    remedies = [word.strip(",;") for word in doubt.partition("; set ")[2].split() if word.startswith("x:")]
    assert len(remedies) > 1 or kind == "number"
    for remedy in remedies:
        with no_findings():
            prepare(table_of(values), Config.of(context=(remedy,), min_count=1, min_context_count=1))


def test_a_doubt_is_reported_and_ranks_first(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,price\n" + "".join(f'a b,"{number},5"\n' for number in range(30)), encoding="utf-8")
    with expected_finding("column kind", f"{path}: price is read as a category", "set price:number=comma"):
        prepare(path, Config.of(context=("price",)))
    assert Finding("column kind", "").rank == 0


@pytest.mark.parametrize(
    ("declaration", "values", "message"),
    [
        ("x:number", ["1,5", "2,5"], "x is '1,5', not a number; set x:number=comma"),
        ("x:number", ["1,299"], "set x:number=point ('1,299' is 1299) or x:number=comma ('1,299' is 1.299)"),
        ("x:longitude", ["1,5"], "x is '1,5', not a number of degrees; set x:longitude=comma"),
        ("x:cyclic=24", ["1,5"], "x is '1,5', not a number; set x:cyclic=24=comma"),
        ("x:number=comma", ["1.5"], "x is '1.5', not a number (comma)"),
        ("x:number", ["five"], "x is 'five', not a number (for a category, use x:category)"),
        (
            "x:weekday",
            ["31/1/2026"],
            "x is '31/1/2026', not a date (ISO 8601, such as 2026-11-21T15:55); set x:weekday=day-first",
        ),
        ("x:yearday", ["1/2/2026"], "set x:yearday=day-first ('1/2/2026' is 2026-02-01) or x:yearday=month-first"),
        ("x:hour", ["31/1/2026 14.30"], "set x:hour=day-first"),
        ("x:weekday=month-first", ["31/1/2026"], "x is '31/1/2026', not a weekday (month-first)"),
    ],
)
def test_a_value_that_contradicts_its_declaration_names_line_column_and_remedy(
    declaration: str, values: list[str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    lines = "".join(f'"two\nlines","{value}"\n' for value in values)
    path.write_text(f"text,x\na,\n{lines}", encoding="utf-8")
    with pytest.raises(UserError) as error:
        prepare(path, Config.of(context=(declaration,), min_count=1))
    assert str(error.value).startswith(f"{path} line 3, row 2: x is ")
    assert message in str(error.value)


def test_later_tables_are_read_in_the_notation_of_training() -> None:
    config = Config.of(context=("x:number=comma", "when:hour=day-first"), min_count=1)
    rows = [{"text": "a b", "x": f"{number},5", "when": f"31.1.2026 {number}.30"} for number in range(9)]
    corpus = prepare(rows, config)
    assert corpus.numbers.tolist() == [[number + 0.5, number + 0.5] for number in range(9)]
    later = prepare(rows[:1], config, tokenizer=corpus.tokenizer, schema=corpus.schema)
    assert later.numbers.tolist() == [[0.5, 0.5]]
    with pytest.raises(UserError, match=r"row 1: x is '0\.5', not a number \(comma\)$"):
        prepare([{**rows[0], "x": "0.5"}], config, tokenizer=corpus.tokenizer, schema=corpus.schema)


def test_identifiers_with_leading_zeros_are_different_categories() -> None:
    values = ["01067", "1067", "1067.0", "00000"]
    corpus = prepare(table_of(values * 2), Config.of(context=("x",), min_count=1, min_context_count=1))
    assert set(corpus.schema.categories[0].values[1:]) == {"01067", "1067", "00000"}


def test_a_list_of_texts_is_a_bag_of_words() -> None:
    lists = [["Dramas", "Comedies"], ("Dramas",), np.array(["Kids Comedies"], object), "Dramas, Kids", None, []]
    rows = table_of(lists)
    config = Config.of(context=("x:text",), min_count=1, min_context_count=1)
    corpus = prepare(rows, config)
    words, offsets = corpus.words[0]
    bags = [{corpus.schema.texts[0].values[word] for word in words[begin:end]} for begin, end in pairwise(offsets)]
    assert bags == [{"dramas", "comedies"}, {"dramas"}, {"kids", "comedies"}, {"dramas", "kids"}, set(), set()]
    for value in ([1], ["a", 1]):
        with pytest.raises(UserError, match=r"row 1: x is .*, not a text or a list of texts"):
            prepare(table_of([value]), config)
    with pytest.raises(UserError, match=r"x is a list, not the name of a category \(use x:text\)"):
        prepare(rows, Config.of(context=("x",)))


def test_a_value_called_unknown_is_reported_and_not_counted_as_rare() -> None:
    rows = table_of(["<unknown>", "Oslo", "Nice"] * 10 + ["Riga"], "city")
    corpus = prepare(rows, Config.of(context=("city",), min_count=1, min_context_count=2))
    (variable,) = corpus.schema.variables
    assert variable.details == "2 values, 1 rare (fewer than 2 texts)"
    assert (variable.rare_count, variable.unknown_count) == (1, 10)
    assert variable.counts == (11, 10, 10)
    (text,) = (finding.text for finding in training_table_findings(corpus, corpus) if finding.name == "reserved names")
    assert text.startswith("city is '<unknown>' in 10 texts, read as a rare value; rename")


@pytest.mark.parametrize(
    ("tokenizer", "text", "names"),
    [
        ("space", "a <s> b </s> <s>", "</s>, <s>"),
        ("space", "<unk> a", "<unk>"),
        ("space", "<s", ""),
        ("space", "a<s> <s>b <s>>", ""),
        ("word", "a <s> <unk>", ""),  # split into < s >
        ("char", "a <s>", ""),
    ],
)
def test_words_that_name_special_tokens_are_reported(tokenizer: str, text: str, names: str) -> None:
    config = Config.of(tokenizer=tokenizer, min_count=1)
    corpus = prepare([{"text": "a b"}, {"text": text}, {"text": "c ÿ <x>"}], config)
    findings = [finding.text for finding in training_table_findings(corpus, corpus) if finding.name == "reserved names"]
    assert len(findings) == bool(names)
    assert not names or f"the words {names}, which" in findings[0]


def test_a_name_that_the_header_has_twice_is_an_error_only_if_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,,x,,city,x\na b,1,2,3,Oslo,4\n", encoding="utf-8")
    table = open_table(tmp_path / "t.csv")
    assert table.columns == ("text", "city")
    assert len(prepare(table, Config.of(context=("city",), min_count=1))) == 1
    for name in ("x", ""):
        with pytest.raises(UserError, match=f"the header has '{name}' twice; rename one of these columns"):
            list(table.chunks([name]))
