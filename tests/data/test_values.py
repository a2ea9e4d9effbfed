"""What context columns hold: guessed kinds, names of categories, numbers, and what does not fit."""

import math
import warnings
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.columns import ContextColumns, parse_column
from factorcell.data.readers import CategoryColumn, NumberColumn
from factorcell.data.schema import MISSING, UNKNOWN_VALUE, ContextSchema, Variable, bloom_filter, may_contain
from factorcell.data.tables import open_table
from factorcell.data.values import category_name, is_missing


def read(values: list[Any], kind: str = "") -> CategoryColumn | NumberColumn:
    table = open_table([{"x": value} for value in values])
    (reader,) = ContextColumns(table, Config.of(context=(f"x{kind}",)).data).readers
    half = len(values) // 2
    for begin, part in ((0, values[:half]), (half, values[half:])):
        if part:
            reader.add(part, begin)
    assert isinstance(reader, CategoryColumn | NumberColumn)
    return reader


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2", "5"] * 9, "category"),  # a few whole numbers are names
        ([float(n) for n in range(21)], "number"),
        (list(range(20)), "category"),
        (["1.5", "2"], "number"),
        (["1.5", "two"], "category"),
        ([f"{number}_{number + 1}" for number in range(30)], "category"),  # codes, though Python has numbers like these
        (["1.5", "", None], "number"),
        ([None, None], "category"),
        ([True, False], "category"),
    ],
)
def test_kinds_are_guessed_from_values(values: list[Any], kind: str) -> None:
    table = open_table([{"x": value} for value in values])
    (reader,) = ContextColumns(table, Config.of(context=("x",)).data).readers
    assert isinstance(reader, NumberColumn if kind == "number" else CategoryColumn)


NUMBERS = [f"{number / 7:.3f}" for number in range(300)]


@pytest.mark.parametrize(
    ("values", "notice"),
    [
        (NUMBERS, ""),
        ([*NUMBERS[:150], "n/a", *NUMBERS[150:]], "row 151: x is 'n/a', no number; all else are numbers, so x is read"),
        ([*NUMBERS, "inf", "", None, "inf", "?"], "row 301: x is 'inf', no number, like 2 other values; all else are"),
        (NUMBERS[:80] + ["none"] * 8, "row 81: x is 'none'"),
        (NUMBERS[:80] + ["none"] * 20, ""),  # a fifth
        (["1", "2", "3", "4", "5"] * 20 + ["n/a"], ""),  # ratings are a category without it too
        (["Oslo", "Nice"] * 50, ""),
    ],
)
def test_a_notice_names_a_value_that_keeps_a_column_from_being_a_number(values: list[Any], notice: str) -> None:
    table = open_table({"x": values})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ContextColumns(table, Config.of(context=("x:category",)).data)
        ContextColumns(table, Config.of(context=("x",)).data)
    assert len(caught) == bool(notice)
    assert not notice or str(caught[0].message).startswith(f"the columns given {notice}")


def test_a_kind_that_is_named_overrides_the_guess() -> None:
    assert isinstance(read(["1", "2"], ":number"), NumberColumn)
    assert isinstance(read(["1.5", "2.5"], ":category"), CategoryColumn)
    assert parse_column("a:b:number") == ("a:b", "number", 0.0)
    with pytest.raises(UserError, match="unknown kind of context column 'numbr' \\(did you mean 'number'"):
        parse_column("x:numbr")
    with pytest.raises(UserError, match="named twice"):
        ContextColumns(open_table([{"x": 1}]), Config.of(context=("x", "x:number")).data)


@given(st.integers(-(10**9), 10**9))
def test_whole_numbers_have_one_name(number: int) -> None:
    assert {category_name(value) for value in (number, float(number), str(number), f"{number}.0")} == {str(number)}
    assert {category_name(zero) for zero in (-0.0, "-0.0", "-0", 0)} == {"0"}


def test_leading_zeros_decimals_and_words_are_names_of_their_own() -> None:
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
def test_equal_values_of_different_types_have_one_name(name: str, values: list[Any]) -> None:
    assert {category_name(value) for value in values} == {name}


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_of_32_bits_has_the_shortest_name(number: float) -> None:
    name = category_name(np.float32(number))
    assert np.float32(name) == np.float32(number)
    column = np.array([number], np.float32)
    for source in ({"x": column}, pa.table({"x": column}), pd.DataFrame({"x": column})):
        (chunk,) = open_table(source).chunks(["x"])
        assert [category_name(value) for value in chunk["x"]] == [name]


@given(st.permutations([True, 1, "1", 1.0, False, 0, None, math.nan]))
def test_names_do_not_depend_on_the_order_of_values(values: list[Any]) -> None:
    column = CategoryColumn(Variable("x", "category"), "rows")
    column.add(values, 0)
    names = {row: name for name, row in column.names.items()}
    for value, row in zip(values, column.provisional().tolist(), strict=True):
        assert names.get(row) == (None if is_missing(value) else category_name(value))


def test_each_missing_value_is_missing() -> None:
    none = (None, "", b"", math.nan, np.float16("nan"), Decimal("NaN"), pd.NA, pd.NaT)
    assert all(map(is_missing, (*none, np.datetime64("NaT"), np.timedelta64("NaT"))))
    assert not any(map(is_missing, (0, False, " ", b" ", np.datetime64("2026"), Decimal(0), [], pd.Timestamp(0))))


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(UserError, match="row 2: x: expected text, got bytes that are not UTF-8"):
        read([b"a", b"\xff"], ":category")


@given(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=40), st.integers(1, 6))
def test_rare_values_are_grouped(values: list[str | None], least: int) -> None:
    reader = read(values, ":category")
    variable = reader.variable(Config.of(min_context_count=least).data)
    counts = {name: values.count(name) for name in set(values) - {None}}
    kept = sorted((name for name in counts if name and counts[name] >= least), key=lambda n: (-counts[n], str(n)))
    assert variable.values == (UNKNOWN_VALUE, *kept)
    assert variable.counts == (sum(counts.values()) - sum(counts[n] for n in kept), *(counts[n] for n in kept))
    assert variable.rare_count == len(counts) - len(kept)
    expected = [MISSING if v is None else variable.values.index(v) if v in kept else 0 for v in values]
    assert reader.array(variable).tolist() == expected


def test_numbers_have_moments_and_range() -> None:
    reader = read(["1", 2, 6.0], ":number")
    variable = reader.variable(Config.of(min_context_count=1).data)
    assert (variable.mean, variable.low, variable.high) == (3, 1, 6)
    assert variable.deviation == pytest.approx(np.std([1, 2, 6]))
    assert reader.array(variable).tolist() == [1, 2, 6]
    assert read([4, 4], ":number").variable(Config.of().data).deviation == 1


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("", "empty"),
        (None, "empty"),
        (math.nan, "empty"),
        ("x", "'x'"),
        ("inf", "'inf'"),
        ("3_1", "'3_1'"),
        (1e39, "1e\\+39"),
    ],
)
def test_what_is_no_number_is_named_with_its_row(value: Any, got: str) -> None:
    with pytest.raises(UserError, match=rf"row 3: x is {got}, not a number"):
        read([1.0, 2.0, value, 3.0], ":number")


@pytest.mark.parametrize(("values", "far"), [([9.0, 1.0], 0), ([17.0, -7.0], 0), ([17.1, 5.0, -9.0, math.nan], 2)])
def test_numbers_far_outside_of_training_are_told(values: list[float], far: int) -> None:
    config = Config.of(context=("lat:number", "lon:longitude"))
    made = prepare([{"text": "a", "lat": lat, "lon": 0.0} for lat in (1.0, 9.0, 5.0)], config)
    rows = [{"text": "a", "lat": lat, "lon": 170.0} for lat in values]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        prepare(rows, config, tokenizer=made.tokenizer, schema=made.schema, unknown="expected")
    lines = [f"the rows given: lat is far outside of training, 1 to 9, in {far} of {len(rows)}"] if far else []
    assert [str(warning.message) for warning in said] == lines


def test_another_kind_is_a_hint_for_training_alone() -> None:
    config, wrong = Config.of(context=("x:number",)), [{"text": "a", "x": "north"}]
    made = prepare([{"text": "a", "x": 1.5}, {"text": "a", "x": 2.0}], config)
    with pytest.raises(UserError, match=r"x is 'north', not a number \(a category\? say x:category\)$"):
        prepare(wrong, config)
    with pytest.raises(UserError, match=r"x is 'north', not a number$"):
        prepare(wrong, config, schema=made.schema)


def schema() -> ContextSchema:
    city = Variable("city", "category", values=(UNKNOWN_VALUE, "Oslo", "Nice"), counts=(3, 5, 4), rare_count=2)
    return ContextSchema((city, Variable("lat", "number", mean=1.0, deviation=2.0)))


def read_known(rows: list[dict[str, Any]], unknown: str, optional: tuple[str, ...] = ()) -> list[list[float]]:
    readers = ContextColumns(open_table(rows), Config.of().data, schema(), unknown, optional).readers
    for reader in readers:
        reader.add([row.get(reader.of.name) for row in rows], 0)
    arrays = [reader.array(schema().variable(reader.of.name)) for reader in readers]
    return [array.tolist() for array in arrays if isinstance(array, np.ndarray)]


def test_values_never_seen_are_errors_rare_or_missing() -> None:
    rows = [{"city": "Nice", "lat": 1}, {"city": "Olso", "lat": 2}]
    with pytest.raises(UserError, match=r"row 2: city 'Olso' was never seen in training.*2 values \(Oslo"):
        read_known(rows, "error")
    many = [{"city": city, "lat": 1} for city in ("Olso", "Nice", "Rome", "Olso")]
    with pytest.raises(UserError, match=r"row 1: city 'Olso' .* \(2 such values in 3 of 4 rows\); it knows"):
        read_known(many, "error")
    with pytest.raises(UserError, match=r"row 1: city 'Olso' .* \(this value in 2 of 3 rows\); it knows"):
        read_known([many[0], many[1], many[3]], "error")
    assert read_known(rows, "group") == [[2, 0], [1, 2]]
    assert read_known(rows, "expected") == [[2, MISSING], [1, 2]]
    assert read_known(rows, "error", ("city",)) == [[2, MISSING], [1, 2]]
    with pytest.raises(UserError, match="unknown policy for unknown values 'ignore'"):
        read_known(rows, "ignore")


ROWS = [{"text": "a", "city": city} for city in ["Oslo"] * 3 + ["Nice", "Bergen"]]
GROUPING = Config.of(context=("city",), min_context_count=2, min_count=1)


def test_values_that_training_grouped_are_no_error() -> None:
    first = prepare(ROWS, GROUPING)
    again = prepare(ROWS, GROUPING, tokenizer=first.tokenizer, schema=first.schema)
    assert again.categories.tolist() == first.categories.tolist() == [[1]] * 3 + [[0]] * 2
    with pytest.raises(UserError) as error:
        prepare([{"text": "a", "city": "Olso"}], GROUPING, tokenizer=first.tokenizer, schema=first.schema)
    assert str(error.value) == (
        "the rows given row 1: city 'Olso' was never seen in training; it knows 1 values (Oslo); "
        'unknown="group" or unknown="expected" to continue anyway'
    )
    assert error.value.as_command().endswith("; --unknown group or --unknown expected to continue anyway")
    (city,) = first.schema.variables
    bare = ContextSchema((replace(city, rare_filter=""),))
    with pytest.raises(UserError, match="city 'Nice' was never seen in training or is a rare one"):
        prepare(ROWS, GROUPING, tokenizer=first.tokenizer, schema=bare)


def test_no_message_names_a_user() -> None:
    config = GROUPING.with_options(context=(), user="city", min_user_count=2)
    first = prepare(ROWS, config)
    with pytest.raises(
        UserError, match=r"city 'Osla' was never seen in training; it knows 1 values; unknown="
    ) as error:
        prepare([{"text": "a", "city": "Osla"}], config, tokenizer=first.tokenizer, schema=first.schema)
    assert "Oslo" not in str(error.value)
    assert first.schema.variables[0].rare_filter
    assert not prepare(ROWS, config.with_options(anonymous=True)).schema.variables[0].rare_filter


@pytest.mark.parametrize("count", [1, 6, 10, 85, 100, 3000])
def test_a_filter_holds_what_it_was_made_of_and_little_else(count: int) -> None:
    names = [f"name {number}" for number in range(count)]
    bits = bytes.fromhex(bloom_filter(names))
    assert len(bits) <= max(128, 1.5 * count + 1)
    assert all(may_contain(bits, name) for name in names)
    assert sum(may_contain(bits, f"other {number}") for number in range(10_000)) < 100
    assert not may_contain(bytes.fromhex(bloom_filter([])), "name 0")


def test_missing_columns_and_values() -> None:
    assert read_known([{"city": None, "lat": 2}], "error")[0] == [MISSING]
    with pytest.raises(UserError, match="no column 'lat'; it has city"):
        read_known([{"city": "Oslo"}], "error")
    with pytest.raises(UserError, match="row 1: lat is empty"):
        read_known([{"city": "Oslo", "lat": None}], "group")
    assert math.isnan(read_known([{"city": "Oslo"}], "expected")[1][0])


@pytest.mark.parametrize("kind", ["", ":category", ":number"])
def test_a_column_that_training_lacks(kind: str) -> None:
    with pytest.raises(UserError, match="no column 'town'; it has text, city"):
        ContextColumns(open_table({"text": "a", "city": "b"}), Config.of(context=(f"town{kind}",)).data)
