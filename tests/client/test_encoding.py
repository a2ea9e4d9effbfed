"""Arguments of all types: NumPy scalars are sent as plain values, and unsupported values are errors."""

import datetime as dt
import json
import math
from collections import UserDict
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from factorcell.client import Client, ContextText, InvalidArgumentError, calls
from factorcell.client.encoding import encode
from factorcell.data.columns.values import category_name, to_hour, to_weekday, to_yearday


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


PLAIN: list[tuple[Any, Any]] = [
    (Colour.RED, "red"),
    (Size.LARGE, 3),
    (np.str_("é\U0001f600"), "é\U0001f600"),
    (np.bool_(True), True),
    (np.int8(-5), -5),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float32(0.1), 0.1),
    (np.float16(4.7), 4.7),
    (np.float32(83692832), 83692832.0),
    (np.float64(0.1), 0.1),
    (np.longdouble(0.5), 0.5),
    (np.array(5), 5),
    (np.array("a", dtype=object), "a"),
    (pd.Series([7]).iloc[0], 7),
]
TIMES: list[tuple[Any, str]] = [
    (dt.date(2026, 11, 26), "2026-11-26"),
    (dt.datetime(2026, 11, 26, 7, 5), "2026-11-26T07:05:00"),
    (dt.time(7, 5), "07:05:00"),
    (pd.Timestamp("2026-11-26 07:05"), "2026-11-26T07:05:00"),
    (np.datetime64("2026-11-26T07:05"), "2026-11-26T07:05:00"),
    (np.array("2026-11-26", dtype="datetime64[ns]"), "2026-11-26T00:00:00"),
    (np.datetime64("2026-11-26"), "2026-11-26"),
    (Decimal("5.50"), "5.5"),
    (Decimal("1E+3"), "1000"),
]
UNSUPPORTED = [
    *(b"abba", np.bytes_(b"abba"), math.nan, -math.inf, np.float32(np.nan), np.longdouble("1e4000"), 1j),
    *(dt.timedelta(1), np.timedelta64(1, "s"), pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("sNaN")),
    *(np.zeros(2), pd.DataFrame({"a": [1]}), object(), len, int, 10**5000, "a\ud800", np.str_("\udc00")),
]


@pytest.mark.parametrize(("value", "plain"), [*PLAIN, *TIMES], ids=repr)
def test_values_are_sent_as_json(value: Any, plain: Any) -> None:
    sent = json.loads(encode("complete", {"context": UserDict({np.str_("city"): value})}))["context"]["city"]
    assert (sent, type(sent)) == (plain, type(plain))


@pytest.mark.parametrize("value", UNSUPPORTED, ids=lambda value: type(value).__name__)
def test_unsupported_values_are_not_sent(value: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError("the request was sent")

    client = Client("http://h", http=httpx.Client(transport=httpx.MockTransport(answer)))
    for call in (
        lambda: client.complete(query=value),
        lambda: client.complete(query="a", context={"city": value}),
        lambda: client.score(texts=[ContextText(text=value)]),
        lambda: client.forget("ann", value),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            call()
        assert (raised.value.may_have_run, raised.value.is_temporary, raised.value.attempts) == (False, False, 1)
        assert "abba" not in str(raised.value)


@pytest.mark.parametrize("user", [None, 5, b"ann", "\ud800"])
def test_ids_that_are_not_text_are_not_sent(user: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="user: expected Unicode text"):
        calls.show(user)


def test_list_that_contains_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgumentError, match="Circular reference"):
        calls.score(texts=endless)


def test_times_are_parsed_as_in_python() -> None:
    for value, _ in TIMES:
        text = json.loads(encode("complete", {"when": value}))["when"]
        python_value = value[()] if isinstance(value, np.ndarray) else value
        assert text == category_name(python_value)
        for read in (to_hour, to_weekday, to_yearday):
            assert read(text) == read(python_value)
