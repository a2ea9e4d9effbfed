"""Typing errors (typos): the texts y whose beginning x' may have been meant by what is typed, x.

    log p(y | x) = log p(y) - cost(x', x) - log Z        cost = typos(x', x) SLIP, and FIRST if the first tokens differ

A slip is a token too many, one too few, a wrong one, or two neighbours in the wrong order; typos(x', x) is the optimal
string alignment distance (Damerau 1964), that of a text the least of all its beginnings. With j tokens of x', i of x

    d(j, i) = min( d(j-1, i-1) + [x'_j != x_i],  d(j-1, i) + 1,  d(j, i-1) + 1,
                   d(j-2, i-2) + 1  where x'_j = x_{i-1} and x'_{j-1} = x_i )

of which only |i - j| <= D is ever within D typos: a band. A beginning is settled once all texts that go on from it have
as many typos. Settled beginnings part the texts, so that no text comes twice.

Shapes: M beginnings, D typos at most, W = 2 D + 1 places of the band, V vocabulary, B hypotheses.
"""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import limits
from factorcell.completion.search import PrefixState, Stop, Suggestion
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run

Ints = NDArray[np.int64]
TypoCounts = NDArray[np.int8]
Logs = NDArray[np.float64]
Flags = NDArray[np.bool_]

TYPO_COST = 9.0  # nats that a slip costs: one keystroke in a hundred is a slip, in one of some eighty ways
FIRST_TOKEN_COST = 2.0  # nats more where the first token is another: people look at what they begin with
ONE, TWO = 3, 6  # tokens that must be typed for one slip, for two
ROWS = 600  # hypotheses put through the model, to find what may have been meant
BEST = 6  # beginnings from which the search goes on


@dataclass(frozen=True)
class TypoCosts:
    """How many typos are forgiven at `most` (0, 1 or 2), and the nats that they `cost`.

    Of a model's texts: `rows` hypotheses are read to find what may have been meant, of which the `best` are finished.
    """

    max_typos: int = 2
    cost: float = TYPO_COST
    first_token_cost: float = FIRST_TOKEN_COST
    max_rows: int = ROWS
    max_corrections: int = BEST

    def __post_init__(self) -> None:
        limits.check(typos=self.max_typos)

    @classmethod
    def of(cls, typos: "int | TypoCosts") -> "TypoCosts":
        return typos if isinstance(typos, TypoCosts) else cls(typos)

    def max_typos_for(self, length: int) -> int:
        """Return how many typos are forgiven in `length` typed tokens."""
        return min(self.max_typos, int(length >= ONE) + int(length >= TWO))

    def costs(self, counts: TypoCounts, strange: Flags) -> Logs:
        """Return the nats (M,) that typos cost; where `strange`, the first token is another."""
        return counts * self.cost + strange * self.first_token_cost


@dataclass(frozen=True)
class Band:
    """What is known of M beginnings of one length: a row of d(j, i) and the row before, least typos and first tokens.

    `now` and `before` (M, W), more than D as D + 1; `last` (M,) tokens; `best` (M,) the fewest typos of any beginning
    that matches all that is typed; `strange` (M,): the first token is not the typed one.
    """

    now: TypoCounts
    before: TypoCounts
    last: Ints
    complete_typos: TypoCounts
    first_token_differs: Flags

    def select(self, which: Ints) -> "Band":
        return Band(
            self.now[which],
            self.before[which],
            self.last[which],
            self.complete_typos[which],
            self.first_token_differs[which],
        )

    @property
    def min_typos(self) -> TypoCounts:
        """A bound (M,): the fewest typos that a text which goes on from here can have."""
        fewest: TypoCounts = np.minimum(self.now.min(1), self.complete_typos)
        return fewest

    @property
    def settled(self) -> Flags:
        """(M,) Whether all texts that go on have `best` typos; more than D is no match at all."""
        settled: Flags = self.now.min(1) >= self.complete_typos
        return settled


class Pattern:
    """What is typed, a number of at least 0 for each token, against beginnings that grow by a token at a time."""

    def __init__(self, typed: Sequence[int], most: int) -> None:
        self.length, self.most = len(typed), most
        self.padded = np.array([-1, *typed, -1], dtype=np.int64)
        self.offsets = np.arange(-most, most + 1)

    def start(self) -> Band:
        row = np.where(self._outside(0), self.most + 1, np.abs(self.offsets)).astype(np.int8)[None]
        return Band(row, np.full_like(row, self.most + 1), np.array([-2]), self._whole(row, 0), np.zeros(1, bool))

    def extend(self, band: Band, parents: Ints, tokens: Ints, length: int) -> Band:
        """Return the band of `parents` (M,) of `band`, each with one more of `tokens` (M,): `length` tokens in all."""
        old, most = band.select(parents), self.most
        here, earlier = self._typed(length), self._typed(length - 1)
        row = old.now + (tokens[:, None] != here)
        row[:, :-1] = np.minimum(row[:, :-1], old.now[:, 1:] + 1)
        swapped = (tokens[:, None] == earlier) & (old.last[:, None] == here)
        row = np.where(swapped, np.minimum(row, old.before + 1), row)
        row[:, self._outside(length)] = most + 1
        for place in range(1, row.shape[1]):
            row[:, place] = np.minimum(row[:, place], row[:, place - 1] + 1)
        row[:, self._outside(length)] = most + 1
        row = np.minimum(row, most + 1).astype(np.int8)
        strange = tokens != self.padded[1] if length == 1 else old.first_token_differs
        return Band(row, old.now, tokens, np.minimum(old.complete_typos, self._whole(row, length)), strange)

    def near(self, length: int) -> Ints:
        """Return the typed tokens that the last one of `length` may match."""
        return np.unique(self._typed(length)[~self._outside(length) & (length + self.offsets > 0)])

    def _typed(self, length: int) -> Ints:
        """(W,) The typed token of each place of the band, -1 where there is none."""
        return self.padded[np.clip(length + self.offsets, 0, self.length + 1)]

    def _outside(self, length: int) -> Flags:
        places = length + self.offsets
        return (places < 0) | (places > self.length)

    def _whole(self, row: TypoCounts, length: int) -> TypoCounts:
        """TypoCosts (M,) where all that is typed is matched here."""
        place = self.length - length + self.most
        return row[:, place] if 0 <= place < row.shape[1] else np.full(len(row), self.most + 1, dtype=np.int8)


@dataclass(frozen=True)
class Correction:
    """A beginning x' of `tokens` that may have been meant, by so many `typos`: `log_probability` is log p(x') - cost.

    `ended`: it is meant as a whole text, and its end is in the log probability.
    """

    tokens: tuple[str, ...]
    typos: int
    log_probability: float
    is_whole_text: bool


@dataclass(frozen=True)
class Corrections:
    """The most probable beginnings, the `best` first; `mass`: the log of the sum of all that were seen.

    `typed` is the log probability of what is typed as it stands, `rows` what was put through the model.
    """

    corrections: tuple[Correction, ...]
    log_total: float
    typed_log_probability: float
    rows: int


def find_corrections(
    run: Run,
    tokens: Sequence[str],
    typed: PrefixState,
    typos: TypoCosts,
    *,
    max_tokens: int,
    deadline: float | None = None,
    stop: Stop | None = None,
) -> Corrections:
    """Return settled beginnings of at most `longest` tokens with a slip at least that may be meant by `tokens`.

    A beam search expands the most probable hypotheses of each length, `typos.rows` in all, until time is up.
    A token that is not in the vocabulary may be meant near where it was typed; the model reads it as the unknown token.
    """
    model, tokenizer = run.model, run.tokenizer
    end = math.inf if deadline is None else deadline
    as_typed = sum(float(logs[0, token]) for logs, token in zip(typed.logs, typed.ids, strict=False))
    most = typos.max_typos_for(len(tokens))
    if not most:
        return Corrections((), -math.inf, as_typed, 0)
    known = set(tokenizer.tokens)
    names = [*tokenizer.tokens, *dict.fromkeys(token for token in tokens if token not in known)]
    numbers = {name: number for number, name in enumerate(names) if number not in model.specials}
    beam = _Beam(model, typed, Pattern([numbers[token] for token in tokens], most), typos)
    width = typos.max_rows // (len(tokens) + most)
    for length in range(1, min(len(tokens) + most, max_tokens) + 1):
        if not width or time.monotonic() >= end or (stop and stop.is_set) or not beam.grow(length, width):
            break
    chosen = heapq.nlargest(typos.max_corrections, beam.found, key=lambda one: one[0])
    texts = (Correction(tuple(names[token] for token in ids), count, log, ended) for log, ids, count, ended in chosen)
    return Corrections(tuple(texts), beam.mass, as_typed, beam.rows)


class _Beam:
    """Hypotheses of one length: their tokens (numbers of V and more are unknown ones), bands and log probabilities.

    `found` are the best that match: log probability less cost, tokens, typos, whether the text ends.
    """

    def __init__(self, model: LanguageModel, typed: PrefixState, pattern: Pattern, typos: TypoCosts) -> None:
        self.model, self.conditioning = model, typed.conditioning
        self.pattern, self.typos = pattern, typos
        self.ids: list[tuple[int, ...]] = [()]
        self.band, self.scores = pattern.start(), np.zeros(1)
        self.logs, self.state = typed.logs[0], typed.states[0]
        self.found: list[tuple[float, tuple[int, ...], int, bool]] = []
        self.mass, self.rows = -math.inf, 0

    def grow(self, length: int, width: int) -> bool:
        """Put the best `width` of `length` tokens through the model; whether there are any."""
        parents, tokens, logs = self._children(self.pattern.near(length), width)
        scores = self.scores[parents] + logs
        band = self.pattern.extend(self.band, parents, tokens, length)
        texts = [(*self.ids[parent], token) for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
        self._note(band, scores, band.settled, texts, ended=False)
        bounds = scores - self.typos.costs(band.min_typos, band.first_token_differs)
        going = np.flatnonzero(~band.settled)
        going = going[np.argsort(-bounds[going], kind="stable")[:width]]
        if not going.size:
            return False
        self.band, self.scores, self.ids = band.select(going), scores[going], [texts[row] for row in going]
        device, size = self.model.device, self.model.vocabulary_size
        before = torch.from_numpy(parents[going]).to(device)
        read = torch.from_numpy(np.where(tokens[going] < size, tokens[going], self.model.specials.unknown)).to(device)
        state = self.state.select(before)
        self.logs, self.state = self.model.step(read, self.conditioning, state)
        self.rows += len(going)
        ends = self.scores + self.logs[:, self.model.specials.end].cpu().double().numpy()
        self._note(self.band, ends, ~self.band.settled, self.ids, ended=True)
        return True

    def _children(self, near: Ints, width: int) -> tuple[Ints, Ints, Logs]:
        """Parents, tokens and log probabilities of what may come next: typed tokens, and of all others the best.

        One wrong token is as good a match as another, so that of a parent's more than `width` are never kept.
        """
        logs = self.logs.cpu().double().numpy()
        count, size = logs.shape
        specials = self.model.specials
        real = np.setdiff1d(np.arange(size), specials)
        likely = real[np.argsort(-logs[:, real], axis=1, kind="stable")[:, :width]]
        both = np.concatenate([likely, np.broadcast_to(near, (count, len(near)))], axis=1)
        parents = np.repeat(np.arange(count), both.shape[1])
        codes = np.unique(parents * (size + self.pattern.length) + both.ravel())
        parents, tokens = np.divmod(codes, size + self.pattern.length)
        return parents, tokens, logs[parents, np.where(tokens < size, tokens, specials.unknown)]

    def _note(self, band: Band, scores: Logs, which: Flags, texts: Sequence[tuple[int, ...]], *, ended: bool) -> None:
        """Take in `which` of the beginnings match with typos: the mass of all, the best themselves."""
        rows = np.flatnonzero(which & (band.complete_typos >= 1) & (band.complete_typos <= self.pattern.most))
        values = scores[rows] - self.typos.costs(band.complete_typos[rows], band.first_token_differs[rows])
        self.mass = float(np.logaddexp.reduce(values, initial=self.mass))
        for place in np.argsort(-values, kind="stable")[: self.typos.max_corrections].tolist():
            row = int(rows[place])
            self.found.append((float(values[place]), texts[row], int(band.complete_typos[row]), ended))


def merge_corrections(
    exact: Iterable[Suggestion],
    meanings: Corrections,
    finish: Callable[[Correction, float], Iterable[Suggestion]],
    k: int,
) -> list[Suggestion]:
    """Return the `k` most probable texts where typos are possible, those of `exact` first.

    `finish` returns the best texts of a beginning whose log probabilities, given that beginning, are above a number.
    The log probabilities of the result are given what is typed.
    """
    every = float(np.logaddexp(meanings.typed_log_probability, meanings.log_total))
    as_typed = meanings.typed_log_probability - every
    kept = [replace(text, log_probability=text.log_probability + as_typed) for text in exact]
    for one in meanings.corrections:
        share, least = one.log_probability - every, kept[-1].log_probability if len(kept) == k else -math.inf
        if share <= least:
            break  # nothing that goes on from here, or from what is less probable, is better
        found = finish(one, least - share)
        slipped = [replace(text, log_probability=text.log_probability + share, typos=one.typos) for text in found]
        distinct: dict[str, Suggestion] = {}  # each text with the fewest typos
        for text in sorted([*kept, *slipped], key=lambda text: (text.typos, -text.log_probability)):
            distinct.setdefault(text.text, text)
        kept = heapq.nlargest(k, distinct.values(), key=lambda text: text.log_probability)
    return most_probable(kept, k)


def most_probable(texts: Iterable[Suggestion], k: int) -> list[Suggestion]:
    """Return the `k` most probable texts, those without typos first."""
    return sorted(heapq.nlargest(k, texts, key=lambda text: text.log_probability), key=lambda text: text.typos > 0)
