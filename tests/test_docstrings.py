"""Every exported name is documented in Google style: its arguments, and what it returns."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PACKAGES = (
    *("", ".completion", ".data", ".evaluation", ".generation", ".hf", ".nn", ".service"),
    ".training",
)


def exported() -> dict[str, Any]:
    """Return every class and function that a package exports, by its name."""
    result = {}
    for package in PACKAGES:
        module = importlib.import_module(f"factorcell{package}")
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                result[f"{value.__module__}.{value.__qualname__}"] = value
    return result


EXPORTED = exported()


def parameters(value: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that need a description.

    A class that inherits its `__init__` has none. Fields of a config are described by their help texts.
    """
    if inspect.isclass(value):
        if "__init__" not in vars(value) or getattr(value, "_is_protocol", False):
            return []
        if dataclasses.is_dataclass(value):
            return [field.name for field in dataclasses.fields(value) if field.init and "help" not in field.metadata]
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]


def section(docstring: str, title: str) -> str:
    """Return the text of a section of a docstring in Google style, or nothing."""
    match = re.search(rf"^{title}:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(docstring), re.MULTILINE)
    return match[1] if match else ""


def faults(name: str, value: Any) -> Iterator[str]:
    """Yield what the docstring of an exported class or function lacks."""
    docstring = inspect.getdoc(value) or ""
    if not docstring:
        yield f"{name}: no docstring"
    if inspect.isclass(value):
        init = inspect.getdoc(value.__init__) if "__init__" in vars(value) else ""
        docstring += "\n\n" + (init or "")
        documented = section(docstring, "Args") + section(docstring, "Attributes") + docstring
    else:
        documented = section(docstring, "Args")
        if inspect.signature(value).return_annotation not in (None, "None") and not section(docstring, "Returns"):
            yield f"{name}: no section Returns"
    missing = [name for name in parameters(value) if not re.search(rf"\b{name.lstrip('*')}\b", documented)]
    if missing:
        yield f"{name}: undocumented parameters {', '.join(missing)}"


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_exported_names_are_documented(name: str) -> None:
    assert list(faults(name, EXPORTED[name])) == []


def documented(rate: float) -> float:
    """Return twice the rate.

    Args:
        rate: Any number.

    Returns:
        Twice the number.
    """
    return 2 * rate


def undocumented(rate: float) -> float:
    """Return twice the number."""
    return 2 * rate


def test_missing_sections_are_reported() -> None:
    assert list(faults("documented", documented)) == []
    assert list(faults("undocumented", undocumented)) == [
        "undocumented: no section Returns",
        "undocumented: undocumented parameters rate",
    ]
