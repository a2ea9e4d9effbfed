"""The error about a mistake in the input of a user, and checks that raise it."""

import difflib
from collections.abc import Iterable
from typing import Any

CONTINUE_ANYWAY = "to continue anyway"


class UserError(ValueError):
    """The error about a mistake in the user's input: one line that says where, what is wrong, and what is valid.

    Args:
        message: The line without the remedies.
        remedies: Options that solve the problem, as pairs of name and value; the value True stands for a flag.
        outcome: The end of the sentence about the remedies: what they achieve, such as "to continue anyway".
    """

    def __init__(
        self, message: str = "", remedies: Iterable[tuple[str, str | bool]] = (), outcome: str = CONTINUE_ANYWAY
    ) -> None:
        super().__init__(message)
        self.message, self.remedies, self.outcome = message, tuple(remedies), outcome

    def __str__(self) -> str:
        literals = [(name, "True" if value is True else f'"{value}"') for name, value in self.remedies]
        return self._message_with([f"{name}={literal}" for name, literal in literals])

    def as_command(self) -> str:
        """Return the message with the remedies as flags of the command line."""
        flags = [(f"--{name.replace('_', '-')}", value) for name, value in self.remedies]
        return self._message_with([flag if value is True else f"{flag} {value}" for flag, value in flags])

    def with_message(self, message: str) -> "UserError":
        """Return an error of the same class with another message and the same remedies."""
        return type(self)(message, self.remedies, self.outcome)

    def _message_with(self, remedy_texts: list[str]) -> str:
        return f"{self.message}; {' or '.join(remedy_texts)} {self.outcome}" if remedy_texts else self.message


def check_choice(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return `name` if it is one of the `valid` names, or raise a `UserError` that lists them and suggests one."""
    names = list(valid)
    if name in names:
        return name
    known = f"choose from {', '.join(map(str, names))}" if names else "there is none to choose"
    raise UserError(f"unknown {kind} {name!r}{nearest_hint(name, names)}; {known}")


def nearest_hint(name: Any, valid: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the valid name most similar to `name`, or "" if none is similar."""
    nearest = similar_names(name, valid, 1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def similar_names(name: Any, valid: Iterable[str], count: int) -> list[str]:
    """Return up to `count` valid names that are similar to `name`, first those that differ only in case."""
    if not isinstance(name, str):
        return []
    valid = [other for other in valid if isinstance(other, str)]
    equal = [other for other in valid if other.casefold() == name.casefold()]
    return list(dict.fromkeys([*equal, *difflib.get_close_matches(name, valid, n=count)]))[:count]


def check_format(number: Any, newest: int, where: object) -> None:
    """Raise `UserError`, which names the file `where`, unless its format `number` is from 1 to `newest`."""
    if type(number) is not int or number < 1:
        raise UserError(f"{where}: damaged (its format is {number!r:.40}; expected a whole number of at least 1)")
    if number > newest:
        raise UserError(f"{where}: its format is {number}, but this version reads up to {newest}; upgrade factorcell")
