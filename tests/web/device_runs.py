"""A run with users whose weights are exact in an export, its export, and what a user types and accepts."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorcell.completion.blend import DEFAULT_WEIGHTS, Blend, BlendWeights, save_settings
from factorcell.completion.device import export_to_device
from factorcell.completion.online import Learner, LearningRule, User
from factorcell.completion.popularity import Popularity
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.runs.run import Run
from tests.small_runs import as_any, make_letters

WORDS = (
    "bread butter baked beans banana boat how to bake a cake café crème brûlée straße new york newton Bread Banana How"
).split()
USERS = {"user": "city", "context": (), "min_user_count": 1}
ACCEPTED_COUNT, PREFIX_COUNT = 20, 200
# Without other threads of V8: at its end, Node would wait for the compiler in another thread, which can wait for a
# garbage collection in the main thread (https://github.com/nodejs/node/issues/54918).
NODE = ("node", "--single-threaded")


def save_run(folder: Path, rule: LearningRule, **model: Any) -> Path:
    """Save a run with random weights that an export stores exactly, with popular texts and a rule."""
    random = np.random.default_rng(0)
    texts = tuple(" ".join(random.choice(WORDS, random.integers(1, 4))) for _ in range(60))
    options = {
        "hidden_size": 33,
        "embedding_size": 17,
        "rank": 3,
        "context_size": 6,
        "variable_size": 4,
        "max_tokens": 40,
    }
    source = make_letters(texts, spread=0.3, data={**USERS, "max_tokens": 40}, **{**options, **model})
    run = Run.create(folder, source.config, source.tokenizer, source.schema)
    with torch.no_grad():
        for parameter, values in zip(run.model.parameters(), source.model.parameters(), strict=True):
            parameter.copy_(0.25 * values.sign())
        run.model.embedding.mul_(torch.from_numpy(random.choice([0.5, 1.0, 2.0], (len(run.model.embedding), 1))))
        as_any(run.model.head).bias[run.tokenizer.specials.end] += 2.0  # texts end soon, as in a trained model
    run.save_weights({})
    TextCounts.of([*texts, *texts[:20], *texts[:5]], min_count=1).save(folder / POPULARITY)
    save_settings(run, rule, BlendWeights(DEFAULT_WEIGHTS.values, threshold=0.02))
    return folder


@dataclass(frozen=True)
class Session:
    """What a user does: complete a prefix, or accept a text."""

    prefixes: list[list[str]]  # before the first accepted text, and after each of them
    accepted: list[str]

    @classmethod
    def make(cls) -> "Session":
        random = np.random.default_rng(1)
        accepted = [" ".join(random.choice(WORDS, random.integers(1, 4))) for _ in range(ACCEPTED_COUNT)]
        texts = [" ".join(random.choice(WORDS, 3)) for _ in range(PREFIX_COUNT)]
        prefixes = [text[: random.integers(0, 12)] for text in texts]
        size = -(-PREFIX_COUNT // (ACCEPTED_COUNT + 1))
        return cls([prefixes[first : first + size] for first in range(0, PREFIX_COUNT, size)], accepted)


@dataclass(frozen=True)
class Answers:
    """The suggestions for each prefix, as texts with log probabilities, and the vector of the user at the end."""

    suggestions: list[list[tuple[str, float]]]
    vector: np.ndarray


def python_answers(run: Run, session: Session, k: int = 10) -> Answers:
    """Return the answers of Python."""
    blend, learner, suggestions = Blend(run, Popularity.from_run(run)), Learner(run), list[list[tuple[str, float]]]()
    user: User = learner.new()
    for prefixes, text in itertools.zip_longest(session.prefixes, session.accepted):
        for prefix in prefixes or []:
            results = blend.complete(prefix, user, k=k)
            suggestions.append([(suggestion.text, suggestion.log_probability) for suggestion in results])
        if text is not None:
            (user,), _ = learner.learn([user], [text])
    return Answers(suggestions, user.vector)


def assert_same(actual: Answers, expected: Answers) -> None:
    """Compare answers; texts whose log probabilities differ by 1e-4 or less may change places."""
    assert np.abs(actual.vector - expected.vector).max() < 1e-4
    assert len(actual.suggestions) == len(expected.suggestions) == PREFIX_COUNT
    assert sum(map(len, expected.suggestions)) > 5 * PREFIX_COUNT
    for results, suggestions in zip(actual.suggestions, expected.suggestions, strict=True):
        assert len(results) == len(suggestions), (results, suggestions)
        for (text, log_prob), (expected_text, expected_log_prob) in zip(results, suggestions, strict=True):
            assert abs(log_prob - expected_log_prob) < 1e-4, (results, suggestions)
            if text != expected_text:
                others = [other for _, other in suggestions if abs(other - expected_log_prob) < 1e-4]
                is_last = expected_log_prob == suggestions[-1][1]
                assert len(others) > 1 or is_last, (results, suggestions)


def export(folder: Path, run: Run) -> Path:
    export_to_device(run, folder)
    return folder
