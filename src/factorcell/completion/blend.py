"""Suggestions of the model, of everybody's popular texts and of one's own past, merged by learned weights.

    score(x) = sum over sources s of  w_s . phi_s(x)        p(x) = exp score(x) / sum over candidates y of exp score(y)

phi_s(x) says how sure the source s is of the candidate x, and whether it proposes x at all. The weights maximise the
probability of what people went on to write (a conditional logit, which is convex). The thesis left the combination
open (section 5.5).

Shapes: N candidates, F features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import files, limits
from factorcell.completion.completer import Completer, Suggestions, TypedText
from factorcell.completion.fuzzy import Forgiving
from factorcell.completion.online import User
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Stop, Suggestion, in_rounds, sizes
from factorcell.config import UserError
from factorcell.model.run import Run

Floats = NDArray[np.float64]

FILE = "blend.json"  # in a run folder: its weights
FORMAT = 1  # of the file
PENALTY = 0.1  # on the squares of the weights, beside nats of all lists
STEPS = 200  # of the optimiser, which needs a few dozen

# The features, by the source that they tell of: what a weight is called.
SOURCES: dict[str, tuple[str, ...]] = {
    "model": ("model", "model log p", "model rest"),
    "popularity": ("popular", "popular log share"),
    "history": ("own", "own log share", "own last", "own typed"),
}
FEATURES = tuple(feature for features in SOURCES.values() for feature in features)


@dataclass(frozen=True)
class Candidate:
    """A text that is proposed, what speaks for it (F,), and the typing errors that it takes for granted."""

    text: str
    features: tuple[float, ...]
    slips: int = 0


@dataclass(frozen=True)
class BlendWeights:
    """The weight of every feature."""

    values: Mapping[str, float]

    @classmethod
    def of(cls, run: Run) -> "BlendWeights":
        """Those in the folder of `run`, where `tune-online` put them, or the default."""
        return cls.read(run.folder)

    @classmethod
    def read(cls, folder: str | Path) -> "BlendWeights":
        """Those in a run folder, or the default; a `UserError` names a file that is damaged."""
        path = Path(folder) / FILE
        if not path.exists():
            return DEFAULT
        values = files.read_versioned(path, FORMAT)
        if set(values) != set(FEATURES):
            raise UserError(f"{path}: not the weights of a blend; tune-online makes them anew")
        return cls({name: files.number(values[name], path, f"the weight of {name!r}") for name in FEATURES})

    def save(self, run: Run) -> None:
        """Make them the weights of the run."""
        files.write_versioned(run.folder / FILE, self.values, FORMAT)

    @property
    def array(self) -> Floats:
        """In the order of the features (F,)."""
        return np.array([self.values[feature] for feature in FEATURES])

    @classmethod
    def fit(cls, lists: Sequence[tuple[Sequence[Candidate], str]]) -> "BlendWeights":
        """From lists of candidates and the text that was meant each time; lists without it say nothing."""
        told = [(found, [one.text for one in found].index(text)) for found, text in lists if _holds(found, text)]
        if not told:
            raise UserError("in no list of candidates is the text that was meant: nothing to learn the blend from")
        most = max(len(found) for found, _ in told)
        features, absent = torch.zeros(len(told), most, len(FEATURES)), torch.ones(len(told), most, dtype=torch.bool)
        for row, (found, _) in enumerate(told):
            features[row, : len(found)] = torch.tensor(np.array([one.features for one in found])).float()
            absent[row, : len(found)] = False
        meant = torch.tensor([place for _, place in told])
        weights = torch.zeros(len(FEATURES), requires_grad=True)
        optimiser = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            scores = (features @ weights).masked_fill(absent, -torch.inf)
            nats = torch.nn.functional.cross_entropy(scores, meant, reduction="sum") + PENALTY * (weights**2).sum()
            nats.backward()  # type: ignore[no-untyped-call]
            return nats

        with torch.enable_grad():
            optimiser.step(loss)  # type: ignore[no-untyped-call]
        return cls(dict(zip(FEATURES, weights.detach().double().tolist(), strict=True)))


# About what commit subjects of 60 people taught (experiments/commits.py); `tune-online` learns those of a run.
DEFAULT = BlendWeights(dict(zip(FEATURES, (-1.0, 1.0, -0.5, 0.5, 0.0, 1.5, 0.0, -0.4, 0.8), strict=True)))


class Blend:
    """Completions of three sources. Nothing in it changes: any thread may use it."""

    def __init__(
        self, completer: Completer, popularity: Popularity | None, weights: BlendWeights | None = None
    ) -> None:
        """Without `popularity` there are two sources; `weights`: those of the run, unless given.

        All sources forgive the slips that the `completer` forgives.
        """
        self.completer, self.popularity = completer, popularity
        self.popular = self._forgiving(popularity) if popularity else None
        self.weights = weights or BlendWeights.of(completer.run)

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """The best `k` texts that begin with `prefix` and go on."""
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """See `Completer`."""
        return self.completer.begin(user, context)

    def type(self, written: TypedText, text: str) -> TypedText:
        """See `Completer`."""
        return self.completer.type(written, text)

    def fits(self, prefix: str) -> bool:
        """See `Completer`."""
        return self.completer.fits(prefix)

    def log_probabilities(
        self, prefix: str, texts: Sequence[str], user: User | None = None, context: Mapping[str, Any] | None = None
    ) -> list[float]:
        """See `Completer`."""
        return self.completer.log_probabilities(prefix, texts, user, context)

    def suggest(
        self, written: TypedText, k: int = 10, seconds: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """The best `k` texts that go on from what is written, with the shares of the sources in their scores.

        The best of few are the first of many: every source proposes `rounds.PROPOSED` at least. Where time is up before
        the model has found any, popular texts and those of the user's own remain. Of nobody told apart there is no past
        to blend: they get what the model suggests. `seconds` and `stop` are those of `Completer.suggest`.
        """
        limits.check(count=k)
        user = written.user
        model = self.completer.suggest(written, k if user is None else sizes(k)[-1], seconds, stop)
        if user is None:
            return model

        def best(size: int) -> list[Suggestion]:
            return self.merged(self.candidates(written.text, model, user.history, size), size)

        return replace(model, suggestions=in_rounds(best, k))

    def candidates(self, prefix: str, model: Suggestions, history: History, k: int) -> list[Candidate]:
        """What the `model` and the other sources propose, at most `k` each, every text once."""
        likeliest = model.suggestions[:k]
        popular = [] if self.popular is None else self.popular.complete(prefix, k)
        own = self._forgiving(history).complete(prefix, k)
        texts = {one.text: one.slips for one in (*likeliest, *popular, *own)}
        last = {text: age for age, text in reversed(list(enumerate(reversed(history.texts))))}
        likely, shares, owned = (
            {one.text: one.log_probability for one in found} for found in (likeliest, popular, own)
        )
        floor = min(likely.values(), default=0.0)
        rest = math.log1p(-min(1 - 1e-6, sum(map(math.exp, likely.values()))))
        whole = float(np.logaddexp.reduce(list(shares.values()))) if shares else 0.0
        typed = math.log1p(len(prefix))

        def features(text: str) -> tuple[float, ...]:
            of_model = (1.0, likely[text], 0.0) if text in likely else (0.0, floor, rest)
            of_popularity = (1.0, shares[text] - whole) if text in shares else (0.0, 0.0)
            of_own = (1.0, owned[text], math.log1p(last[text]), typed) if text in owned else (0.0,) * 4
            return of_model + of_popularity + of_own

        return [Candidate(text, features(text), slips) for text, slips in texts.items()]

    def _forgiving(self, counted: Popularity | History) -> Popularity | History | Forgiving:
        """What completes from counted texts."""
        return Forgiving(counted, self.completer.slips) if self.completer.slips.most else counted

    def merged(self, candidates: Sequence[Candidate], k: int) -> list[Suggestion]:
        """The best `k` candidates with their probabilities among all of them, those with slips after all others."""
        if not candidates:
            return []
        terms = np.array([one.features for one in candidates]) * self.weights.array
        scores = terms.sum(1)
        logs = scores - np.logaddexp.reduce(scores)
        at = np.cumsum([0, *(len(features) for features in SOURCES.values())])
        parts = np.add.reduceat(terms, at[:-1], axis=1)
        best = sorted(range(len(logs)), key=lambda row: (-logs[row], candidates[row].text))[:k]
        best.sort(key=lambda row: candidates[row].slips > 0)
        return [
            Suggestion(
                candidates[row].text,
                float(logs[row]),
                "+".join(name for name, place in zip(SOURCES, at, strict=False) if candidates[row].features[place]),
                candidates[row].slips,
                parts=dict(zip(SOURCES, parts[row].tolist(), strict=True)),
            )
            for row in best
        ]


def _holds(candidates: Sequence[Candidate], text: str) -> bool:
    return any(one.text == text for one in candidates)
