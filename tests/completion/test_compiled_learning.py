"""Compare online learning and the blend in compiled code with autograd and with the equations in Python."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.completion.blend import DEFAULT_WEIGHTS, FEATURES, INDICATORS, BlendWeights, Candidates, Floats
from factorcell.completion.online import OPTIMIZERS, Learner, LearningRule
from factorcell.completion.typos import TYPO_COST
from factorcell.errors import UserError
from factorcell.nn.kernels import library
from factorcell.runs.run import Run
from tests.kernels import VARIANTS, compiled
from tests.small_runs import make_letters, make_run

USERS = {"user": "city", "context": (), "min_user_count": 1}
TEXTS = ["abc", "b", "", "cabcabcab"]
MODELS: dict[str, dict[str, Any]] = {
    "default": {},
    "concat": {"adapt": ("concat",), "output_bias": ()},
    "factor": {"adapt": ("factor",), "rank": 5, "hidden_size": 33, "embedding_size": 17},
    "norm": {"layer_norm": True, "hidden_size": 16},
    "bias": {"adapt": (), "output_bias": ("low_rank", "low_rank_each", "one_hot")},
    "relu": {"context_layer": "relu"},
    "none": {"adapt": ("factor",), "output_bias": (), "context_layer": "none", "variable_size": 3, "context_size": 3},
}


def make_users(**model: Any) -> Run:
    return make_letters(data=USERS, spread=0.5, **model)


def random_vectors(learner: Learner, count: int) -> np.ndarray:
    size = len(learner.unknown_vector)
    return np.random.default_rng(0).normal(0, 0.7, (count, size)).astype(np.float32)


def compare_gradients(run: Run, texts: list[str], contexts: list[dict[str, Any]]) -> None:
    learner, autograd = Learner(run), Learner(run)
    autograd.user_model = None
    assert learner.user_model is not None
    vectors = random_vectors(learner, len(texts))
    nats, gradients = learner.gradients(vectors, texts, contexts)
    expected_nats, expected = autograd.gradients(vectors, texts, contexts)
    assert nats == pytest.approx(expected_nats, rel=1e-5, abs=1e-5)
    assert np.abs(expected).max() > 1e-3
    assert gradients == pytest.approx(expected, rel=1e-5, abs=1e-5 * float(np.abs(expected).max()))


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_gradients_are_those_of_autograd(model: dict[str, Any], variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    compare_gradients(make_users(**model), TEXTS, [{}] * len(TEXTS))


@compiled
@pytest.mark.parametrize("adapt", [("concat", "factor"), ("concat", "names")])
def test_gradients_in_a_context_are_those_of_autograd(adapt: tuple[str, ...], tmp_path: Path) -> None:
    """The context has other variables, and names that the model reads before each text."""
    columns = ("stars", "lat:number", "lon:number")
    biases = ("low_rank", "low_rank_each", "hash", "one_hot")
    run = make_run(tmp_path / "run", columns, user="city", min_user_count=1, adapt=adapt, output_bias=biases)
    contexts: list[dict[str, Any]] = [{"stars": "5", "lat": 59.9}, {"stars": "1"}, {}]
    compare_gradients(run, ["the sea is cold", "", "sun and sand"], contexts)


def test_other_models_learn_with_autograd() -> None:
    assert Learner(make_users(cell="gru")).user_model is None
    assert Learner(make_users(adapt=("scale",))).user_model is None
    assert Learner(make_users(layers=2)).user_model is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_follow_the_equations(name: str) -> None:
    rule, random = LearningRule(name, 0.3), np.random.default_rng(1)
    vector, state = random.normal(size=7).astype(np.float32), np.zeros((OPTIMIZERS[name], 7), np.float32)
    expected, mean, change_mean = vector.astype(float), np.zeros(7), np.zeros(7)
    for _ in range(5):
        gradient = random.normal(size=7).astype(np.float32)
        g, change = gradient.astype(float), -gradient.astype(float)
        if name == "adagrad":
            mean += g**2
            change = -g / (np.sqrt(mean) + 1e-6)
        elif name == "adadelta":
            mean = 0.95 * mean + 0.05 * g**2
            change = -g * np.sqrt((change_mean + 1e-6) / (mean + 1e-6))
            change_mean = 0.95 * change_mean + 0.05 * change**2
        expected = expected + 0.3 * change
        expected *= min(1, 2.5 / np.linalg.norm(expected))
        vector, state = rule.update(vector, state, gradient, 2.5)
    assert vector == pytest.approx(expected, rel=1e-5)
    assert [*state] == [pytest.approx(row, rel=1e-5) for row in (mean, change_mean)[: len(state)]]


def expected_suggestions(candidates: Candidates, log_probs: Floats, threshold: float, k: int) -> list[int]:
    """Return the indices of at most `k` texts that a blend suggests, the best first, by its rules."""
    features, indices = candidates.features, range(len(candidates.texts))
    order = sorted(indices, key=lambda index: (-log_probs[index], candidates.texts[index]))
    is_model, is_popular, is_own = ([bool(features[i, INDICATORS[source]]) for i in indices] for source in INDICATORS)
    is_invented = [not (is_popular[i] or is_own[i]) for i in indices]
    shown, waiting = list[int](), list[int]()
    for index in order:
        probability = math.exp(log_probs[index]) if is_invented[index] else math.inf
        if probability >= threshold or (shown and probability >= 0.1 * threshold):
            shown += [index, *waiting]
            waiting = []
        elif probability >= 0.1 * threshold:
            waiting.append(index)
    has_typos = [count > 0 for count in candidates.typos]
    best = [i for place, i in enumerate(shown) if place < k or not (has_typos[i] or is_invented[i])]
    model_log_probs = features[:, FEATURES.index("model log p")]
    corrections = [model_log_probs[i] for i in indices if is_model[i] and not is_invented[i] and has_typos[i]]
    best_correction = max(corrections, default=-math.inf)
    is_unlikely = [is_invented[i] and model_log_probs[i] < best_correction for i in indices]
    return sorted(best, key=lambda index: 1 if has_typos[index] else 2 * is_unlikely[index])[:k]


def test_compiled_code_has_the_features_of_python() -> None:
    source = (Path(library.__file__).parent / "native" / "users.cpp").read_text()
    names = source.split("enum Feature {")[1].split("}")[0].lower().split(",")
    assert [name.strip().replace("_", " ") for name in names] == list(FEATURES)


def test_suggestions_follow_the_rules_of_the_blend() -> None:
    random = np.random.default_rng(2)
    for trial in range(200):
        count, k = random.integers(0, 12), int(random.integers(1, 10))
        features = np.zeros((count + 1, len(FEATURES)))
        features[:-1, [INDICATORS[source] for source in INDICATORS]] = random.integers(0, 2, (count, 3))
        features[:-1, FEATURES.index("model log p")] = -6 * random.random(count)
        features[:-1, FEATURES.index("own log share")] = -3 * random.random(count)
        features[-1, FEATURES.index("none")] = 1.0
        texts = [f"text {number}" for number in random.permutation(count)]
        candidates = Candidates(texts, features, random.integers(0, 2, count).tolist())
        weights = BlendWeights(DEFAULT_WEIGHTS.values, float(random.random() / 2))
        costs = TYPO_COST * np.array([*candidates.typos, 0]) * (features[:, INDICATORS["model"]] == 0)
        scores = features @ weights.array - costs
        log_probs = scores - np.logaddexp.reduce(scores)
        suggestions = weights.merge(candidates, k)
        expected = expected_suggestions(candidates, log_probs, weights.threshold, k)
        assert [suggestion.text for suggestion in suggestions] == [texts[index] for index in expected], trial
        for suggestion in suggestions:
            assert suggestion.log_probability == pytest.approx(log_probs[texts.index(suggestion.text)])


def test_an_installation_without_compiled_code_cannot_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library", lambda: None)
    with pytest.raises(UserError, match="install a C"):
        LearningRule().update(np.zeros(2, np.float32), np.zeros((1, 2), np.float32), np.zeros(2, np.float32), 1.0)
