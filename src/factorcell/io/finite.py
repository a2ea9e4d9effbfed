"""Output of numbers that may be infinite or NaN: null in JSON, a dash in text.

JSON has neither NaN nor infinity. Python's `json` writes them by default, but other JSON readers refuse the result.
"""

import json
import math
from typing import Any, TypeGuard

DASH = "-"


def to_json(content: Any, **options: Any) -> str:
    """Return `content` as valid JSON, with null for numbers that are not finite; `json.dumps` gets the `options`."""
    options = {"ensure_ascii": False, "allow_nan": False, **options}
    try:
        return json.dumps(content, **options)
    except ValueError:  # rare, so the values are inspected only after this error
        return json.dumps(_replace_nonfinite(content), **options)


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether `value` is a finite number."""
    return value is not None and math.isfinite(value)


def format_number(value: float | None, number_format: str) -> str:
    """Format a number; return a dash for None and for numbers that are not finite."""
    return format(value, number_format) if is_number(value) else DASH


def format_option(value: Any) -> str:
    """Format the value of an option: floats with three significant digits, all other values with `str`."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _replace_nonfinite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _replace_nonfinite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_replace_nonfinite(value) for value in content]
    return content
