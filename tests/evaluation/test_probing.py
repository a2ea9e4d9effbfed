"""Hidden states against a step at a time; units and few examples against planted ones and brute force."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.config import UserError
from factorcell.evaluation import probing
from factorcell.evaluation.probing import along, aucs, few_examples, final_states, halves, indicators, labelled, states
from factorcell.evaluation.statistics import auc
from factorcell.model.run import Run
from tests.small import inside, make_letters

RANDOM = np.random.default_rng(5)
TEXTS = ["".join(RANDOM.choice(list("abc"), size=RANDOM.integers(1, 9))) for _ in range(60)]


@pytest.fixture(scope="module")
def run() -> Run:
    """Two layers, adapted to a city."""
    return make_letters(layers=2, hidden_size=8, spread=1.0)


def stepped(run: Run, text: str) -> list[list[float]]:
    """The hidden states of the last layer after each letter, a step at a time, the city expected."""
    corpus = run.prepare([{"text": text}], optional=("city",))
    conditioned, state, found = run.model.condition(corpus.context(np.array([0]))), None, []
    with torch.no_grad():
        for token in corpus.tokens.tolist()[: len(text) + 1]:
            _, state = run.model.step(torch.tensor([token]), conditioned, state)
            found.append(inside(state)[-1].hidden[0].tolist())
    return found[1:]


def test_states_are_those_of_a_step_at_a_time(run: Run) -> None:
    """Of all texts at once, in their order; the final one is the last, and that of no letters is the start's."""
    texts = [*TEXTS, "ab", ""]
    every, final = states(run, texts), final_states(run, texts)
    for text, own, last in zip(texts[:-1], every, final, strict=False):
        assert np.allclose(own, stepped(run, text), atol=1e-5)
        assert np.array_equal(own[-1], last)
    assert every[-1].shape == (0, 8)
    assert np.allclose(final[-1], final_states(run, [""])[0])
    assert not np.allclose(final[-1], 0)


def test_along_a_text(run: Run) -> None:
    rows = along(run, ["cab", "b"], 3)
    assert [row["text"] for row in rows] == ["cab", "b"]
    assert [token["token"] for token in rows[0]["tokens"]] == ["c", "a", "b"]
    assert [token["value"] for token in rows[0]["tokens"]] == pytest.approx(
        [state[3] for state in stepped(run, "cab")], abs=1e-5
    )
    assert (rows[0]["unit"], rows[0]["hidden_unit"]) == ("char", 3)


def test_a_cut_text_is_read_up_to_its_last_target() -> None:
    run = make_letters(data={"max_tokens": 3})
    (row,) = along(run, ["abcabc"], 0)
    assert [token["token"] for token in row["tokens"]] == ["a", "b"]
    assert final_states(run, ["abcabc"])[0] == pytest.approx(states(run, ["ab"])[0][-1])


def test_aucs_are_those_of_the_plain_one() -> None:
    """Ties, and a value of no state, included."""
    values = RANDOM.integers(0, 6, size=(80, 5)).astype(np.float32)
    labels = RANDOM.integers(0, 3, size=80)
    found = aucs(values, labels, 4)
    for index in range(3):
        for unit in range(5):
            assert found[index, unit] == pytest.approx(auc(values[:, unit].astype(np.float64), labels == index))
    assert np.isnan(found[3]).all()


@pytest.mark.parametrize("every_token", [False, True])
def test_a_planted_unit_is_found(run: Run, every_token: bool) -> None:
    """Texts are called by what a unit is after them; a value that is low where the unit is high has it too."""
    final = final_states(run, TEXTS)[:, 2]
    values = ["high" if value > np.median(final) else "low" for value in final]
    rows = {row["value"]: row for row in indicators(run, TEXTS, values, every_token=every_token)}
    assert {name: row["sign"] for name, row in rows.items()} == {"high": 1, "low": -1}
    assert rows["high"]["texts"] + rows["low"]["texts"] == len(TEXTS)
    assert rows["high"]["correlation"] == pytest.approx(-rows["low"]["correlation"])
    if not every_token:
        assert [row["hidden_unit"] for row in rows.values()] == [2, 2]
        assert [row["auc"] for row in rows.values()] == [1.0, 1.0]
        assert rows["high"]["correlation"] > 0.5
    else:
        assert 0.5 < rows["high"]["auc"] < 1


def test_every_token_counts(run: Run) -> None:
    """Against the plain way: the states of all tokens of the texts of either half, one below the other."""
    every, texts = states(run, TEXTS), [text for text in TEXTS if len(text) > 2]
    values = ["yes" if number % 2 else "no" for number, _ in enumerate(texts)]
    found = indicators(run, texts, values, every_token=True, seed=3)
    parts = halves(np.array([int(value == "yes") for value in values]), 3)
    by_text = dict(zip(TEXTS, every, strict=True))
    joined = [np.concatenate([by_text[texts[row]] for row in part]) for part in parts]
    wanted = [np.concatenate([np.full(len(texts[row]), values[row] == "yes") for row in part]) for part in parts]
    scores = [auc(joined[0][:, unit].astype(np.float64), wanted[0]) for unit in range(8)]
    best = int(np.abs(np.array(scores) - 0.5).argmax())
    yes = next(row for row in found if row["value"] == "yes")
    judged = auc(yes["sign"] * joined[1][:, best].astype(np.float64), wanted[1])
    assert yes["hidden_unit"] == best
    assert yes["auc"] == pytest.approx(judged)
    assert yes["correlation"] == pytest.approx(np.corrcoef(joined[1][:, best], wanted[1])[0, 1], abs=1e-5)


def test_halves_have_every_value_alike() -> None:
    """All rows but the negative ones, once, in no order."""
    labels = np.array([0] * 7 + [1] * 2 + [-1] * 3 + [2] * 30)
    for seed in range(20):
        first, second = halves(labels, seed)
        assert sorted([*first, *second]) == [row for row in range(42) if labels[row] >= 0]
        counts = [np.bincount(labels[half], minlength=3) for half in (first, second)]
        assert np.abs(counts[0] - counts[1]).max() <= 1
        assert counts[0][1] == counts[1][1] == 1
        assert list(labels[first]) != sorted(labels[first])
    assert not np.array_equal(halves(labels, 0)[0], halves(labels, 1)[0])


def test_a_unit_that_never_moves_has_no_correlation(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(probing, "final_states", lambda run, texts, progress: np.ones((len(texts), 2), np.float32))
    rows = indicators(run, ["a"] * 4, ["x", "y"] * 2)
    assert [(row["auc"], row["correlation"]) for row in rows] == [(0.5, None), (0.5, None)]


def test_only_so_many_states_are_compared(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    kept = probing.states
    monkeypatch.setattr(probing, "STATES", 20)

    def counted(run: Run, texts: list[str], progress: bool) -> Any:
        read.append(len(texts))
        return kept(run, texts, progress=progress)

    monkeypatch.setattr(probing, "states", counted)
    indicators(run, TEXTS, ["a", "b"] * 30, every_token=True)
    assert all(2 <= count < 12 for count in read)


def test_the_best_unit_is_judged_on_other_texts() -> None:
    """Of values that mean nothing the best of many units looks good where it was chosen; judged, it is chance."""
    run = make_letters(hidden_size=60, spread=1.0)
    judged = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        values = random.permutation(["a", "b"] * 30).tolist()
        judged += [row["auc"] for row in indicators(run, TEXTS, values, seed=seed)]
    assert abs(np.mean(judged) - 0.5) < 0.06


def test_values_of_a_table(run: Run) -> None:
    """Any column, a number as its name; texts without a value are left out, and so are values of one text."""
    rows = [
        {"text": "ab", "kind": 1},
        {"text": "ba", "kind": None},
        {"text": "c", "kind": 2.0},
        {"text": "a", "kind": 1},
    ]
    assert labelled(run, rows, "kind") == (["ab", "c", "a"], ["1", "2", "1"])
    with pytest.raises(UserError, match=r"no column 'king' .did you mean 'kind'\?.; it has text, kind"):
        labelled(run, rows, "king")
    found = indicators(run, ["ab", "b", "a", "ca", "c"], ["x", "y", "x", "y", "alone"])
    assert {row["value"]: row["texts"] for row in found} == {"x": 2, "y": 2}


def test_context_does_not_tell(run: Run) -> None:
    """States are the same whatever the table says of the city."""
    texts, _ = labelled(run, [{"text": "ab", "city": "Oslo"}, {"text": "ab", "city": "Nice"}], "city")
    first, second = final_states(run, texts)
    assert np.array_equal(first, second)


def test_few_examples_of_what_is_told_apart_and_of_what_is_not() -> None:
    labels = np.repeat([0, 1, 2], 40)
    values = [f"value {label}" for label in labels]
    apart = np.eye(3, dtype=np.float32)[labels] * 9 + RANDOM.normal(size=(120, 3)).astype(np.float32)
    told = few_examples(apart, values, examples=5, repeats=4)
    assert told["accuracy"] > 0.99
    assert (told["tested"], told["examples"], told["values"]) == (105, 5, ["value 0", "value 1", "value 2"])
    assert told["chance"] == pytest.approx(1 / 3)
    noise = RANDOM.normal(size=(120, 3)).astype(np.float32)
    guessed = few_examples(noise, values, examples=5, repeats=20)
    assert abs(guessed["accuracy"] - 1 / 3) < 0.06
    assert guessed["deviation"] > 0
    assert few_examples(noise, values, examples=5, repeats=20) == guessed
    assert few_examples(noise, values, examples=5, repeats=20, seed=1) != guessed


def test_examples_are_not_tested() -> None:
    """Every text has a mark of its own, so only what was seen can be told; and it is not asked for."""
    values = [name for name in "abcd" for _ in range(20)]
    found = few_examples(np.eye(80, dtype=np.float32) * 20, values, examples=10, repeats=5)
    assert found["tested"] == 40
    assert found["accuracy"] < 0.4


def test_rare_values_are_left_out_of_the_regression() -> None:
    values = ["a"] * 9 + ["b"] * 9 + ["c"] * 3
    found = few_examples(RANDOM.normal(size=(21, 2)).astype(np.float32), values, examples=3, repeats=1)
    assert found["values"] == ["a", "b"]
    assert found["tested"] == 12


def test_mistakes_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.zeros((4, 2), dtype=np.float32)
    with pytest.raises(UserError, match=r"fewer than two values have 31 texts or more \(a 3, b 1\)"):
        few_examples(noise, ["a", "a", "b", "a"])
    with pytest.raises(UserError, match="0 are none"):
        few_examples(noise, ["a"] * 4, examples=0)
    with pytest.raises(UserError, match="fewer than two values have 2 texts or more"):
        indicators(run, ["a", "b"], ["x", "y"])
    with pytest.raises(UserError, match="there is no text to read"):
        final_states(run, [])

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs scikit-learn; .* 'factorcell\[analysis\]'"):
        few_examples(noise, ["a", "a", "b", "b"], examples=1)
