"""Blending of suggestions from the model, from popular texts and from the user's history, with learned weights.

    score(x) = sum over sources s of  w_s . phi_s(x)      p(x) = exp score(x) / sum over alternatives y of exp score(y)

The candidates are all texts that at least one source proposes for a prefix. The features phi_s(x) of a candidate x say
whether the source s knows x, and how probable, popular or recent x is according to s. The alternatives are the
candidates and "none of them". The weights w_s are fitted to prefixes and the texts that users entered after them: they
maximize the probabilities p(x) of the entered texts. This is a conditional logit model, whose loss is convex; bounds
keep the scores of texts in the order of their counts if all else is equal. The thesis leaves the combination of sources
open (section 5.5).

A text that only the model proposes may be one that nobody would ever enter. It is suggested first only if p(x) reaches
a threshold, which is fitted too; after another text, a tenth of it suffices. Compiled code computes the features and
the ranking (native/users.cpp); this module fits the weights.

Shapes: N examples, C alternatives, F features.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.completion.completer import Completer, Suggestions, TextFilter, TypedText, public_filter
from factorcell.completion.online import FORMAT, SETTINGS, LearningRule, User, distinguishes_users, read_settings
from factorcell.completion.popularity import MIN_PROPOSALS, History, Popularity, Suggestion
from factorcell.completion.search import Stop
from factorcell.data.counts import POPULARITY
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.nn.kernels import library
from factorcell.nn.kernels.signatures import BLEND
from factorcell.options import limits
from factorcell.runs.run import Run

Floats = NDArray[np.float64]

PENALTY = 1.0  # the fit minimizes nats plus PENALTY times the squared distances from the default weights
# Largest share of the lists of suggestions that may begin with an invented text that the user does not enter, also if
# no known text begins with the prefix: a short list is better than an invented one. For it, the threshold may lower
# the mean reciprocal rank to `MIN_GAIN` times that of the best source alone, or by `MAX_COST`.
MAX_INVENTED, MIN_GAIN, MAX_COST = 0.005, 1.1, 0.02
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
# Baseline of a blend: the model alone, or completion without a model -> its sources, the best texts first.
BASELINES = {"model": ("model",), "known": ("history", "popularity")}


@dataclass(frozen=True)
class Candidates:
    """The different texts that the sources propose for a prefix, with the features of all alternatives."""

    texts: Sequence[str]  # (C - 1,)
    features: Floats  # of the texts, and of "none of them" in the last row (C, F)
    typos: Sequence[int]  # the number of typing errors of the prefix, if the user intends the text (C - 1,)

    def rank_alone(self, text: str, sources: Sequence[str]) -> int | None:
        """Return the rank of `text` if one source follows another, from 1; None if they do not propose it."""
        proposed = list[str]()
        for source in sources:
            order, indicator = FEATURES.index(ORDERS[source]), INDICATORS[source]
            rows = zip(self.features[:-1].tolist(), self.texts, strict=True)
            proposed += (name for _, name in sorted((-row[order], name) for row, name in rows if row[indicator]))
        return rank_of(text, list(dict.fromkeys(proposed)))


class Ranking(NamedTuple):
    """The ranked candidates for a prefix, as compiled code writes them."""

    log_probabilities: Floats  # of all alternatives (C,)
    order: NDArray[np.int64]  # the indices of the texts, the most probable first (C - 1,)
    evidence: Floats  # for each ranked text: its probability if it is invented, and otherwise `KNOWN` (C - 1,)
    suggestions: NDArray[np.int64]  # the indices of the texts that are suggested, the best first


Example = tuple[Candidates, str]  # the candidates for a prefix, and the text that the user entered


def rank_of(text: str, suggested_texts: Sequence[str]) -> int | None:
    """Return the rank of `text` among the suggested texts, from 1, or None if it is not among them."""
    return suggested_texts.index(text) + 1 if text in suggested_texts else None


@dataclass(frozen=True)
class BlendWeights:
    """The weights of a blend by feature, and the threshold.

    A text that only the model proposes needs the probability `threshold` to be suggested first; with a tenth of it, the
    text may follow another one.
    """

    values: Mapping[str, float]
    threshold: float = 0.0

    @classmethod
    def load(cls, folder: str | Path) -> "BlendWeights":
        """Read the weights in a run folder, or return the default weights; raise a `UserError` for an invalid file."""
        path, settings = Path(folder) / SETTINGS, read_settings(folder)
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

    def rank(self, candidates: Candidates, k: int) -> Ranking:
        """Rank the candidates, and choose at most `k` of them as suggestions."""
        count = len(candidates.texts)
        order = sorted(range(count), key=candidates.texts.__getitem__)
        ranking = Ranking(np.empty(count + 1), np.empty(count, np.int64), np.empty(count), np.empty(count, np.int64))
        arrays = {
            "features": candidates.features,
            "typos": np.array(candidates.typos, np.int64),
            "places": np.argsort(order),
            "weights": self.array,
            **ranking._asdict(),
        }
        numbers = {"texts": count, "alternatives": count + 1, "feature_count": len(FEATURES), "count": k}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        arguments = BLEND.checked_arguments(numbers, tensors, threshold=self.threshold)
        library.required().factorcell_blend(ctypes.byref(arguments))
        return ranking._replace(suggestions=ranking.suggestions[: arguments.count])

    def merge(self, candidates: Candidates, k: int) -> list[Suggestion]:
        """Return the best `k` candidates, with probabilities among all alternatives.

        Those without typos come first, but for invented texts that are less probable than corrections of the prefix;
        no text with typos replaces a known text without.
        """
        ranking = self.rank(candidates, k)
        suggestions, weights = list[Suggestion](), self.array
        for index in ranking.suggestions.tolist():
            features = candidates.features[index]
            sources = "+".join(source for source, indicator in INDICATORS.items() if features[indicator])
            terms = dict(zip(FEATURES, features * weights, strict=True))
            parts = {source: float(sum(terms[feature] for feature in SOURCES[source])) for source in INDICATORS}
            text, typos = candidates.texts[index], candidates.typos[index]
            log_prob = float(ranking.log_probabilities[index])
            suggestions.append(Suggestion(text, log_prob, sources, typos, parts))
        return suggestions

    @classmethod
    def fit(cls, examples: Sequence[Example]) -> "BlendWeights":
        """Fit the weights and the threshold to candidates and the texts that users entered.

        A penalty keeps the weights near the default weights, which are returned without examples.
        """
        if not examples:
            return DEFAULT_WEIGHTS
        from scipy.optimize import minimize  # takes a quarter of a second

        shape = len(examples), max(len(candidates.features) for candidates, _ in examples), len(FEATURES)
        features, mask, targets = np.zeros(shape), np.full(shape[:2], -np.inf), np.zeros(len(examples), np.int64)
        for row, (candidates, text) in enumerate(examples):
            texts = candidates.texts
            features[row, : len(texts) + 1], mask[row, : len(texts) + 1] = candidates.features, 0.0
            targets[row] = texts.index(text) if text in texts else len(texts)
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
        """Return the lowest threshold with few wrong invented texts at the top that costs little reciprocal rank."""
        # For each example, the evidence for the ranked texts, and the place of the entered one
        lists = list[tuple[Floats, int | None]]()
        for candidates, text in examples:
            ranking = self.rank(candidates, 0)
            places = (place for place, index in enumerate(ranking.order) if candidates.texts[index] == text)
            lists.append((ranking.evidence, next(places, None)))

        def sum_of_ranks(threshold: float) -> float:
            """Return the sum of the reciprocal ranks of the entered texts."""
            shown_and_entered = ((_shown(evidence, threshold), entered) for evidence, entered in lists)
            return sum(1 / (1 + shown.index(entered)) for shown, entered in shown_and_entered if entered in shown)

        invented = [
            (float(evidence[0]), entered) for evidence, entered in lists if len(evidence) and evidence[0] < KNOWN
        ]
        sufficient = sorted({0.0, *(probability for probability, _ in invented)})
        best_alone = max(
            sum(1 / rank for candidates, text in examples if (rank := candidates.rank_alone(text, [source])))
            for source in ORDERS
        )
        least = min(MIN_GAIN * best_alone, (1 - MAX_COST) * sum_of_ranks(0.0))
        best = 0.0
        for probability in sufficient[:: max(1, len(sufficient) // 50)]:
            probability = math.nextafter(probability, 2.0) if probability else 0.0
            threshold = ODDS_MARGIN * probability / (1 + (ODDS_MARGIN - 1) * probability)
            if sum_of_ranks(threshold) < least:
                break
            best = threshold
            wrong_count = sum(entered != 0 and first >= probability for first, entered in invented)
            if wrong_count <= MAX_INVENTED * len(lists):
                break
        return best


def _shown(evidence: Floats, threshold: float) -> list[int]:
    """Return the places of the ranked texts that are suggested with a `threshold`, in this order (`Ranking`)."""
    places = np.empty(len(evidence), np.int64)
    evidence_address, places_address = (ctypes.c_void_p(array.ctypes.data) for array in (evidence, places))
    function, count = library.required().factorcell_shown, ctypes.c_int64(len(evidence))
    listed = function(evidence_address, count, ctypes.c_double(threshold), places_address)
    return list(map(int, places[:listed]))


# Rounded weights, fitted to made queries (experiments/made_logs.py); `train` and `tune-online` fit those of a run.
DEFAULT_WEIGHTS = BlendWeights(
    {
        "model": 0.0,
        "model log p": 0.3,
        "model rest": 0.0,
        "popular": 4.0,
        "popular log share": 0.8,
        "popular log count": 0.0,
        "own": 3.0,
        "own log share": 1.0,
        "own last": -0.2,
        "own typed": 1.5,
        "none": 1.5,
        "none rest": 0.6,
        "none typed": 0.0,
    }
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
            popularity: The popular texts that may be suggested (`is_allowed` of `Popularity.from_run`), or None.
            weights: The weights of the features; by default the weights in the run folder.
            options: The options of `Completer`. The blend forgives as many typos in popular texts and in the history,
                and suggests no text of the history that `is_allowed` rejects.

        Raises:
            UserError: The run cannot complete texts, or an option is not valid.
        """
        super().__init__(run, **options)
        self.popularity = popularity
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
        sources propose texts. Without a user, only the model proposes texts. Known texts that begin with the prefix in
        another case come last. The arguments are those of `Completer.suggest`.
        """
        [k] = limits.check(count=k)
        user = typed_text.user
        if user is None:
            return super().suggest(typed_text, k, deadline, stop)
        size = max(k, MIN_PROPOSALS)
        proposed = super().suggest(typed_text, size, deadline, stop)
        candidates = self.candidates(typed_text.text, proposed.suggestions, user.history, size)
        suggestions = self.weights.merge(candidates, size)
        if len(suggestions) < size:
            suggestions += self._in_other_case(typed_text.text, user.history, candidates, size - len(suggestions))
        return replace(proposed, suggestions=suggestions[:k])

    def candidates(self, prefix: str, model_suggestions: Sequence[Suggestion], history: History, k: int) -> Candidates:
        """Return the texts that the sources propose; each source proposes at most `k` texts."""
        popularity, typos = self.popularity, self.max_typos
        popular_suggestions = [] if popularity is None else popularity.complete(prefix, k, typos)
        known_suggestions = [*popular_suggestions, *history.complete(prefix, k, typos)]
        return self._new_candidates(prefix, model_suggestions[:k], known_suggestions, history)

    def _in_other_case(self, prefix: str, history: History, candidates: Candidates, k: int) -> list[Suggestion]:
        """Return the best `k` known texts that begin with `prefix` in another case only."""
        popular_suggestions = self.popularity.complete_in_other_case(prefix, MIN_PROPOSALS) if self.popularity else []
        known_suggestions = [*popular_suggestions, *history.complete_in_other_case(prefix, MIN_PROPOSALS)]
        new_suggestions = [suggestion for suggestion in known_suggestions if suggestion.text not in candidates.texts]
        if not new_suggestions:
            return []
        best = self.weights.merge(self._new_candidates(prefix, [], new_suggestions, history), k)
        log_none = float(self.weights.rank(candidates, 0).log_probabilities[-1])
        return [replace(suggestion, log_probability=suggestion.log_probability + log_none) for suggestion in best]

    def _new_candidates(
        self, prefix: str, model_suggestions: Sequence[Suggestion], known: Sequence[Suggestion], history: History
    ) -> Candidates:
        """Return the candidates that the model, and popular texts and the history, suggest."""
        typos_by_text = {suggestion.text: suggestion.typos for suggestion in (*model_suggestions, *known)}
        features = compute_features(
            list(typos_by_text),
            {suggestion.text: suggestion.log_probability for suggestion in model_suggestions},
            {} if self.popularity is None else self.popularity.counts,
            history,
            len(prefix),
        )
        return Candidates(list(typos_by_text), features, list(typos_by_text.values()))


def compute_features(
    texts: Sequence[str],
    model_log_probs: Mapping[str, float],
    counts: Mapping[str, int],
    history: History,
    prefix_length: int,
) -> Floats:
    """Return the features (C, F) of the proposed `texts` (C - 1,) and of "none of them", in the order of `FEATURES`.

    `model_log_probs` has the texts that the model proposes, and `counts` how often each popular text occurs.
    """
    ages: dict[str, int] = {}  # text of the history -> number of texts that the user entered after it
    for age, text in enumerate(reversed(history.texts)):
        ages.setdefault(text, age)
    features = torch.empty(len(texts) + 1, len(FEATURES), dtype=torch.double)
    arrays = {
        "log_probs": torch.tensor([model_log_probs.get(text, math.nan) for text in texts], dtype=torch.double),
        "counts": torch.tensor([counts.get(text, 0) for text in texts], dtype=torch.int64),
        "shares": torch.tensor([history.shares.get(text, 0.0) for text in texts], dtype=torch.double),
        "ages": torch.tensor([ages.get(text, 0) for text in texts], dtype=torch.int64),
        "features": features,
    }
    sizes = {"texts": len(texts), "alternatives": len(texts) + 1, "feature_count": len(FEATURES)}
    arguments = BLEND.checked_arguments({**sizes, "typed": prefix_length}, arrays, threshold=0.0)
    library.required().factorcell_features(ctypes.byref(arguments))
    return features.numpy()


def new_suggester(run: Run, *, is_allowed: TextFilter | None = None, **options: Any) -> Completer:
    """Return a blend if `run` distinguishes users and has popular texts, otherwise a completer.

    Without the compiled code, which blends, it is a completer too.
    """
    if distinguishes_users(run) and (run.folder / POPULARITY).exists() and library.library():
        popularity = Popularity.from_run(run, public_filter(is_allowed))
        return Blend(run, popularity, is_allowed=is_allowed, **options)
    return Completer(run, is_allowed=is_allowed, **options)
