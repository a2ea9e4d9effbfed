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
from factorcell.completion.completer import Completer, Suggestions, TextFilter, TypedText
from factorcell.completion.fuzzy import TypoTolerantLookup
from factorcell.completion.online import User, distinguishes_users
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Stop, Suggestion, merge_rounds, round_sizes
from factorcell.config import UserError
from factorcell.data.counts import POPULARITY
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
    typos: int = 0


@dataclass(frozen=True)
class BlendWeights:
    """The weight of every feature."""

    values: Mapping[str, float]

    @classmethod
    def load(cls, folder: str | Path) -> "BlendWeights":
        """Read the weights of a run folder, where `tune-online` put them, or return the default.

        Raises:
            UserError: The file is damaged.
        """
        path = Path(folder) / FILE
        if not path.exists():
            return DEFAULT
        values = files.read_versioned(path, FORMAT)
        if set(values) != set(FEATURES):
            raise UserError(f"{path}: not the weights of a blend; tune-online makes them anew")
        return cls({name: files.finite_number(values[name], path, f"the weight of {name!r}") for name in FEATURES})

    def save(self, run: Run) -> None:
        """Store the weights in the folder of `run`."""
        files.write_versioned(run.folder / FILE, self.values, FORMAT)

    @property
    def array(self) -> Floats:
        """The weights in the order of `FEATURES` (F,)."""
        return np.array([self.values[feature] for feature in FEATURES])

    @classmethod
    def fit(cls, lists: Sequence[tuple[Sequence[Candidate], str]]) -> "BlendWeights":
        """Fit the weights to lists of candidates, each with the text that was meant; lists without it are omitted."""
        texts = [[one.text for one in candidates] for candidates, _ in lists]
        used = [
            (candidates, names.index(text))
            for (candidates, text), names in zip(lists, texts, strict=True)
            if text in names
        ]
        if not used:
            raise UserError("in no list of candidates is the text that was meant: nothing to learn the blend from")
        shape = len(used), max(len(candidates) for candidates, _ in used)
        features, absent = torch.zeros(*shape, len(FEATURES)), torch.ones(shape, dtype=torch.bool)
        for row, (candidates, _) in enumerate(used):
            features[row, : len(candidates)] = torch.tensor(np.array([one.features for one in candidates])).float()
            absent[row, : len(candidates)] = False
        meant = torch.tensor([place for _, place in used])
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
    """Completions of three sources. It never changes, so threads can share it.

    `type`, `fits` and `log_probabilities` are those of its completer.
    """

    def __init__(
        self, completer: Completer, popularity: Popularity | None, weights: BlendWeights | None = None
    ) -> None:
        """Blend `completer`, `popularity` if there is one, and the history of the user who types.

        The default weights are those of the run. All sources forgive the typos that the completer forgives.
        """
        self.completer, self.popularity = completer, popularity
        self.popular = self._forgiving(popularity) if popularity else None
        self.weights = weights or BlendWeights.load(completer.run.folder)
        self.type, self.fits = completer.type, completer.fits
        self.log_probabilities = completer.log_probabilities

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Return the state before anything is typed, as `Completer.begin`, by a user of allowed texts only."""
        allowed = self.completer.is_allowed
        if user is not None and allowed is not None:
            user = replace(user, history=replace(user.history, texts=tuple(filter(allowed, user.history.texts))))
        return self.completer.begin(user, context)

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """Return the best `k` texts that continue `prefix`; `user` and `context` as `Completer.begin`."""
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def suggest(
        self, written: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the best `k` texts that continue what is written, with what each source adds to their scores.

        A shorter list is the beginning of a longer one. Where time is up before the model has found any text, popular
        texts and those of the history remain. Without a user there is no history, and the model alone suggests.
        `deadline` and `stop` are those of `Completer.suggest`.
        """
        limits.check(count=k)
        user = written.user
        model = self.completer.suggest(written, k if user is None else round_sizes(k)[-1], deadline, stop)
        if user is None:
            return model

        def best(size: int) -> list[Suggestion]:
            return self.merge(self.candidates(written.text, model, user.history, size), size)

        return replace(model, suggestions=merge_rounds(best, k))

    def candidates(self, prefix: str, model: Suggestions, history: History, k: int) -> list[Candidate]:
        """Return what the `model` and the other sources propose, at most `k` each, every text once."""
        likeliest = model.suggestions[:k]
        popular = [] if self.popular is None else self.popular.complete(prefix, k)
        own = self._forgiving(history).complete(prefix, k)
        texts = {one.text: one.typos for one in (*likeliest, *popular, *own)}
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

        return [Candidate(text, features(text), typos) for text, typos in texts.items()]

    def _forgiving(self, counted: Popularity | History) -> Popularity | History | TypoTolerantLookup:
        return (
            TypoTolerantLookup(counted, self.completer.typo_costs) if self.completer.typo_costs.max_typos else counted
        )

    def merge(self, candidates: Sequence[Candidate], k: int) -> list[Suggestion]:
        """Return the best `k` candidates with their probabilities among all, those with typos after all others."""
        if not candidates:
            return []
        terms = np.array([one.features for one in candidates]) * self.weights.array
        scores = terms.sum(1)
        logs = scores - np.logaddexp.reduce(scores)
        at = np.cumsum([0, *(len(features) for features in SOURCES.values())])
        parts = np.add.reduceat(terms, at[:-1], axis=1)
        best = sorted(range(len(logs)), key=lambda row: (-logs[row], candidates[row].text))[:k]
        best.sort(key=lambda row: candidates[row].typos > 0)
        return [
            Suggestion(
                candidates[row].text,
                float(logs[row]),
                "+".join(name for name, place in zip(SOURCES, at, strict=False) if candidates[row].features[place]),
                candidates[row].typos,
                parts=dict(zip(SOURCES, parts[row].tolist(), strict=True)),
            )
            for row in best
        ]


def new_suggester(
    run: Run,
    *,
    unknown: str = "error",
    seconds: float | None = None,
    typos: int = 0,
    is_allowed: TextFilter | None = None,
) -> Completer | Blend:
    """Return the blend of `run` if it tells users apart and keeps popular texts, otherwise its completer.

    The options are those of `Completer`; no source suggests a text that is not `allowed`.
    """
    completer = Completer(run, unknown=unknown, seconds=seconds, typos=typos, is_allowed=is_allowed)
    if distinguishes_users(run) and (run.folder / POPULARITY).exists():
        return Blend(completer, Popularity.from_run(run, is_allowed))
    return completer
