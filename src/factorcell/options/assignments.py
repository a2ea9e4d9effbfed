"""Parsing of options that set a number for all variables (NUMBER) or for one variable (NAME=NUMBER)."""

from collections.abc import Iterable, Sequence

from factorcell.errors import UserError, check_choice
from factorcell.options.limits import MAX_FLOAT


def parse_assignment(option: str, text: str) -> tuple[str, float]:
    """Parse `text` into a variable name (empty: all variables) and a nonnegative number.

    Raises:
        UserError: `text` is neither NUMBER nor NAME=NUMBER; the message names the `option`.
    """
    name, _, number_text = text.rpartition("=")
    try:
        number = float(number_text)
    except ValueError:
        number = -1.0  # the next line refuses negative numbers
    if not 0 <= number <= MAX_FLOAT:
        raise UserError(f"{option}: expected NUMBER or NAME=NUMBER with a number of at least 0, got {text!r}")
    return name, number


def parse_assignments(option: str, texts: Iterable[str], variables: Sequence[str]) -> list[float]:
    """Return the number that `texts` set for each of the `variables`; 0 for a variable that no text sets.

    Raises:
        UserError: One of the `texts` cannot be parsed or names an unknown variable.
    """
    numbers = dict(parse_assignment(option, text) for text in texts)
    for name in numbers.keys() - {"", *variables}:
        check_choice(f"variable in {option}", name, variables)
    default = numbers.get("", 0.0)
    return [numbers.get(name, default) for name in variables]
