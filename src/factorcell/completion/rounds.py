"""How many texts are looked at, whoever asks for how many: a list of more texts begins with the list of fewer.

What a source proposes weighs in what is said of all other texts (floors, rests, shares), and which of them take a slip
depends on how many there is room for. So texts come in rounds, the first of the best `PROPOSED`, the next of twice as
many: each adds what is new in it, and who asks for k texts gets the first k of as many rounds as have them.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from factorcell.completion.search import Suggestion
from factorcell.limits import NUMBERS

PROPOSED = 10  # texts that each source proposes at least: as many as when the weights of a blend are fitted
MOST = int(NUMBERS["count"].high)


def sizes(k: int) -> list[int]:
    """The texts of each round that is made for `k`: 10, 20, 40, up to the first that is not below `k`."""
    found = [PROPOSED]
    while found[-1] < k:
        found.append(min(2 * found[-1], MOST))
    return found


def in_rounds(best: Callable[[int], Iterable[Suggestion]], k: int) -> list[Suggestion]:
    """The first `k` texts of all rounds, of which `best` gives the one of a size; none is surer than one before it."""
    kept: dict[str, Suggestion] = {}
    for size in sizes(k):
        least = min((one.log_probability for one in kept.values()), default=0.0)
        for one in best(size):
            kept.setdefault(one.text, replace(one, log_probability=min(one.log_probability, least)))
    return list(kept.values())[:k]
