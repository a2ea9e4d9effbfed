"""Blending of suggestions from the model, from popular texts and from the user's history, with learned weights.

    score(x) = sum over sources s of  w_s . phi_s(x)        p(x) = exp score(x) / sum over candidates y of exp score(y)

The candidates are all texts that at least one source proposes for a prefix. The features phi_s(x) of a candidate x say
whether the source s proposes x, and how probable, popular or recent x is according to s. The weights w_s are fitted to
prefixes and the texts that users entered after them: they maximize the probabilities p(x) of the entered texts. This is
a conditional logit model, whose loss is convex. The thesis leaves the combination of sources open (section 5.5).

Shapes: N candidates, F features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
from factorcell.completion.search import Stop
from factorcell.completion.suggestions import Suggestion, merge_rounds, sizes_of_rounds
from factorcell.config import UserError
from factorcell.data.counts import POPULARITY
from factorcell.model.run import Run

Floats = NDArray[np.float64]

FILE = "blend.json"  # file in a run folder that stores the weights
FORMAT = 1  # format number of this file
PENALTY = 0.1  # the fit minimizes the nats of all entered texts plus PENALTY times the sum of squared weights
MAX_STEPS = 200  # maximum number of optimizer steps; a few dozen suffice

# The features of each source; docs/formats.md describes them.
SOURCES: dict[str, tuple[str, ...]] = {
    "model": ("model", "model log p", "model rest"),
    "popularity": ("popular", "popular log share"),
    "history": ("own", "own log share", "own last", "own typed"),
}
FEATURES = tuple(feature for features in SOURCES.values() for feature in features)


@dataclass(frozen=True)
class Candidate:
    """A proposed text with its features.

    Attributes:
        text: The proposed text.
        features: The features (F,).
        typos: Number of typing errors that the prefix has if the user intends this text.
    """

    text: str
    features: tuple[float, ...]
    typos: int = 0

    @property
    def is_proposed_by_model(self) -> bool:
        """Whether the model proposes the text; lists of candidates have these texts first, in the model's order."""
        return self.features[FEATURES.index("model")] == 1.0


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
            return DEFAULT_WEIGHTS
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
    def fit(cls, examples: Sequence[tuple[Sequence[Candidate], str]]) -> "BlendWeights":
        """Fit the weights to candidates and the texts that users entered.

        Args:
            examples: For each prefix, the candidates and the text that the user entered. Prefixes whose entered text is
                not a candidate are omitted.

        Raises:
            UserError: No entered text is a candidate for its prefix.
        """
        usable: list[tuple[Sequence[Candidate], int]] = []  # candidates, and the index of the entered text among them
        for candidates, entered_text in examples:
            texts = [candidate.text for candidate in candidates]
            if entered_text in texts:
                usable.append((candidates, texts.index(entered_text)))
        if not usable:
            raise UserError("blend: no list of candidates contains the entered text; use more texts to fit the weights")
        shape = len(usable), max(len(candidates) for candidates, _ in usable)
        features, is_padding = torch.zeros(*shape, len(FEATURES)), torch.ones(shape, dtype=torch.bool)
        for row, (candidates, _) in enumerate(usable):
            values = np.array([candidate.features for candidate in candidates])
            features[row, : len(candidates)] = torch.tensor(values).float()
            is_padding[row, : len(candidates)] = False
        targets = torch.tensor([target for _, target in usable])
        weights = torch.zeros(len(FEATURES), requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=MAX_STEPS, line_search_fn="strong_wolfe")

        def compute_loss() -> torch.Tensor:
            """Return the penalized nats of the entered texts, and store their gradient in the weights."""
            optimizer.zero_grad()
            scores = (features @ weights).masked_fill(is_padding, -torch.inf)
            nats = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
            loss = nats + PENALTY * (weights**2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
        return cls(dict(zip(FEATURES, weights.detach().double().tolist(), strict=True)))


# Rounded weights, fitted to commit subjects of 60 users (experiments/commits.py). `tune-online` fits those of a run.
DEFAULT_WEIGHTS = BlendWeights(dict(zip(FEATURES, (-1.0, 1.0, -0.5, 0.5, 0.0, 1.5, 0.0, -0.4, 0.8), strict=True)))


class Blend:
    """Completion by the model, by popular texts and by the user's history, with learned weights.

    A blend never changes, so threads can share it. Its methods `type_text`, `fits` and `log_probabilities` are those of
    its completer.
    """

    def __init__(
        self, completer: Completer, popularity: Popularity | None, weights: BlendWeights | None = None
    ) -> None:
        """Blend a completer with popular texts and the history of the user who types.

        Args:
            completer: The completer of the model. The blend forgives as many typos as this completer in its search of
                popular texts and of the history.
            popularity: The popular texts, or None.
            weights: The weights of the features; by default the weights in the run folder.
        """
        self.completer, self.popularity = completer, popularity
        self.popular_lookup = self._tolerate_typos(popularity) if popularity else None
        self.weights = weights or BlendWeights.load(completer.run.folder)
        self.type_text, self.fits = completer.type_text, completer.fits
        self.log_probabilities = completer.log_probabilities

    def begin(
        self, user: User | None = None, context: Mapping[str, Any] | None = None, unknown: str | None = None
    ) -> TypedText:
        """Return the empty typed text of `user` in `context`.

        Args:
            user: A user learned online, or None. The blend suggests no text of the user's history that the `is_allowed`
                of the completer rejects.
            context: Column -> value; a column without a value is read as its expected value.
            unknown: How to read context values that training never saw; by default as the completer does.

        Raises:
            UserError: The run does not know a column or value, or the user belongs to another run.
        """
        if user is not None:
            allowed_texts = tuple(filter(self.completer.is_allowed, user.history.texts))
            user = replace(user, history=replace(user.history, texts=allowed_texts))
        return self.completer.begin(user, context, unknown)

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
        return self.suggest(self.type_text(self.begin(user, context), prefix), k).suggestions

    def suggest(
        self, typed_text: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the best `k` texts that continue a typed text; `parts` says what each source adds to the score.

        The list for a smaller `k` is the beginning of this list. If the model finds no text in time, only the other
        sources propose texts. Without a user, only the model proposes texts.

        Args:
            typed_text: The typed text.
            k: Maximum number of suggestions.
            deadline: When to end the search, as a value of `time.monotonic()`; by default after the completer's
                `seconds`.
            stop: Ends the search early.
        """
        [k] = limits.check(count=k)
        user = typed_text.user
        if user is None:
            return self.completer.suggest(typed_text, k, deadline, stop)
        max_suggestions = sizes_of_rounds(k)[-1]
        model_suggestions = self.completer.suggest(typed_text, max_suggestions, deadline, stop)

        def best_of_proposals(size: int) -> list[Suggestion]:
            """Return the best `size` texts if each source proposes at most `size` texts."""
            return self.merge(self.candidates(typed_text.text, model_suggestions, user.history, size), size)

        return replace(model_suggestions, suggestions=merge_rounds(best_of_proposals, k))

    def candidates(self, prefix: str, model_suggestions: Suggestions, history: History, k: int) -> list[Candidate]:
        """Return the different texts that the sources propose, with their features; each proposes at most `k` texts."""
        model_proposals = model_suggestions.suggestions[:k]
        popular_proposals = [] if self.popular_lookup is None else self.popular_lookup.complete(prefix, k)
        personal_proposals = self._tolerate_typos(history).complete(prefix, k)
        proposals = model_proposals, popular_proposals, personal_proposals
        typos_by_text = {suggestion.text: suggestion.typos for suggestion in chain(*proposals)}
        ages: dict[str, int] = {}  # text of the history -> number of texts that the user entered after it
        for age, text in enumerate(reversed(history.texts)):
            ages.setdefault(text, age)
        model_log_probs, popular_log_shares, personal_log_shares = (
            {suggestion.text: suggestion.log_probability for suggestion in suggestions} for suggestions in proposals
        )
        min_log_prob = min(model_log_probs.values(), default=0.0)
        proposed_by_model = min(1 - 1e-6, sum(map(math.exp, model_log_probs.values())))  # in total, below 1
        log_rest = math.log1p(-proposed_by_model)  # log probability of all texts that the model does not propose
        log_popular_total = float(np.logaddexp.reduce(list(popular_log_shares.values()))) if popular_log_shares else 0.0
        log_prefix_length = math.log1p(len(prefix))

        def compute_features(text: str) -> tuple[float, ...]:
            """Return the features of a text in the order of `FEATURES`."""
            model_features = (0.0, min_log_prob, log_rest)
            if text in model_log_probs:
                model_features = (1.0, model_log_probs[text], 0.0)
            popularity_features = (0.0, 0.0)
            if text in popular_log_shares:
                popularity_features = (1.0, popular_log_shares[text] - log_popular_total)
            history_features = (0.0, 0.0, 0.0, 0.0)
            if text in personal_log_shares:
                history_features = (1.0, personal_log_shares[text], math.log1p(ages[text]), log_prefix_length)
            return model_features + popularity_features + history_features

        return [Candidate(text, compute_features(text), typos) for text, typos in typos_by_text.items()]

    def _tolerate_typos(self, lookup: Popularity | History) -> Popularity | History | TypoTolerantLookup:
        """Return a lookup that forgives as many typos as the completer; `lookup` itself if it forgives no typo."""
        typo_costs = self.completer.typo_costs
        return TypoTolerantLookup(lookup, typo_costs) if typo_costs.max_typos else lookup

    def merge(self, candidates: Sequence[Candidate], k: int) -> list[Suggestion]:
        """Return the best `k` candidates, those without typos first, with probabilities among all `candidates`."""
        if not candidates:
            return []
        terms = np.array([candidate.features for candidate in candidates]) * self.weights.array
        scores = terms.sum(1)
        log_probs = scores - np.logaddexp.reduce(scores)
        feature_counts = np.array([len(features) for features in SOURCES.values()])
        starts = np.cumsum(feature_counts) - feature_counts  # index of the first feature of each source
        parts = np.add.reduceat(terms, starts, axis=1)

        def to_suggestion(index: int) -> Suggestion:
            """Return the candidate at `index` as a suggestion."""
            candidate = candidates[index]
            # The first feature of a source is 1 if the source proposes the text, otherwise 0.
            sources = [name for name, start in zip(SOURCES, starts, strict=True) if candidate.features[start]]
            source_parts = dict(zip(SOURCES, parts[index].tolist(), strict=True))
            return Suggestion(candidate.text, float(log_probs[index]), "+".join(sources), candidate.typos, source_parts)

        best = sorted(range(len(candidates)), key=lambda index: (-log_probs[index], candidates[index].text))[:k]
        best.sort(key=lambda index: candidates[index].typos > 0)  # the sort is stable
        return [to_suggestion(index) for index in best]


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
        typos: Maximum number of typing errors to forgive (0, 1 or 2).
        is_allowed: Returns whether a text may be suggested. No source suggests a text for which it returns False.

    Returns:
        The blend or the completer. Both have the methods `begin`, `type_text`, `suggest` and `complete`.
    """
    completer = Completer(run, unknown=unknown, seconds=seconds, typos=typos, is_allowed=is_allowed)
    if distinguishes_users(run) and (run.folder / POPULARITY).exists():
        return Blend(completer, Popularity.from_run(run, completer.is_allowed))
    return completer
