"""Synthetic texts in two dialects whose perplexity is known exactly, to compare models with it.

Dialect c draws its first word w with probability p_c[w] and then moves by a first-order Markov chain: from w
to v with probability Q_c[w, v], to the end of the text with e_c[w] = 1 - sum_v Q_c[w, v]. Both dialects use the
same words; only the transitions differ. The expected cost of a text for a model that knows the dialect and its chain is

    visits    n_c = p_c + n_c Q_c = p_c (I - Q_c)^-1          (W,), how often each word occurs
    nats      N_c = H(p_c) + sum_w n_c[w] H(Q_c[w], e_c[w])   H is the entropy of one draw
    targets   T_c = sum_w n_c[w] + 1                          the words, and the end token

by the chain rule of entropy, since a draw depends only on the word before it. The perplexity of a corpus is the ratio
of its sums of nats and targets, so with equally likely dialects the true perplexity is
exp((N_0 + N_1) / (T_0 + T_1)). On many unseen texts no model does better, and a model that does not know the dialect
does worse.

Shapes: D = 2 dialects, W words.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "yew")
NAMES = ("coast", "hills")


@dataclass(frozen=True)
class Dialects:
    """Markov chains over words: `start` (D, W), `moves` (D, W, W + 1); the last column ends the text."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    start: Array
    moves: Array

    def visits(self) -> Array:
        """Return the expected number of occurrences (D, W) of each word in a text."""
        eye = np.eye(len(self.words))
        return np.stack(
            [np.linalg.solve((eye - move[:, :-1]).T, start) for start, move in zip(self.start, self.moves, strict=True)]
        )

    def expectation(self) -> tuple[Array, Array]:
        """Return the expected nats (D,) and targets (D,) of a text, given its dialect."""
        visits = self.visits()
        nats = entropy(self.start) + (visits * entropy(self.moves)).sum(-1)
        return nats, visits.sum(-1) + 1

    def perplexity(self) -> float:
        """Return the true perplexity given the dialect, if both dialects are equally likely."""
        nats, targets = self.expectation()
        return float(np.exp(nats.sum() / targets.sum()))

    def nats(self, text: str) -> Array:
        """Return the true -log p(text | dialect) (D,), including the end of the text."""
        ids = [self.words.index(word) for word in text.split(" ")]
        steps = [self.start[:, ids[0]]]
        steps += [self.moves[:, a, b] for a, b in zip(ids, [*ids[1:], len(self.words)], strict=True)]
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log(steps).sum(0))

    def sample(self, rows: int, seed: int) -> list[dict[str, str]]:
        """Return `rows` random texts with their dialects; deterministic given `seed`."""
        generator, end = np.random.default_rng(seed), len(self.words)
        # Each draw inverts the cumulative distribution at a uniform random number.
        first, then = np.cumsum(self.start, -1)[:, :-1], np.cumsum(self.moves, -1)[:, :, :-1]
        texts = []
        for _ in range(rows):
            dialect = int(generator.integers(len(self.names)))
            word, text = int(np.searchsorted(first[dialect], generator.random(), side="right")), []
            while word != end:
                text.append(self.words[word])
                word = int(np.searchsorted(then[dialect, word], generator.random(), side="right"))
            texts.append({"text": " ".join(text), "dialect": self.names[dialect]})
        return texts


def entropy(probabilities: Array) -> Array:
    """Return -sum p log p in nats over the last axis, with 0 log 0 = 0."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(-(probabilities * logs).sum(-1))


def dialects() -> Dialects:
    """Return the constant dialects of the tests: few likely transitions per word, and about 9 words per text."""
    generator, count = np.random.default_rng(20170702), len(WORDS)
    start = generator.dirichlet(np.full(count, 0.5), size=len(NAMES))
    moves = np.empty((len(NAMES), count, count + 1))
    moves[:, :, :-1] = generator.dirichlet(np.full(count, 0.3), size=(len(NAMES), count))
    ends = generator.uniform(0.06, 0.2, size=(len(NAMES), count, 1))
    moves[:, :, :-1] *= 1 - ends
    moves[:, :, -1:] = ends
    return Dialects(WORDS, NAMES, start, moves)


def two_dialects(rows: int, seed: int) -> tuple[list[dict[str, str]], float]:
    """Return `rows` rows of `{"text", "dialect"}`, deterministic given `seed`, and their true perplexity."""
    chains = dialects()
    return chains.sample(rows, seed), chains.perplexity()
