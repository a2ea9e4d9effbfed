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

At most D typos are forgiven. A beginning is *settled* if all texts that begin with it have the same number of typos, or
more than D. The search does not extend settled beginnings, so it finds no text twice.

Shapes: M beginnings, L tokens of the typed prefix, D maximum number of typos, V vocabulary, R texts.
"""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.completion.search import Ids, PrefixState, Stop
from factorcell.data.text_folds import same_prefix
from factorcell.ngram.mixture import Predictor
from factorcell.options import limits
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


def typo_costs(typos: TypoCounts, first_token_differs: Flags) -> Floats:
    """Return the cost in nats (M,) of corrections with `typos` typos (M,)."""
    return typos * TYPO_COST + first_token_differs * FIRST_TOKEN_COST


@dataclass(frozen=True)
class Distances:
    """Distances between the typed prefix and M beginnings of texts, which all have the same number j of tokens.

    Attributes:
        typed: The tokens of the prefix, numbers from 0 on (L,).
        max_typos: The maximum number D of typos.
        distances: d(j, i) for i = 0 ... L (M, L + 1); distances above D are stored as D + 1.
        previous_distances: d(j-1, i) (M, L + 1).
        last_tokens: The last token of each beginning (M,); -1 for the empty one.
        whole_prefix_typos: For each beginning, the smallest distance between the whole prefix and the first tokens of
            the beginning, however many (M,).
        first_token_differs: Whether the first token of each beginning differs from the first typed one (M,).
    """

    typed: Ints
    max_typos: int
    distances: TypoCounts
    previous_distances: TypoCounts
    last_tokens: Ints
    whole_prefix_typos: TypoCounts
    first_token_differs: Flags

    @classmethod
    def start(cls, typed: Sequence[int], max_typos: int) -> "Distances":
        """Return the distances between the typed prefix and the empty beginning of every text (M = 1)."""
        too_many = max_typos + 1
        distances = np.minimum(np.arange(len(typed) + 1, dtype=np.int16), too_many)[None]
        return cls(
            np.array(typed, dtype=np.int64),
            max_typos,
            distances,
            np.full_like(distances, too_many),
            np.array([-1]),
            distances[:, -1],
            np.zeros(1, dtype=np.bool_),
        )

    def select(self, rows: Ints) -> "Distances":
        """Return the distances of the beginnings at `rows`, which may repeat."""
        return replace(
            self,
            distances=self.distances[rows],
            previous_distances=self.previous_distances[rows],
            last_tokens=self.last_tokens[rows],
            whole_prefix_typos=self.whole_prefix_typos[rows],
            first_token_differs=self.first_token_differs[rows],
        )

    def extend(self, parents: Ints, tokens: Ints) -> "Distances":
        """Return the distances of beginnings that are longer by one token: row `parents[m]` followed by `tokens[m]`."""
        before, typed, too_many = self.select(parents), self.typed, self.max_typos + 1
        best = before.distances + np.int16(1)
        best[:, 1:] = np.minimum(best[:, 1:], before.distances[:, :-1] + (tokens[:, None] != typed))
        is_swap = (tokens[:, None] == typed[:-1]) & (before.last_tokens[:, None] == typed[1:])
        best[:, 2:] = np.where(is_swap, np.minimum(best[:, 2:], before.previous_distances[:, :-2] + 1), best[:, 2:])
        # min(best(i), d(j, i-1) + 1) for all i: the minimum of best(h) + i - h over all h <= i
        positions = np.arange(len(typed) + 1, dtype=np.int16)
        distances = np.minimum(np.minimum.accumulate(best - positions, axis=1) + positions, too_many)
        is_first = self.last_tokens[0] < 0
        return replace(
            before,
            distances=distances,
            previous_distances=before.distances,
            last_tokens=tokens,
            whole_prefix_typos=np.minimum(before.whole_prefix_typos, distances[:, -1]),
            first_token_differs=tokens != typed[0] if is_first else before.first_token_differs,
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

    @property
    def has_typos(self) -> Flags:
        """Whether the texts that begin with each settled beginning have 1 to D typos (M,)."""
        has_typos: Flags = (self.whole_prefix_typos >= 1) & (self.whole_prefix_typos <= self.max_typos)
        return has_typos


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
    max_typos: int,
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
        max_typos: The maximum number of typos, at least 1.
        max_tokens: Maximum number of tokens of a correction.
        deadline: When to end the search, as a value of `time.monotonic()`.
        stop: Ends the search early.
    """
    model, end_time = run.predictor, math.inf if deadline is None else deadline
    typed_log_probs = zip(prefix_state.log_probs, prefix_state.ids, strict=False)
    typed_log_probability = sum(float(log_probs[0, token]) for log_probs, token in typed_log_probs)
    names, numbers = _number_tokens(run, tokens)
    corrections, log_total, expanded_count = list[Correction](), -math.inf, 0

    def add_corrections(log_probs: Floats, is_candidate: Flags, *, is_whole_text: bool) -> None:
        """Add the candidates with typos: all of them to `log_total`, and the best to `corrections`."""
        nonlocal log_total
        rows, typos = np.flatnonzero(is_candidate & distances.has_typos), distances.whole_prefix_typos
        scores = log_probs[rows] - typo_costs(typos[rows], distances.first_token_differs[rows])
        log_total = float(np.logaddexp.reduce(scores, initial=log_total))
        for index in np.argsort(-scores, kind="stable")[:MAX_CORRECTIONS].tolist():
            row = int(rows[index])
            correction = tuple(names[number] for number in beginnings[row])
            corrections.append(Correction(correction, int(typos[row]), float(scores[index]), is_whole_text))

    beginnings: list[Ids] = [()]  # of the current length, with their distances to the prefix and log probabilities
    distances, scores = Distances.start([numbers[token] for token in tokens], max_typos), np.zeros(1)
    next_log_probs, state = prefix_state.log_probs[0], prefix_state.states[0]
    width = MAX_EXPANDED // (len(tokens) + max_typos)
    for length in range(1, min(len(tokens) + max_typos, max_tokens) + 1):
        if not width or time.monotonic() >= end_time or (stop is not None and stop.is_set):
            break
        nearby_tokens = np.unique(distances.typed[max(0, length - 1 - max_typos) : length + max_typos])
        parents, last_tokens, log_probs = _children(model, next_log_probs, nearby_tokens, width)
        pairs = zip(parents.tolist(), last_tokens.tolist(), strict=True)
        beginnings, scores = [(*beginnings[parent], token) for parent, token in pairs], scores[parents] + log_probs
        distances = distances.extend(parents, last_tokens)
        is_settled = distances.is_settled
        add_corrections(scores, is_settled, is_whole_text=False)
        bounds = scores - typo_costs(distances.min_typos, distances.first_token_differs)
        rows = np.flatnonzero(~is_settled)
        rows = rows[np.argsort(-bounds[rows], kind="stable")[:width]]
        if not rows.size:
            break
        beginnings, scores, distances = [beginnings[row] for row in rows], scores[rows], distances.select(rows)
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


def merge_corrections(
    exact: Iterable[Suggestion],
    corrections: Corrections,
    complete: Callable[[Correction, float], Iterable[Suggestion]],
    k: int,
) -> list[Suggestion]:
    """Return the `k` most probable texts among `exact` and the completed corrections, those without typos first.

    `exact` are texts that begin with the typed prefix. `complete` returns the texts that begin with a correction and
    whose log probability given that correction exceeds its second argument. The returned texts have their log
    probabilities given the typed prefix.
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
    return sorted(best, key=lambda suggestion: suggestion.typos > 0)


class TypoTolerantLookup:
    """Completion from the texts of a `Popularity` or `History` that begin with the prefix or with a correction of it.

    The texts are sorted, so that texts with the same beginning are neighbours, and the distance between a beginning and
    the prefix is computed once for all of them.
    """

    def __init__(self, lookup: Popularity | History, typos: int = 2) -> None:
        """Index the texts of `lookup`.

        Args:
            lookup: The popular texts or the history, with the share of each text.
            typos: Maximum number of typing errors to forgive (0, 1 or 2).

        Raises:
            UserError: The number of typos is out of range.
        """
        self.lookup, [self.max_typos] = lookup, limits.check(typos=typos)
        shares = lookup.shares()
        self.texts = sorted(shares)
        self.log_shares = np.log([shares[text] for text in self.texts])
        self.lengths = np.array([len(text) for text in self.texts], dtype=np.int64)
        # `characters` has the code points of all texts, one text after the other.
        self.text_starts = np.cumsum(self.lengths) - self.lengths
        self.characters = np.frombuffer("".join(self.texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)

    def complete(self, prefix: str, k: int = 10) -> list[Suggestion]:
        """Return the best `k` texts: those that begin with `prefix`, then those that begin with a correction of it.

        Texts with typos are ordered by the logarithm of their share minus the cost of their typos.

        Args:
            prefix: The typed text.
            k: Maximum number of suggestions.
        """
        exact = self.lookup.complete(prefix, k)
        prefix = same_prefix(prefix)
        max_typos = max_typos_for(len(prefix), self.max_typos)
        if len(exact) == k or not self.texts or not max_typos:
            return exact
        rows, typos, costs = self._find_matches(prefix, max_typos)
        scores = self.log_shares[rows] - costs
        best = np.lexsort((rows, -scores))[: k - len(exact)]
        best_columns = rows[best].tolist(), scores[best].tolist(), typos[best].tolist()
        return exact + [
            Suggestion(self.texts[row], score, self.lookup.source, typo_count)
            for row, score, typo_count in zip(*best_columns, strict=True)
        ]

    def _find_matches(self, prefix: str, max_typos: int) -> tuple[Ints, TypoCounts, Floats]:
        """Return the texts that begin with a correction of `prefix`, with the number and the cost of their typos."""
        distances = Distances.start([ord(character) for character in prefix], max_typos)
        no_rows: Ints = np.zeros(0, dtype=np.int64)
        matches: list[tuple[Ints, TypoCounts, Floats]] = [(no_rows, no_rows.astype(np.int16), np.zeros(0))]
        rows = np.arange(len(self.texts))  # the texts that are not settled yet (R,)
        beginnings = np.zeros(len(rows), dtype=np.int64)  # for each of them, the row of its beginning in `distances`

        def add_matches(is_candidate: Flags) -> None:
            """Add those of the candidates (R,) that match the prefix with one typo or more."""
            selected = is_candidate & distances.has_typos[beginnings]
            typos = distances.whole_prefix_typos[beginnings[selected]]
            costs = typo_costs(typos, distances.first_token_differs[beginnings[selected]])
            matches.append((rows[selected], typos, costs))

        for length in range(1, len(prefix) + max_typos + 1):
            has_ended = self.lengths[rows] < length
            if has_ended.any():
                add_matches(has_ended)
                rows, beginnings = rows[~has_ended], beginnings[~has_ended]
            characters = self.characters[self.text_starts[rows] + length - 1].astype(np.int64)
            differs = np.ones(len(rows), dtype=np.bool_)  # whether a text has another beginning than the text before it
            differs[1:] = (characters[1:] != characters[:-1]) | (beginnings[1:] != beginnings[:-1])
            distances = distances.extend(beginnings[differs], characters[differs])
            beginnings = np.cumsum(differs) - 1
            is_open = ~distances.is_settled
            if not is_open.all():
                is_open_text = is_open[beginnings]
                add_matches(~is_open_text)
                rows, beginnings = rows[is_open_text], (np.cumsum(is_open) - 1)[beginnings[is_open_text]]
                distances = distances.select(np.flatnonzero(is_open))
            if not rows.size:
                break
        all_rows, typos, costs = (np.concatenate(columns) for columns in zip(*matches, strict=True))
        return all_rows, typos, costs
