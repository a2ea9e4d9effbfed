"""Names that are imported when they are first asked for (PEP 562), so that importing a package costs nothing.

    __getattr__, __dir__, __all__ = lazy(__name__, {"run": ("Run",), "scoring": ("Scorer", "Tally")})

The same imports stand under `TYPE_CHECKING`, for those who read the code without running it.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that offers `names` of its modules."""
    places = {name: f"{package}.{module}" for module, own in names.items() for name in own}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        found = getattr(importlib.import_module(places[name]), name)
        setattr(sys.modules[package], name, found)  # found at once from now on
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *places}), sorted(places)
