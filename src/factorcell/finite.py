"""Numbers that are finite, and what stands where there is none: null in JSON, a dash in a line for people.

JSON has neither NaN nor infinity. Python writes and reads both all the same, and other readers then refuse the row.
"""

import json
import math
from typing import Any, TypeGuard

DASH = "-"


def to_json(content: Any, **how: Any) -> str:
    """`content` as JSON that every reader takes, null where a number is not finite; `how` as `json.dumps` has it."""
    how = {"ensure_ascii": False, "allow_nan": False, **how}
    try:
        return json.dumps(content, **how)
    except ValueError:  # rare, so that only then every value is looked at
        return json.dumps(_finite(content), **how)


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether there is a number, and a finite one."""
    return value is not None and math.isfinite(value)


def format_number(value: float | None, form: str) -> str:
    """A number as a line has it; a dash for none, and for one that is not finite."""
    return format(value, form) if is_number(value) else DASH


def format_option(value: Any) -> str:
    """The value of an option as a line has it: a number with a point to three digits, all else as it is."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, (list, tuple)) else content
