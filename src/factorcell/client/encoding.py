"""Arguments of a call as JSON.

JSON has texts, numbers, booleans, lists and objects. A NumPy scalar is sent as the plain value that it holds. As values
of a context, times and decimals are sent as text, which the service reads as the model reads them in Python. Everything
else is an `InvalidArgumentError`, which names the field and the type, and nothing is sent.
"""

import math
import sys
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any

import msgspec

from factorcell.client.errors import InvalidArgumentError

LARGEST_BITS = 64  # of a whole number
JSON = "a text, a finite number, a boolean, a list or a dict"
VALUE = "a text, a finite number, a boolean or a time"  # of a context
COLUMNS = "a dict of values by column"
TEXT = "Unicode text"


def encode(call: str, message: Any, where: str = "") -> bytes:
    """Encode the message of a `call`, the argument `where`, as JSON.

    `InvalidArgumentError` for a value that JSON cannot have.
    """
    try:
        return msgspec.json.encode(_plain(call, message, where))
    except RecursionError:
        raise InvalidArgumentError(call, "expected values of a message, got a list that is nested too deep") from None


def plain_text(call: str, value: Any, where: str) -> str:
    """Return `value` as a plain string. `InvalidArgumentError` that names `where` for what is not Unicode text."""
    value = _without_numpy(value)
    if not isinstance(value, str):
        raise _unexpected(call, where, TEXT, value)
    text = str.__str__(value)  # msgspec encodes no subclass
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        got = f"a surrogate as character {error.start + 1}"
        raise InvalidArgumentError(call, f"{where}: expected {TEXT}, got {got}") from None
    return text


def _plain(call: str, value: Any, where: str) -> Any:
    """Return `value` made of plain values, which msgspec can encode; `where` is the path of fields to it."""
    if isinstance(value, msgspec.Struct):
        fields = {name: _field(call, getattr(value, name), where, name) for name in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, Mapping):
        names = (plain_text(call, name, f"{where}: a name") for name in value)
        return {name: _field(call, one, where, name) for name, one in zip(names, value.values(), strict=True)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(call, one, f"{where}[{place}]") for place, one in enumerate(value)]
    return _scalar(call, value, where, JSON)


def _field(call: str, value: Any, where: str, name: str) -> Any:
    """Return the plain value of the field `name` of the message at `where`."""
    path = f"{where}.{name}" if where else name
    if name == "context" and value is not None:
        if not isinstance(value, Mapping):
            raise _unexpected(call, path, COLUMNS, value)
        names = (plain_text(call, column, f"{path}: a name") for column in value)
        pairs = zip(names, value.values(), strict=True)
        return {column: _context_value(call, one, f"{path}.{column:.50}") for column, one in pairs}
    return _plain(call, value, path)


def _context_value(call: str, value: Any, where: str) -> Any:
    """Return the plain value of a column of a context."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.ndim == 0:
        value = value[()]
    # Times and decimals are sent as `factorcell.data.values.category_name` names them.
    if numpy is not None and isinstance(value, numpy.datetime64) and value == value:  # NaT differs from itself
        fine = numpy.datetime_data(value.dtype)[0] in ("ns", "ps", "fs", "as")
        moment = (value.astype("datetime64[us]") if fine else value).item()  # a number for a year that Python lacks
        return moment.isoformat() if isinstance(moment, date) else str(value)
    if isinstance(value, (date, time)) and value == value:
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        digits = f"{value:f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return _scalar(call, value, where, VALUE)


def _scalar(call: str, value: Any, where: str, expected: str) -> Any:
    plain = _without_numpy(value)
    if plain is None or isinstance(plain, bool):
        return plain
    if isinstance(plain, str):
        return plain_text(call, plain, where)
    if isinstance(plain, int) and plain.bit_length() <= LARGEST_BITS:
        return int(plain)
    if isinstance(plain, float) and math.isfinite(plain):
        return float(plain)
    raise _unexpected(call, where, expected, plain if isinstance(plain, (int, float)) else value)


def _without_numpy(value: Any) -> Any:
    """Return the plain value that a NumPy scalar or an array without dimensions holds; all else as it is."""
    numpy = sys.modules.get("numpy")  # which the client does not import; without it nothing is a NumPy value
    if numpy is None:
        return value
    if isinstance(value, numpy.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, numpy.floating):  # the item of a long double is the same long double
        exact = float(value)
        # as `factorcell.data.values.widened`: 4.7 in 32 bits is sent as 4.7, not as 4.699999809265137
        return exact if value.itemsize >= 8 or exact.is_integer() else float(str(value))
    is_plain = isinstance(value, (numpy.bool_, numpy.integer, numpy.str_))
    return value.item() if is_plain and not isinstance(value, numpy.timedelta64) else value  # which is an integer


def _unexpected(call: str, where: str, expected: str, value: Any) -> InvalidArgumentError:
    """Return the error for a value of another type; only numbers are shown in it."""
    kind = type(value)
    got = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, float):
        got = f"{value:g}"
    elif isinstance(value, int):
        got = f"a whole number of more than {LARGEST_BITS} bits"
    return InvalidArgumentError(call, f"{where}: expected {expected}, got {got}")
