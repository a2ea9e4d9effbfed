"""Columns of times, periodic numbers, texts and vectors, compared with plain loops; errors name the row."""

import json
import math
from collections import Counter
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorcell.config import Config
from factorcell.data.columns import readers
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.readers import ColumnReader, NumberReader, TextReader, VectorReader, to_vector
from factorcell.data.columns.schema import COLUMN_KINDS, HARMONICS, NOTATIONS, PERIODS, ContextSchema, Variable
from factorcell.data.columns.values import cell_number, to_time
from factorcell.data.preparation import prepare
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.errors import UserError
from factorcell.options.columns import Column, Cyclic, Number

NOON = "2024-02-29T12:30:36"  # a Thursday in a leap year
NO_TIMES: list[Any] = ["", None, "2024", "12", "noon", 5, 12.5, pd.NaT, "2024-02-30", [], np.datetime64("NaT")]


def read(values: list[Any], kind: str, **data: Any) -> ColumnReader:
    table = open_table([{"x": value} for value in values])
    (reader,) = ContextColumns(table, Config.of(context=(f"x:{kind}",), **data).data).readers
    half = len(values) // 2
    for begin, part in ((0, values[:half]), (half, values[half:])):
        if part:
            reader.add(part, range(begin + 1, begin + 1 + len(part)))
    return reader


@pytest.mark.parametrize(
    ("value", "hour", "weekday", "yearday"),
    [
        (NOON, 12.51, 3, 59),
        (NOON.replace("T", " "), 12.51, 3, 59),
        (NOON + "Z", 12.51, 3, 59),
        (NOON + ".900000+05:00", 12.51025, 3, 59),  # time zones are not converted
        (datetime(2024, 2, 29, 12, 30, 36), 12.51, 3, 59),
        (datetime(2024, 2, 29, 12, 30, 36, tzinfo=timezone(timedelta(hours=9))), 12.51, 3, 59),
        (np.datetime64(NOON, "ns"), 12.51, 3, 59),
        (pd.Timestamp(NOON), 12.51, 3, 59),
        (" 2024-02-29 ", None, 3, 59),
        (date(2024, 2, 29), None, 3, 59),
        (np.datetime64("2024-02-29"), None, 3, 59),
        ("12:30:36", 12.51, None, None),
        (time(12, 30, 36), 12.51, None, None),
        ("2023-12-31T23:59:59", 23 + 59 / 60 + 59 / 3600, 6, 364),
        ("2024-12-31T00:00", 0, 1, 365),
        *((value, None, None, None) for value in NO_TIMES),
    ],
)
def test_times_are_read_as_written(value: Any, hour: float | None, weekday: int | None, yearday: int | None) -> None:
    assert cell_number("hour", value) == (None if hour is None else pytest.approx(hour))
    assert (cell_number("weekday", value), cell_number("yearday", value)) == (weekday, yearday)


@given(st.datetimes(timezones=st.none() | st.just(timezone(timedelta(hours=-7)))))
def test_iso_8601_text_is_parsed_to_the_same_time(moment: datetime) -> None:
    for text in (moment.isoformat(), moment.isoformat(" ")):
        assert to_time(text) == moment
    hour = cell_number("hour", moment.isoformat())
    assert hour is not None
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    assert hour == pytest.approx((moment - midnight).total_seconds() / 3600)
    first = date(moment.year, 1, 1)
    assert (cell_number("weekday", moment), cell_number("yearday", moment)) == (
        (first.weekday() + (moment.date() - first).days) % 7,
        (moment.date() - first).days,
    )


def variable_names(*context: str) -> list[tuple[str, str]]:
    """Return the name and the column of each variable that `context` specifies."""
    table = open_table([{"a": "1", "b": "2", "a.hour": "3"}])
    return [
        (r.declared_variable.name, r.column) for r in ContextColumns(table, Config.of(context=context).data).readers
    ]


def test_variables_are_named_by_column_and_kind() -> None:
    assert variable_names("a", "b:number") == [("a", "a"), ("b", "b")]
    assert variable_names("a:hour", "a:weekday", "b:longitude") == [("a.hour", "a"), ("a.weekday", "a"), ("b", "b")]
    assert variable_names("b:longitude", "b:number") == [("b.longitude", "b"), ("b.number", "b")]
    for context in (("a", "a"), ("a", "a:number"), ("a:number", "a"), ("a:hour", "a:hour"), ("a.hour", "a:hour")):
        with pytest.raises(UserError, match="is specified twice; set a different kind for each use"):
            variable_names(*context)


@pytest.mark.parametrize("context", ["a", "a:text", "a:category"])
def test_the_user_column_must_not_be_specified_again_as_context(context: str) -> None:
    table = open_table([{"a": "1", "b": "2"}])
    with pytest.raises(UserError, match="is specified twice; --user already adds it"):
        ContextColumns(table, Config.of(context=(context,), user="a").data)
    assert ContextColumns(table, Config.of(user="a", time="b").data).names == ["a"]  # a time only orders texts
    with pytest.raises(UserError, match="no column 'c'"):
        ContextColumns(table, Config.of(user="a", time="c").data)


def test_a_column_object_is_equivalent_to_its_text() -> None:
    kinds = {kind.__name__.lower(): kind for kind in Column.__subclasses__()}
    assert tuple(sorted(kinds)) == tuple(sorted(COLUMN_KINDS))
    for name, kind in kinds.items():
        column = kind("a:b") if kind is not Cyclic else Cyclic("a:b", 0.1)
        period = 0.1 if kind is Cyclic else PERIODS.get(name, 0.0)
        assert parse_column(str(column)) == Variable("a:b", name, period=period)
        for notation in NOTATIONS.get(name, ()):
            column = kind("a:b", notation=notation) if kind is not Cyclic else Cyclic("a:b", 0.1, notation=notation)
            assert parse_column(str(column)) == Variable("a:b", name, period=period, notation=notation)
    config = Config.of(context=["city", Number("nights"), Cyclic("hour", 24, notation="comma")]).data
    assert config.context == ("city", "nights:number", "hour:cyclic=24=comma")
    with pytest.raises(UserError, match=r"context is .*; it must be a list of names"):
        Config.of(context=Number("nights"))


def test_column_specifications_are_parsed_to_name_kind_and_period() -> None:
    assert parse_column("x:hour") == Variable("x", "hour", period=24)
    assert parse_column("x:longitude") == Variable("x", "longitude", period=360)
    assert parse_column("a:b:cyclic=12.5") == Variable("a:b", "cyclic", period=12.5)
    for text in ("x:cyclic", "x:cyclic=", "x:cyclic=0", "x:cyclic=-3", "x:cyclic=day", "x:cyclic=inf", "x:cyclic=nan"):
        with pytest.raises(UserError, match="expected a period above 0, as in x:cyclic=24, got"):
            parse_column(text)
    for text in ("x:hour=12", "x:number=day-first", "x:weekday=", "x:cyclic=24=comma=comma"):
        with pytest.raises(UserError, match=r"unknown notation of (hour|number|weekday|cyclic) '"):
            parse_column(text)
    for kind in {*COLUMN_KINDS} - {*NOTATIONS}:
        with pytest.raises(UserError, match=f"the kind {kind} has no notation"):
            parse_column(f"x:{kind}=comma")
    with pytest.raises(UserError, match="'weekdays' \\(did you mean 'weekday'\\?\\); choose from category"):
        parse_column("x:weekdays")


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20), st.floats(0.5, 400))
def test_periodic_numbers_have_the_moments_of_their_waves(values: list[float], period: float) -> None:
    reader = read(values, f"cyclic={period!r}")
    variable = reader.build_variable(Config.of(min_context_count=1).data)
    encoded = reader.encode(variable)
    assert isinstance(encoded, np.ndarray)
    assert ((encoded >= 0) & (encoded <= period)).all()
    for value, reduced in zip(values, encoded.tolist(), strict=True):
        turns = (value - reduced) / period
        assert turns == pytest.approx(round(turns), abs=1e-6)
    for harmonic in range(1, HARMONICS + 1):
        for wave, column in ((math.sin, 2 * harmonic - 2), (math.cos, 2 * harmonic - 1)):
            heights = [wave(2 * math.pi * harmonic * value / period) for value in values]
            mean = sum(heights) / len(heights)
            assert variable.means[column] == pytest.approx(mean, abs=1e-6)
            spread = math.sqrt(sum((height - mean) ** 2 for height in heights) / len(heights))
            if spread > 1e-4:
                assert variable.deviations[column] == pytest.approx(spread, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "period"), [((1, 2, 3, 4), 4), ((3, 6, 9, 12), 12), ((0, 6, 12, 18), 24), ((1, 2), 2)]
)
def test_a_wave_that_is_zero_at_all_values_has_the_deviation_of_equal_values(
    values: tuple[int, ...], period: int
) -> None:
    """In floating point, the sine of a multiple of pi is not 0."""
    variable = read([*values], f"cyclic={period}").build_variable(Config.of().data)
    heights = np.sin(np.outer(values, 2 * math.pi * np.arange(1, HARMONICS + 1) / period))
    is_zero = np.abs(heights).max(0) < 1e-9
    assert is_zero.any()
    assert all(variable.deviations[2 * wave] == 1 for wave in np.flatnonzero(is_zero))
    assert min(variable.deviations) > 0.1


def test_the_mean_of_a_periodic_number_is_a_mean_on_a_circle() -> None:
    variable = read(["23:00", "01:00"], "hour").build_variable(Config.of().data)
    assert min(variable.mean, 24 - variable.mean) == pytest.approx(0, abs=1e-9)
    assert variable.deviation == pytest.approx(1)
    assert (variable.period, variable.kind) == (24, "hour")
    assert read([-180, 180.0, "180"], "longitude").build_variable(Config.of().data).mean == pytest.approx(180)
    assert read([10.1] * 7, "longitude").build_variable(Config.of().data).deviations == (1,) * 2 * HARMONICS


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("hour", "soon", "'soon', not a time of day \\(ISO 8601, such as"),
        ("weekday", "12:30", "'12:30', not a date \\(ISO"),
        ("longitude", np.ones((40, 3)), "array.*\\.\\.\\., not a number of degrees"),
        ("text", 5, "5, not a text"),
        ("vector", "[1, 2", "'\\[1, 2', not a list of numbers"),
        ("vector", [1, 2, 3], "has 3 numbers; expected 2, as in the first vector"),
        ("category", [1, 2], "is a list, not the name of a category \\(use x:vector\\)"),
        ("category", np.zeros(2), "is a ndarray, not the name of a category"),
        ("category", {"a": 1}, "is a dict, not the name of a category$"),
    ],
)
def test_an_invalid_value_is_reported_with_its_row(kind: str, value: Any, problem: str) -> None:
    valid: Any = {"hour": NOON, "weekday": NOON, "yearday": NOON, "text": "a a a a a", "vector": [1, 2]}.get(kind, "1")
    verb = "" if problem.startswith(("is a", "has")) else "is .*"
    with pytest.raises(UserError, match=f"^in-memory table row 3: x {verb}{problem}") as error:
        read([valid, valid, value, valid], kind)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@given(
    st.lists(st.none() | st.text(alphabet="abcdX ,.", max_size=12), min_size=1, max_size=25),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_bags_of_words_equal_those_of_plain_loops(texts: list[str | None], min_count: int, max_words: int) -> None:
    bags = [_words(text or "") for text in texts]
    counts = Counter(word for bag in bags for word in bag)
    words = sorted((w for w in counts if counts[w] >= min_count), key=lambda w: (-counts[w], w))[:max_words]
    reader, config = read(texts, "text"), Config.of(min_context_count=min_count).data
    if not words:
        with pytest.raises(UserError, match=f"x: no word occurs {min_count} times"):
            reader.build_variable(config)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "MAX_CONTEXT_WORDS", max_words)
        variable = reader.build_variable(config)
    assert variable.values == tuple(words)
    expected = [[word for word in bag if word in words] for bag in bags]
    encoded = reader.encode(variable)
    assert isinstance(encoded, Ragged)
    assert [_bag(encoded, row, words) for row in range(len(texts))] == expected
    nonempty = [bag for bag in expected if bag]
    for word, share in zip(words, variable.shares, strict=True):
        assert share == pytest.approx(sum(bag.count(word) / math.sqrt(len(bag)) for bag in nonempty) / len(nonempty))


def _words(text: str) -> list[str]:
    return "".join(character if character.isalpha() else " " for character in text.lower()).split()


def _bag(bags: Ragged, row: int, words: list[str]) -> list[str]:
    return [words[index] for index in bags.values[bags.offsets[row] : bags.offsets[row + 1]]]


def test_texts_are_encoded_with_the_words_of_training() -> None:
    known = Variable("t", "text", values=("sea", "sun"), shares=(1.0, 0.5), column="title")
    tables: list[list[dict[str, Any]]] = [
        [{"title": "The SUN, the sea, sun!"}, {"title": ""}, {"title": None}],
        [{"b": 1}] * 3,
    ]
    for rows in tables:
        policy = "expected" if "b" in rows[0] else "error"
        (reader,) = ContextColumns(open_table(rows), Config.of().data, ContextSchema((known,)), policy).readers
        reader.add([row.get(reader.column) for row in rows], range(1, len(rows) + 1))
        bags = reader.encode(known)
        assert isinstance(bags, Ragged)
        assert bags.offsets.tolist() == ([0, 3, 3, 3] if policy == "error" else [0] * 4)
        assert bags.values.tolist() == ([1, 0, 1] if policy == "error" else [])


def test_a_vector_may_be_a_list_an_array_or_json() -> None:
    forms = [[1, 2.5], (1, 2.5), np.array([1, 2.5]), np.array([1, 2.5], np.float16), "[1, 2.5]", " [1.0,2.5] "]
    for form in forms:
        vector = to_vector(form)
        assert vector is not None
        assert vector.dtype == np.float32
        assert vector.tolist() == [1, 2.5]
    reader = read([*forms, [3, 2.5]], "vector")
    variable = reader.build_variable(Config.of(min_context_count=1).data)
    assert variable.means == pytest.approx((9 / 7, 2.5))
    assert variable.deviations == pytest.approx((np.std([1] * 6 + [3]), 1))  # a constant has deviation 1
    array = reader.encode(variable)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [[1, 2.5]] * 6 + [[3, 2.5]]


def test_vectors_must_have_the_size_of_training() -> None:
    known = ContextSchema((Variable("v", "vector", means=(0.0, 0.0), deviations=(1.0, 1.0)),))

    def array(values: list[Any], policy: str) -> Any:
        (reader,) = ContextColumns(open_table([{"v": v} for v in values]), Config.of().data, known, policy).readers
        reader.add(values, range(1, len(values) + 1))
        return reader.encode(known.variable("v"))

    assert np.array_equal(array([None, [1, 2], "", math.nan], "expected")[1], [1, 2])
    assert np.isnan(array([None, [1, 2], "", math.nan], "expected")[[0, 2, 3]]).all()
    with pytest.raises(UserError, match="row 2: v has 1 numbers; expected 2, as in training"):
        array([[1, 2], [1]], "expected")


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8), st.data())
def test_rows_of_ragged_lists_can_be_selected_in_any_order(lists: list[list[int]], data: st.DataObject) -> None:
    flat = np.array([x for part in lists for x in part], dtype=np.int32)
    ragged = Ragged(flat, np.concatenate([[0], np.cumsum([len(part) for part in lists])]).astype(np.int64))
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    selected = ragged.select(np.array(rows, dtype=np.int64))
    bounds = zip(selected.offsets, selected.offsets[1:], strict=False)
    assert [selected.values[begin:end].tolist() for begin, end in bounds] == [lists[row] for row in rows]


CONTEXT = ("at:hour", "at:weekday", "at:yearday", "lon:longitude", "turn:cyclic=1", "title:text", "topic:vector")


def rows_of_all_kinds(count: int) -> list[dict[str, Any]]:
    return [
        {
            "text": f"text {row % 3}",
            "city": "ab"[row % 2],
            "lat": row * 1.5,
            "at": datetime(2024, 1, 1) + timedelta(hours=7 * row, minutes=row),
            "lon": -180.0 + 40 * row,
            "turn": row / 16,
            "title": ["sun and sea", "Sea, sea!", "", "moon"][row % 4],
            "topic": [row / 4, 1.0 - row, row % 2],
        }
        for row in range(count)
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "fixed", "pandas", "arrays"])
def test_all_types_of_tables_give_the_same_corpus(kind: str, tmp_path: Path) -> None:
    rows = rows_of_all_kinds(12)
    plain = [{**row, "at": row["at"].isoformat(), "topic": json.dumps(row["topic"])} for row in rows]
    source: Any = tmp_path / f"rows.{'parquet' if kind == 'fixed' else kind}"
    if kind == "csv":
        pd.DataFrame(plain).to_csv(source, index=False)
    elif kind == "jsonl":
        source.write_text("".join(json.dumps({**row, "at": str(row["at"])}) + "\n" for row in rows), encoding="utf-8")
    elif kind in ("parquet", "fixed"):
        table = pa.Table.from_pylist(rows)
        if kind == "fixed":
            fixed = pa.array([row["topic"] for row in rows], pa.list_(pa.float32(), 3))
            table = table.set_column(table.column_names.index("topic"), "topic", fixed)
            table = table.set_column(table.column_names.index("at"), "at", table["at"].cast(pa.timestamp("ms", "UTC")))
        pa.parquet.write_table(table, source)
    elif kind == "pandas":
        source = pd.DataFrame(rows)
    else:
        source = {name: [row[name] for row in rows] for name in rows[0]}
        source["topic"] = np.array(source["topic"])
        source["at"] = [np.datetime64(moment) for moment in source["at"]]
    config = Config.of(context=CONTEXT, min_context_count=1)
    corpus, expected = (prepare(table, config) for table in (source, plain))
    assert [v.name for v in corpus.schema.variables][:3] == ["at.hour", "at.weekday", "at.yearday"]
    assert corpus.schema == expected.schema
    assert np.array_equal(corpus.numbers, expected.numbers)
    assert np.array_equal(corpus.vectors[0], expected.vectors[0])
    for x, y in zip(corpus.words[0], expected.words[0], strict=True):
        assert np.array_equal(x, y)


def test_each_kind_of_column_has_its_reader_in_training_and_later() -> None:
    config = Config.of(context=CONTEXT, min_context_count=1)
    table, rows = open_table(rows_of_all_kinds(4)), rows_of_all_kinds(4)
    schema = None
    for _ in range(2):
        columns = ContextColumns(table, config.data, schema)
        assert [type(reader) for reader in columns.readers] == [NumberReader] * 5 + [TextReader, VectorReader]
        columns.add({name: [row[name] for row in rows] for name in rows[0]}, len(rows))
        texts = {"tokens": np.zeros(0), "offsets": np.zeros(len(rows) + 1), "tokenizer": new_tokenizer(config)}
        new_schema = columns.corpus_fields(texts)["schema"]
        assert schema is None or new_schema == schema
        schema = ContextSchema.from_dict(json.loads(json.dumps(new_schema.to_dict())))
    with pytest.raises(UserError, match="no column 'at'; it has text"):
        ContextColumns(open_table({"text": "a"}), config.data, schema)
