"""Typing errors: corrections of a typed prefix, and the texts that begin with one of them.

The *beginnings* of a text are its first tokens, in any number. A correction x' of the typed prefix x is a beginning of
a text y that the user may have intended:

    log p(y | x) = log p(y) - cost(x', x) - log Z
    cost(x', x)  = typos(x', x) * TYPO_COST, plus FIRST_TOKEN_COST if the first tokens differ

Z makes the probabilities of all texts y sum to 1. A typo is a token that was inserted, omitted or replaced, or two
neighbouring tokens that were swapped. typos(x', x) is the optimal string alignment distance (Damerau 1964). The number
of typos of a text is the smallest distance of any of its beginnings. The distance d(j, i) between the first j tokens of
x' and the first i tokens of x is

    d(j, i) = min( d(j-1, i-1) + [x'_j != x_i],  d(j-1, i) + 1,  d(j, i-1) + 1,
                   d(j-2, i-2) + 1  where x'_j = x_{i-1} and x'_{j-1} = x_i )

D typos at most are forgiven, and only the band |i - j| <= D can contain distances of at most D. A beginning is
*settled* if all texts that begin with it have the same number of typos. The search does not extend settled beginnings,
so it finds no text twice.

Shapes: M beginnings, D maximum of typos, W = 2 D + 1 positions of the band, V vocabulary.
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

TYPO_COST = 9.0  # nats per typo, about -log(0.01 / 80): one keystroke in 100 is wrong, in one of some 80 ways
FIRST_TOKEN_COST = 2.0  # additional nats if the first token differs, since users rarely mistype it
ONE_TYPO_FROM, TWO_TYPOS_FROM = 3, 6  # minimum lengths of prefixes, in tokens, in which one or two typos are forgiven
MAX_EXPANDED = 600  # maximum number of hypotheses that the model reads to find corrections
MAX_CORRECTIONS = 6  # maximum number of corrections that the search completes


@dataclass(frozen=True)
class TypoCosts:
    """Number and cost of the typos that completion forgives.

    Attributes:
        max_typos: Maximum number of forgiven typos: 0, 1 or 2.
        cost: Nats per typo.
        first_token_cost: Additional nats if the first token differs.
        max_expanded: Maximum number of hypotheses that the model reads to find corrections.
        max_corrections: Maximum number of corrections that the search completes.
    """

    max_typos: int = 2
    cost: float = TYPO_COST
    first_token_cost: float = FIRST_TOKEN_COST
    max_expanded: int = MAX_EXPANDED
    max_corrections: int = MAX_CORRECTIONS

    def __post_init__(self) -> None:
        limits.check(typos=self.max_typos)

    @classmethod
    def of(cls, typos: "int | TypoCosts") -> "TypoCosts":
        """Return `typos` if it is a `TypoCosts`, otherwise the default costs with this maximum number of typos."""
        return typos if isinstance(typos, TypoCosts) else cls(typos)

    def max_typos_for(self, length: int) -> int:
        """Return the maximum number of typos that are forgiven in a prefix of `length` tokens."""
        return min(self.max_typos, int(length >= ONE_TYPO_FROM) + int(length >= TWO_TYPOS_FROM))

    def costs(self, counts: TypoCounts, first_token_differs: Flags) -> Logs:
        """Return the cost in nats (M,) of corrections with `counts` typos (M,)."""
        return counts * self.cost + first_token_differs * self.first_token_cost


@dataclass(frozen=True)
class Band:
    """Distances between the typed prefix and M beginnings of texts, which all have the same number j of tokens.

    Attributes:
        row: d(j, i) for the i of the band (M, W); values above D are stored as D + 1.
        previous_row: d(j-1, i) for the i of the band of j - 1 (M, W).
        last_tokens: The last token of each beginning (M,).
        complete_typos: The smallest distance of each beginning, or of its own beginnings, to the whole prefix (M,).
        first_token_differs: Whether the first token of each beginning differs from the first typed one (M,).
    """

    distances: TypoCounts
    previous_distances: TypoCounts
    last_tokens: Ints
    whole_prefix_typos: TypoCounts
    first_token_differs: Flags

    def select(self, rows: Ints) -> "Band":
        return Band(
            self.distances[rows],
            self.previous_distances[rows],
            self.last_tokens[rows],
            self.whole_prefix_typos[rows],
            self.first_token_differs[rows],
        )

    @property
    def min_typos(self) -> TypoCounts:
        """A lower bound (M,) of the number of typos of texts that begin with each beginning."""
        min_typos: TypoCounts = np.minimum(self.distances.min(1), self.whole_prefix_typos)
        return min_typos

    @property
    def is_settled(self) -> Flags:
        """Whether all texts with each beginning have `complete_typos` typos (M,); more than D means no match."""
        settled: Flags = self.distances.min(1) >= self.whole_prefix_typos
        return settled


class Pattern:
    """The typed prefix, which is compared with beginnings of texts token by token; tokens are numbers from 0 on."""

    def __init__(self, tokens: Sequence[int], max_typos: int) -> None:
        self.length, self.max_typos = len(tokens), max_typos
        self.padded = np.array([-1, *tokens, -1], dtype=np.int64)
        self.offsets = np.arange(-max_typos, max_typos + 1)

    def start(self) -> Band:
        """Return the distances between the typed prefix and the empty beginning of every text (M = 1)."""
        row = np.where(self._outside(0), self.max_typos + 1, np.abs(self.offsets)).astype(np.int8)[None]
        previous_row = np.full_like(row, self.max_typos + 1)
        return Band(row, previous_row, np.array([-2]), self._complete(row, 0), np.zeros(1, bool))

    def extend(self, band: Band, parents: Ints, tokens: Ints, length: int) -> Band:
        """Return the distances of longer beginnings: row `parents[m]` of `band` followed by the token `tokens[m]`.

        Args:
            band: The distances of beginnings of `length` - 1 tokens.
            parents: Rows of `band` (M,), which may repeat.
            tokens: The token that follows each (M,).
            length: The number of tokens of the new beginnings.
        """
        parent, limit = band.select(parents), self.max_typos + 1
        typed, previously_typed = self._typed(length), self._typed(length - 1)
        row = parent.distances + (tokens[:, None] != typed)
        row[:, :-1] = np.minimum(row[:, :-1], parent.distances[:, 1:] + 1)
        swapped = (tokens[:, None] == previously_typed) & (parent.last_tokens[:, None] == typed)
        row = np.where(swapped, np.minimum(row, parent.previous_distances + 1), row)
        row[:, self._outside(length)] = limit  # the loop must not start from positions outside the prefix
        for position in range(1, row.shape[1]):
            row[:, position] = np.minimum(row[:, position], row[:, position - 1] + 1)
        row[:, self._outside(length)] = limit
        row = np.minimum(row, limit).astype(np.int8)
        complete_typos = np.minimum(parent.whole_prefix_typos, self._complete(row, length))
        first_token_differs = tokens != self.padded[1] if length == 1 else parent.first_token_differs
        return Band(row, parent.distances, tokens, complete_typos, first_token_differs)

    def nearby_tokens(self, length: int) -> Ints:
        """Return the typed tokens with which the last token of a beginning of `length` tokens is compared."""
        return np.unique(self._typed(length)[~self._outside(length) & (length + self.offsets > 0)])

    def _typed(self, length: int) -> Ints:
        """Return the typed token at each position of the band of `length` (W,); -1 outside the prefix."""
        return self.padded[np.clip(length + self.offsets, 0, self.length + 1)]

    def _outside(self, length: int) -> Flags:
        """Return whether each position of the band of `length` is outside the prefix (W,)."""
        positions = length + self.offsets
        return (positions < 0) | (positions > self.length)

    def _complete(self, row: TypoCounts, length: int) -> TypoCounts:
        """Return the distances (M,) of beginnings with `length` tokens and the band row `row` to the whole prefix."""
        position = self.length - length + self.max_typos
        in_band = 0 <= position < row.shape[1]
        return row[:, position] if in_band else np.full(len(row), self.max_typos + 1, dtype=np.int8)


@dataclass(frozen=True)
class Correction:
    """A correction of a typed prefix.

    Attributes:
        tokens: The tokens of the correction x'.
        typos: The number of typos.
        log_probability: log p(x') minus the cost of the typos.
        is_whole_text: Whether the correction is a complete text; its log probability then includes the end token.
    """

    tokens: tuple[str, ...]
    typos: int
    log_probability: float
    is_whole_text: bool


@dataclass(frozen=True)
class Corrections:
    """The most probable corrections of a prefix.

    Attributes:
        corrections: The corrections, the most probable first.
        log_total: Logarithm of the sum of the probabilities of all corrections that the search found.
        typed_log_probability: Log probability of the prefix as typed.
        rows: Number of hypotheses that the model has read.
    """

    corrections: tuple[Correction, ...]
    log_total: float
    typed_log_probability: float
    expanded_count: int


def find_corrections(
    run: Run,
    tokens: Sequence[str],
    prefix_state: PrefixState,
    typo_costs: TypoCosts,
    *,
    max_tokens: int,
    deadline: float | None = None,
    stop: Stop | None = None,
) -> Corrections:
    """Return the most probable corrections of the typed `tokens` that have at least one typo.

    A beam search extends beginnings of texts token by token until they are settled. It retains the most probable ones
    of each length and ends at the deadline. A correction may contain out-of-vocabulary tokens near the place where they
    were typed; the model reads them as the unknown token.

    Args:
        run: The run.
        tokens: The typed tokens.
        prefix_state: The state of the plain search for these tokens.
        typo_costs: The number and cost of forgiven typos, and limits of the search.
        max_tokens: Maximum number of tokens of a correction.
        deadline: When to end, as a value of `time.monotonic()`.
        stop: Ends the search early.
    """
    model, tokenizer = run.model, run.tokenizer
    end = math.inf if deadline is None else deadline
    typed_log = sum(
        float(logs[0, token]) for logs, token in zip(prefix_state.log_probs, prefix_state.ids, strict=False)
    )
    max_typos = typo_costs.max_typos_for(len(tokens))
    if not max_typos:
        return Corrections((), -math.inf, typed_log, 0)
    vocabulary = set(tokenizer.tokens)
    names = [
        *tokenizer.tokens,
        *dict.fromkeys(token for token in tokens if token not in vocabulary),
    ]  # V and up: out of vocabulary
    numbers = {name: number for number, name in enumerate(names) if number not in model.specials}
    beam = _Beam(model, prefix_state, Pattern([numbers[token] for token in tokens], max_typos), typo_costs)
    width = typo_costs.max_expanded // (len(tokens) + max_typos)
    for length in range(1, min(len(tokens) + max_typos, max_tokens) + 1):
        if not width or time.monotonic() >= end or (stop and stop.is_set) or not beam.extend(length, width):
            break
    best = heapq.nlargest(typo_costs.max_corrections, beam.matches, key=lambda match: match[0])
    corrections = (
        Correction(tuple(names[token] for token in ids), count, log, whole) for log, ids, count, whole in best
    )
    return Corrections(tuple(corrections), beam.log_total, typed_log, beam.expanded_count)


class _Beam:
    """Beginnings of texts of one length, with their tokens, distances to the typed prefix and log probabilities.

    Token numbers from V on are typed tokens that are out of vocabulary. `matches` holds the best corrections as (log
    probability minus cost, tokens, typos, whether the correction is a whole text).
    """

    def __init__(
        self, model: LanguageModel, prefix_state: PrefixState, pattern: Pattern, typo_costs: TypoCosts
    ) -> None:
        self.model, self.conditioning = model, prefix_state.conditioning
        self.pattern, self.typo_costs = pattern, typo_costs
        self.ids: list[tuple[int, ...]] = [()]
        self.band, self.scores = pattern.start(), np.zeros(1)
        self.logs, self.state = prefix_state.log_probs[0], prefix_state.states[0]
        self.matches: list[tuple[float, tuple[int, ...], int, bool]] = []
        self.log_total, self.expanded_count = -math.inf, 0

    def extend(self, length: int, width: int) -> bool:
        """Extend the beginnings to `length` tokens, read the best `width`, and return whether any is not settled."""
        parents, tokens, logs = self._children(self.pattern.nearby_tokens(length), width)
        scores = self.scores[parents] + logs
        band = self.pattern.extend(self.band, parents, tokens, length)
        beginnings = [
            (*self.ids[parent], token) for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)
        ]
        self._add_matches(band, scores, band.is_settled, beginnings, whole_text=False)
        bounds = scores - self.typo_costs.costs(band.min_typos, band.first_token_differs)
        open_rows = np.flatnonzero(~band.is_settled)
        open_rows = open_rows[np.argsort(-bounds[open_rows], kind="stable")[:width]]
        if not open_rows.size:
            return False
        self.band, self.scores = band.select(open_rows), scores[open_rows]
        self.ids = [beginnings[row] for row in open_rows]
        device, size = self.model.device, self.model.vocabulary_size
        parent_rows = torch.from_numpy(parents[open_rows]).to(device)
        known_tokens = np.where(tokens[open_rows] < size, tokens[open_rows], self.model.specials.unknown)
        state = self.state.select(parent_rows)
        self.logs, self.state = self.model.step(torch.from_numpy(known_tokens).to(device), self.conditioning, state)
        self.expanded_count += len(open_rows)
        text_scores = self.scores + self.logs[:, self.model.specials.end].cpu().double().numpy()
        self._add_matches(self.band, text_scores, ~self.band.is_settled, self.ids, whole_text=True)
        return True

    def _children(self, nearby_tokens: Ints, width: int) -> tuple[Ints, Ints, Logs]:
        """Return parents, next tokens and log probabilities of the extended beginnings.

        Next tokens are the `nearby_tokens` of the typed prefix and the `width` most probable tokens. Other tokens are
        not needed: all wrong tokens match equally well, so at most the `width` most probable ones stay in the beam.
        """
        logs = self.logs.cpu().double().numpy()
        count, size = logs.shape
        specials = self.model.specials
        regular = np.setdiff1d(np.arange(size), specials)
        likely = regular[np.argsort(-logs[:, regular], axis=1, kind="stable")[:, :width]]
        both = np.concatenate([likely, np.broadcast_to(nearby_tokens, (count, len(nearby_tokens)))], axis=1)
        parents = np.repeat(np.arange(count), both.shape[1])
        # A code is a pair of parent and token as one number, which removes pairs that occur twice.
        codes = np.unique(parents * (size + self.pattern.length) + both.ravel())
        parents, tokens = np.divmod(codes, size + self.pattern.length)
        return parents, tokens, logs[parents, np.where(tokens < size, tokens, specials.unknown)]

    def _add_matches(
        self, band: Band, scores: Logs, candidates: Flags, beginnings: Sequence[tuple[int, ...]], *, whole_text: bool
    ) -> None:
        """Add the candidates that match the prefix with one typo or more: all to `log_total`, the best to `matches`."""
        typos = band.whole_prefix_typos
        rows = np.flatnonzero(candidates & (typos >= 1) & (typos <= self.pattern.max_typos))
        values = scores[rows] - self.typo_costs.costs(typos[rows], band.first_token_differs[rows])
        self.log_total = float(np.logaddexp.reduce(values, initial=self.log_total))
        for index in np.argsort(-values, kind="stable")[: self.typo_costs.max_corrections].tolist():
            row = int(rows[index])
            self.matches.append((float(values[index]), beginnings[row], int(typos[row]), whole_text))


def merge_corrections(
    exact: Iterable[Suggestion],
    corrections: Corrections,
    complete: Callable[[Correction, float], Iterable[Suggestion]],
    k: int,
) -> list[Suggestion]:
    """Return the `k` most probable texts among `exact` and the completed corrections, those without typos first.

    Args:
        exact: Texts that begin with the typed prefix, with their log probabilities given the prefix.
        corrections: The corrections of the prefix.
        complete: Called with a correction and a minimum; returns the texts that begin with the correction and whose log
            probability given the correction exceeds the minimum.
        k: Number of texts.

    Returns:
        The texts, with their log probabilities given the typed prefix.
    """
    log_total = float(np.logaddexp(corrections.typed_log_probability, corrections.log_total))
    exact_share = corrections.typed_log_probability - log_total
    best = [replace(text, log_probability=text.log_probability + exact_share) for text in exact]
    for correction in corrections.corrections:
        share = correction.log_probability - log_total
        min_log_prob = best[-1].log_probability if len(best) == k else -math.inf
        if share <= min_log_prob:
            break  # no text of this correction, or of a less probable one, can be among the best k
        corrected = [
            replace(text, log_probability=text.log_probability + share, typos=correction.typos)
            for text in complete(correction, min_log_prob - share)
        ]
        distinct: dict[str, Suggestion] = {}  # text -> its suggestion with the fewest typos
        for text in sorted([*best, *corrected], key=lambda text: (text.typos, -text.log_probability)):
            distinct.setdefault(text.text, text)
        best = heapq.nlargest(k, distinct.values(), key=lambda text: text.log_probability)
    return most_probable(best, k)


def most_probable(texts: Iterable[Suggestion], k: int) -> list[Suggestion]:
    """Return the `k` most probable texts, those without typos first."""
    return sorted(heapq.nlargest(k, texts, key=lambda text: text.log_probability), key=lambda text: text.typos > 0)
