"""Blending of suggestions from the model, from popular texts and from the user's history, with learned weights.

    score(x) = sum over sources s of  w_s . phi_s(x)      p(x) = exp score(x) / sum over alternatives y of exp score(y)

The candidates are all texts that at least one source proposes for a prefix. The features phi_s(x) of a candidate x say
whether the source s knows x, and how probable, popular or recent x is according to s. The alternatives are the
candidates and "none of them". The weights w_s are fitted to prefixes and the texts that users entered after them: they
maximize the probabilities p(x) of the entered texts. This is a conditional logit model, whose loss is convex; bounds
keep the scores of texts in the order of their counts if all else is equal. The thesis leaves the combination of sources
open (section 5.5).

A text that only the model proposes may be one that nobody would ever enter. It is suggested first only if p(x) reaches
a threshold, which is fitted too; after another text, a tenth of it suffices.

Shapes: N examples, C alternatives, F features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.completion.completer import Completer, Suggestions, TextFilter, TypedText, public_filter
from factorcell.completion.online import (
    FORMAT,
    SETTINGS,
    LearningRule,
    User,
    distinguishes_users,
    read_settings,
)
from factorcell.completion.popularity import MIN_PROPOSALS, History, Popularity, Suggestion
from factorcell.completion.search import Stop
from factorcell.completion.typos import TypoTolerantLookup
from factorcell.data.counts import POPULARITY
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.options import limits
from factorcell.runs.run import Run

Floats = NDArray[np.float64]

PENALTY = 1.0  # the fit minimizes nats plus PENALTY times the squared distances from the default weights
# Largest share of the lists of suggestions that may begin with an invented text that the user does not enter. For it,
# the threshold may lower the mean reciprocal rank to `MIN_GAIN` times that of the best source alone, or by `MAX_COST`.
MAX_INVENTED, MIN_GAIN, MAX_COST = 0.005, 1.1, 0.02
LATER_SHARE = 0.1  # an invented text after another text needs this share of the threshold
# Factor on the odds of the threshold that suffices for the development users, because other users differ from them.
ODDS_MARGIN = 1.5
KNOWN = math.inf  # the evidence for a text that popular texts or the history contain

# The features of each source, with the bounds of their weights; docs/formats.md describes them. With these bounds, it
# never lowers the score of a text that a source knows it, or that it has more counts.
ANY, MORE, STRICTLY_MORE, LESS = (-math.inf, math.inf), (0.0, math.inf), (0.05, math.inf), (-math.inf, 0.0)
SOURCES: dict[str, dict[str, tuple[float, float]]] = {
    "model": {"model": MORE, "model log p": MORE, "model rest": MORE},
    "popularity": {"popular": MORE, "popular log share": STRICTLY_MORE, "popular log count": MORE},
    "history": {"own": MORE, "own log share": STRICTLY_MORE, "own last": LESS, "own typed": ANY},
    "none": {"none": ANY, "none rest": ANY, "none typed": ANY},
}
# Source -> the feature by which it orders its texts.
ORDERS = {"model": "model log p", "popularity": "popular log share", "history": "own log share"}
BOUNDS = {feature: bounds for features in SOURCES.values() for feature, bounds in features.items()}
FEATURES = tuple(BOUNDS)
# Source -> the index of the feature that is 1 for its texts and 0 for all others.
INDICATORS = {source: FEATURES.index(name) for source, name in zip(ORDERS, ("model", "popular", "own"), strict=True)}
NONE = len(FEATURES) - len(SOURCES["none"])  # index of the first feature of the alternative "none of them"


@dataclass(frozen=True)
class Candidate:
    """A proposed text with its features.

    Attributes:
        text: The proposed text; empty for the alternative "none of them".
        features: The features (F,).
        typos: Number of typing errors that the prefix has if the user intends this text.
    """

    text: str
    features: tuple[float, ...]
    typos: int = 0

    @property
    def sources(self) -> str:
        """The sources that propose the text, such as `model+history`."""
        return "+".join(source for source, index in INDICATORS.items() if self.features[index])

    @property
    def is_invented(self) -> bool:
        """Whether the text is neither a popular text nor one of the user's own texts."""
        return not (self.features[INDICATORS["popularity"]] or self.features[INDICATORS["history"]])


Example = tuple[Sequence[Candidate], str]  # the alternatives for a prefix, the last "none", and the entered text


@dataclass(frozen=True)
class BlendWeights:
    """The weights of a blend.

    Attributes:
        values: Feature -> weight.
        threshold: The probability that a text needs to be suggested first if only the model proposes it; with a tenth
            of it, the text may follow another one.
    """

    values: Mapping[str, float]
    threshold: float = 0.0

    @classmethod
    def load(cls, folder: str | Path) -> "BlendWeights":
        """Read the weights that `train` or `tune-online` stored in a run folder, or return the default weights.

        Raises:
            UserError: The file in the run folder is not valid.
        """
        path = Path(folder) / SETTINGS
        settings = read_settings(folder)
        if settings is None:
            return DEFAULT_WEIGHTS
        values, threshold = settings.get("weights"), settings.get("threshold")
        if not isinstance(values, dict) or set(values) != set(FEATURES):
            raise UserError(f"{path}: expected the weights {', '.join(FEATURES)}; run tune-online to create them again")
        numbers = {
            name: files.require_finite_number(values[name], path, f"the weight of {name!r}") for name in FEATURES
        }
        return cls(numbers, files.require_finite_number(threshold, path, "the threshold"))

    @property
    def array(self) -> Floats:
        """The weights in the order of `FEATURES` (F,)."""
        return np.array([self.values[feature] for feature in FEATURES])

    def log_probabilities(self, alternatives: Sequence[Candidate]) -> Floats:
        """Return the log probability of each alternative (C,)."""
        scores: Floats = np.array([alternative.features for alternative in alternatives]) @ self.array
        log_probs: Floats = scores - np.logaddexp.reduce(scores)
        return log_probs

    def parts(self, candidate: Candidate) -> dict[str, float]:
        """Return what each source adds to the score of a candidate."""
        terms = dict(zip(FEATURES, np.array(candidate.features) * self.array, strict=True))
        return {source: float(sum(terms[feature] for feature in SOURCES[source])) for source in INDICATORS}

    def merge(self, alternatives: Sequence[Candidate], k: int) -> list[Suggestion]:
        """Return the best `k` candidates, those without typos first, with probabilities among all `alternatives`."""
        log_probs = self.log_probabilities(alternatives).tolist()
        # The last alternative is "none of them".
        ranked = sorted(zip(log_probs, alternatives[:-1], strict=False), key=lambda pair: (-pair[0], pair[1].text))
        evidence = [math.exp(log_prob) if candidate.is_invented else KNOWN for log_prob, candidate in ranked]
        best = [ranked[index] for index in _shown(evidence, self.threshold)[:k]]
        best.sort(key=lambda pair: pair[1].typos > 0)  # the sort is stable
        return [
            Suggestion(candidate.text, log_prob, candidate.sources, candidate.typos, self.parts(candidate))
            for log_prob, candidate in best
        ]

    @classmethod
    def fit(cls, examples: Sequence[Example]) -> "BlendWeights":
        """Fit the weights and the threshold to alternatives and the texts that users entered.

        A penalty keeps the weights near the default weights, which are returned without examples.
        """
        if not examples:
            return DEFAULT_WEIGHTS
        from scipy.optimize import minimize  # takes a quarter of a second

        shape = len(examples), max(len(alternatives) for alternatives, _ in examples), len(FEATURES)
        features, mask, targets = np.zeros(shape), np.full(shape[:2], -np.inf), np.zeros(len(examples), np.int64)
        for row, (alternatives, text) in enumerate(examples):
            features[row, : len(alternatives)] = [alternative.features for alternative in alternatives]
            mask[row, : len(alternatives)] = 0.0
            texts = [alternative.text for alternative in alternatives]
            targets[row] = texts.index(text) if text in texts else len(texts) - 1
        rows, start = np.arange(len(examples)), DEFAULT_WEIGHTS.array
        chosen = features[rows, targets]

        def loss_and_gradient(weights: Floats) -> tuple[float, Floats]:
            scores = features @ weights + mask
            log_totals = np.logaddexp.reduce(scores, axis=1)
            expected = np.einsum("nc,ncf->nf", np.exp(scores - log_totals[:, None]), features)
            nats = (log_totals - chosen @ weights).sum()
            change = weights - start
            return nats + PENALTY * change @ change, (expected - chosen).sum(axis=0) + 2 * PENALTY * change

        optimum = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", bounds=list(BOUNDS.values()))
        weights = cls(dict(zip(FEATURES, optimum.x.tolist(), strict=True)))
        return replace(weights, threshold=weights.fit_threshold(examples))

    def fit_threshold(self, examples: Sequence[Example]) -> float:
        """Return the lowest threshold with which few lists begin with an invented text that the user does not enter.

        A lower threshold is returned if this one would lower the mean reciprocal rank too much.
        """
        cases = [
            _Case.of(alternatives, np.exp(self.log_probabilities(alternatives)), text)
            for alternatives, text in examples
        ]
        sufficient = sorted({0.0, *(case.evidence[0] for case in cases if case.evidence and case.evidence[0] < KNOWN)})
        best_alone = max(
            sum(1 / rank for alternatives, text in examples if (rank := rank_alone(alternatives, text, source)))
            for source in ORDERS
        )
        least = min(MIN_GAIN * best_alone, (1 - MAX_COST) * sum(case.reciprocal_rank(0.0) for case in cases))
        best = 0.0
        for probability in sufficient[:: max(1, len(sufficient) // 50)]:
            probability = math.nextafter(probability, 2.0) if probability else 0.0
            threshold = ODDS_MARGIN * probability / (1 + (ODDS_MARGIN - 1) * probability)
            if sum(case.reciprocal_rank(threshold) for case in cases) < least:
                break
            best = threshold
            if sum(case.begins_wrong(probability) for case in cases) <= MAX_INVENTED * len(cases):
                break
        return best


def rank_alone(alternatives: Sequence[Candidate], text: str, source: str) -> int | None:
    """Return the rank of `text` among the texts of one source; None if the source does not propose it."""
    order = FEATURES.index(ORDERS[source])
    proposed = [
        (-alternative.features[order], alternative.text)
        for alternative in alternatives
        if alternative.features[INDICATORS[source]]
    ]
    entered = next((entry for entry in proposed if entry[1] == text), None)
    return None if entered is None else 1 + sum(entry < entered for entry in proposed)


def _shown(evidence: Sequence[float], threshold: float) -> list[int]:
    """Return the indices of the candidates that are suggested, in this order.

    An invented text that does not reach the threshold waits for another text, which it may then follow.

    Args:
        evidence: For each candidate, the best first, its probability if it is invented, and otherwise `KNOWN`.
        threshold: The probability that the first suggestion needs.
    """
    shown, waiting = list[int](), list[int]()
    for index, probability in enumerate(evidence):
        if probability >= threshold or (shown and probability >= LATER_SHARE * threshold):
            shown += [index, *waiting]
            waiting = []
        elif probability >= LATER_SHARE * threshold:
            waiting.append(index)
    return shown


@dataclass(frozen=True)
class _Case:
    """The `evidence` for the candidates of an example (`_shown`), and the index of the `entered` text or None."""

    evidence: tuple[float, ...]
    entered: int | None

    @classmethod
    def of(cls, alternatives: Sequence[Candidate], probabilities: Floats, text: str) -> "_Case":
        candidates = list(zip(alternatives[:-1], probabilities.tolist(), strict=False))
        candidates.sort(key=lambda candidate: (-candidate[1], candidate[0].text))
        texts = [candidate.text for candidate, _ in candidates]
        evidence = (probability if candidate.is_invented else KNOWN for candidate, probability in candidates)
        return cls(tuple(evidence), texts.index(text) if text in texts else None)

    def reciprocal_rank(self, threshold: float) -> float:
        """Return the reciprocal rank of the entered text; 0 if it is not suggested."""
        shown = _shown(self.evidence, threshold)
        return 1 / (1 + shown.index(self.entered)) if self.entered in shown else 0.0

    def begins_wrong(self, threshold: float) -> bool:
        """Return whether the list begins with an invented text that the user does not enter."""
        return self.entered != 0 and bool(self.evidence) and threshold <= self.evidence[0] < KNOWN


# Rounded weights, fitted to made queries (experiments/made_logs.py); `train` and `tune-online` fit those of a run.
DEFAULT_WEIGHTS = BlendWeights(
    dict(zip(FEATURES, (0.0, 0.3, 0.0, 4.0, 0.8, 0.0, 3.0, 1.0, -0.2, 1.5, 1.5, 0.6, 0.0), strict=True))
)


def save_settings(run: Run, rule: LearningRule, weights: BlendWeights) -> None:
    """Store the learning rule and the weights of the blend in the folder of `run`, in one file."""
    settings = {"rule": asdict(rule), "weights": dict(weights.values), "threshold": weights.threshold}
    files.write_versioned(run.folder / SETTINGS, settings, FORMAT)


class Blend(Completer):
    """Completion by the model, by popular texts and by the user's history, with learned weights.

    A blend never changes, so threads can share it.
    """

    def __init__(
        self, run: Run, popularity: Popularity | None, weights: BlendWeights | None = None, **options: Any
    ) -> None:
        """Blend the model of a run with popular texts and the history of the user who types.

        Args:
            run: The run.
            popularity: The popular texts, or None.
            weights: The weights of the features; by default the weights in the run folder.
            options: The options of `Completer`. The blend forgives as many typos in popular texts and in the history,
                and suggests no text of the history that `is_allowed` rejects.

        Raises:
            UserError: The run cannot complete texts, or an option is not valid.
        """
        super().__init__(run, **options)
        self.popularity = popularity
        self.popular_lookup = None if popularity is None else self._tolerate_typos(popularity)
        self.weights = weights or BlendWeights.load(run.folder)

    def begin(
        self, user: User | None = None, context: Mapping[str, Any] | None = None, unknown: str | None = None
    ) -> TypedText:
        """Return the empty typed text of `user` in `context`, with the arguments of `Completer.begin`."""
        if user is not None:
            allowed_texts = tuple(filter(self.is_allowed, user.history.texts))
            user = replace(user, history=replace(user.history, texts=allowed_texts))
        return super().begin(user, context, unknown)

    def suggest(
        self, typed_text: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the best `k` texts that continue a typed text; `parts` says what each source adds to the score.

        Each source proposes at least `MIN_PROPOSALS` texts. If the model finds no text in time, only the other
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
            return super().suggest(typed_text, k, deadline, stop)
        size = max(k, MIN_PROPOSALS)
        model_suggestions = super().suggest(typed_text, size, deadline, stop)
        alternatives = self.candidates(typed_text.text, model_suggestions, user.history, size)
        return replace(model_suggestions, suggestions=self.weights.merge(alternatives, size)[:k])

    def candidates(self, prefix: str, model_suggestions: Suggestions, history: History, k: int) -> list[Candidate]:
        """Return the different texts that the sources propose, with their features, and "none of them" as the last.

        Each source proposes at most `k` texts.
        """
        model_proposals = model_suggestions.suggestions[:k]
        popular_proposals = [] if self.popular_lookup is None else self.popular_lookup.complete(prefix, k)
        personal_proposals = self._tolerate_typos(history).complete(prefix, k)
        proposals = model_proposals, popular_proposals, personal_proposals
        typos_by_text = {suggestion.text: suggestion.typos for suggestion in chain(*proposals)}
        ages: dict[str, int] = {}  # text of the history -> number of texts that the user entered after it
        for age, text in enumerate(reversed(history.texts)):
            ages.setdefault(text, age)
        own_shares = history.shares()
        counts = {text: 0 if self.popularity is None else self.popularity.count(text) for text in typos_by_text}
        log_count_total = math.log(max(1, sum(counts.values())))
        model_log_probs = {suggestion.text: suggestion.log_probability for suggestion in model_proposals}
        min_log_prob = min(model_log_probs.values(), default=0.0)
        proposed_by_model = min(1 - 1e-6, sum(map(math.exp, model_log_probs.values())))  # in total, below 1
        log_rest = math.log1p(-proposed_by_model)  # log probability of all texts that the model does not propose
        log_prefix_length = math.log1p(len(prefix))

        def compute_features(text: str) -> tuple[float, ...]:
            """Return the features of a text in the order of `FEATURES`."""
            model_features = (0.0, min_log_prob, log_rest)
            if text in model_log_probs:
                model_features = (1.0, model_log_probs[text], 0.0)
            popularity_features = (0.0, 0.0, 0.0)
            if count := counts[text]:
                popularity_features = (1.0, math.log(count) - log_count_total, log_count_total)
            history_features = (0.0, 0.0, 0.0, 0.0)
            if text in ages:
                history_features = (1.0, math.log(own_shares[text]), math.log1p(ages[text]), log_prefix_length)
            return model_features + popularity_features + history_features + (0.0, 0.0, 0.0)

        none = Candidate("", (0.0,) * NONE + (1.0, log_rest, log_prefix_length))
        return [*(Candidate(text, compute_features(text), typos) for text, typos in typos_by_text.items()), none]

    def _tolerate_typos(self, lookup: Popularity | History) -> Popularity | History | TypoTolerantLookup:
        """Return a lookup that forgives as many typos as the completer; `lookup` itself if it forgives no typo."""
        return TypoTolerantLookup(lookup, self.max_typos) if self.max_typos else lookup


def new_suggester(
    run: Run,
    *,
    unknown: str = "error",
    seconds: float | None = None,
    typos: int = 0,
    is_allowed: TextFilter | None = None,
) -> Completer:
    """Return a blend if `run` distinguishes users and has popular texts, otherwise a completer.

    Args:
        run: The run.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        seconds: Time limit of each search.
        typos: Maximum number of typing errors to forgive (0, 1 or 2).
        is_allowed: Returns whether a text may be suggested. No source suggests a text for which it returns False.
    """
    options: dict[str, Any] = {"unknown": unknown, "seconds": seconds, "typos": typos, "is_allowed": is_allowed}
    if distinguishes_users(run) and (run.folder / POPULARITY).exists():
        return Blend(run, Popularity.from_run(run, public_filter(is_allowed)), **options)
    return Completer(run, **options)
