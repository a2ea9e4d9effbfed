"""Declarations of context columns, such as `price:number=comma`, and the kinds of columns without a declared kind.

A kind that is guessed from values is reported if the values suggest another one: numbers and times in a notation that
must be declared, identifiers that look like numbers, and lists. The finding contains the declaration that settles it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from itertools import islice
from typing import Any

from factorcell.config import HISTORY_COLUMN, DataConfig
from factorcell.data.columns.schema import COLUMN_KINDS, NOTATIONS, PERIODS, Variable
from factorcell.data.columns.values import TIME_KINDS, is_missing, read_cell, short_repr, to_number
from factorcell.data.tables.chunks import Table
from factorcell.errors import UserError, check_choice
from factorcell.io.findings import Finding, report

GUESS_ROWS = 100_000  # number of rows from which the kind of a column is guessed
MAX_RATINGS = 20  # a column of at most this many different whole numbers, such as ratings, is a category
MIN_SHARE = 0.9  # if at least this share of the values are numbers or times, the others are likely mistakes
SAMPLE = 1000  # number of different values with which a notation is tried
IDENTIFIER = re.compile(r"0\d+")  # such as the postal code 01067
NOUNS = {"number": "number", "weekday": "date", "hour": "time of day"}
Reading = float | date | time | None  # what is read from a cell


def parse_column(text: str) -> Variable:
    """Parse the declaration of a context column; without a kind, the kind of the result is empty.

    It has the form `NAME`, `NAME:KIND`, `NAME:KIND=NOTATION`, `NAME:cyclic=PERIOD` or `NAME:cyclic=PERIOD=NOTATION`.
    """
    name, colon, specification = text.rpartition(":")
    if not colon:
        return Variable(text, "")
    kind, *parameters = specification.split("=")
    check_choice("kind of context column", kind, COLUMN_KINDS)
    period: float | None = PERIODS.get(kind, 0.0)
    if kind == "cyclic":
        period_text = parameters.pop(0) if parameters else ""
        period = to_number(period_text)
        if period is None or period <= 0:
            example = f"a period above 0, as in {name}:cyclic=24"
            raise UserError(f"context column {text!r}: expected {example}, got {period_text!r}")
    assert period is not None
    notation = "=".join(parameters)
    if parameters and kind not in NOTATIONS:
        raise UserError(f"context column {text!r}: the kind {kind} has no notation")
    if parameters:
        check_choice(f"notation of {kind}", notation, NOTATIONS[kind])
    return Variable(name, kind, period=period, notation=notation)


def new_variables(table: Table, config: DataConfig) -> list[Variable]:
    """Return the variables of a training table, before their values are read.

    A variable has the name of its column. The kind is appended to the name for the parts of a time, such as `hour`, and
    for a column that has several variables.
    """
    declared = [parse_column(text) for text in config.columns]
    columns = [variable.name for variable in declared]
    names = []
    for column, kind in ((variable.name, variable.kind) for variable in declared):
        if column not in (*table.columns, HISTORY_COLUMN):
            raise table.missing_column_error(column)
        is_repeated = columns.count(column) > 1
        name = f"{column}.{kind}" if kind in TIME_KINDS or (kind and is_repeated) else column
        if is_repeated and column == config.user:
            raise UserError(f"context column {column!r} is specified twice; --user already adds it")
        if name in names or (not kind and is_repeated):
            remedy = "set a different kind for each use" + ("" if kind else f", such as {column}:category")
            raise UserError(f"context column {name!r} is specified twice; {remedy}")
        names.append(name)
    kinds = guess_kinds(table, [variable.name for variable in declared if not variable.kind])
    return [
        replace(variable, name=name, kind=variable.kind or kinds[column], column=column if column != name else "")
        for name, column, variable in zip(names, columns, declared, strict=True)
    ]


def guess_kinds(table: Table, names: list[str]) -> dict[str, str]:
    """Guess the kind of each column, number or category, from about the first `GUESS_ROWS` rows; report doubts."""
    values_by_column = {name: list[Any]() for name in names}
    for chunk in table.chunks(names) if names else ():
        for name in names:
            values_by_column[name] += chunk[name]
        if len(values_by_column[names[0]]) >= GUESS_ROWS:
            break
    kinds = dict[str, str]()
    for name, values in values_by_column.items():
        kinds[name], doubt = guess_kind(name, values)
        if doubt:
            report(Finding("column kind", f"{table.name}: {doubt}"))
    return kinds


def guess_kind(name: str, values: Sequence[Any]) -> tuple[str, str]:
    """Return the kind of a column, number or category, and a sentence that says what its values may be instead.

    The kind is number if all values are numbers, unless they are at most `MAX_RATINGS` different whole numbers, or one
    of them begins with 0, as identifiers do. The sentence is empty if there is no doubt.
    """
    try:
        counts = count_values(values)
    except TypeError:  # lists, about which the reader of the column raises an error
        return "category", ""
    for kind in NOUNS:
        if readings := read_notations(kind, counts):
            break
    else:
        list_text = list_example(counts)
        problem = f"{short_repr(list_text)} looks like a list; set {name}:text to read its words, or {name}:category"
        return "category", f"{name} is read as a category, but {problem}" if list_text else ""
    results = next(iter(readings.values()))
    unread = next((value for value, result in zip(counts, results, strict=True) if result is None), None)
    example = next(value for value, result in zip(counts, results, strict=True) if result is not None)
    is_plain = kind == "number" and "" in readings
    known = {result for result in results if isinstance(result, float)}
    is_rating = is_plain and len(known) <= MAX_RATINGS and all(map(float.is_integer, known))
    codes = [value for value in counts if is_plain and isinstance(value, str) and IDENTIFIER.fullmatch(value)]
    is_number = is_plain and unread is None and not (is_rating or codes)
    if is_plain and len(readings) == 1 and not codes and (is_number or is_rating):
        return "number" if is_number else "category", ""
    appearance = "begins with 0" if codes else f"looks like a {NOUNS[kind]}"
    problem = f"{short_repr(codes[0] if codes else example)} {appearance}"
    remedy = f"set {describe_notations(f'{name}:{kind}', kind, counts, readings)}"
    if kind == "weekday":
        remedy += " (yearday and hour are other kinds)"
    if unread is not None:
        row = next(row for row, value in enumerate(values, 1) if value is unread)  # pandas' NA has no truth value
        remedy += f" and correct other values, such as {short_repr(unread)} in row {row:,}"
    if is_number:
        return "number", f"{name} is read as a number, but its notation is ambiguous; {remedy}"
    return "category", f"{name} is read as a category, but {problem}; {remedy}, or {name}:category"


def count_values(values: Iterable[Any]) -> Counter[Any]:
    """Return the number of rows of each value that is not missing; raise `TypeError` if a value is a list."""
    return Counter(value for value in values if not is_missing(value))


def read_notations(kind: str, counts: Mapping[Any, int]) -> dict[str, list[Reading]]:
    """Return what each notation of a kind reads of the values in `counts`; the notation "" comes first.

    Only notations that read most rows are returned, and only the first one of those that read all values equally.
    """
    readings, row_counts = dict[str, list[Reading]](), dict[str, int]()
    sample = dict(islice(counts.items(), SAMPLE))

    def row_count(results: Sequence[Reading]) -> int:
        return sum(count for count, result in zip(counts.values(), results, strict=False) if result is not None)

    for notation in ("", *NOTATIONS[kind]):
        if row_count([read_cell(kind, value, notation) for value in sample]) >= MIN_SHARE * sum(sample.values()) > 0:
            results = [read_cell(kind, value, notation) for value in counts]
            if results not in readings.values():
                readings[notation], row_counts[notation] = results, row_count(results)
    most = max(row_counts.values(), default=0)
    return {notation: results for notation, results in readings.items() if row_counts[notation] == most}


def describe_notations(
    declaration: str, kind: str, values: Iterable[Any], readings: Mapping[str, Sequence[Reading]]
) -> str:
    """Return a declaration such as `price:number` in each notation, with an example if there are several notations."""
    declarations = {notation: f"{declaration}={notation}" if notation else declaration for notation in readings}
    if len(declarations) == 1:
        return declarations.popitem()[1]
    rows = zip(values, *readings.values(), strict=True)
    example, *results = next(row for row in rows if len({*row[1:]}) > 1)
    meanings = (
        "not read" if result is None else str(result) if kind in TIME_KINDS else f"{result:.10g}" for result in results
    )
    texts = zip(declarations.values(), meanings, strict=True)
    return " or ".join(f"{text} ({short_repr(example)} is {meaning})" for text, meaning in texts)


def list_example(values: Iterable[Any]) -> str:
    """Return a text that looks like a list of items; empty without one.

    In lists, the number of items differs, and most items are in different places, unlike the parts of `Oslo, Norway`.
    """
    texts = [value for value in islice(values, SAMPLE) if isinstance(value, str)]
    for mark in ",;|":
        lists = [[item.strip(" []'\"") for item in text.split(mark)] for text in texts]
        places = defaultdict[str, set[int]](set)
        for items in lists:
            for place, item in enumerate(items):
                places[item].add(place)
        several = [(text, items) for text, items in zip(texts, lists, strict=True) if len(items) > 1]
        items_of_several = [item for _, items in several for item in items]
        moved = sum(len(places[item]) > 1 for item in items_of_several)
        if len({len(items) for items in lists}) > 1 and moved > len(items_of_several) / 2:
            return several[0][0]
    return ""
