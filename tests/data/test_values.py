"""Values of context columns: guessed kinds, category names, rare and unseen values, numbers, and errors."""

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.readers import CategoryReader, NumberReader
from factorcell.data.columns.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.columns.values import category_name, is_missing
from factorcell.data.preparation import prepare
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError, nearest_hint, similar_names
from tests.findings import collected_findings


def read(values: list[Any], kind: str = "") -> CategoryReader | NumberReader:
    table = open_table([{"x": value} for value in values])
    (reader,) = ContextColumns(table, Config.of(context=(f"x{kind}",)).data).readers
    half = len(values) // 2
    for begin, part in ((0, values[:half]), (half, values[half:])):
        if part:
            reader.add(part, range(begin + 1, begin + 1 + len(part)))
    assert isinstance(reader, CategoryReader | NumberReader)
    return reader


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2", "5"] * 9, "category"),  # a few different whole numbers are categories
        ([float(n) for n in range(21)], "number"),
        (list(range(20)), "category"),
        (["1.5", "2"], "number"),
        (["1.5", "two"], "category"),
        (
            [f"{number}_{number + 1}" for number in range(30)],
            "category",
        ),  # codes, although Python parses them as numbers
        (["1.5", "", None], "number"),
        ([None, None], "category"),
        ([True, False], "category"),
    ],
)
def test_kinds_are_guessed_from_values(values: list[Any], kind: str) -> None:
    table = open_table([{"x": value} for value in values])
    (reader,) = ContextColumns(table, Config.of(context=("x",)).data).readers
    assert isinstance(reader, NumberReader if kind == "number" else CategoryReader)


NUMBERS = [f"{number / 7:.3f}" for number in range(300)]


@pytest.mark.parametrize(
    ("values", "notice"),
    [
        (NUMBERS, ""),
        ([*NUMBERS[:150], "n/a", *NUMBERS[150:]], "such as 'n/a' in row 151"),
        ([*NUMBERS, "inf", "", None, "inf", "?"], "such as 'inf' in row 301"),
        (NUMBERS[:80] + ["none"] * 8, "such as 'none' in row 81"),
        (NUMBERS[:80] + ["none"] * 20, ""),  # a fifth of the values
        (["1", "2", "3", "4", "5"] * 20 + ["n/a"], ""),  # ratings are a category in any case
        (["Oslo", "Nice"] * 50, ""),
    ],
)
def test_a_notice_reports_the_value_that_makes_a_column_a_category(values: list[Any], notice: str) -> None:
    table = open_table({"x": values})
    with collected_findings() as caught:
        ContextColumns(table, Config.of(context=("x:category",)).data)
        ContextColumns(table, Config.of(context=("x",)).data)
    assert len(caught) == bool(notice)
    assert not notice or notice in caught[0].text


def test_a_specified_kind_overrides_the_guess() -> None:
    assert isinstance(read(["1", "2"], ":number"), NumberReader)
    assert isinstance(read(["1.5", "2.5"], ":category"), CategoryReader)
    assert parse_column("a:b:number") == Variable("a:b", "number")
    with pytest.raises(UserError, match="unknown kind of context column 'numbr' \\(did you mean 'number'"):
        parse_column("x:numbr")
    with pytest.raises(UserError, match="specified twice"):
        ContextColumns(open_table([{"x": 1}]), Config.of(context=("x", "x:number")).data)


@given(st.integers(-(10**9), 10**9))
def test_a_whole_number_has_one_category_name(number: int) -> None:
    assert {category_name(value) for value in (number, float(number), str(number), f"{number}.0")} == {str(number)}
    assert {category_name(zero) for zero in (-0.0, "-0.0", "-0", 0)} == {"0"}


def test_leading_zeros_decimals_and_words_are_different_names() -> None:
    assert [category_name(value) for value in ("007", "5.50", "v1.0", 5.5)] == ["007", "5.50", "v1.0", "5.5"]
    assert [is_missing(value) for value in (None, "", math.nan, 0, " ")] == [True, True, True, False, False]


SAME_NAME: list[tuple[str, list[Any]]] = [
    ("5", [5, 5.0, "5", "5.0", Decimal("5.00"), np.int64(5), np.float16(5), b"5"]),
    ("4.7", [4.7, "4.7", np.float16(4.7), np.float32(4.7), np.float64(4.7), Decimal("4.70")]),
    ("true", [True, np.bool_(True), "true", "True", "TRUE", b"True"]),
    ("false", [False, np.bool_(False), "false", "False", "FALSE"]),
    ("caf\u00e9", ["caf\u00e9", "cafe\u0301", "cafe\u0301".encode(), np.str_("cafe\u0301")]),
    ("2026-11-21", [date(2026, 11, 21), "2026-11-21", np.datetime64("2026-11-21")]),
    (
        "2026-11-21T15:55:00",
        [datetime(2026, 11, 21, 15, 55), np.datetime64("2026-11-21T15:55", "ns"), pd.Timestamp("2026-11-21T15:55")],
    ),
    ("1000000", [Decimal("1E+6"), 1e6, 10**6]),
]


@pytest.mark.parametrize(("name", "values"), SAME_NAME, ids=[ascii(name) for name, _ in SAME_NAME])
def test_equal_values_of_different_types_have_the_same_name(name: str, values: list[Any]) -> None:
    assert {category_name(value) for value in values} == {name}


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_the_name_of_a_32_bit_number_is_the_shortest(number: float) -> None:
    name = category_name(np.float32(number))
    assert np.float32(name) == np.float32(number)
    column = np.array([number], np.float32)
    for source in ({"x": column}, pa.table({"x": column}), pd.DataFrame({"x": column})):
        (chunk,) = open_table(source).chunks(["x"])
        assert [category_name(value) for value in chunk["x"]] == [name]


@given(st.permutations([True, 1, "1", 1.0, False, 0, None, math.nan]))
def test_names_do_not_depend_on_the_order_of_values(values: list[Any]) -> None:
    column = CategoryReader(Variable("x", "category"), open_table([{"x": 1}]))
    column.add(values, range(1, len(values) + 1))
    names = {row: name for name, row in column.ids_by_name.items()}
    for value, row in zip(values, column.values.array().tolist(), strict=True):
        assert names.get(row) == (None if is_missing(value) else category_name(value))


def test_missing_values_of_all_types_are_recognized() -> None:
    missing = (None, "", b"", math.nan, np.float16("nan"), Decimal("NaN"), pd.NA, pd.NaT)
    assert all(map(is_missing, (*missing, np.datetime64("NaT"), np.timedelta64("NaT"))))
    assert not any(map(is_missing, (0, False, " ", b" ", np.datetime64("2026"), Decimal(0), [], pd.Timestamp(0))))


def test_bytes_that_are_not_utf_8_are_an_error() -> None:
    with pytest.raises(UserError, match="row 2: x: expected text, got bytes that are not UTF-8"):
        read([b"a", b"\xff"], ":category")


@given(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=40), st.integers(1, 6))
def test_rare_values_are_grouped(values: list[str | None], min_count: int) -> None:
    reader = read(values, ":category")
    variable = reader.build_variable(Config.of(min_context_count=min_count).data)
    counts = {name: values.count(name) for name in values if name is not None}
    frequent = sorted((name for name in counts if counts[name] >= min_count), key=lambda n: (-counts[n], n))
    frequent_counts = [counts[name] for name in frequent]
    assert variable.values == (UNKNOWN_VALUE, *frequent)
    assert variable.counts == (sum(counts.values()) - sum(frequent_counts), *frequent_counts)
    assert variable.rare_count == len(counts) - len(frequent)
    expected = [MISSING if v is None else variable.values.index(v) if v in frequent else 0 for v in values]
    assert reader.encode(variable).tolist() == expected


@pytest.mark.parametrize(("texts", "count"), [(1, 5), (3599, 5), (3600, 6), (6000, 10), (30_000, 50), (10**6, 50)])
def test_the_minimum_count_of_a_value_grows_with_the_table(texts: int, count: int) -> None:
    assert Config().data.min_value_count(texts) == count
    assert Config.of(min_context_count=7).data.min_value_count(texts) == 7
    if texts < 10**4:
        values = ["a"] * count + ["b"] * (count - 1) + [None] * (texts - 2 * count + 1)
        assert read(values, ":category").build_variable(Config().data).values[1:] == ("a",)


def test_a_numeric_variable_has_the_moments_and_range_of_its_numbers() -> None:
    reader = read(["1", 2, 6.0], ":number")
    variable = reader.build_variable(Config.of(min_context_count=1).data)
    assert (variable.mean, variable.low, variable.high) == (3, 1, 6)
    assert variable.deviation == pytest.approx(np.std([1, 2, 6]))
    assert reader.encode(variable).tolist() == [1, 2, 6]
    assert read([4, 4], ":number").build_variable(Config.of().data).deviation == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x", "'x'"),
        ("inf", "'inf'"),
        ("3_1", "'3_1'"),
        (1e39, "1e\\+39"),
    ],
)
def test_a_value_that_is_not_a_number_is_reported_with_its_row(value: Any, shown: str) -> None:
    with pytest.raises(UserError, match=rf"row 3: x is {shown}, not a number"):
        read([1.0, 2.0, value, 3.0], ":number")


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([9.0, 1.0], 0),
        ([17.1, 5.0, -9.0, math.nan], 2),
        ([9.5], 1),
        ([9.5, *[5.0] * 98], 1),
        ([9.5, *[5.0] * 99], 0),  # only 1 % of the values, and not far outside
        ([17.1, *[5.0] * 99], 1),
    ],
)
def test_a_notice_reports_numbers_outside_the_range_of_training(values: list[float], count: int) -> None:
    config = Config.of(context=("lat:number", "lon:longitude"))
    corpus = prepare([{"text": "a", "lat": lat, "lon": 0.0} for lat in (1.0, 9.0, 5.0)], config)
    rows = [{"text": "a", "lat": lat, "lon": 170.0} for lat in values]
    with collected_findings() as caught:
        prepare(rows, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="expected")
    text = f"in-memory table: lat is outside the range of training (1 to 9) in {count} of {len(rows)} rows"
    assert [finding.text.partition(";")[0] for finding in caught] == ([text] if count else [])


@pytest.mark.parametrize("values", [[-180.0, 0.0, 360.0], [0.0, 361.0, -1220.5]])
def test_a_notice_reports_periodic_numbers_outside_their_period(values: list[float]) -> None:
    rows = [{"text": "a", "lon": lon} for lon in values]
    with collected_findings() as caught:
        corpus = prepare(rows, Config.of(context=("lon:longitude",)))
        prepare(rows, Config.of(), tokenizer=corpus.tokenizer, schema=corpus.schema, unknown="expected")
    notice = "in-memory table row 2: lon is 361, outside -180 to 360; such numbers are read modulo 360"
    assert [warning.text for warning in caught] == ([notice] if 361.0 in values else [])


def test_another_kind_is_suggested_in_training_only() -> None:
    config, wrong = Config.of(context=("x:number",)), [{"text": "a", "x": "north"}]
    corpus = prepare([{"text": "a", "x": 1.5}, {"text": "a", "x": 2.0}], config)
    with pytest.raises(UserError, match=r"x is 'north', not a number \(for a category, use x:category\)$"):
        prepare(wrong, config)
    with pytest.raises(UserError, match=r"x is 'north', not a number$"):
        prepare(wrong, config, schema=corpus.schema)


def schema() -> ContextSchema:
    city = Variable("city", "category", values=(UNKNOWN_VALUE, "Oslo", "Nice"), counts=(3, 5, 4), rare_count=2)
    return ContextSchema((city, Variable("lat", "number", mean=1.0, deviation=2.0)))


def encode_with_schema(rows: list[dict[str, Any]], unknown: str, optional: tuple[str, ...] = ()) -> list[list[float]]:
    readers = ContextColumns(open_table(rows), Config.of().data, schema(), unknown, optional).readers
    for reader in readers:
        reader.add([row.get(reader.declared_variable.name) for row in rows], range(1, len(rows) + 1))
    arrays = [reader.encode(schema().variable(reader.declared_variable.name)) for reader in readers]
    return [array.tolist() for array in arrays if isinstance(array, np.ndarray)]


def test_unseen_values_are_errors_rare_or_missing_according_to_the_policy() -> None:
    rows = [{"city": "Nice", "lat": 1}, {"city": "Olso", "lat": 2}]
    with pytest.raises(UserError, match=r"row 2: city 'Olso' was never seen in training.*2 values \(Oslo"):
        encode_with_schema(rows, "error")
    many = [{"city": city, "lat": 1} for city in ("Olso", "Nice", "Rome", "Olso")]
    with pytest.raises(UserError, match=r"row 1: city 'Olso' .* \(.* 3 of 4 rows\) \(did you mean 'Oslo'\?\); "):
        encode_with_schema(many, "error")
    with pytest.raises(UserError, match=r"row 1: city 'Olso' .* \(.* 2 of 3 rows\) \(did you mean 'Oslo'\?\); "):
        encode_with_schema([many[0], many[1], many[3]], "error")
    assert encode_with_schema(rows, "group") == [[2, 0], [1, 2]]
    assert encode_with_schema(rows, "expected") == [[2, MISSING], [1, 2]]
    assert encode_with_schema(rows, "error", ("city",)) == [[2, MISSING], [1, 2]]
    with pytest.raises(UserError, match="unknown policy for unknown values 'ignore'"):
        encode_with_schema(rows, "ignore")


class CountedValues(tuple[str, ...]):
    """Values that count how often a program iterates over all of them."""

    __slots__ = ()
    iteration_count = 0

    def __iter__(self) -> Iterator[str]:
        CountedValues.iteration_count += 1
        return super().__iter__()


def test_requests_do_not_read_all_values_of_a_column_again() -> None:
    (city, _) = schema().variables
    known = ContextSchema((replace(city, values=CountedValues(city.values)),))
    for name, index in (("Nice", 2), ("Oslo", 1), ("Nice", 2)):
        columns = ContextColumns(open_table([{"city": name}]), Config.of().data, known, "error")
        (reader,) = columns.readers
        reader.add([name], [1])
        assert reader.encode(known.variables[0]).tolist() == [index]
    assert CountedValues.iteration_count == 1


OLSO = [{"text": "a", "city": "Olso"}]
ROWS = [{"text": "a", "city": city} for city in ["Oslo"] * 3 + ["Nice", "Bergen"]]
CONFIG = Config.of(context=("city",), min_context_count=2, min_count=1)


@pytest.mark.parametrize(("value", "reason"), [("Olso", "(did you mean 'Oslo'?)"), ("Nice", "")])
def test_rare_and_unseen_values_are_an_error_later_if_requested(value: str, reason: str) -> None:
    first = prepare(ROWS, CONFIG)
    again = prepare(ROWS, CONFIG, tokenizer=first.tokenizer, schema=first.schema)
    assert again.categories.tolist() == first.categories.tolist() == [[1]] * 3 + [[0]] * 2
    rows = [{"text": "a", "city": value}]
    with pytest.raises(UserError, match=f"row 1: city '{value}' was never seen in training or is a rare") as error:
        prepare(rows, CONFIG, tokenizer=first.tokenizer, schema=first.schema, unknown="error")
    assert reason in str(error.value)
    assert str(error.value).endswith('(Oslo); unknown="group" or unknown="expected" to continue anyway')
    assert error.value.as_command().endswith("; --unknown group or --unknown expected to continue anyway")


def test_messages_do_not_contain_the_names_of_users() -> None:
    config = CONFIG.with_options(context=(), user="city", min_user_count=2)
    first = prepare(ROWS, config)
    message = r"city of this row was never seen in training or is a rare value; the run has 1 values; unknown="
    with pytest.raises(UserError, match=message) as error:
        prepare(OLSO, config, tokenizer=first.tokenizer, schema=first.schema, unknown="error")
    assert "Ols" not in str(error.value)
    assert "Osl" not in str(error.value)


def test_missing_columns_and_values_are_read_according_to_the_policy() -> None:
    assert encode_with_schema([{"city": None, "lat": 2}], "error")[0] == [MISSING]
    with pytest.raises(UserError, match="no column 'lat'; it has city"):
        encode_with_schema([{"city": "Oslo"}], "error")
    assert math.isnan(encode_with_schema([{"city": "Oslo", "lat": None}], "group")[1][0])
    assert math.isnan(encode_with_schema([{"city": "Oslo"}], "expected")[1][0])


@pytest.mark.parametrize("kind", ["", ":category", ":number"])
def test_a_context_column_that_the_training_table_lacks_is_an_error(kind: str) -> None:
    with pytest.raises(UserError, match="no column 'town'; it has text, city"):
        ContextColumns(open_table({"text": "a", "city": "b"}), Config.of(context=(f"town{kind}",)).data)


def test_similar_names_begin_with_those_that_differ_only_in_case() -> None:
    assert similar_names("Nl", ["US", "NL", "Nla"], 3) == ["NL", "Nla"]
    assert similar_names("nla", ["US", "NL", "NLA"], 1) == ["NLA"]
    assert nearest_hint("qqq", ["US", "NL"]) == ""


def test_a_text_without_a_known_word_is_an_error() -> None:
    config = Config.of(context=("genres:text",), min_count=1, min_context_count=1)
    corpus = prepare([{"text": "a", "genres": "Dramas, Comedies"}], config)
    rows = [{"text": "a", "genres": genres} for genres in ("Comedies, Westerns", "", "Dramaz", "Westerns")]

    def read_rows(unknown: str) -> list[list[int]]:
        read_corpus = prepare(rows, config, tokenizer=corpus.tokenizer, schema=corpus.schema, unknown=unknown)
        bags = read_corpus.words[0]
        return [bags.values[begin:end].tolist() for begin, end in pairwise(bags.offsets)]

    with pytest.raises(UserError, match="row 3: genres"):
        read_rows("error")
    assert read_rows("group") == [[0], [], [], []]
