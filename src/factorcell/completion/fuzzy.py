"""Lookup of popular texts, or of the texts of a history, that begin with a prefix apart from typing errors.

A range is a pair (begin, end) of row numbers of the sorted texts.

Shapes: N texts, M ranges of texts.
"""

import numpy as np

from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Suggestion
from factorcell.completion.typos import Band, Flags, Ints, Pattern, TypoCosts, TypoCounts
from factorcell.data.canonical import canonical_prefix

# Begins, ends, typos, and whether the first character differs from the first typed one; each (M,).
Ranges = tuple[Ints, Ints, TypoCounts, Flags]


class TypoTolerantLookup:
    """Completion from the texts of a `Popularity` or `History` that begin with the prefix or with a correction of it.

    The sorted texts are an implicit trie. A node is a range of texts that share their first characters. Its children
    are the smaller ranges of texts that also share the next character.
    """

    def __init__(self, lookup: Popularity | History, typos: int | TypoCosts = 2) -> None:
        """Index the texts of `lookup`.

        Args:
            lookup: The counted texts.
            typos: Maximum number of typing errors to forgive (0, 1 or 2), or their costs.

        Raises:
            UserError: The number of typos is out of range.
        """
        self.lookup, self.typo_costs = lookup, TypoCosts.of(typos)
        shares = lookup.shares()
        self.texts = sorted(shares)
        self.logs = np.log([shares[text] for text in self.texts])
        self.lengths = np.array([len(text) for text in self.texts], dtype=np.int64)
        self.begins = np.cumsum(self.lengths) - self.lengths
        # The characters of all texts as numbers, one text after the other; a text begins at its entry of `begins`.
        points = np.frombuffer("".join(self.texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.alphabet, letters = np.unique(points, return_inverse=True)
        self.letters = letters.astype(np.min_scalar_type(len(self.alphabet)))
        shared = self._shared_lengths()
        # `cuts[levels[d] : levels[d + 1]]` are the rows of the texts that share d characters with the text before.
        self.cuts = np.argsort(shared, kind="stable")
        self.levels = np.searchsorted(shared[self.cuts], np.arange(self.lengths.max(initial=0) + 2))

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the best `k` texts: those that begin with `prefix`, then those that begin with a correction of it.

        Texts with typos are ordered by the logarithm of their share minus the cost of their typos.

        Args:
            prefix: The typed text.
            k: Maximum number of suggestions.
        """
        exact = self.lookup.complete(prefix, k)
        prefix = canonical_prefix(prefix)
        if len(exact) == k or not self.texts or not self.typo_costs.max_typos_for(len(prefix)):
            return exact
        matches = self._find_matches(prefix)
        begins, ends, counts, first_differs = (np.concatenate(parts) for parts in zip(*matches, strict=True))
        rows, sizes = _concatenated_ranges(begins, ends), ends - begins
        scores = self.logs[rows] - np.repeat(self.typo_costs.costs(counts, first_differs), sizes)
        typos = np.repeat(counts, sizes)
        best = np.lexsort((rows, -scores))[: k - len(exact)]
        return exact + [
            Suggestion(self.texts[row], score, self.lookup.source, count)
            for row, score, count in zip(rows[best].tolist(), scores[best].tolist(), typos[best].tolist(), strict=True)
        ]

    def _shared_lengths(self) -> Ints:
        """Return the length of the beginning that each text shares with the text before it (N,); -1 for the first."""
        shared, rows, depth = np.zeros(len(self.texts), dtype=np.int64), np.arange(1, len(self.texts)), 0
        shared[:1] = -1
        while rows.size:
            rows = rows[np.minimum(self.lengths[rows], self.lengths[rows - 1]) > depth]
            rows = rows[self.letters[self.begins[rows] + depth] == self.letters[self.begins[rows - 1] + depth]]
            depth += 1
            shared[rows] = depth
        return shared

    def _find_matches(self, prefix: str) -> list[Ranges]:
        """Return disjoint ranges of texts that begin with a correction of `prefix` with at least one typo."""
        max_typos = self.typo_costs.max_typos_for(len(prefix))
        points = np.array([ord(letter) for letter in prefix], dtype=np.int64)
        letters = np.searchsorted(self.alphabet, points)
        in_alphabet = np.isin(points, self.alphabet)
        pattern = Pattern(np.where(in_alphabet, letters, len(self.alphabet)).tolist(), max_typos)
        band, matches = pattern.start(), list[Ranges]()

        def add_matches(candidates: Flags, begins: Ints, ends: Ints, band: Band) -> None:
            rows = candidates & (band.whole_prefix_typos >= 1) & (band.whole_prefix_typos <= max_typos)
            matches.append((begins[rows], ends[rows], band.whole_prefix_typos[rows], band.first_token_differs[rows]))

        begins, ends = np.zeros(1, dtype=np.int64), np.array([len(self.texts)])  # ranges that are not settled yet
        for length in range(1, len(prefix) + max_typos + 1):
            parents, begins, ends = self._children(begins, ends, length - 1)
            is_whole = self.lengths[begins] < length  # the range is a single text, which has fewer characters
            add_matches(is_whole, begins, begins + 1, band.select(parents))
            parents, begins, ends = parents[~is_whole], begins[~is_whole], ends[~is_whole]
            tokens = self.letters[self.begins[begins] + length - 1].astype(np.int64)
            band = pattern.extend(band, parents, tokens, length)
            settled = band.is_settled
            add_matches(settled, begins, ends, band)
            band, begins, ends = band.select(np.flatnonzero(~settled)), begins[~settled], ends[~settled]
            if not begins.size:
                break
        return matches

    def _children(self, begins: Ints, ends: Ints, depth: int) -> tuple[Ints, Ints, Ints]:
        """Split ranges (M,) whose texts share `depth` characters by the next character.

        Returns:
            For each child: the index of its parent among the ranges, its begin and its end.
        """
        cuts = self.cuts[self.levels[depth] : self.levels[depth + 1]]
        low, high = np.searchsorted(cuts, begins, side="right"), np.searchsorted(cuts, ends)
        parents = np.repeat(np.arange(len(begins)), high - low + 1)
        inner = cuts[_concatenated_ranges(low, high)]
        starts, stops = np.sort(np.concatenate([begins, inner])), np.sort(np.concatenate([inner, ends]))
        return parents, starts, stops


def _concatenated_ranges(begins: Ints, ends: Ints) -> Ints:
    """Return the row numbers in all ranges, one range after the other."""
    sizes = ends - begins
    ranges: Ints = np.arange(sizes.sum()) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
    return ranges
