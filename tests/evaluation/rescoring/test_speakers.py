"""Speakers learned between utterances, against one utterance after the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.completion.online import Learner, LearningRule
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.evaluation.rescoring.nbest import NBest, read_nbest
from factorcell.evaluation.rescoring.rescore import ScoreWeights, score
from factorcell.evaluation.rescoring.speakers import begin, learn
from factorcell.model.run import Run
from factorcell.training.trainer import observe
from tests.small import make_run

TEXTS = ("the sea is cold", "the sand is cold", "sun and sand", "the sea", "cold", "")
WEIGHTS = ScoreWeights({"acoustic": 1.0, "model": 0.5})


def make(folder: Path, **model: Any) -> Run:
    """A run folder with weights of chance, of words; its users are who speaks, its context their role."""
    config = Config.from_dict(
        {
            "data": {"context": ("role",), "user": "who", "min_count": 1, "min_context_count": 1, "min_user_count": 1},
            "model": {"embedding_size": 5, "hidden_size": 6, "rank": 2, "context_size": 3, "variable_size": 2, **model},
        }
    )
    people = (("ann", "judge"), ("ben", "clerk"))
    rows = [{"text": text, "who": who, "role": role} for text in TEXTS for who, role in people]
    corpus = prepare(rows, config.data)
    run = Run.create(folder, config, corpus.vocabulary, corpus.schema)
    observe(run.model, corpus)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.6, generator=random)
    run.model.requires_grad_(False)
    run.save_weights({})
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With a bias for every speaker, which a vector alone does not have."""
    return make(tmp_path_factory.mktemp("run") / "run", output_bias=("low_rank", "one_hot"))


def lists(count: int = 12, **columns: Any) -> NBest:
    """Utterances of somebody known, of somebody new, and of nobody."""
    random = np.random.default_rng(5)
    rows = []
    for number in range(count):
        texts = [TEXTS[place] for place in random.permutation(len(TEXTS))[:3]]
        found = [{"text": text, "acoustic": round(float(random.normal(-3, 1)), 2)} for text in texts]
        context = {"who": ("ann", "zoe", "ben", None)[number % 4], "role": ("judge", "clerk")[number % 2], **columns}
        rows.append({"id": f"u{number}", "hypotheses": found, "reference": "x", **context})
    return read_nbest(rows)


def test_a_rate_of_zero_learns_nothing(run: Run) -> None:
    nbest = lists()
    plain, learned = score(run, nbest, unknown="group"), learn(run, nbest, WEIGHTS, rule=LearningRule("sgd", 0.0))
    for one, other in zip(plain.model, learned.model, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def by_hand(run: Run, nbest: NBest, rule: LearningRule) -> list[list[float]]:
    """One utterance after the other, one text at a time."""
    learner, people, found = Learner(run, rule), dict[str, Any](), []
    names = learner.variable.values
    for utterance in nbest.utterances:
        who, role = utterance.columns["who"], {"role": utterance.columns["role"]}
        user = people.get(who) or begin(learner, -1 if who is None else names.index(who) if who in names else 0)
        logs = [-float(learner.nats(user.vector[None], [text], [role])[0]) for text in utterance.texts]
        found.append(logs)
        totals = [float(a) + 0.5 * m for (a,), m in zip(utterance.scores, logs, strict=True)]
        text = utterance.texts[totals.index(max(totals))]
        if who is not None:
            (people[who],), _ = learner.learn([user], [text], [role])
    return found


@pytest.mark.parametrize("optimiser", ["adagrad", "adadelta"])
def test_scores_equal_those_of_one_text_at_a_time(optimiser: str, tmp_path: Path) -> None:
    run, rule, nbest = make(tmp_path / "run"), LearningRule(optimiser, 0.5), lists(20)
    learned = learn(run, nbest, WEIGHTS, rule=rule)
    for values, wanted in zip(learned.model, by_hand(run, nbest, rule), strict=True):
        assert values == pytest.approx(wanted, abs=1e-3)
    still = score(run, nbest, unknown="group")
    moved = [not np.allclose(one, other, atol=1e-2) for one, other in zip(still.model, learned.model, strict=True)]
    assert moved[:4] == [False] * 4  # nobody has said anything before
    assert sum(moved) >= 5
    assert not any(moved[3::4])  # utterances without a speaker


def test_what_is_chosen_is_what_is_learned(run: Run) -> None:
    nbest = lists(20)
    one, other = learn(run, nbest, WEIGHTS), learn(run, nbest, ScoreWeights({"acoustic": -1.0}))
    assert not all(np.allclose(a, b) for a, b in zip(one.model, other.model, strict=True))
    rows = [_row(utterance, "other words") for utterance in nbest.utterances]
    same = learn(run, read_nbest(rows), WEIGHTS)
    assert all(np.array_equal(a, b) for a, b in zip(one.model, same.model, strict=True))


def _row(utterance: Any, reference: str) -> dict[str, Any]:
    pairs = zip(utterance.texts, utterance.scores.tolist(), strict=True)
    found = [{"text": text, "acoustic": a} for text, (a,) in pairs]
    return {"id": utterance.id, "hypotheses": found, "reference": reference, **utterance.columns}


def test_long_choices_are_scored_whole_and_learned_as_in_training(run: Run) -> None:
    begins, who = " ".join(["the sea is cold"] * 50), {"who": "ann", "role": "judge"}
    assert len(begins.split()) == run.config.data.max_tokens
    found = []
    for end in ("", " sun and sand", " cold cold"):
        first = {"id": "u0", "hypotheses": [{"text": begins + end}], **who}
        later = {"id": "u1", "hypotheses": [{"text": text} for text in TEXTS], **who}
        found.append(learn(run, read_nbest([first, later]), ScoreWeights({"model": 1.0})).model)
    assert len({float(scores[0][0]) for scores in found}) == 3
    for _, scores in found[1:]:
        assert np.array_equal(scores, found[0][1])


def test_other_columns_follow_unknown(run: Run) -> None:
    with pytest.raises(UserError, match=r"^utterance u0: role 'usher' was never seen"):
        learn(run, lists(role="usher"), WEIGHTS)
    learned = learn(run, lists(role="usher"), WEIGHTS, unknown="expected", rule=LearningRule("sgd", 0.0))
    plain = score(run, lists(role=None), unknown="group")
    assert learned.model[1] == pytest.approx(plain.model[1], abs=1e-4)
    one = learn(run, lists(8), WEIGHTS, context={"who": "ann"}, rule=LearningRule("sgd", 0.0))
    assert one.model[2] == pytest.approx(score(run, lists(8), context={"who": "ann"}).model[2], abs=1e-4)


def test_a_run_without_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not tell users apart"):
        learn(make_run(tmp_path / "run"), lists(2), WEIGHTS)
