"""Blending of suggestions from the model, from popular texts and from the user's history, with learned weights.

    score(x) = sum over sources s of  w_s . phi_s(x)        p(x) = exp score(x) / sum over candidates y of exp score(y)

The candidates are all texts that a source proposes for a prefix. The features phi_s(x) say whether the source s
proposes the candidate x, and how probable, popular or recent x is according to s. The weights w_s maximize the
probability p(x) of the texts x that users entered after the prefix; this is a conditional logit model, whose loss is
convex. The thesis leaves the combination of sources open (section 5.5).

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

FILE = "blend.json"  # file in a run folder that stores the weights
FORMAT = 1  # format number of this file
PENALTY = 0.1  # factor of the sum of squared weights, which is added to the nats of all entered texts
STEPS = 200  # maximum number of optimizer steps; a few dozen suffice

# The features of each source; docs/formats.md describes them.
SOURCES: dict[str, tuple[str, ...]] = {
    "model": ("model", "model log p", "model rest"),
    "popularity": ("popular", "popular log share"),
    "history": ("own", "own log share", "own last", "own typed"),
}
FEATURES = tuple(feature for features in SOURCES.values() for feature in features)


@dataclass(frozen=True)
class Candidate:
    """A proposed text, its features (F,), and the number of typing errors in the prefix that it assumes."""

    text: str
    features: tuple[float, ...]
    typos: int = 0


@dataclass(frozen=True)
class BlendWeights:
    """The weights of a blend: feature -> weight."""

    values: Mapping[str, float]

    @classmethod
    def load(cls, folder: str | Path) -> "BlendWeights":
        """Read the weights that `tune-online` stored in a run folder, or return the default weights.

        Raises:
            UserError: The file in the run folder is not valid.
        """
        path = Path(folder) / FILE
        if not path.exists():
            return DEFAULT
        values = files.read_versioned(path, FORMAT)
        if set(values) != set(FEATURES):
            raise UserError(f"{path}: expected the weights {', '.join(FEATURES)}; run tune-online to create them again")
        return cls(
            {name: files.require_finite_number(values[name], path, f"the weight of {name!r}") for name in FEATURES}
        )

    def save(self, run: Run) -> None:
        """Store the weights in the folder of `run`."""
        files.write_versioned(run.folder / FILE, self.values, FORMAT)

    @property
    def array(self) -> Floats:
        """The weights in the order of `FEATURES` (F,)."""
        return np.array([self.values[feature] for feature in FEATURES])

    @classmethod
    def fit(cls, lists: Sequence[tuple[Sequence[Candidate], str]]) -> "BlendWeights":
        """Fit the weights to lists of candidates.

        Args:
            lists: For each prefix, the candidates and the text that the user entered. Lists that do not contain the
                entered text are omitted.

        Raises:
            UserError: No list contains the entered text.
        """
        texts = [[candidate.text for candidate in candidates] for candidates, _ in lists]
        used = [
            (candidates, candidate_texts.index(entered))
            for (candidates, entered), candidate_texts in zip(lists, texts, strict=True)
            if entered in candidate_texts
        ]
        if not used:
            raise UserError("blend: no list of candidates contains the entered text; use more texts to fit the weights")
        shape = len(used), max(len(candidates) for candidates, _ in used)
        features, is_padding = torch.zeros(*shape, len(FEATURES)), torch.ones(shape, dtype=torch.bool)
        for row, (candidates, _) in enumerate(used):
            values = np.array([candidate.features for candidate in candidates])
            features[row, : len(candidates)] = torch.tensor(values).float()
            is_padding[row, : len(candidates)] = False
        targets = torch.tensor([target for _, target in used])
        weights = torch.zeros(len(FEATURES), requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            scores = (features @ weights).masked_fill(is_padding, -torch.inf)
            nats = torch.nn.functional.cross_entropy(scores, targets, reduction="sum") + PENALTY * (weights**2).sum()
            nats.backward()  # type: ignore[no-untyped-call]
            return nats

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]
        return cls(dict(zip(FEATURES, weights.detach().double().tolist(), strict=True)))


# Rounded weights, fitted to commit subjects of 60 users (experiments/commits.py); `tune-online` fits others to a run.
DEFAULT = BlendWeights(dict(zip(FEATURES, (-1.0, 1.0, -0.5, 0.5, 0.0, 1.5, 0.0, -0.4, 0.8), strict=True)))


class Blend:
    """Completion by the model, by popular texts and by the user's history, with learned weights.

    A blend never changes, so threads can share it. Its methods `type`, `fits` and `log_probabilities` are those of the
    completer.
    """

    def __init__(
        self, completer: Completer, popularity: Popularity | None, weights: BlendWeights | None = None
    ) -> None:
        """Blend a completer with popular texts and the history of the user who types.

        Args:
            completer: The completer of the model; popular texts and the history forgive as many typos as it does.
            popularity: The popular texts, or None.
            weights: The weights of the features; by default those that the run folder stores.
        """
        self.completer, self.popularity = completer, popularity
        self.popular = self._tolerate_typos(popularity) if popularity else None
        self.weights = weights or BlendWeights.load(completer.run.folder)
        self.type, self.fits = completer.type, completer.fits
        self.log_probabilities = completer.log_probabilities

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Return the empty typed text of `user` in `context`.

        Args:
            user: A user learned online, or None. Texts of the history that the `is_allowed` of the completer rejects
                are not suggested.
            context: Column -> value; a column without a value is read as its expected value.

        Raises:
            UserError: The run does not know a column or value, or the user belongs to another run.
        """
        is_allowed = self.completer.is_allowed
        if user is not None and is_allowed is not None:
            user = replace(user, history=replace(user.history, texts=tuple(filter(is_allowed, user.history.texts))))
        return self.completer.begin(user, context)

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """Return the best `k` texts that continue `prefix`.

        Args:
            prefix: The typed text.
            user: A user learned online, or None.
            context: Column -> value; a column without a value is read as its expected value.
            k: Maximum number of suggestions.

        Raises:
            UserError: The prefix, a context value or the user is not valid.
        """
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def suggest(
        self, typed_text: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the best `k` texts that continue a typed text, with the number that each source adds to their scores.

        The list begins with the list for any smaller `k`. If the model finds no text in time, the texts of the other
        sources are returned. Without a user, the texts of the model alone are returned.

        Args:
            typed_text: The typed text.
            k: Maximum number of suggestions.
            deadline: When to end the search, as a value of `time.monotonic()`; by default after the completer's
                `seconds`.
            stop: Ends the search early.
        """
        limits.check(count=k)
        user = typed_text.user
        model_suggestions = self.completer.suggest(
            typed_text, k if user is None else round_sizes(k)[-1], deadline, stop
        )
        if user is None:
            return model_suggestions

        def best(size: int) -> list[Suggestion]:
            return self.merge(self.candidates(typed_text.text, model_suggestions, user.history, size), size)

        return replace(model_suggestions, suggestions=merge_rounds(best, k))

    def candidates(self, prefix: str, model_suggestions: Suggestions, history: History, k: int) -> list[Candidate]:
        """Return each text that a source proposes once, with its features; each source proposes at most `k` texts."""
        from_model = model_suggestions.suggestions[:k]
        popular = [] if self.popular is None else self.popular.complete(prefix, k)
        personal = self._tolerate_typos(history).complete(prefix, k)
        typos = {suggestion.text: suggestion.typos for suggestion in (*from_model, *popular, *personal)}
        ages = {text: age for age, text in reversed(list(enumerate(reversed(history.texts))))}
        model_logs, popular_logs, personal_logs = (
            {suggestion.text: suggestion.log_probability for suggestion in suggestions}
            for suggestions in (from_model, popular, personal)
        )
        min_log_prob = min(model_logs.values(), default=0.0)
        remaining = math.log1p(-min(1 - 1e-6, sum(map(math.exp, model_logs.values()))))
        popular_total = float(np.logaddexp.reduce(list(popular_logs.values()))) if popular_logs else 0.0
        prefix_length = math.log1p(len(prefix))

        def features(text: str) -> tuple[float, ...]:
            model_features = (1.0, model_logs[text], 0.0) if text in model_logs else (0.0, min_log_prob, remaining)
            popularity_features = (1.0, popular_logs[text] - popular_total) if text in popular_logs else (0.0, 0.0)
            history_features = (0.0,) * 4
            if text in personal_logs:
                history_features = (1.0, personal_logs[text], math.log1p(ages[text]), prefix_length)
            return model_features + popularity_features + history_features

        return [Candidate(text, features(text), count) for text, count in typos.items()]

    def _tolerate_typos(self, lookup: Popularity | History) -> Popularity | History | TypoTolerantLookup:
        typo_costs = self.completer.typo_costs
        return TypoTolerantLookup(lookup, typo_costs) if typo_costs.max_typos else lookup

    def merge(self, candidates: Sequence[Candidate], k: int) -> list[Suggestion]:
        """Return the best `k` candidates, those without typos first, with probabilities among all `candidates`."""
        if not candidates:
            return []
        terms = np.array([candidate.features for candidate in candidates]) * self.weights.array
        scores = terms.sum(1)
        logs = scores - np.logaddexp.reduce(scores)
        starts = np.cumsum([0, *(len(features) for features in SOURCES.values())])
        parts = np.add.reduceat(terms, starts[:-1], axis=1)
        best = sorted(range(len(logs)), key=lambda row: (-logs[row], candidates[row].text))[:k]
        best.sort(key=lambda row: candidates[row].typos > 0)
        return [
            Suggestion(
                candidates[row].text,
                float(logs[row]),
                "+".join(name for name, start in zip(SOURCES, starts, strict=False) if candidates[row].features[start]),
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
    """Return a blend if `run` distinguishes users and has popular texts, otherwise a completer.

    Args:
        run: The run.
        unknown: How to read context values that training never saw, as in `Run.prepare`.
        seconds: Time limit of each search.
        typos: Typing errors to forgive, 0 to 2.
        is_allowed: Returns whether a text may be suggested; this applies to all sources.

    Returns:
        The blend or the completer; both have `complete`.
    """
    completer = Completer(run, unknown=unknown, seconds=seconds, typos=typos, is_allowed=is_allowed)
    if distinguishes_users(run) and (run.folder / POPULARITY).exists():
        return Blend(completer, Popularity.from_run(run, is_allowed))
    return completer
