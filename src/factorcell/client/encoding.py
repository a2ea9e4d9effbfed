"""Encodes the arguments of a call as JSON.

A NumPy scalar is sent as the Python value that it equals. A date, a time or a decimal is sent as text, in the form in
which a model names the category of that value.
"""

import json
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any

import msgspec

from factorcell.client.errors import InvalidArgumentError


def encode(operation: str, message: Any) -> bytes:
    """Return the message of an operation in JSON.

    Raises:
        InvalidArgumentError: JSON cannot represent a value of the message.
    """
    try:
        return json.dumps(message, default=_to_json_value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(operation, f"expected values that JSON can represent ({error})") from None


def _to_json_value(value: Any) -> Any:
    """Convert a value that the `json` module does not support to one that it supports."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    # The form is that of `factorcell.data.columns.values.category_name`. A missing time (NaT) is not equal to itself.
    if isinstance(value, (date, time)) and value == value:
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        digits = f"{value:f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if hasattr(value, "dtype") and value.ndim == 0:
        return _numpy_to_json_value(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}")


def _numpy_to_json_value(value: Any) -> Any:
    """Convert a NumPy scalar or a zero-dimensional array to a value that JSON can represent."""
    kind = value.dtype.kind
    if kind == "f":  # as in `factorcell.data.columns.values.widened`, the 32-bit number 4.7 is sent as 4.7
        number = float(value)
        return number if value.itemsize >= 8 or number.is_integer() else float(str(value))
    if kind == "M" and value == value:  # a datetime64 that is not missing (NaT)
        is_finer_than_microseconds = value.dtype.str.endswith(("[ns]", "[ps]", "[fs]", "[as]"))
        moment = (value.astype("datetime64[us]") if is_finer_than_microseconds else value).item()
        return moment.isoformat() if isinstance(moment, date) else str(value)
    if kind in "biuUO":  # a boolean, an integer, a text or a Python object
        return value.item()
    raise TypeError(f"numpy {value.dtype}")
