"""Typing errors: distances between a typed prefix and beginnings of texts, and the corrections that the model prefers.

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

At most D typos are forgiven. A beginning is *settled* if all texts that begin with it have the same number of typos, or
more than D. The search does not extend settled beginnings, so it finds no text twice.

Shapes: M beginnings, L tokens of the typed prefix, D maximum number of typos, V vocabulary.
"""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.completion.search import PrefixState, Stop
from factorcell.ngram.mixture import Predictor
from factorcell.runs.run import Run

Ints = NDArray[np.int64]
TypoCounts = NDArray[np.int16]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

TYPO_COST = 9.0  # nats per typo, -log(0.01 / 80) if one keystroke in 100 is wrong, in one of about 80 ways
FIRST_TOKEN_COST = 2.0  # additional nats if the first token differs, since users rarely mistype it
ONE_TYPO_FROM, TWO_TYPOS_FROM = 3, 6  # minimum tokens of a prefix in which one typo or two typos are forgiven
LONGEST_CORRECTED = 256  # maximum tokens of a prefix in which typos are forgiven
MAX_EXPANDED = 600  # maximum number of beginnings that the model reads to find corrections
MAX_CORRECTIONS = 6  # maximum number of corrections whose completions are suggested


def max_typos_for(length: int, max_typos: int) -> int:
    """Return how many typos are forgiven in a prefix of `length` tokens if at most `max_typos` are forgiven at all."""
    if length > LONGEST_CORRECTED:
        return 0
    return min(max_typos, int(length >= ONE_TYPO_FROM) + int(length >= TWO_TYPOS_FROM))


@dataclass(frozen=True)
class Distances:
    """Distances between the typed prefix and M beginnings of texts, which all have the same number j of tokens."""

    typed: Ints  # the tokens of the prefix, numbers from 0 on (L,)
    max_typos: int  # the maximum number D of typos
    tokens: Ints  # the tokens of each beginning (M, j)
    distances: TypoCounts  # d(j, i) for i = 0 ... L (M, L + 1); distances above D are stored as D + 1
    previous_distances: TypoCounts  # d(j-1, i) (M, L + 1)
    # For each beginning, the smallest distance between the whole prefix and its first tokens, however many (M,)
    whole_prefix_typos: TypoCounts

    @classmethod
    def start(cls, typed: Sequence[int], max_typos: int) -> "Distances":
        """Return the distances between the typed prefix and the empty beginning of every text (M = 1)."""
        distances = np.minimum(np.arange(len(typed) + 1, dtype=np.int16), max_typos + 1)[None]
        no_tokens, no_distances = np.zeros((1, 0), dtype=np.int64), np.full_like(distances, max_typos + 1)
        return cls(np.array(typed, dtype=np.int64), max_typos, no_tokens, distances, no_distances, distances[:, -1])

    def select(self, rows: Ints) -> "Distances":
        """Return the distances of the beginnings at `rows`, which may repeat."""
        distances, previous_distances = self.distances[rows], self.previous_distances[rows]
        whole_prefix_typos = self.whole_prefix_typos[rows]
        return Distances(
            self.typed, self.max_typos, self.tokens[rows], distances, previous_distances, whole_prefix_typos
        )

    def extend(self, parents: Ints, last_tokens: Ints) -> "Distances":
        """Return the distances of beginnings that are longer by one token, from those of their `parents` (M,)."""
        before, typed = self.select(parents), self.typed
        tokens = np.column_stack([before.tokens, last_tokens])
        best = before.distances + np.int16(1)
        best[:, 1:] = np.minimum(best[:, 1:], before.distances[:, :-1] + (tokens[:, -1:] != typed))
        if tokens.shape[1] > 1:
            is_swap = (tokens[:, -1:] == typed[:-1]) & (tokens[:, -2:-1] == typed[1:])
            best[:, 2:] = np.where(is_swap, np.minimum(best[:, 2:], before.previous_distances[:, :-2] + 1), best[:, 2:])
        # min(best(i), d(j, i-1) + 1) for all i: the minimum of best(h) + i - h over all h <= i
        positions = np.arange(len(typed) + 1, dtype=np.int16)
        distances = np.minimum.accumulate(best - positions, axis=1) + positions
        distances = np.minimum(distances, self.max_typos + 1)
        whole_prefix_typos = np.minimum(before.whole_prefix_typos, distances[:, -1])
        return Distances(typed, self.max_typos, tokens, distances, before.distances, whole_prefix_typos)

    def costs(self, typos: TypoCounts) -> Floats:
        """Return the cost in nats (M,) of texts that begin with the beginnings and have `typos` typos (M,)."""
        costs: Floats = typos * TYPO_COST + (self.tokens[:, 0] != self.typed[0]) * FIRST_TOKEN_COST
        return costs

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

    @property
    def has_typos(self) -> Flags:
        """Whether the texts that begin with each settled beginning have 1 to D typos (M,)."""
        has_typos: Flags = (self.whole_prefix_typos >= 1) & (self.whole_prefix_typos <= self.max_typos)
        return has_typos


@dataclass(frozen=True)
class Correction:
    """A correction x' of a typed prefix."""

    tokens: tuple[str, ...]
    typos: int  # number of typos in the typed prefix
    log_probability: float  # log p(x') minus the cost of the typos
    is_whole_text: bool  # whether the correction is a complete text; p(x') then includes the end token


@dataclass(frozen=True)
class Corrections:
    """The most probable corrections of a prefix."""

    corrections: tuple[Correction, ...]  # the most probable first
    log_total: float  # logarithm of the sum of the probabilities of all corrections that the search found
    typed_log_probability: float  # of the prefix as typed
    expanded_count: int  # number of hypotheses that the model has read


def find_corrections(
    run: Run,
    tokens: Sequence[str],
    prefix_state: PrefixState,
    max_typos: int,
    *,
    max_tokens: int,
    deadline: float = math.inf,
    stop: Stop | None = None,
) -> Corrections:
    """Return the most probable corrections of the typed `tokens` that have at least one typo.

    A beam search extends beginnings of texts token by token until they are settled. It retains the most probable
    beginnings of each length and ends at the deadline. A correction may contain out-of-vocabulary tokens near the place
    where the user typed them; the model reads them as the unknown token.

    `prefix_state` is the state of `PlainEngine` after the typed tokens. `max_typos` is at least 1, and a correction has
    at most `max_tokens` tokens.
    """
    model = run.predictor
    typed_steps = zip(prefix_state.states, prefix_state.ids, strict=False)
    typed_log_probability = sum(float(step.log_probs[0, token]) for step, token in typed_steps)
    names, numbers = _number_tokens(run, tokens)
    corrections, log_total, expanded_count = list[Correction](), -math.inf, 0

    def add_corrections(log_probs: Floats, is_candidate: Flags, *, is_whole_text: bool) -> None:
        """Add the candidates with typos: all of them to `log_total`, and the best to `corrections`."""
        nonlocal log_total
        rows, typos = np.flatnonzero(is_candidate & distances.has_typos), distances.whole_prefix_typos
        scores = (log_probs - distances.costs(typos))[rows]
        log_total = float(np.logaddexp.reduce(scores, initial=log_total))
        for index in np.argsort(-scores, kind="stable")[:MAX_CORRECTIONS].tolist():
            row = int(rows[index])
            correction = tuple(names[number] for number in distances.tokens[row])
            corrections.append(Correction(correction, int(typos[row]), float(scores[index]), is_whole_text))

    # The distances of the beginnings of the current length, and their log probabilities
    distances, scores = Distances.start([numbers[token] for token in tokens], max_typos), np.zeros(1)
    state, next_log_probs = prefix_state.states[0]
    width = MAX_EXPANDED // (len(tokens) + max_typos)
    for length in range(1, min(len(tokens) + max_typos, max_tokens) + 1):
        if not width or time.monotonic() >= deadline or (stop is not None and stop.is_set):
            break
        nearby_tokens = np.unique(distances.typed[max(0, length - 1 - max_typos) : length + max_typos])
        parents, last_tokens, log_probs = _children(model, next_log_probs, nearby_tokens, width)
        distances, scores = distances.extend(parents, last_tokens), scores[parents] + log_probs
        is_settled = distances.is_settled
        add_corrections(scores, is_settled, is_whole_text=False)
        bounds = scores - distances.costs(distances.min_typos)
        rows = np.flatnonzero(~is_settled)
        rows = rows[np.argsort(-bounds[rows], kind="stable")[:width]]
        if not rows.size:
            break
        scores, distances = scores[rows], distances.select(rows)
        inputs = torch.from_numpy(_known(model, last_tokens[rows])).to(model.device)
        state = state.select(torch.from_numpy(parents[rows]).to(model.device))
        next_log_probs, state = model.step(inputs, prefix_state.conditioning, state)
        expanded_count += len(rows)
        end_log_probs = next_log_probs[:, model.specials.end].cpu().double().numpy()
        add_corrections(scores + end_log_probs, np.ones(len(rows), dtype=np.bool_), is_whole_text=True)
    best = heapq.nlargest(MAX_CORRECTIONS, corrections, key=lambda correction: correction.log_probability)
    return Corrections(tuple(best), log_total, typed_log_probability, expanded_count)


def _number_tokens(run: Run, tokens: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Return the token of each number, and the number of each token; numbers from V on are typed unknown tokens."""
    vocabulary = set(run.tokenizer.tokens)
    names = [*run.tokenizer.tokens, *dict.fromkeys(token for token in tokens if token not in vocabulary)]
    return names, {name: number for number, name in enumerate(names) if number not in run.predictor.specials}


def _children(model: Predictor, next_log_probs: Tensor, nearby_tokens: Ints, width: int) -> tuple[Ints, Ints, Floats]:
    """Return the parent, the last token and its log probability for each beginning that is longer by one token.

    The last token is one of the `nearby_tokens` of the typed prefix or of the `width` most probable tokens. All tokens
    that are not nearby match the prefix equally badly, so only the `width` most probable stay in the beam.
    """
    log_probs = next_log_probs.cpu().double().numpy()
    parent_count, vocabulary_size = log_probs.shape
    regular_tokens = np.setdiff1d(np.arange(vocabulary_size), model.specials)
    likely_tokens = regular_tokens[np.argsort(-log_probs[:, regular_tokens], axis=1, kind="stable")[:, :width]]
    repeated_nearby_tokens = np.broadcast_to(nearby_tokens, (parent_count, len(nearby_tokens)))
    tokens_of_parents = np.concatenate([likely_tokens, repeated_nearby_tokens], axis=1)
    parents = np.repeat(np.arange(parent_count), tokens_of_parents.shape[1])
    # A code is a pair of parent and token as one number, so `np.unique` removes repeated pairs.
    token_limit = vocabulary_size + LONGEST_CORRECTED
    parents, tokens = np.divmod(np.unique(parents * token_limit + tokens_of_parents.ravel()), token_limit)
    return parents, tokens, log_probs[parents, _known(model, tokens)]


def _known(model: Predictor, tokens: Ints) -> Ints:
    """Return the tokens as the model reads them: out-of-vocabulary tokens are the unknown token."""
    return np.where(tokens < model.vocabulary_size, tokens, model.specials.unknown)
