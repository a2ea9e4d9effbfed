"""Tests that a model reads prompts as tokens before the text that are not predicted."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from factorcell.completion.completer import Completer
from factorcell.completion.search import PlainEngine
from factorcell.config import CELLS
from factorcell.data.corpus import Batch
from factorcell.runs.run import Run
from tests.kernels import compiled
from tests.small_runs import as_any, gradient_of_sampled_loss, make_letters, step_nats

PROMPTS: list[tuple[str | None, str | None]] = [("ba", "c"), (None, "abcab"), ("", None), ("cab", None), ("c", "b")]
TEXTS = ("abc", "", "ba", "abccba", "c")
ADAPTATIONS: list[dict[str, Any]] = [
    {"cell": "gru", "layers": 2},
    {"adapt": ("concat", "scale", "factor"), "output_bias": ("low_rank", "hash")},
    {"adapt": ("prefix",), "output_bias": ()},
]


def make_rows() -> list[dict[str, Any]]:
    cities = itertools.cycle(("Oslo", "Nice", None))
    return [
        {"text": text, "first": first, "second": second, "city": next(cities)}
        for text, (first, second) in zip(TEXTS, PROMPTS, strict=True)
    ]


def make_run(context: tuple[str, ...] = (), **options: Any) -> Run:
    """Create a run of characters in double precision with two prompts."""
    letters = make_letters(spread=0.7, data={"context": (*context, "first:prompt", "second:prompt")}, **options)
    letters.model.double()
    return letters


def batch_of(run: Run, rows: list[dict[str, Any]]) -> Batch:
    return run.prepare(rows).batch(np.arange(len(rows)))


def nats_after_long_text(run: Run, row: dict[str, Any]) -> list[float]:
    """Compute the nats of the targets of a text, step by step, with the prompts as the beginning of the same text."""
    specials, encode = run.tokenizer.specials, run.tokenizer.encode
    ids, text_ids = list[int](), [*encode(row["text"]), specials.end]
    for prompt in (row["first"], row["second"]):
        ids += [specials.start, *encode(prompt)] if prompt else []
    without_prompts = {**row, "first": None, "second": None}
    conditioning = run.model.condition(batch_of(run, [without_prompts]).context)
    return step_nats(run, [*ids, specials.start, *text_ids], conditioning)[len(ids) :]


@pytest.mark.parametrize("cell", CELLS)
def test_prompts_equal_the_beginning_of_a_long_text_whose_targets_are_ignored(cell: str) -> None:
    run = make_run(cell=cell)
    nats = run.model(batch_of(run, make_rows()))
    for row, text_nats in zip(make_rows(), nats.tolist(), strict=True):
        expected = nats_after_long_text(run, row)
        assert text_nats[: len(expected)] == pytest.approx(expected)
        assert not any(text_nats[len(expected) :])


@pytest.mark.parametrize("options", ADAPTATIONS)
def test_prompts_are_read_in_the_context_of_the_text(options: dict[str, Any]) -> None:
    run = make_run(("city",), **options)
    nats = run.model(batch_of(run, make_rows()))
    for row, text_nats in zip(make_rows(), nats.tolist(), strict=True):
        expected = nats_after_long_text(run, row)
        assert text_nats[: len(expected)] == pytest.approx(expected)


def test_texts_with_and_without_prompts_do_not_influence_each_other() -> None:
    run = make_run(("city",))
    together = run.model(batch_of(run, make_rows()))
    for row, text_nats in zip(make_rows(), together, strict=True):
        (alone,) = run.model(batch_of(run, [row]))
        torch.testing.assert_close(text_nats[: len(alone)], alone)


def test_empty_prompts_do_not_change_a_model_by_a_bit() -> None:
    run, plain = make_run(("city",)), make_letters(spread=0.7)
    rows = [{**row, "first": None, "second": ""} for row in make_rows()]
    plain.model.double()
    assert torch.equal(run.model(batch_of(run, rows)), plain.model(batch_of(plain, rows)))


def test_gradients_of_prompts_equal_those_of_the_long_text() -> None:
    run = make_run()
    row = make_rows()[0]
    batch = batch_of(run, [row])
    (actual,) = torch.autograd.grad(run.model(batch).sin().sum(), run.model.embedding)
    specials, encode = run.tokenizer.specials, run.tokenizer.encode
    ids = [specials.start, *encode("ba"), specials.start, *encode("c"), specials.start, *encode("abc"), specials.end]
    empty = batch_of(run, [{**row, "first": None, "second": None}]).context
    long_batch = Batch(torch.tensor([ids]), torch.tensor([len(ids) - 1]), empty, torch.arange(1))
    expected_nats: Tensor = run.model(long_batch)[:, -4:]
    (expected,) = torch.autograd.grad(expected_nats.sin().sum(), run.model.embedding)
    torch.testing.assert_close(actual, expected)
    assert expected[encode("b")[0]].any()


@compiled
@pytest.mark.parametrize("adapt", [("factor", "concat"), ("prefix",), ()])
def test_completions_after_a_prompt_equal_those_of_the_search_in_pytorch(adapt: tuple[str, ...]) -> None:
    letters = make_letters(spread=0.7, data={"context": ("city", "first:prompt")}, adapt=adapt)
    completer = Completer(letters)
    assert not isinstance(completer.engine, PlainEngine)
    context = {"first": "cabba", "city": "Oslo"}
    actual = completer.complete("a", context=context, k=20)
    completer.engine = as_any(completer.plain_engine)
    expected = completer.complete("a", context=context, k=20)
    assert [suggestion.text for suggestion in actual] == [suggestion.text for suggestion in expected]
    scores = [suggestion.log_probability for suggestion in actual]
    assert scores == pytest.approx([suggestion.log_probability for suggestion in expected], rel=1e-5)
    without_prompt = completer.complete("a", context={"city": "Oslo"}, k=20)
    assert scores != pytest.approx([suggestion.log_probability for suggestion in without_prompt], rel=1e-3)


def test_generated_texts_and_likelihoods_depend_on_the_prompt() -> None:
    run = make_run(("city",))
    run.model.float()
    first, second = (run.score(["abc"], context={"first": prompt})[0] for prompt in ("ba", "ccc"))
    assert first != pytest.approx(second)
    contexts = [{"first": "ba", "city": "Oslo"}, {"first": None, "city": "Oslo"}]
    together = [row["log_probability"] for row in run.generate(contexts, number=2)]
    for index, context in enumerate(contexts):
        rows = list(run.generate([context] * 2, number=2))[2 * index : 2 * index + 2]
        assert together[2 * index : 2 * index + 2] == pytest.approx([row["log_probability"] for row in rows])
        for row in rows:
            if row["ended"]:
                (scored,) = run.score_rows([row["text"]], context=context)
                assert scored["nats"] == pytest.approx(-row["log_probability"], rel=1e-5)


def test_classification_compares_the_likelihoods_after_the_prompt() -> None:
    run, rows = make_run(("city",)), make_rows()
    run.model.float()
    classification = run.predict(rows, "city", priors="uniform")
    first, second = (np.array([run.score([{**row, "city": name}])[0] for row in rows]) for name in classification.names)
    log_odds = classification.log_posterior[:, 0] - classification.log_posterior[:, 1]
    assert log_odds == pytest.approx(second - first, abs=1e-4)


def test_a_model_with_prompts_alone_is_adapted_without_a_context_vector() -> None:
    run = make_run()
    assert run.model.is_adapted
    assert run.model.encoder is None
    assert make_run(adapt=("prefix",)).model.prefix is None


def test_a_sampled_loss_reads_prompts_from_the_same_rows_as_texts() -> None:
    run = make_run(("city",))
    batch = batch_of(run, [{**row, "text": "a"} for row in make_rows()])
    (b,) = run.tokenizer.encode("b")  # occurs only in prompts
    assert gradient_of_sampled_loss(run, batch)[b].any()
