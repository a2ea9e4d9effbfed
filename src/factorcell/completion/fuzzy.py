"""Counted texts, those too that begin with what may have been meant: with a slip or two in what is typed.

Shapes: N texts, M ranges of them.
"""

import numpy as np

from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Suggestion
from factorcell.completion.typos import Band, Flags, Ints, Pattern, TypoCosts, TypoCounts
from factorcell.data.canonical import canonical_prefix

Ranges = tuple[Ints, Ints, TypoCounts, Flags]  # where they begin and end, typos, whether the first letter is another


class TypoTolerantLookup:
    """Completion from counted texts whose beginning may differ from what is typed by a few typing errors.

    It is an implicit trie: the texts in alphabetical order, and the places where neighbours begin to differ. So the
    children of a range of texts with one beginning are the parts into which these places cut it.
    """

    def __init__(self, counted: Popularity | History, typos: int | TypoCosts = 2) -> None:
        self.counted, self.typos = counted, TypoCosts.of(typos)
        shares = counted.shares()
        self.texts = sorted(shares)
        self.logs = np.log([shares[text] for text in self.texts])
        self.lengths = np.array([len(text) for text in self.texts], dtype=np.int64)
        self.begins = np.cumsum(self.lengths) - self.lengths
        points = np.frombuffer("".join(self.texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.alphabet, letters = np.unique(points, return_inverse=True)
        self.letters = letters.astype(np.min_scalar_type(len(self.alphabet)))
        shared = self._shared()
        self.cuts = np.argsort(shared, kind="stable")
        self.levels = np.searchsorted(shared[self.cuts], np.arange(self.lengths.max(initial=0) + 2))

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the `k` best that begin with `prefix`, then the best corrections: log share less cost."""
        exact = self.counted.complete(prefix, k)
        prefix = canonical_prefix(prefix)
        if len(exact) == k or not self.texts or not self.typos.max_typos_for(len(prefix)):
            return exact
        found = self._walk(prefix)
        begins, ends, counts, strange = (np.concatenate(parts) for parts in zip(*found, strict=True))
        rows, sizes = _ranges(begins, ends), ends - begins
        scores = self.logs[rows] - np.repeat(self.typos.costs(counts, strange), sizes)
        typos = np.repeat(counts, sizes)
        best = np.lexsort((rows, -scores))[: k - len(exact)]
        return exact + [
            Suggestion(self.texts[row], score, self.counted.source, count)
            for row, score, count in zip(rows[best].tolist(), scores[best].tolist(), typos[best].tolist(), strict=True)
        ]

    def _shared(self) -> Ints:
        """(N,) How many characters each text shares with the one before it, by alphabet; -1 for the first."""
        shared, alike, depth = np.zeros(len(self.texts), dtype=np.int64), np.arange(1, len(self.texts)), 0
        shared[:1] = -1
        while alike.size:
            alike = alike[np.minimum(self.lengths[alike], self.lengths[alike - 1]) > depth]
            alike = alike[self.letters[self.begins[alike] + depth] == self.letters[self.begins[alike - 1] + depth]]
            depth += 1
            shared[alike] = depth
        return shared

    def _walk(self, prefix: str) -> list[Ranges]:
        """Disjoint ranges of the texts that `prefix` may mean, their typos, whether their first letter is another."""
        most = self.typos.max_typos_for(len(prefix))
        points = np.array([ord(letter) for letter in prefix], dtype=np.int64)
        letters = np.searchsorted(self.alphabet, points)
        known = np.isin(points, self.alphabet)
        pattern = Pattern(np.where(known, letters, len(self.alphabet)).tolist(), most)
        band, found = pattern.start(), list[Ranges]()

        def note(which: Flags, begins: Ints, ends: Ints, band: Band) -> None:
            which = which & (band.complete_typos >= 1) & (band.complete_typos <= most)
            found.append((begins[which], ends[which], band.complete_typos[which], band.first_token_differs[which]))

        begins, ends = np.zeros(1, dtype=np.int64), np.array([len(self.texts)])  # the texts that are not settled
        for length in range(1, len(prefix) + most + 1):
            parents, begins, ends = self._children(begins, ends, length - 1)
            over = self.lengths[begins] < length  # a text of its own: it ends
            note(over, begins, begins + 1, band.select(parents))
            parents, begins, ends = parents[~over], begins[~over], ends[~over]
            band = pattern.extend(
                band, parents, self.letters[self.begins[begins] + length - 1].astype(np.int64), length
            )
            settled = band.settled
            note(settled, begins, ends, band)
            band, begins, ends = band.select(np.flatnonzero(~settled)), begins[~settled], ends[~settled]
            if not begins.size:
                break
        return found

    def _children(self, begins: Ints, ends: Ints, depth: int) -> tuple[Ints, Ints, Ints]:
        """Parents and ranges of what ranges (M,) of texts with one beginning of `depth` letters fall into."""
        cuts = self.cuts[self.levels[depth] : self.levels[depth + 1]]
        low, high = np.searchsorted(cuts, begins, side="right"), np.searchsorted(cuts, ends)
        parents = np.repeat(np.arange(len(begins)), high - low + 1)
        inner = cuts[_ranges(low, high)]
        starts, stops = np.sort(np.concatenate([begins, inner])), np.sort(np.concatenate([inner, ends]))
        return parents, starts, stops


def _ranges(begins: Ints, ends: Ints) -> Ints:
    """All whole numbers of some ranges, one range after the other."""
    sizes = ends - begins
    ranges: Ints = np.arange(sizes.sum()) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
    return ranges
