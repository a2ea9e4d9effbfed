"""Suggested texts, and lists of them that do not depend on how many are requested."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from factorcell.options.limits import NUMBER_LIMITS

MIN_PROPOSALS = 10  # minimum number of texts that each source of a blend proposes, as in the lists that fit its weights
MAX_COUNT = int(NUMBER_LIMITS["count"].high)


@dataclass(frozen=True)
class Suggestion:
    """A suggested text.

    Attributes:
        text: The whole text, including the prefix.
        log_probability: The log probability of the text given the prefix, according to `source`.
        source: The sources that propose the text, such as `model` or `model+history`.
        typos: Number of typing errors in the prefix if the user intends this text; 0 if it begins with the prefix.
        parts: Source of a blend -> the number that it adds to the score of the text; empty without a blend.
    """

    text: str
    log_probability: float
    source: str
    typos: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


def sizes_of_rounds(k: int) -> list[int]:
    """Return the sizes of the lists that `merge_rounds` merges: 10, 20, 40 and so on, until a size is at least `k`."""
    sizes = [MIN_PROPOSALS]
    while sizes[-1] < k:
        sizes.append(min(2 * sizes[-1], MAX_COUNT))
    return sizes


def merge_rounds(best_of_proposals: Callable[[int], Iterable[Suggestion]], k: int) -> list[Suggestion]:
    """Return the best `k` texts; the list for a smaller `k` is the beginning of the list for a larger one.

    The probabilities of all texts depend on how many texts are proposed. The texts are therefore proposed in several
    rounds, with the sizes of `sizes_of_rounds`. Each round appends its new texts to the list, with probabilities no
    higher than those of the texts before.

    Args:
        best_of_proposals: Returns the best texts among as many proposals as its argument says.
        k: Maximum number of texts.
    """
    merged: dict[str, Suggestion] = {}
    for size in sizes_of_rounds(k):
        max_log_prob = min((suggestion.log_probability for suggestion in merged.values()), default=0.0)
        for suggestion in best_of_proposals(size):
            capped = replace(suggestion, log_probability=min(suggestion.log_probability, max_log_prob))
            merged.setdefault(suggestion.text, capped)
    return list(merged.values())[:k]
