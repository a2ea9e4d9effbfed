"""Typing errors: corrections of a typed prefix, and the texts that begin with one of them.

A *beginning* of a text consists of its first tokens, however many. A correction x' of the typed prefix x is a beginning
of a text y that the user may have intended:

    log p(y | x) = log p(y) - cost(x', x) - log Z
    cost(x', x)  = typos(x', x) * TYPO_COST, plus FIRST_TOKEN_COST if the first tokens differ

Z makes the probabilities of all texts y sum to 1. A typo is a token that the user inserted, omitted or replaced, or two
neighbouring tokens that the user swapped. typos(x', x) is the optimal string alignment distance (Damerau 1964). The
number of typos of a text is the smallest distance between one of its beginnings and x. The distance d(j, i) between the
first j tokens of x' and the first i tokens of x is

    d(j, i) = min( d(j-1, i-1) + [x'_j != x_i],  d(j-1, i) + 1,  d(j, i-1) + 1,
                   d(j-2, i-2) + 1  where x'_j = x_{i-1} and x'_{j-1} = x_i )

At most D typos are forgiven. Distances of at most D occur only in the *band* |i - j| <= D. A beginning is *settled* if
all texts that begin with it have the same number of typos, or more than D. The search does not extend settled
beginnings, so it finds no text twice.

Shapes: M beginnings, D maximum number of typos, W = 2 D + 1 positions of the band, V vocabulary.
"""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.completion.search import Ids, PrefixState, Stop
from factorcell.completion.suggestions import Suggestion
from factorcell.ngram.mixture import Predictor
from factorcell.options import limits
from factorcell.runs.run import Run

Ints = NDArray[np.int64]
TypoCounts = NDArray[np.int8]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TYPO_COST = 9.0  # nats per typo, -log(0.01 / 80) if one keystroke in 100 is wrong, in one of about 80 ways
FIRST_TOKEN_COST = 2.0  # additional nats if the first token differs, since users rarely mistype it
ONE_TYPO_FROM, TWO_TYPOS_FROM = 3, 6  # minimum tokens of a prefix in which one typo or two typos are forgiven
MAX_EXPANDED = 600  # maximum number of hypotheses that the model reads to find corrections
MAX_CORRECTIONS = 6  # maximum number of corrections whose completions are suggested


@dataclass(frozen=True)
class TypoCosts:
    """Number and cost of the typos that completion forgives.

    Attributes:
        max_typos: Maximum number of forgiven typos: 0, 1 or 2.
        cost: Nats per typo.
        first_token_cost: Additional nats if the first token differs.
        max_expanded: Maximum number of hypotheses that the model reads to find corrections.
        max_corrections: Maximum number of corrections whose completions are suggested.
    """

    max_typos: int = 2
    cost: float = TYPO_COST
    first_token_cost: float = FIRST_TOKEN_COST
    max_expanded: int = MAX_EXPANDED
    max_corrections: int = MAX_CORRECTIONS

    def __post_init__(self) -> None:
        limits.make_plain(self)
        limits.check(typos=self.max_typos)
        for name in ("cost", "first_token_cost"):
            limits.Limits(0, limits.MAX_FLOAT, whole=False).check(name, getattr(self, name))
        for name in ("max_expanded", "max_corrections"):
            limits.Limits(0).check(name, getattr(self, name))

    @classmethod
    def of(cls, typos: "int | TypoCosts") -> "TypoCosts":
        """Return `typos` if it is a `TypoCosts`, otherwise the default costs with this maximum number of typos."""
        return typos if isinstance(typos, TypoCosts) else cls(typos)

    def max_typos_for(self, length: int) -> int:
        """Return the maximum number of typos that are forgiven in a prefix of `length` tokens."""
        return min(self.max_typos, int(length >= ONE_TYPO_FROM) + int(length >= TWO_TYPOS_FROM))

    def costs(self, typos: TypoCounts, first_token_differs: Flags) -> Floats:
        """Return the cost in nats (M,) of corrections with `typos` typos (M,)."""
        return typos * self.cost + first_token_differs * self.first_token_cost


@dataclass(frozen=True)
class Band:
    """Distances between the typed prefix and M beginnings of texts, which all have the same number j of tokens.

    Attributes:
        distances: d(j, i) for the i of the band (M, W); distances above D are stored as D + 1.
        previous_distances: d(j-1, i) for the i of the band of j - 1 (M, W).
        last_tokens: The last token of each beginning (M,).
        whole_prefix_typos: For each beginning, the smallest distance between the whole prefix and the first tokens of
            the beginning, however many (M,).
        first_token_differs: Whether the first token of each beginning differs from the first typed one (M,).
    """

    distances: TypoCounts
    previous_distances: TypoCounts
    last_tokens: Ints
    whole_prefix_typos: TypoCounts
    first_token_differs: Flags

    def select(self, rows: Ints) -> "Band":
        """Return the distances of the beginnings at `rows`, which may repeat."""
        return Band(
            self.distances[rows],
            self.previous_distances[rows],
            self.last_tokens[rows],
            self.whole_prefix_typos[rows],
            self.first_token_differs[rows],
        )

    @property
    def min_typos(self) -> TypoCounts:
        """For each beginning, a lower bound of the number of typos of all texts that begin with it (M,)."""
        min_typos: TypoCounts = np.minimum(self.distances.min(1), self.whole_prefix_typos)
        return min_typos

    @property
    def is_settled(self) -> Flags:
        """Whether all texts that begin with a beginning have its `whole_prefix_typos` typos (M,)."""
        is_settled: Flags = self.distances.min(1) >= self.whole_prefix_typos
        return is_settled


class TypedPrefix:
    """The typed prefix, which is compared with beginnings of texts token by token; tokens are numbers from 0 on."""

    def __init__(self, tokens: Sequence[int], max_typos: int) -> None:
        self.length, self.max_typos = len(tokens), max_typos
        self.padded_tokens = np.array([-1, *tokens, -1], dtype=np.int64)
        self.offsets = np.arange(-max_typos, max_typos + 1)

    def start(self) -> Band:
        """Return the distances between the typed prefix and the empty beginning of every text (M = 1)."""
        too_many = self.max_typos + 1
        distances = np.where(self._is_outside(0), too_many, np.abs(self.offsets)).astype(np.int8)[None]
        no_token = np.array([-2])  # differs from all tokens and from the padding of the prefix
        whole_prefix_typos = self._whole_prefix_distances(distances, 0)
        return Band(distances, np.full_like(distances, too_many), no_token, whole_prefix_typos, np.zeros(1, bool))

    def extend(self, band: Band, parents: Ints, tokens: Ints, length: int) -> Band:
        """Return the distances of longer beginnings: row `parents[m]` of `band` followed by the token `tokens[m]`.

        Args:
            band: The distances of beginnings of `length` - 1 tokens.
            parents: Rows of `band` (M,), which may repeat.
            tokens: The token that follows each (M,).
            length: The number of tokens of the new beginnings.
        """
        parent_band, too_many = band.select(parents), self.max_typos + 1
        typed, previously_typed = self._typed_tokens(length), self._typed_tokens(length - 1)
        is_swap = (tokens[:, None] == previously_typed) & (parent_band.last_tokens[:, None] == typed)
        is_outside = self._is_outside(length)
        # i - j is constant at each position of a band: d(j-1, i-1) has the position of d(j, i), d(j-1, i) the next one.
        distances = parent_band.distances + (tokens[:, None] != typed)
        distances[:, :-1] = np.minimum(distances[:, :-1], parent_band.distances[:, 1:] + 1)
        distances = np.where(is_swap, np.minimum(distances, parent_band.previous_distances + 1), distances)
        distances[:, is_outside] = too_many  # the loop must not start from positions outside the prefix
        for position in range(1, distances.shape[1]):
            distances[:, position] = np.minimum(distances[:, position], distances[:, position - 1] + 1)
        distances[:, is_outside] = too_many
        distances = np.minimum(distances, too_many).astype(np.int8)
        whole_prefix_distances = self._whole_prefix_distances(distances, length)
        whole_prefix_typos = np.minimum(parent_band.whole_prefix_typos, whole_prefix_distances)
        first_token_differs = tokens != self.padded_tokens[1] if length == 1 else parent_band.first_token_differs
        return Band(distances, parent_band.distances, tokens, whole_prefix_typos, first_token_differs)

    def nearby_tokens(self, length: int) -> Ints:
        """Return the typed tokens with which the last token of a beginning of `length` tokens is compared."""
        is_typed = ~self._is_outside(length) & (length + self.offsets > 0)
        return np.unique(self._typed_tokens(length)[is_typed])

    def _typed_tokens(self, length: int) -> Ints:
        """Return the typed token at each position of the band of `length` (W,); -1 outside the prefix."""
        return self.padded_tokens[np.clip(length + self.offsets, 0, self.length + 1)]

    def _is_outside(self, length: int) -> Flags:
        """Return whether each position of the band of `length` is outside the prefix (W,)."""
        positions = length + self.offsets
        return (positions < 0) | (positions > self.length)

    def _whole_prefix_distances(self, distances: TypoCounts, length: int) -> TypoCounts:
        """Select from the band of `length` (M, W) the distances to the whole prefix (M,); D + 1 outside the band."""
        position = self.length - length + self.max_typos
        is_in_band = 0 <= position < distances.shape[1]
        return distances[:, position] if is_in_band else np.full(len(distances), self.max_typos + 1, dtype=np.int8)


@dataclass(frozen=True)
class Correction:
    """A correction of a typed prefix.

    Attributes:
        tokens: The tokens of the correction x'.
        typos: The number of typos in the typed prefix.
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
        expanded_count: Number of hypotheses that the model has read.
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

    A beam search extends beginnings of texts token by token until they are settled. It retains the most probable
    beginnings of each length and ends at the deadline. A correction may contain out-of-vocabulary tokens near the place
    where the user typed them; the model reads them as the unknown token.

    Args:
        run: The run.
        tokens: The typed tokens.
        prefix_state: The state of the search in PyTorch after these tokens.
        typo_costs: The number and cost of forgiven typos, and limits of the search.
        max_tokens: Maximum number of tokens of a correction.
        deadline: When to end the search, as a value of `time.monotonic()`.
        stop: Ends the search early.
    """
    model, tokenizer = run.predictor, run.tokenizer
    end_time = math.inf if deadline is None else deadline
    typed_log_probs = zip(prefix_state.log_probs, prefix_state.ids, strict=False)
    typed_log_probability = sum(float(log_probs[0, token]) for log_probs, token in typed_log_probs)
    max_typos = typo_costs.max_typos_for(len(tokens))
    if not max_typos:
        return Corrections((), -math.inf, typed_log_probability, expanded_count=0)
    vocabulary = set(tokenizer.tokens)
    unknown_tokens = dict.fromkeys(token for token in tokens if token not in vocabulary)
    token_of_number = [*tokenizer.tokens, *unknown_tokens]  # numbers from V on are out-of-vocabulary tokens
    number_of_token = {token: number for number, token in enumerate(token_of_number) if number not in model.specials}
    typed_prefix = TypedPrefix([number_of_token[token] for token in tokens], max_typos)
    beam = _Beam(model, token_of_number, prefix_state, typed_prefix, typo_costs)
    max_length = len(tokens) + max_typos
    width = typo_costs.max_expanded // max_length
    for length in range(1, min(max_length, max_tokens) + 1):
        is_stopped = stop is not None and stop.is_set
        if not width or time.monotonic() >= end_time or is_stopped or not beam.extend(length, width):
            break
    best = heapq.nlargest(typo_costs.max_corrections, beam.corrections, key=lambda entry: entry.log_probability)
    return Corrections(tuple(best), beam.log_total, typed_log_probability, beam.expanded_count)


class _Beam:
    """Beginnings of texts of one length, with their tokens, distances to the typed prefix and log probabilities.

    Tokens are indices of `token_of_number`; those from V on are typed tokens that are out of vocabulary. `corrections`
    has the best corrections so far, and `log_total` the logarithm of the sum of the probabilities of all corrections.
    """

    def __init__(
        self,
        model: Predictor,
        token_of_number: Sequence[str],
        prefix_state: PrefixState,
        typed_prefix: TypedPrefix,
        typo_costs: TypoCosts,
    ) -> None:
        self.model, self.token_of_number, self.conditioning = model, token_of_number, prefix_state.conditioning
        self.typed_prefix, self.typo_costs = typed_prefix, typo_costs
        self.ids: list[Ids] = [()]
        self.band, self.scores = typed_prefix.start(), np.zeros(1)
        self.next_log_probs, self.state = prefix_state.log_probs[0], prefix_state.states[0]
        self.corrections: list[Correction] = []
        self.log_total, self.expanded_count = -math.inf, 0

    def extend(self, length: int, width: int) -> bool:
        """Extend the beginnings to `length` tokens and read the best `width`; return False if all are settled."""
        parents, tokens, log_probs = self._children(self.typed_prefix.nearby_tokens(length), width)
        scores = self.scores[parents] + log_probs
        band = self.typed_prefix.extend(self.band, parents, tokens, length)
        children = zip(parents.tolist(), tokens.tolist(), strict=True)
        beginnings = [(*self.ids[parent], token) for parent, token in children]
        self._add_corrections(band, scores, band.is_settled, beginnings, is_whole_text=False)
        bounds = scores - self.typo_costs.costs(band.min_typos, band.first_token_differs)
        open_rows = np.flatnonzero(~band.is_settled)
        open_rows = open_rows[np.argsort(-bounds[open_rows], kind="stable")[:width]]
        if not open_rows.size:
            return False
        self.band, self.scores = band.select(open_rows), scores[open_rows]
        self.ids = [beginnings[row] for row in open_rows]
        device, vocabulary_size = self.model.device, self.model.vocabulary_size
        parent_states = self.state.select(torch.from_numpy(parents[open_rows]).to(device))
        open_tokens = tokens[open_rows]
        known_tokens = np.where(open_tokens < vocabulary_size, open_tokens, self.model.specials.unknown)
        inputs = torch.from_numpy(known_tokens).to(device)
        self.next_log_probs, self.state = self.model.step(inputs, self.conditioning, parent_states)
        self.expanded_count += len(open_rows)
        whole_text_scores = self.scores + self.next_log_probs[:, self.model.specials.end].cpu().double().numpy()
        self._add_corrections(self.band, whole_text_scores, ~self.band.is_settled, self.ids, is_whole_text=True)
        return True

    def _children(self, nearby_tokens: Ints, width: int) -> tuple[Ints, Ints, Floats]:
        """Return the parent, the last token and its log probability for each beginning that is longer by one token.

        The last token is one of the `nearby_tokens` of the typed prefix or of the `width` most probable tokens. All
        tokens that are not nearby match the prefix equally badly, so only the `width` most probable stay in the beam.
        """
        log_probs = self.next_log_probs.cpu().double().numpy()
        parent_count, vocabulary_size = log_probs.shape
        regular_tokens = np.setdiff1d(np.arange(vocabulary_size), self.model.specials)
        order = np.argsort(-log_probs[:, regular_tokens], axis=1, kind="stable")
        likely_tokens = regular_tokens[order[:, :width]]
        repeated_nearby_tokens = np.broadcast_to(nearby_tokens, (parent_count, len(nearby_tokens)))
        tokens_of_parents = np.concatenate([likely_tokens, repeated_nearby_tokens], axis=1)
        parents = np.repeat(np.arange(parent_count), tokens_of_parents.shape[1])
        # A code is a pair of parent and token as one number, so `np.unique` removes repeated pairs.
        token_limit = vocabulary_size + self.typed_prefix.length
        codes = np.unique(parents * token_limit + tokens_of_parents.ravel())
        parents, tokens = np.divmod(codes, token_limit)
        known_tokens = np.where(tokens < vocabulary_size, tokens, self.model.specials.unknown)
        return parents, tokens, log_probs[parents, known_tokens]

    def _add_corrections(
        self, band: Band, log_probs: Floats, is_candidate: Flags, beginnings: Sequence[Ids], *, is_whole_text: bool
    ) -> None:
        """Add the candidates with 1 to D typos: all of them to `log_total`, and the best to `corrections`."""
        typos = band.whole_prefix_typos
        rows = np.flatnonzero(is_candidate & (typos >= 1) & (typos <= self.typed_prefix.max_typos))
        scores = log_probs[rows] - self.typo_costs.costs(typos[rows], band.first_token_differs[rows])
        self.log_total = float(np.logaddexp.reduce(scores, initial=self.log_total))
        for index in np.argsort(-scores, kind="stable")[: self.typo_costs.max_corrections].tolist():
            row = int(rows[index])
            tokens = tuple(self.token_of_number[number] for number in beginnings[row])
            self.corrections.append(Correction(tokens, int(typos[row]), float(scores[index]), is_whole_text))


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
        complete: Returns the texts that begin with its first argument, a correction, and whose log probability given
            that correction exceeds its second argument.
        k: Maximum number of texts.

    Returns:
        The texts, with their log probabilities given the typed prefix.
    """
    log_total = float(np.logaddexp(corrections.typed_log_probability, corrections.log_total))
    typed_log_share = corrections.typed_log_probability - log_total  # log p(the prefix has no typo)
    best = [replace(suggestion, log_probability=suggestion.log_probability + typed_log_share) for suggestion in exact]
    for correction in corrections.corrections:
        log_share = correction.log_probability - log_total
        min_log_prob = best[-1].log_probability if len(best) == k else -math.inf
        if log_share <= min_log_prob:
            break  # no text of this correction, or of a less probable one, can be among the best k
        corrected = [
            replace(suggestion, log_probability=suggestion.log_probability + log_share, typos=correction.typos)
            for suggestion in complete(correction, min_log_prob - log_share)
        ]
        distinct: dict[str, Suggestion] = {}  # text -> its suggestion with the fewest typos
        for suggestion in sorted([*best, *corrected], key=lambda entry: (entry.typos, -entry.log_probability)):
            distinct.setdefault(suggestion.text, suggestion)
        best = heapq.nlargest(k, distinct.values(), key=lambda entry: entry.log_probability)
    return most_probable(best, k)


def most_probable(suggestions: Iterable[Suggestion], k: int) -> list[Suggestion]:
    """Return the `k` most probable suggestions, those without typos first."""
    best = heapq.nlargest(k, suggestions, key=lambda suggestion: suggestion.log_probability)
    return sorted(best, key=lambda suggestion: suggestion.typos > 0)
