"""Adapters, cells, tokenizers, backbones and heads of other packages, which options choose by name.

An installed package declares its classes in its pyproject.toml. A name that is neither built in nor registered is
looked up there. The module of an adapter or a cell is imported when a model is made with it, that of a tokenizer,
backbone or head when a config names it:

    [project.entry-points."factorcell.adapters"]
    gate_shift = "their_package:GateShift"

A run folder or a recipe holds the name alone. Which module stands behind a name is for the installed packages to say,
so that no file makes anything else be imported.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from factorcell.limits import UserError, choose

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAME = re.compile(r"[a-z][a-z0-9_]*")  # also that of a parameter in a file of weights
NONE = "none"  # what the command line calls an empty list


class Extensions:
    """Classes of other packages of one `kind` (such as "adapter" or "head"), by names that are not our `own`.

    `registered` changes while the package runs: names are added, for the whole process.
    """

    def __init__(self, kind: str, own: Sequence[str]) -> None:
        self.kind, self.built_in, self.group = kind, tuple(own), f"factorcell.{kind}s"
        self.registered: dict[str, type] = {}

    def choose(self, option: str, name: str) -> str:
        """`name`, if something stands behind it; otherwise a `UserError` that says what can be done.

        Only a name that is not known yet has the installed packages asked.
        """
        if name in self.built_in or name in self.registered:
            return name
        try:
            return choose(option, name, dict.fromkeys((*self.built_in, *self.registered, *self._offered())))
        except UserError as error:
            advice = "one of another package is known once that is installed or, in Python, its module is imported"
            raise error.with_message(f"{error.message}; {advice}") from None

    def register(self, name: str, made: type, check: Callable[[str, type], None]) -> None:
        """Let `name` stand for the class `made`, which `check` has to find right.

        `UserError` for a name that is taken. A class of the same name and module takes the place of the first, as
        where a cell of a notebook is run again.
        """
        if not (isinstance(name, str) and NAME.fullmatch(name)) or name == NONE:
            raise UserError(f"{self.kind} {name!r:.60}: a name must be of lower-case letters, digits and _, not {NONE}")
        if name in self.built_in:
            raise UserError(f"{self.kind} {name!r} is one of factorcell's own; it must have another name")
        before = self.registered.get(name, made)
        if _place(before) != _place(made):
            raise UserError(f"{self.kind} {name!r} is registered already, as {_place(before)}; choose another name")
        check(name, made)
        self.registered[name] = made

    def find_class(self, name: str, built_in: Mapping[str, type], check: Callable[[str, type], None]) -> Any:
        """Return the class of a name: one of those that are `built_in`, a registered one, or one of another package.

        One of another package is imported, and `check` has to find it right.
        """
        if name in built_in:
            return built_in[name]
        if name not in self.registered:
            self.register(name, self._imported(self._offered()[self.choose(self.kind, name)]), check)
        return self.registered[name]

    def _offered(self) -> "dict[str, list[EntryPoint]]":
        """What the installed packages offer, by name."""
        from importlib.metadata import entry_points  # takes longer than all of `--help`

        found: dict[str, list[EntryPoint]] = {}
        for one in entry_points(group=self.group):
            if one.value not in [other.value for other in found.setdefault(one.name, [])]:
                found[one.name].append(one)
        return found

    def _imported(self, offers: "list[EntryPoint]") -> type:
        """The class that the only one of `offers` names."""
        one = offers[0]
        if len(offers) > 1:
            places = " and ".join(sorted(offer.value for offer in offers))
            raise UserError(f"{self.kind} {one.name!r} is offered by two packages, as {places}; uninstall one")
        try:
            made: type = one.load()
        except Exception as error:  # whatever a module of somebody else raises
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            what = f"{one.value}, which an installed package offers, cannot be imported"
            raise UserError(f"{self.kind} {one.name!r}: {what} ({reason})") from error
        return made


def _place(made: type) -> str:
    """Where a class comes from."""
    return f"{getattr(made, '__module__', '')}:{getattr(made, '__qualname__', repr(made))}"
