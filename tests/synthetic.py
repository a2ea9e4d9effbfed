"""Texts in two dialects whose perplexity is known exactly, so that a model can be held against the truth.

Dialect c draws its first word w with probability p_c[w] and then moves by a first-order Markov chain: from w
to v with probability Q_c[w, v], to the end of the text with e_c[w] = 1 - sum_v Q_c[w, v]. Both dialects use the
same words; only the moves differ. A model that is told the dialect and knows its chain pays on average, for one
text,

    visits    n_c = p_c + n_c Q_c = p_c (I - Q_c)^-1          (W,), how often each word occurs
    nats      N_c = H(p_c) + sum_w n_c[w] H(Q_c[w], e_c[w])   H is the entropy of one draw
    targets   T_c = sum_w n_c[w] + 1                          the words, and the end token

by the chain rule of entropy, since a draw depends on the word before it alone. A corpus adds nats and targets
and takes the ratio once, so with the dialects equally likely the true perplexity is
exp((N_0 + N_1) / (T_0 + T_1)). On many unseen texts no model does better, and one that does not know the
dialect does worse.

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
        """(D, W): how often each word occurs in a text, on average."""
        eye = np.eye(len(self.words))
        return np.stack(
            [np.linalg.solve((eye - move[:, :-1]).T, start) for start, move in zip(self.start, self.moves, strict=True)]
        )

    def expectation(self) -> tuple[Array, Array]:
        """Nats (D,) and targets (D,) of a text, on average, given its dialect."""
        visits = self.visits()
        nats = entropy(self.start) + (visits * entropy(self.moves)).sum(-1)
        return nats, visits.sum(-1) + 1

    def perplexity(self) -> float:
        """The true perplexity given the dialect, both dialects equally likely."""
        nats, targets = self.expectation()
        return float(np.exp(nats.sum() / targets.sum()))

    def nats(self, text: str) -> Array:
        """(D,): the true -log p(text | dialect), its end included."""
        ids = [self.words.index(word) for word in text.split(" ")]
        steps = [self.start[:, ids[0]]]
        steps += [self.moves[:, a, b] for a, b in zip(ids, [*ids[1:], len(self.words)], strict=True)]
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log(steps).sum(0))

    def sample(self, rows: int, seed: int) -> list[dict[str, str]]:
        """`rows` texts with their dialects, fixed by `seed`."""
        generator, end = np.random.default_rng(seed), len(self.words)
        # One uniform number decides one draw: the first place where the cumulative probability exceeds it.
        first, then = np.cumsum(self.start, -1)[:, :-1], np.cumsum(self.moves, -1)[:, :, :-1]
        drawn = []
        for _ in range(rows):
            dialect = int(generator.integers(len(self.names)))
            word, text = int(np.searchsorted(first[dialect], generator.random(), side="right")), []
            while word != end:
                text.append(self.words[word])
                word = int(np.searchsorted(then[dialect, word], generator.random(), side="right"))
            drawn.append({"text": " ".join(text), "dialect": self.names[dialect]})
        return drawn


def entropy(probabilities: Array) -> Array:
    """(..., n) to (...): -sum p log p in nats, where 0 log 0 is 0."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(-(probabilities * logs).sum(-1))


def dialects() -> Dialects:
    """The dialects of the tests, always the same: a few likely moves from each word, texts of 9 words or so."""
    generator, count = np.random.default_rng(20170702), len(WORDS)
    start = generator.dirichlet(np.full(count, 0.5), size=len(NAMES))
    moves = np.empty((len(NAMES), count, count + 1))
    moves[:, :, :-1] = generator.dirichlet(np.full(count, 0.3), size=(len(NAMES), count))
    ends = generator.uniform(0.06, 0.2, size=(len(NAMES), count, 1))
    moves[:, :, :-1] *= 1 - ends
    moves[:, :, -1:] = ends
    return Dialects(WORDS, NAMES, start, moves)


def two_dialects(rows: int, seed: int) -> tuple[list[dict[str, str]], float]:
    """`rows` rows of `{"text", "dialect"}`, fixed by `seed`, and the true perplexity given the dialect."""
    chains = dialects()
    return chains.sample(rows, seed), chains.perplexity()
