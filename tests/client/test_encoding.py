"""Arguments of every kind: NumPy scalars are sent as plain values, and what JSON cannot have is a `ServiceError`."""

import copy
import datetime as dt
import inspect
import math
import re
from collections import UserDict
from collections.abc import Iterator
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import httpx
import msgspec
import numpy as np
import pandas as pd
import pytest

from factorcell.client import InvalidArgumentError, InvalidRequestError, ServiceError, calls
from factorcell.client.encoding import encode
from factorcell.data.values import category_name, to_hour, to_weekday, to_yearday
from tests.client.both import ask
from tests.client.conftest import Make
from tests.client.test_calls import ARGUMENTS


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


PLAIN: list[tuple[Any, Any]] = [
    ("a", "a"),
    (True, True),
    (5, 5),
    (5.5, 5.5),
    (Colour.RED, "red"),
    (Size.LARGE, 3),
    (np.str_("é\U0001f600"), "é\U0001f600"),
    (np.bool_(True), True),
    (np.int8(-5), -5),
    (np.int64(5), 5),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float16(0.5), 0.5),
    (np.float32(0.1), 0.1),
    (np.float16(4.7), 4.7),
    (np.float32(83692832), 83692832.0),
    (np.float64(0.1), 0.1),
    (np.longdouble(0.5), 0.5),
    (np.array(5), 5),
    (np.array("a"), "a"),
    (np.array(True), True),
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
    (Decimal("5.50"), "5.5"),
    (Decimal("5.00"), "5"),
    (np.datetime64("2026-11-26"), "2026-11-26"),
    (Decimal("1E+3"), "1000"),
]
WRONG: dict[str, tuple[Any, str]] = {
    "bytes": (b"abba", "bytes"),
    "bytearray": (bytearray(b"abba"), "bytearray"),
    "NumPy bytes": (np.bytes_(b"abba"), r"numpy\.bytes_"),
    "not a number": (math.nan, "nan"),
    "infinite": (-math.inf, "-inf"),
    "NumPy not a number": (np.float32(np.nan), "got nan$|dict of values by column, got numpy"),
    "infinite long double": (np.longdouble("1e4000"), "got inf$|dict of values by column, got numpy"),
    "complex": (1j, "complex"),
    "NumPy complex": (np.complex64(1), r"numpy\.complex64"),
    "void": (np.void(b"a"), r"numpy\.void"),
    "timedelta": (dt.timedelta(1), r"datetime\.timedelta"),
    "NumPy timedelta": (np.timedelta64(1, "s"), r"numpy\.timedelta64"),
    "missing of pandas": (pd.NA, "NAType"),
    "missing time of pandas": (pd.NaT, "NaTType"),
    "missing time of NumPy": (np.datetime64("NaT"), r"numpy\.datetime64"),
    "decimal that is not a number": (Decimal("sNaN"), r"decimal\.Decimal"),
    "array": (np.zeros(2), r"numpy\.ndarray"),
    "empty array": (np.zeros(0), r"numpy\.ndarray"),
    "table": (pd.DataFrame({"a": [1]}), "DataFrame"),
    "column of a table": (pd.Series(["a"]), "Series"),
    "object": (object(), "object"),
    "function": (len, "builtin_function_or_method"),
    "class": (int, "type"),
    "many digits": (10**5000, "a whole number of more than 64 bits"),
    "lone surrogate": ("a\ud800", "a surrogate as character 2|got str$"),
    "NumPy lone surrogate": (np.str_("\udc00"), r"a surrogate as character 1|got numpy\.str_$"),
}
Path = tuple[str | int, ...]


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in pairs:
        yield from paths(one, (*path, name))


def replaced(holder: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    name, *rest = path
    holder = copy.copy(holder)
    if isinstance(holder, msgspec.Struct):
        setattr(holder, str(name), replaced(getattr(holder, str(name)), tuple(rest), value))
    else:
        holder[name] = replaced(holder[name], tuple(rest), value)
    return holder


def as_shown(path: Path) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path).removeprefix(".")


def by_name(call: str) -> dict[str, Any]:
    args, fields = ARGUMENTS[call]
    names = [one for one in inspect.signature(getattr(calls, call)).parameters if one not in fields]
    more = {"context": {"city": "Oslo"}, "weights": {"lm": 1.0}}
    return {**dict(zip(names, args, strict=False)), **fields, **{name: more[name] for name in names if name in more}}


PLACES = [(call, path) for call in ARGUMENTS for path in paths(by_name(call))]


def test_places_are_found() -> None:
    found = {(call, as_shown(path)) for call, path in PLACES}
    assert {
        ("show", "user"),
        ("forget", "text"),
        ("complete", "context.city"),
        ("restore", "exported.user"),
        ("score", "texts[0].context"),
        ("rescore", "lists[0].hypotheses[0].text"),
        ("rescore", "weights.lm"),
    } <= found
    assert {call for call, _ in found} == set(ARGUMENTS) - {"health", "ready", "metrics"}


def sent_by(make: Make, call: str, **fields: Any) -> httpx.Request:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(418)

    with pytest.raises(InvalidRequestError):
        ask(make("http://h", handler=answer), call, **fields)
    (request,) = requests
    return request


@pytest.mark.parametrize("got", WRONG)
def test_what_cannot_be_sent(make: Make, got: str) -> None:

    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    client = make("http://h", handler=answer)
    value, named = WRONG[got]
    for call, path in PLACES:
        with pytest.raises(InvalidArgumentError) as raised:
            ask(client, call, **replaced(by_name(call), path, value))
        error = raised.value
        assert isinstance(error, ServiceError)
        assert (error.asked, error.begun, error.passing, error.tries) == (call, False, False, 1)
        assert error.message.startswith(f"{as_shown(path)}: expected ")
        assert re.search(named, error.message)


@pytest.mark.parametrize(("value", "plain"), PLAIN, ids=lambda one: f"{type(one).__name__}")
def test_scalars_are_sent_as_plain_values(make: Make, value: Any, plain: Any) -> None:
    request = sent_by(make, "complete", query=value, limit=value, context={"city": value})
    body = msgspec.json.decode(request.content)
    for found in (body["query"], body["limit"], body["context"]["city"]):
        assert (found, type(found)) == (plain, type(plain))


def test_everything_within_a_message_may_be_of_numpy(client: Any) -> None:
    context = {np.str_("city"): np.str_("Oslo")}
    fields = {"query": np.str_("a"), "user": np.str_("ann"), "limit": np.int64(3), "explain": np.bool_(False)}
    found = client.complete(**fields, context=context)
    assert found == client.complete(query="a", user="ann", limit=3, explain=False, context={"city": "Oslo"})
    client.accept(user=np.str_("ann"), text=np.array("abba"), context=UserDict(context))
    assert [(one.text, one.context) for one in client.show(np.str_("ann")).texts] == [("abba", {"city": "Oslo"})]
    texts = [{"text": np.str_("abba"), "context": context}]
    assert client.score(texts=texts) == client.score(texts=[{"text": "abba", "context": {"city": "Oslo"}}])
    assert client.forget(np.str_("ann"), np.str_("abba")).removed == 1


@pytest.mark.parametrize(("value", "text"), TIMES, ids=lambda one: f"{type(one).__name__}")
def test_times_of_a_context_are_texts(make: Make, value: Any, text: str) -> None:
    request = sent_by(make, "complete", query="a", context={"when": value})
    assert msgspec.json.decode(request.content)["context"] == {"when": text}
    with pytest.raises(InvalidArgumentError, match=r"query: expected .*, got"):
        ask(make("http://h"), "complete", query=value)


@pytest.mark.parametrize("context", [[("city", "Oslo")], "Oslo", 5, pd.Series({"city": "Oslo"}), np.zeros(2), pd.NA])
@pytest.mark.parametrize("name", ["complete", "accept", "generate"])
def test_what_is_no_context(make: Make, name: str, context: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="context: expected a dict of values by column, got"):
        ask(make("http://h"), name, **{**by_name(name), "context": context})


@pytest.mark.parametrize("column", [None, 5, np.int64(5), b"city", ("a", "b"), "\ud800"], ids=ascii)
def test_what_is_no_name_of_a_column(make: Make, column: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="context: a name: expected Unicode text, got"):
        ask(make("http://h"), "generate", context={column: "a"})


def test_list_that_holds_itself(make: Make) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgumentError, match="nested too deep"):
        ask(make("http://h"), "score", texts=endless)


def test_times_are_read_as_in_python() -> None:
    for value, _ in TIMES:
        text = msgspec.json.decode(encode("complete", {"context": {"when": value}}))["context"]["when"]
        python = value[()] if isinstance(value, np.ndarray) else value
        assert text == category_name(python)
        for read in (to_hour, to_weekday, to_yearday):
            assert read(text) == read(python)
