"""Lazy imports of the public names of a package (PEP 562), so that importing the package is fast.

The package lists its public names as imports that only type checkers read; `lazy_exports` reads the same list:

    if TYPE_CHECKING:
        from factorcell.runs.run import Run as Run

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any


def lazy_exports(package: str, path: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package, whose source file `path` lists its names."""
    exports = re.findall(r"^    from (\S+) import (\w+) as \2$", Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    module_by_name = {name: module for module, name in exports}

    def load(name: str) -> Any:
        if name not in module_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(importlib.import_module(module_by_name[name]), name)
        setattr(sys.modules[package], name, value)  # later accesses do not call this function
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_by_name})

    return load, list_names, sorted(module_by_name)


class LazyMethod:
    """A function of a module, by default of factorcell, as a method: the object is the first argument of the function.

    The function may be defined in a package that imports the class of the object, because it is imported when the
    method is used.
    """

    def __init__(self, name: str, module: str = "factorcell") -> None:
        self.name, self.module = name, module

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function if instance is None else MethodType(function, instance)
