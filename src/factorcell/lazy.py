"""Lazy imports of the public names of a package (PEP 562), so that importing the package is fast.

    __getattr__, __dir__, __all__ = lazy(__name__, {"run": ("Run",), "scoring": ("Scorer", "Tally")})

For type checkers, the package also lists the imports under `TYPE_CHECKING`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package; `names` maps its modules to their public names."""
    modules = {name: f"{package}.{module}" for module, exports in names.items() for name in exports}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # later accesses do not call this function
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)
