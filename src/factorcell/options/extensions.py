"""Registry of adapters, cells, tokenizers, backbones and heads from other packages, which options select by name.

A name is built in, registered, or declared by another package as an entry point, in the group `factorcell.adapters` for
example. A run folder contains only the name; the installed packages decide which module it refers to, so that a file
cannot cause the import of any other module. A config imports the modules of its tokenizer, backbone and head.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from factorcell.errors import UserError, check_choice

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAME = re.compile(r"[a-z][a-z0-9_]*")  # a name is also part of the parameter names in a weights file
NONE = "none"  # stands for an empty list on the command line, so it is not a valid name


class Extensions:
    """The registry of the classes of one kind, such as adapters or heads, that other packages add.

    The `kind` is a part of the name of the entry-point group. Other packages cannot use the `built_in` names. The
    classes in `registered` are those of the whole process.
    """

    def __init__(self, kind: str, built_in: Sequence[str]) -> None:
        self.kind, self.built_in, self.group = kind, tuple(built_in), f"factorcell.{kind}s"
        self.registered: dict[str, type] = {}

    def check_choice(self, option: str, name: str) -> str:
        """Return `name` if it exists; raise `UserError` otherwise."""
        if name in self.built_in or name in self.registered:
            return name
        try:
            return check_choice(option, name, dict.fromkeys((*self.built_in, *self.registered, *self._entry_points())))
        except UserError as error:
            advice = "if another package defines it, install the package or, in Python, import its module"
            raise error.with_message(f"{error.message}; {advice}") from None

    def register(self, name: str, cls: type, check: Callable[[str, type], None]) -> None:
        """Register `cls` under `name`, also again, if `check` accepts it and the name is valid."""
        if not (isinstance(name, str) and NAME.fullmatch(name)) or name == NONE:
            raise UserError(f"{self.kind} {name!r:.60}: expected a name of a-z, 0-9 and _ other than {NONE!r}")
        if name in self.built_in:
            raise UserError(f"{self.kind} {name!r} is built into factorcell; choose another name")
        check(name, cls)
        self.registered[name] = cls

    def find_class(self, name: str, built_in_classes: Mapping[str, type], check: Callable[[str, type], None]) -> Any:
        """Return the class called `name`: built in, registered, or imported from a package and accepted by `check`."""
        if name in built_in_classes:
            return built_in_classes[name]
        if name not in self.registered:
            self.check_choice(self.kind, name)
            point = self._entry_points()[name]
            try:
                cls = point.load()
            except Exception as error:  # the imported module may raise anything
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                fault = f"{point.value} of an installed package cannot be imported"
                raise UserError(f"{self.kind} {name!r}: {fault} ({reason})") from error
            self.register(name, cls, check)
        return self.registered[name]

    def _entry_points(self) -> "dict[str, EntryPoint]":
        """Return the entry points of installed packages by name."""
        from importlib.metadata import entry_points  # slow to import: it would double the time of `--help`

        return {point.name: point for point in entry_points(group=self.group)}
