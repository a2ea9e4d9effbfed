"""Compare online learning with finite differences, with PyTorch's optimizers and with training."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorcell.completion.blend import DEFAULT_WEIGHTS, save_settings
from factorcell.completion.completer import Completer
from factorcell.completion.online import OPTIMIZERS, Floats, Learner, LearningRule, User, learn_one
from factorcell.completion.popularity import History
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.runs.run import Run
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}


def make_run(**more: Any) -> Run:
    """Return a run of letters whose users are cities."""
    return make_letters(**{"data": CITY, "spread": 0.8, **more})


def pytorch_vector(name: str, rate: float, vector: Floats, gradients: list[Floats]) -> Floats:
    """Return the vector that PyTorch's optimizer computes from a sequence of gradients."""
    kinds: dict[str, Any] = {
        "sgd": lambda parameter: torch.optim.SGD(parameter, lr=rate),
        "adagrad": lambda parameter: torch.optim.Adagrad(parameter, lr=rate, eps=1e-6),
        "adadelta": lambda parameter: torch.optim.Adadelta(parameter, lr=rate, rho=0.95, eps=1e-6),
    }
    parameter = torch.tensor(vector, requires_grad=True)
    optimizer = kinds[name]([parameter])
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    vector_after: Floats = parameter.detach().numpy()
    return vector_after


@pytest.mark.parametrize("model", [{}, {"adapt": ("concat",), "output_bias": ()}, {"layer_norm": True}], ids=str)
def test_gradients_are_those_of_finite_differences(model: dict[str, Any]) -> None:
    run = make_run(**model)
    learner, texts, step = Learner(run), ["abc", "b", ""], 1e-2
    vectors = np.random.default_rng(0).normal(0, 0.5, (3, 2)).astype(np.float32)
    nats, gradients = learner.gradients(vectors, texts, [{}] * 3)
    for number in range(2):
        shift = np.zeros(2, np.float32)
        shift[number] = step
        above, _ = learner.gradients(vectors + shift, texts, [{}] * 3)
        below, _ = learner.gradients(vectors - shift, texts, [{}] * 3)
        assert (above - below) / (2 * step) == pytest.approx(gradients[:, number], rel=5e-3, abs=2e-3)
    table = run.model.encoder.tables[0]  # type: ignore[union-attr]
    with torch.no_grad():
        table[1:] = torch.tensor(vectors[:2])
    scored = run.score_rows([{"text": text, "city": city} for text, city in zip(texts, ("Nice", "Oslo"), strict=False)])
    assert [row["nats"] for row in scored] == pytest.approx(nats[:2], abs=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_agree_with_pytorch(name: str) -> None:
    run = make_run()
    learner = Learner(run, LearningRule(name, 0.3))
    user, gradients = learner.new(), list(np.random.default_rng(1).normal(0, 0.2, (6, 2)).astype(np.float32))
    start = user.vector
    for gradient in gradients:
        user = learner.updated_user(user, "abc", gradient)
    expected = pytorch_vector(name, 0.3, start, gradients)
    assert float(np.linalg.norm(expected)) < learner.max_vector_norm, "the maximum length would hide a difference"
    assert user.vector == pytest.approx(expected, rel=1e-5)
    assert user.text_count == len(user.history.texts) == 6


@pytest.mark.parametrize(("name", "rate"), [("adagrad", 0.3), ("adadelta", 20.0), ("sgd", 0.05)])
def test_repeated_texts_become_more_probable(name: str, rate: float) -> None:
    run = make_run(spread=0.6)
    before = {key: value.clone() for key, value in run.model.saved_tensors().items()}
    learner = Learner(run, LearningRule(name, rate))
    user, other, nats = learner.new(), learner.new(), []
    for _ in range(25):
        (user,), (now,) = learner.learn([user], ["cab"])
        nats.append(now)
    assert nats[-1] < nats[0] - 0.3
    assert all(torch.equal(before[key], value) for key, value in run.model.saved_tensors().items())
    assert np.array_equal(other.vector, learner.new().vector)
    mine = Completer(run).complete("c", user, k=3)
    assert mine != Completer(run).complete("c", other, k=3)
    assert Completer(run).complete("c", other, k=3) == Completer(run, unknown="group").complete(
        "c", context={"city": "never seen"}, k=3
    )


def test_a_new_user_is_learned_without_a_context_layer(tmp_path: Path) -> None:
    users = {"user": "city", "context": (), "min_user_count": 1, "tokenizer": "char", "min_count": 1}
    model = {"adapt": ("factor",), "output_bias": (), "context_layer": "none", "variable_size": 3, "context_size": 3}
    config = Config.of(**{**users, **model, "hidden_size": 5, "rank": 2})
    corpus = prepare([{"text": text, "city": city} for text in ("abc", "cab") for city in ("Oslo", "Nice")], config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    user = User.new(run)
    assert np.abs(learn_one(run, user, "cab").vector - user.vector).max() > 0.01


def test_users_learned_together_equal_users_learned_alone() -> None:
    run = make_run()
    learner, texts = Learner(run), ["abc", "b", "", "cabcab"]
    alone = [learner.learn([learner.new()], [text]) for text in texts]
    users, nats = learner.learn([learner.new() for _ in texts], texts)
    for (user,), (expected_nats,) in alone:
        index = texts.index(user.history.texts[0])
        assert users[index].vector == pytest.approx(user.vector, abs=1e-5)
        assert nats[index] == pytest.approx(expected_nats, abs=1e-5)
        assert users[index].history == user.history
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: learner.learn([learner.new()], [text])[0][0].to_bytes(), texts * 5))
    assert together == [user.to_bytes() for (user,), _ in alone] * 5


def test_a_vector_stays_bounded_and_ignores_gradients_that_are_not_finite() -> None:
    run = make_run()
    learner = Learner(run, LearningRule("sgd", 1e6))
    (user,), _ = learner.learn([learner.new()], ["abc"])
    table = run.model.encoder.tables[0]  # type: ignore[union-attr]
    assert float(np.linalg.norm(user.vector)) == pytest.approx(2 * float(table.detach().norm(dim=1).max()))
    same = learner.updated_user(user, "b", np.array([np.nan, 1.0], np.float32))
    assert np.array_equal(same.vector, user.vector)
    assert (same.text_count, same.history.texts) == (2, ("abc", "b"))


@pytest.mark.parametrize("max_norm", [0, 0.5, 3.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_vector_is_at_most_as_long_as_the_rule_permits(name: str, max_norm: float) -> None:
    run = make_run()
    learner = Learner(run, LearningRule(name, 1e3, max_norm))
    user, gradients = learner.new(), [np.array([0.3, -0.2], np.float32)] * 4
    table = run.model.encoder.tables[0]  # type: ignore[union-attr]
    longest_of_training = float(table.detach().norm(dim=1).max())
    (first, *_) = users = [user := learner.updated_user(user, "abc", gradient) for gradient in gradients]
    unlimited = [pytorch_vector(name, 1e3, learner.new().vector, gradients[: count + 1]) for count in range(4)]
    assert np.linalg.norm(unlimited[0]) > 3 * longest_of_training
    if max_norm:
        assert [np.linalg.norm(limited.vector) for limited in users] == pytest.approx(
            [max_norm * longest_of_training] * 4, rel=1e-5
        )
        assert first.vector == pytest.approx(
            unlimited[0] * max_norm * longest_of_training / np.linalg.norm(unlimited[0]), rel=1e-5
        )
    else:
        for limited, vector in zip(users, unlimited, strict=True):
            assert limited.vector == pytest.approx(vector, rel=1e-4)


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40),
    st.integers(0, 2),
    st.integers(0, 2**32 - 1),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=5),
    st.sampled_from([b"", b"\0run" * 4, bytes(15) + b"\1"]),
)
def test_saved_users_are_restored_exactly(
    vector: list[float], rows: int, text_count: int, texts: list[str], fingerprint: bytes
) -> None:
    numbers = np.array(vector, np.float32)
    user = User(numbers, np.tile(abs(numbers), (rows, 1)), text_count, History(tuple(texts)), fingerprint)
    content = user.to_bytes()
    restored = User.from_bytes(content)
    assert np.array_equal(restored.vector, user.vector)
    assert np.array_equal(restored.state, user.state)
    assert (restored.text_count, restored.history, restored.fingerprint) == (text_count, user.history, fingerprint)
    for size in (0, 1, 3, 4, 19, 27, len(content) - 1):
        with pytest.raises(UserError, match="invalid user"):
            User.from_bytes(content[:size])


def test_a_rule_is_saved_in_the_run_folder(tmp_path: Path) -> None:
    run = make_run()
    run.folder = tmp_path
    assert LearningRule.load(run.folder) == LearningRule("adagrad", 0.1)
    save_settings(run, LearningRule("adadelta", 5.0, max_norm=0), DEFAULT_WEIGHTS)
    assert LearningRule.load(run.folder) == LearningRule("adadelta", 5.0, 0)
    assert Learner(run).max_vector_norm == float("inf")
    save_settings(run, LearningRule("sgd", 0.25), DEFAULT_WEIGHTS)
    assert LearningRule.load(run.folder) == LearningRule("sgd", 0.25)
    user = learn_one(run, User.new(run), "abc")
    (expected,), _ = Learner(run, LearningRule("sgd", 0.25)).learn([User.new(run)], ["abc"])
    assert np.array_equal(user.vector, expected.vector)
    for values, message in (({"pace": 1}, "not a rule"), ({"optimizer": "adam"}, "unknown online optimizer 'adam'")):
        (tmp_path / "completion.json").write_text(json.dumps({"format": 1, "rule": values}))
        with pytest.raises(UserError, match=message):
            LearningRule.load(run.folder)


def test_invalid_arguments_are_reported() -> None:
    with pytest.raises(UserError, match="does not distinguish users; train it with --user"):
        User.new(make_letters())
    with pytest.raises(UserError, match="the model is not adapted to users"):
        User.new(make_run(adapt=(), output_bias=()))
    with pytest.raises(UserError, match="rate is -1"):
        LearningRule("sgd", -1)
    run = make_run()
    other_user = User(np.zeros(7, np.float32), np.zeros((1, 7), np.float32))
    with pytest.raises(UserError, match="got size 7"):
        learn_one(run, other_user, "abc")
    with pytest.raises(UserError, match="unknown context column 'town'"):
        learn_one(run, User.new(run), "abc", {"town": "Oslo"})
