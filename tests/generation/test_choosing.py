"""Which tokens come next: in plain PyTorch against running sums and sorted weights, in compiled code against that."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from factorcell.data.vocabulary import START
from factorcell.generation.choosing import (
    Constraints,
    Sampler,
    choose_tokens,
    draw_tokens,
    drawing_weights,
    repeated_ngrams,
)
from factorcell.model.kernels import library
from factorcell.model.kernels.drawing import (
    ForbiddenTokens,
    PackedTable,
    SampleRequest,
    TokenRequest,
    TopRequest,
    next_tokens,
)
from tests.brute_force import may_follow
from tests.model.kernels.test_library import VARIANTS, compiled

CHANCES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
LOGS = torch.tensor([CHANCES]).log()
NO_PLACES = torch.zeros(0, 0)


def candidates(draw: Sampler, logs: Tensor = LOGS) -> list[bool]:
    """Which tokens may be drawn."""
    return (drawing_weights(draw.draws(NO_PLACES), logs)[0] > 0).tolist()


@given(
    st.lists(st.lists(st.integers(3, 5), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_repetitions_are_found(texts: list[list[int]], n: int) -> None:
    rows, tokens = repeated_ngrams(torch.tensor([[START, *text] for text in texts]), n)
    found = {(row, token) for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)}
    rules = Constraints(banned=(), no_repeat_ngram=n)
    wanted = {
        (row, token)
        for row, text in enumerate(texts)
        for token in range(3, 6)
        if not may_follow(rules, (), tuple(text), token)
    }
    assert found == wanted


@given(st.integers(1, 400), st.integers(0, 10_000))
def test_draws_fall_where_the_running_sum_says(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.random((3, size)) * (random.random((3, size)) < 0.3)
    weight[:, random.integers(size)] = 0.5
    places = np.concatenate([random.random((3, 6)), np.zeros((3, 1)), np.full((3, 1), 1 - 1e-16)], 1)
    fall_where_the_running_sum_says(
        weight, places, draw_tokens(torch.from_numpy(weight).float(), torch.from_numpy(places))
    )


def fall_where_the_running_sum_says(weight: Any, places: Any, tokens: Tensor) -> None:
    """`tokens` (3, S) at `places` (3, S) of the running sum of `weight` (3, V)."""
    ends = weight.astype(np.float32).astype(np.float64).cumsum(1)
    for row in range(3):
        assert (weight[row, tokens[row]] > 0).all()
        for place, token in zip(places[row], tokens[row].tolist(), strict=True):
            wanted, slack = place * ends[row, -1], 1e-6 * ends[row, -1]
            assert ends[row, token] - weight[row, token] - slack <= wanted <= ends[row, token] + slack


@given(st.integers(1, 300), st.integers(0, 10_000), st.floats(0.01, 0.99))
def test_who_is_among_the_likeliest(size: int, seed: int, share: float) -> None:
    weight = torch.from_numpy(np.random.default_rng(seed).integers(0, 8, size).astype(np.float32))
    weight[0] = 1.0
    kept = drawing_weights(Sampler(top_p=share).draws(NO_PLACES), weight[None].log())[0] > 0
    above = torch.stack([weight[weight > own].sum() for own in weight])
    sure = ((above - share * weight.sum()).abs() > 1e-4) & (weight > 0)
    assert ((above < share * weight.sum())[sure] == kept[sure]).all()


def test_candidates_are_the_likeliest() -> None:
    assert candidates(Sampler(top_k=2)) == [True, True, False, False, False]
    assert candidates(Sampler(top_p=0.74)) == [True, True, False, False, False]
    assert candidates(Sampler(top_p=0.76)) == [True, True, True, False, False]
    assert candidates(Sampler(temperature=0.5, top_p=0.74)) == [True, False, False, False, False]
    smallest = Sampler(top_k=1, top_p=5e-324)  # a share of less than one is 0, and no token would hold it
    assert candidates(smallest, torch.tensor([[0.4, 0.3, 0.3]]).log()) == [True, False, False]
    weight = drawing_weights(Sampler(temperature=0.5).draws(NO_PLACES), LOGS)[0]
    assert (weight / weight.sum()).tolist() == pytest.approx([x**2 / 0.3359375 for x in CHANCES])


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.05, 5e-324])
@pytest.mark.parametrize("top_k", [0, 4])
def test_compiled_draws_come_as_often_as_the_weights_say(
    variant: str, top_p: float, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    chances, count = torch.tensor([[0.3, 0.05, 0.15, 0.15, 0.15, 0.0, 0.2]]), 20_000
    draws = Sampler(1.3, top_k, top_p).draws(((torch.arange(count) + 0.5) / count)[None].double())
    tokens, logs = after(chances.log(), draws)
    weight = drawing_weights(draws, chances.log())[0]
    seen = torch.bincount(tokens[0], minlength=7) / count
    torch.testing.assert_close(seen, weight / weight.sum(), atol=2 / count, rtol=0)
    torch.testing.assert_close(logs, chances.log().gather(1, tokens), atol=1e-6, rtol=0)


def after(logits: Tensor, wanted: TokenRequest, barred: ForbiddenTokens | None = None) -> tuple[Tensor, Tensor]:
    """What the compiled code takes where the bias is all that there is to the logits (N, V)."""
    table = PackedTable.of(torch.zeros(logits.shape[1], 1))
    none = torch.zeros(0, dtype=torch.long)
    values, context = torch.zeros(len(logits), 1), torch.arange(len(logits))
    return next_tokens(values, table, logits, context, barred or ForbiddenTokens((), none, none, 0), wanted)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@given(data=st.data())
def test_compiled_choices_are_the_plain_ones(variant: str, data: st.DataObject) -> None:
    size, texts, width = (data.draw(st.integers(1, most)) for most in (300, 70, 20))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    values, table = torch.randn(texts, width, generator=random), torch.randn(size, width, generator=random)
    bias, context = torch.randn(3, size, generator=random), torch.randint(3, (texts,), generator=random)
    bias[:, 1:][:, torch.rand(size - 1, generator=random) < 0.1] = -torch.inf
    bias[:, -1] = 0.0  # of the end
    banned = (size // 2,) if size > 2 else ()
    rules = Constraints(min_tokens=data.draw(st.integers(0, 2)), banned=banned, no_repeat_ngram=2, end=size - 1)
    tokens = torch.randint(size, (texts, 6), generator=random)
    count, halved = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    top_k, top_p = data.draw(st.integers(0, 20)), data.draw(st.sampled_from([1.0, 0.9, 0.3]))
    places = torch.rand(texts, count, dtype=torch.double, generator=random)
    wanted: TokenRequest = SampleRequest(places, 0.8, top_k, top_p) if data.draw(st.booleans()) else TopRequest(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_KERNEL", variant)
        patch.setattr(library, "half", lambda: halved)
        patch.setattr(library, "threads", lambda jobs: 2)
        found, logs = next_tokens(values, PackedTable.of(table), bias, context, rules.barred(tokens, 1), wanted)
    model = (values @ table.T + bias[context]).log_softmax(1)
    allowed = rules.forbid(model.clone(), tokens, 1)
    torch.testing.assert_close(
        logs[~logs.isneginf()],
        model.gather(1, found)[~logs.isneginf()],
        atol=0.2 if halved else 1e-4,
        rtol=0.05 if halved else 1e-5,
    )
    plain = choose_tokens(wanted, allowed)
    never = allowed.gather(1, plain).isneginf()  # more are wanted than may come
    assert (logs.isneginf() == never).all()
    assert (allowed.gather(1, found).isneginf() <= never).all()
    if not halved:
        assert ((found == plain) | never).sum() >= 0.97 * found.numel() - 1


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@given(st.integers(1, 700), st.integers(0, 10_000))
def test_compiled_draws_fall_where_the_running_sum_says(variant: str, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.random((3, size)) * (random.random((3, size)) < 0.3)
    weight[:, random.integers(size)] = 0.5
    places = np.concatenate([random.random((3, 6)), np.zeros((3, 1)), np.full((3, 1), 1 - 1e-16)], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACTORCELL_KERNEL", variant)
        tokens, _ = after(torch.from_numpy(weight).float().log(), SampleRequest(torch.from_numpy(places)))
    fall_where_the_running_sum_says(weight, places, tokens)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "wanted", [TopRequest(2), SampleRequest(torch.full((2, 2), 0.5, dtype=torch.double), 1.0, 2, 0.5)]
)
def test_where_all_is_forbidden_the_end_comes(
    variant: str, wanted: TokenRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORCELL_KERNEL", variant)
    logits = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7]]).log()
    barred = ForbiddenTokens((1,), torch.tensor([0, 0]), torch.tensor([0, 2]), end=2)
    tokens, logs = after(logits, wanted, barred)
    assert tokens[:, 0].tolist() == [2, 2]
    torch.testing.assert_close(logs[0, 0], torch.tensor(0.7).log())
    tokens, logs = after(torch.full((2, 3), -torch.inf), wanted, barred)
    assert tokens.tolist() == [[2, 2], [2, 2]]
