"""Word errors: the fewest words to substitute, delete and insert (Levenshtein distance) that make a text a reference.

Words are separated by white space and compared as written.

Shapes: H texts, R words of a reference.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Edit = tuple[str, str, str]  # equal, substituted, deleted or inserted; the word of the reference; that of the text


def distances(reference: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """Word errors (H,) of texts: the fewest words to substitute, delete and insert; words are what spaces part."""
    said, read = reference.split(), [text.split() for text in texts]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(said))}
    target = np.array([numbers[word] for word in said], dtype=np.int64)
    lengths = np.array([len(words) for words in read])
    tokens = np.full((len(read), max(lengths, default=0)), -1)
    for row, words in enumerate(read):
        tokens[row, : len(words)] = [numbers.get(word, -1) for word in words]
    places = np.arange(len(said) + 1)
    costs = np.tile(places, (len(read), 1))  # of the words read so far to each beginning of what was said
    for step in range(tokens.shape[1]):
        after = costs + 1  # a word too many
        after[:, 1:] = np.minimum(after[:, 1:], costs[:, :-1] + (tokens[:, step, None] != target))
        after = np.minimum.accumulate(after - places, axis=1) + places  # omitted words
        costs = np.where((step < lengths)[:, None], after, costs)
    return costs[:, -1].astype(np.int64)


def align(reference: str, text: str) -> list[Edit]:
    """The edits of a best alignment, in order; where several are as good, pairs come before omitted or added words."""
    said, read = reference.split(), text.split()
    costs = np.add.outer(np.arange(len(said) + 1), np.arange(len(read) + 1))
    for i, word in enumerate(said, 1):
        for j, other in enumerate(read, 1):
            costs[i, j] = min(costs[i - 1, j - 1] + (word != other), costs[i - 1, j] + 1, costs[i, j - 1] + 1)
    edits: list[Edit] = []
    i, j = len(said), len(read)
    while i or j:
        if i and j and costs[i, j] == costs[i - 1, j - 1] + (said[i - 1] != read[j - 1]):
            i, j = i - 1, j - 1
            edits.append(("equal" if said[i] == read[j] else "substituted", said[i], read[j]))
        elif i and costs[i, j] == costs[i - 1, j] + 1:
            i -= 1
            edits.append(("deleted", said[i], ""))
        else:
            j -= 1
            edits.append(("inserted", "", read[j]))
    return edits[::-1]
