"""Parsing of options that set a number for all variables (NUMBER) or for one variable (NAME=NUMBER)."""

from collections.abc import Iterable, Sequence

from factorcell.limits import MAX_FLOAT, UserError, choose


def parse_assignment(option: str, text: str) -> tuple[str, float]:
    """Parse `text` into a variable name (empty: all variables) and a nonnegative number.

    Raises:
        UserError: `text` is neither NUMBER nor NAME=NUMBER; the message names the `option`.
    """
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_FLOAT:
        raise UserError(f"{option}: expected NUMBER or NAME=NUMBER with a number of at least 0, got {text!r}")
    return name, value


def variable_numbers(option: str, texts: Iterable[str], names: Sequence[str]) -> list[float]:
    """Return the number of each variable in `names`, in their order; 0 for a variable that `texts` do not set.

    Raises:
        UserError: One of the `texts` cannot be parsed or names an unknown variable.
    """
    numbers = dict(parse_assignment(option, text) for text in texts)
    for name in numbers.keys() - {"", *names}:
        choose(f"variable in {option}", name, names)
    return [numbers.get(name, numbers.get("", 0.0)) for name in names]
