"""People learned online, against finite differences, PyTorch's optimisers and what training would have read."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from factorcell.completion.completer import Completer
from factorcell.completion.online import OPTIMISERS, Floats, Learner, LearningRule, User, learn_one
from factorcell.completion.popularity import History
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.model.run import Run
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}


def make(**more: Any) -> Run:
    """A run of letters whose users are cities."""
    return make_letters(**{"data": CITY, "spread": 0.8, **more})


def by_hand(name: str, rate: float, vector: Floats, gradients: list[Floats]) -> Floats:
    """What PyTorch's optimiser of that name makes of a vector."""
    kinds: dict[str, Any] = {
        "sgd": lambda own: torch.optim.SGD(own, lr=rate),
        "adagrad": lambda own: torch.optim.Adagrad(own, lr=rate, eps=1e-6),
        "adadelta": lambda own: torch.optim.Adadelta(own, lr=rate, rho=0.95, eps=1e-6),
    }
    own = torch.tensor(vector, requires_grad=True)
    optimiser = kinds[name]([own])
    for gradient in gradients:
        own.grad = torch.tensor(gradient)
        optimiser.step()
    moved: Floats = own.detach().numpy()
    return moved


@pytest.mark.parametrize("model", [{}, {"adapt": ("concat",), "output_bias": ()}, {"layer_norm": True}], ids=str)
def test_gradients_are_those_of_finite_differences(model: dict[str, Any]) -> None:
    run = make(**model)
    learner, texts, step = Learner(run), ["abc", "b", ""], 1e-2
    vectors = np.random.default_rng(0).normal(0, 0.5, (3, 2)).astype(np.float32)
    nats, gradients = learner.gradients(vectors, texts, [{}] * 3)
    for number in range(2):
        moved = np.zeros(2, np.float32)
        moved[number] = step
        above, _ = learner.gradients(vectors + moved, texts, [{}] * 3)
        below, _ = learner.gradients(vectors - moved, texts, [{}] * 3)
        assert (above - below) / (2 * step) == pytest.approx(gradients[:, number], rel=5e-3, abs=2e-3)
    table = run.model.encoder.tables[0]  # type: ignore[union-attr]
    with torch.no_grad():
        table[1:] = torch.tensor(vectors[:2])
    scored = run.score([{"text": text, "city": city} for text, city in zip(texts, ("Nice", "Oslo"), strict=False)])
    assert [row["nats"] for row in scored] == pytest.approx(nats[:2], abs=1e-4)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_are_those_of_pytorch(name: str) -> None:
    run = make()
    learner = Learner(run, LearningRule(name, 0.3))
    user, gradients = learner.new(), list(np.random.default_rng(1).normal(0, 0.2, (6, 2)).astype(np.float32))
    start = user.vector
    for gradient in gradients:
        user = learner.updated_user(user, "abc", gradient)
    expected = by_hand(name, 0.3, start, gradients)
    assert float(np.linalg.norm(expected)) < learner.longest, "the bound would hide a difference"
    assert user.vector == pytest.approx(expected, rel=1e-5)
    assert user.seen == len(user.history.texts) == 6


@pytest.mark.parametrize(("name", "rate"), [("adagrad", 0.3), ("adadelta", 20.0), ("sgd", 0.05)])
def test_what_is_written_again_and_again_becomes_likely(name: str, rate: float) -> None:
    run = make(spread=0.6)
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


def test_who_is_new_is_learned_where_the_vector_is_the_context(tmp_path: Path) -> None:
    users = {"user": "city", "context": (), "min_user_count": 1, "tokenizer": "char", "min_count": 1}
    model = {"adapt": ("factor",), "output_bias": (), "context_layer": "none", "variable_size": 3, "context_size": 3}
    config = Config.of(**{**users, **model, "hidden_size": 5, "rank": 2})
    corpus = prepare([{"text": text, "city": city} for text in ("abc", "cab") for city in ("Oslo", "Nice")], config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    user = User.new(run)
    assert np.abs(learn_one(run, user, "cab").vector - user.vector).max() > 0.01


def test_many_at_once_learn_as_each_alone() -> None:
    run = make()
    learner, texts = Learner(run), ["abc", "b", "", "cabcab"]
    alone = [learner.learn([learner.new()], [text]) for text in texts]
    users, nats = learner.learn([learner.new() for _ in texts], texts)
    for (user,), (own,) in alone:
        at = texts.index(user.history.texts[0])
        assert users[at].vector == pytest.approx(user.vector, abs=1e-5)
        assert nats[at] == pytest.approx(own, abs=1e-5)
        assert users[at].history == user.history
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: learner.learn([learner.new()], [text])[0][0].to_bytes(), texts * 5))
    assert together == [user.to_bytes() for (user,), _ in alone] * 5


def test_a_vector_stays_bounded_and_survives_nonsense() -> None:
    run = make()
    learner = Learner(run, LearningRule("sgd", 1e6))
    (user,), _ = learner.learn([learner.new()], ["abc"])
    table = run.model.encoder.tables[0]  # type: ignore[union-attr]
    assert float(np.linalg.norm(user.vector)) == pytest.approx(2 * float(table.detach().norm(dim=1).max()))
    same = learner.updated_user(user, "b", np.array([np.nan, 1.0], np.float32))
    assert np.array_equal(same.vector, user.vector)
    assert (same.seen, same.history.texts) == (2, ("abc", "b"))


@pytest.mark.parametrize("reach", [0, 0.5, 3.0])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_vector_reaches_as_far_as_the_rule_says(name: str, reach: float) -> None:
    run = make()
    learner = Learner(run, LearningRule(name, 1e3, reach))
    user, gradients = learner.new(), [np.array([0.3, -0.2], np.float32)] * 4
    table = run.model.encoder.tables[0]  # type: ignore[union-attr]
    longest = float(table.detach().norm(dim=1).max())
    (first, *_) = moved = [user := learner.updated_user(user, "abc", gradient) for gradient in gradients]
    free = [by_hand(name, 1e3, learner.new().vector, gradients[: count + 1]) for count in range(4)]
    assert np.linalg.norm(free[0]) > 3 * longest
    if reach:
        assert [np.linalg.norm(one.vector) for one in moved] == pytest.approx([reach * longest] * 4, rel=1e-5)
        assert first.vector == pytest.approx(free[0] * reach * longest / np.linalg.norm(free[0]), rel=1e-5)
    else:
        for one, vector in zip(moved, free, strict=True):
            assert one.vector == pytest.approx(vector, rel=1e-4)


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40),
    st.integers(0, 2),
    st.integers(0, 2**32 - 1),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=5),
    st.sampled_from([b"", b"\0run" * 4, bytes(15) + b"\1"]),
)
def test_users_are_what_they_were_after_saving(
    vector: list[float], rows: int, seen: int, texts: list[str], fingerprint: bytes
) -> None:
    numbers = np.array(vector, np.float32)
    user = User(numbers, np.tile(abs(numbers), (rows, 1)), seen, History(tuple(texts)), fingerprint)
    content = user.to_bytes()
    again = User.from_bytes(content)
    assert np.array_equal(again.vector, user.vector)
    assert np.array_equal(again.state, user.state)
    assert (again.seen, again.history, again.fingerprint) == (seen, user.history, fingerprint)
    for cut in (0, 1, 3, 4, 19, 27, len(content) - 1):
        with pytest.raises(UserError, match="not a user"):
            User.from_bytes(content[:cut])


def test_a_rule_is_kept_in_the_run_folder(tmp_path: Path) -> None:
    run = make()
    run.folder = tmp_path
    assert LearningRule.load(run.folder) == LearningRule("adagrad", 0.1)
    LearningRule("adadelta", 5.0, reach=0).save(run)
    assert LearningRule.load(run.folder) == LearningRule("adadelta", 5.0, 0)
    assert Learner(run).longest == float("inf")
    LearningRule("sgd", 0.25).save(run)
    assert LearningRule.load(run.folder) == LearningRule("sgd", 0.25)
    user = learn_one(run, User.new(run), "abc")
    (expected,), _ = Learner(run, LearningRule("sgd", 0.25)).learn([User.new(run)], ["abc"])
    assert np.array_equal(user.vector, expected.vector)
    for wrong, message in (({"pace": 1}, "not a rule"), ({"optimiser": "adam"}, "unknown online optimiser 'adam'")):
        (tmp_path / "online.json").write_text(json.dumps({"format": 1, **wrong}))
        with pytest.raises(UserError, match=message):
            LearningRule.load(run.folder)


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="does not tell users apart; train it with --user"):
        User.new(make_letters())
    with pytest.raises(UserError, match="users change nothing in it"):
        User.new(make(adapt=(), output_bias=()))
    with pytest.raises(UserError, match="rate is -1"):
        LearningRule("sgd", -1)
    run = make()
    stranger = User(np.zeros(7, np.float32), np.zeros((1, 7), np.float32))
    with pytest.raises(UserError, match="7 numbers"):
        learn_one(run, stranger, "abc")
    with pytest.raises(UserError, match="unknown context column 'town'"):
        learn_one(run, User.new(run), "abc", {"town": "Oslo"})
    with pytest.raises(UserError, match="expected the same columns in all of them; only some have city"):
        run.read(["a", "b"], [{"city": "Oslo"}, {}])
