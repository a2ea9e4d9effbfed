"""Compare the plain choice of tokens with loops, and the compiled choice with the plain one."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from factorcell.data.tokenizers.tokenizer import START
from factorcell.generation.writing import (
    Constraints,
    choose_tokens,
    draw_tokens,
    drawing_weights,
    repeating_tokens,
)
from factorcell.nn.kernels import library
from factorcell.nn.kernels.drawing import (
    ForbiddenTokens,
    PackedTable,
    SampleRequest,
    TokenRequest,
    TopRequest,
    next_tokens,
)
from tests.brute_force import may_follow
from tests.kernels import VARIANTS, compiled

PROBABILITIES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
LOGS = torch.tensor([PROBABILITIES]).log()
NO_PLACES = torch.zeros(0, 0)


def is_candidate(logs: Tensor = LOGS, **options: Any) -> list[bool]:
    """Return which tokens may be drawn."""
    return (drawing_weights(SampleRequest(NO_PLACES, **options), logs)[0] > 0).tolist()


@given(
    st.lists(st.lists(st.integers(3, 5), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_repeated_ngrams_are_found(texts: list[list[int]], n: int) -> None:
    rows, tokens = repeating_tokens(torch.tensor([[START, *text] for text in texts]), n)
    actual = {(row, token) for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)}
    constraints = Constraints(banned=(), no_repeat_ngram=n)
    expected = {
        (row, token)
        for row, text in enumerate(texts)
        for token in range(3, 6)
        if not may_follow(constraints, (), tuple(text), token)
    }
    assert actual == expected


@given(st.integers(1, 400), st.integers(0, 10_000))
def test_draws_agree_with_the_cumulative_sum(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.random((3, size)) * (random.random((3, size)) < 0.3)
    weight[:, random.integers(size)] = 0.5
    places = np.concatenate([random.random((3, 6)), np.zeros((3, 1)), np.full((3, 1), 1 - 1e-16)], 1)
    check_draws(weight, places, draw_tokens(torch.from_numpy(weight).float(), torch.from_numpy(places)))


def check_draws(weight: Any, places: Any, tokens: Tensor) -> None:
    """Check that `tokens` (3, S) are at `places` (3, S) of the cumulative sum of `weight` (3, V)."""
    ends = weight.astype(np.float32).astype(np.float64).cumsum(1)
    for row in range(3):
        assert (weight[row, tokens[row]] > 0).all()
        for place, token in zip(places[row], tokens[row].tolist(), strict=True):
            expected, slack = place * ends[row, -1], 1e-6 * ends[row, -1]
            assert ends[row, token] - weight[row, token] - slack <= expected <= ends[row, token] + slack


@given(st.integers(1, 300), st.integers(0, 10_000), st.floats(0.01, 0.99))
def test_top_p_keeps_the_most_probable_tokens(size: int, seed: int, share: float) -> None:
    weight = torch.from_numpy(np.random.default_rng(seed).integers(0, 8, size).astype(np.float32))
    weight[0] = 1.0
    is_kept = drawing_weights(SampleRequest(NO_PLACES, top_p=share), weight[None].log())[0] > 0
    above = torch.stack([weight[weight > value].sum() for value in weight])
    sure = ((above - share * weight.sum()).abs() > 1e-4) & (weight > 0)
    assert ((above < share * weight.sum())[sure] == is_kept[sure]).all()


def test_candidates_are_the_most_probable_tokens() -> None:
    assert is_candidate(top_k=2) == [True, True, False, False, False]
    assert is_candidate(top_p=0.74) == [True, True, False, False, False]
    assert is_candidate(top_p=0.76) == [True, True, True, False, False]
    assert is_candidate(temperature=0.5, top_p=0.74) == [True, False, False, False, False]
    smallest = is_candidate(torch.tensor([[0.4, 0.3, 0.3]]).log(), top_k=1, top_p=5e-324)
    assert smallest == [True, False, False], "the share of all weights underflows to 0"
    weight = drawing_weights(SampleRequest(NO_PLACES, temperature=0.5), LOGS)[0]
    assert (weight / weight.sum()).tolist() == pytest.approx([x**2 / 0.3359375 for x in PROBABILITIES])


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.05, 5e-324])
@pytest.mark.parametrize("top_k", [0, 4])
def test_compiled_draws_have_the_frequencies_of_the_weights(
    variant: str, top_p: float, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    probabilities, count = torch.tensor([[0.3, 0.05, 0.15, 0.15, 0.15, 0.0, 0.2]]), 20_000
    draws = SampleRequest(((torch.arange(count) + 0.5) / count)[None].double(), 1.3, top_k, top_p)
    tokens, logs = compiled_choice(probabilities.log(), draws)
    weight = drawing_weights(draws, probabilities.log())[0]
    frequency = torch.bincount(tokens[0], minlength=7) / count
    torch.testing.assert_close(frequency, weight / weight.sum(), atol=2 / count, rtol=0)
    torch.testing.assert_close(logs, probabilities.log().gather(1, tokens), atol=1e-6, rtol=0)


def compiled_choice(
    logits: Tensor, request: TokenRequest, forbidden: ForbiddenTokens | None = None
) -> tuple[Tensor, Tensor]:
    """Return the choice of the compiled code for the logits (N, V), which are given as biases."""
    table = PackedTable.of(torch.zeros(logits.shape[1], 1))
    none = torch.zeros(0, dtype=torch.long)
    values, context = torch.zeros(len(logits), 1), torch.arange(len(logits))
    return next_tokens(values, table, logits, context, forbidden or ForbiddenTokens((), none, none, 0), request)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@given(data=st.data())
def test_compiled_choices_agree_with_plain_ones(variant: str, data: st.DataObject) -> None:
    size, texts, width = (data.draw(st.integers(1, most)) for most in (300, 70, 20))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    values, table = torch.randn(texts, width, generator=random), torch.randn(size, width, generator=random)
    bias, context = torch.randn(3, size, generator=random), torch.randint(3, (texts,), generator=random)
    bias[:, 1:][:, torch.rand(size - 1, generator=random) < 0.1] = -torch.inf
    bias[:, -1] = 0.0  # the end token
    banned = (size // 2,) if size > 2 else ()
    constraints = Constraints(min_tokens=data.draw(st.integers(0, 2)), banned=banned, no_repeat_ngram=2, end=size - 1)
    tokens = torch.randint(size, (texts, 6), generator=random)
    count, halved = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    top_k, top_p = data.draw(st.integers(0, 20)), data.draw(st.sampled_from([1.0, 0.9, 0.3]))
    places = torch.rand(texts, count, dtype=torch.double, generator=random)
    request: TokenRequest = SampleRequest(places, 0.8, top_k, top_p) if data.draw(st.booleans()) else TopRequest(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_KERNEL", variant)
        patch.setattr(library, "uses_bfloat16", lambda: halved)
        patch.setattr(library, "thread_count", lambda jobs: 2)
        tokens_chosen, logs = next_tokens(
            values, PackedTable.of(table), bias, context, constraints.forbidden_tokens(tokens, 1), request
        )
    model = (values @ table.T + bias[context]).log_softmax(1)
    allowed = constraints.forbid(model.clone(), tokens, 1)
    torch.testing.assert_close(
        logs[~logs.isneginf()],
        model.gather(1, tokens_chosen)[~logs.isneginf()],
        atol=0.2 if halved else 1e-4,
        rtol=0.05 if halved else 1e-5,
    )
    plain = choose_tokens(request, allowed)
    never = allowed.gather(1, plain).isneginf()  # fewer tokens are allowed than requested
    assert (logs.isneginf() == never).all()
    assert (allowed.gather(1, tokens_chosen).isneginf() <= never).all()
    if not halved:
        assert ((tokens_chosen == plain) | never).sum() >= 0.97 * tokens_chosen.numel() - 1


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@given(st.integers(1, 700), st.integers(0, 10_000))
def test_compiled_draws_agree_with_the_cumulative_sum(variant: str, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.random((3, size)) * (random.random((3, size)) < 0.3)
    weight[:, random.integers(size)] = 0.5
    places = np.concatenate([random.random((3, 6)), np.zeros((3, 1)), np.full((3, 1), 1 - 1e-16)], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_KERNEL", variant)
        tokens, _ = compiled_choice(torch.from_numpy(weight).float().log(), SampleRequest(torch.from_numpy(places)))
    check_draws(weight, places, tokens)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "token_request", [TopRequest(2), SampleRequest(torch.full((2, 2), 0.5, dtype=torch.double), 1.0, 2, 0.5)]
)
def test_the_end_is_chosen_if_all_tokens_are_forbidden(
    variant: str, token_request: TokenRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    logits = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7]]).log()
    forbidden = ForbiddenTokens((1,), torch.tensor([0, 0]), torch.tensor([0, 2]), end=2)
    tokens, logs = compiled_choice(logits, token_request, forbidden)
    assert tokens[:, 0].tolist() == [2, 2]
    torch.testing.assert_close(logs[0, 0], torch.tensor(0.7).log())
    tokens, logs = compiled_choice(torch.full((2, 3), -torch.inf), token_request, forbidden)
    assert tokens.tolist() == [[2, 2], [2, 2]]
