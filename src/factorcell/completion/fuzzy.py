"""Lookup of the popular texts, or the texts of a history, that begin with a prefix or with a correction of it.

A range is a pair (start, end) of row numbers of the sorted texts.

Shapes: N texts, M ranges of texts.
"""

import numpy as np

from factorcell.completion.popularity import History, Popularity
from factorcell.completion.suggestions import Suggestion
from factorcell.completion.typos import Band, Flags, Ints, TypedPrefix, TypoCosts, TypoCounts
from factorcell.data.text_folds import same_prefix

# For each range: start, end, number of typos, and whether the first character differs from the first typed one (M,).
Ranges = tuple[Ints, Ints, TypoCounts, Flags]


class TypoTolerantLookup:
    """Completion from the texts of a `Popularity` or `History` that begin with the prefix or with a correction of it.

    The sorted texts are an implicit trie. A node is a range of texts that share their first characters. The children of
    a node are the smaller ranges of texts that also share the next character.
    """

    def __init__(self, lookup: Popularity | History, typos: int | TypoCosts = 2) -> None:
        """Index the texts of `lookup`.

        Args:
            lookup: The popular texts or the history, with the share of each text.
            typos: Maximum number of typing errors to forgive (0, 1 or 2), or their costs.

        Raises:
            UserError: The number of typos is out of range.
        """
        self.lookup, self.typo_costs = lookup, TypoCosts.of(typos)
        shares = lookup.shares()
        self.texts = sorted(shares)
        self.log_shares = np.log([shares[text] for text in self.texts])
        self.lengths = np.array([len(text) for text in self.texts], dtype=np.int64)
        # `characters` has the characters of all texts, one text after the other, as indices of the sorted `alphabet`.
        # The text in a row of `texts` starts at the entry of `text_starts` in the same row.
        self.text_starts = np.cumsum(self.lengths) - self.lengths
        code_points = np.frombuffer("".join(self.texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.alphabet, characters = np.unique(code_points, return_inverse=True)
        self.characters = characters.astype(np.min_scalar_type(len(self.alphabet)))
        # A range of texts that share d characters is split before each text that shares only d with the text before it.
        # The rows of these texts are `split_rows[level_starts[d] : level_starts[d + 1]]`.
        shared_lengths = self._shared_lengths()
        self.split_rows = np.argsort(shared_lengths, kind="stable")
        levels = np.arange(self.lengths.max(initial=0) + 2)
        self.level_starts = np.searchsorted(shared_lengths[self.split_rows], levels)

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the best `k` texts: those that begin with `prefix`, then those that begin with a correction of it.

        Texts with typos are ordered by the logarithm of their share minus the cost of their typos.

        Args:
            prefix: The typed text.
            k: Maximum number of suggestions.
        """
        exact = self.lookup.complete(prefix, k)
        prefix = same_prefix(prefix)
        if len(exact) == k or not self.texts or not self.typo_costs.max_typos_for(len(prefix)):
            return exact
        matches = self._find_matches(prefix)
        starts, ends, range_typos, first_differs = (np.concatenate(columns) for columns in zip(*matches, strict=True))
        rows, sizes = _concatenated_ranges(starts, ends), ends - starts
        scores = self.log_shares[rows] - np.repeat(self.typo_costs.costs(range_typos, first_differs), sizes)
        typos = np.repeat(range_typos, sizes)
        best = np.lexsort((rows, -scores))[: k - len(exact)]
        best_columns = rows[best].tolist(), scores[best].tolist(), typos[best].tolist()
        return exact + [
            Suggestion(self.texts[row], score, self.lookup.source, typo_count)
            for row, score, typo_count in zip(*best_columns, strict=True)
        ]

    def _shared_lengths(self) -> Ints:
        """Return how many first characters each text shares with the text before it (N,); -1 for the first text."""
        shared_lengths = np.zeros(len(self.texts), dtype=np.int64)
        shared_lengths[:1] = -1
        rows, depth = np.arange(1, len(self.texts)), 0  # the texts that share `depth` characters
        while rows.size:
            rows = rows[np.minimum(self.lengths[rows], self.lengths[rows - 1]) > depth]
            characters = self.characters[self.text_starts[rows] + depth]
            characters_before = self.characters[self.text_starts[rows - 1] + depth]
            rows = rows[characters == characters_before]
            depth += 1
            shared_lengths[rows] = depth
        return shared_lengths

    def _find_matches(self, prefix: str) -> list[Ranges]:
        """Return disjoint ranges of texts that begin with a correction of `prefix` with at least one typo."""
        max_typos = self.typo_costs.max_typos_for(len(prefix))
        code_points = np.array([ord(character) for character in prefix], dtype=np.int64)
        indices = np.searchsorted(self.alphabet, code_points)
        is_in_alphabet = np.isin(code_points, self.alphabet)
        typed_prefix = TypedPrefix(np.where(is_in_alphabet, indices, len(self.alphabet)).tolist(), max_typos)
        band, matches = typed_prefix.start(), list[Ranges]()

        def add_matches(is_candidate: Flags, starts: Ints, ends: Ints, band: Band) -> None:
            """Add those candidates among the ranges that match the prefix with one typo or more."""
            typos = band.whole_prefix_typos
            is_match = is_candidate & (typos >= 1) & (typos <= max_typos)
            matches.append((starts[is_match], ends[is_match], typos[is_match], band.first_token_differs[is_match]))

        starts, ends = np.zeros(1, dtype=np.int64), np.array([len(self.texts)])  # ranges that are not settled yet
        for length in range(1, len(prefix) + max_typos + 1):
            parents, starts, ends = self._children(starts, ends, length - 1)
            is_whole_text = self.lengths[starts] < length  # the range has a single text, which ends here
            add_matches(is_whole_text, starts, starts + 1, band.select(parents))
            parents, starts, ends = parents[~is_whole_text], starts[~is_whole_text], ends[~is_whole_text]
            last_characters = self.characters[self.text_starts[starts] + length - 1].astype(np.int64)
            band = typed_prefix.extend(band, parents, last_characters, length)
            is_settled = band.is_settled
            add_matches(is_settled, starts, ends, band)
            band, starts, ends = band.select(np.flatnonzero(~is_settled)), starts[~is_settled], ends[~is_settled]
            if not starts.size:
                break
        return matches

    def _children(self, starts: Ints, ends: Ints, depth: int) -> tuple[Ints, Ints, Ints]:
        """Split ranges (M,), in each of which the texts share `depth` characters, by the next character.

        Returns:
            For each child: the index of its parent among the ranges, its start and its end.
        """
        split_rows = self.split_rows[self.level_starts[depth] : self.level_starts[depth + 1]]
        # The split rows inside a range are those after its start and before its end.
        first, last = np.searchsorted(split_rows, starts, side="right"), np.searchsorted(split_rows, ends)
        parents = np.repeat(np.arange(len(starts)), last - first + 1)
        inner_rows = split_rows[_concatenated_ranges(first, last)]
        child_starts = np.sort(np.concatenate([starts, inner_rows]))
        child_ends = np.sort(np.concatenate([inner_rows, ends]))
        return parents, child_starts, child_ends


def _concatenated_ranges(starts: Ints, ends: Ints) -> Ints:
    """Return the numbers in all ranges, one range after the other."""
    sizes = ends - starts
    positions = np.cumsum(sizes) - sizes  # where the numbers of each range begin in the result
    numbers: Ints = np.arange(sizes.sum()) + np.repeat(starts - positions, sizes)
    return numbers
