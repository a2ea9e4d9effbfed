"""Options that give a number to all of something, NUMBER, or to one of it by its name, NAME=NUMBER."""

from collections.abc import Iterable, Sequence

from factorcell.limits import MAX_FLOAT, UserError, choose


def parse_assignment(option: str, text: str) -> tuple[str, float]:
    """`text` as a name, empty for all, and a number from 0 on; `UserError` where it is neither form."""
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_FLOAT:
        raise UserError(f"{option} is {text!r}; it must be NUMBER or NAME=NUMBER, of numbers from 0 on")
    return name, value


def variable_numbers(option: str, given: Iterable[str], names: Sequence[str]) -> list[float]:
    """The number of each of the variables `names`, from what the `option` says; 0 where it says nothing.

    `UserError` for a name that no variable has.
    """
    known = dict(parse_assignment(option, text) for text in given)
    for name in known.keys() - {"", *names}:
        choose(f"variable in {option}", name, names)
    return [known.get(name, known.get("", 0.0)) for name in names]
