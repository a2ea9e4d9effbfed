"""Searches with bfloat16 products have float32 scores and the same completions as float32 searches."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion.compiled import CompiledEngine, new_engine
from factorcell.completion.completer import Completer
from factorcell.completion.search import SearchRequest
from factorcell.nn.kernels import library
from factorcell.nn.packing import PRODUCT_TYPES, PackedModel
from tests.completion.test_search import (
    CLOSE,
    MODELS,
    compiled_state,
    enumerate_completions,
    many_requests,
    search,
    use_instructions,
)
from tests.kernels import VARIANTS, compiled
from tests.small_runs import make_letters

pytestmark = compiled


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(model=MODELS, prefix=st.text("abcz", max_size=3), k=st.integers(1, 9))
def test_completions_found_in_bfloat16_have_float32_scores(
    variant: str, model: dict[str, Any], prefix: str, k: int
) -> None:
    run = make_letters(**model)
    logs = enumerate_completions(run, prefix, "Oslo", 4)
    with use_instructions(variant):
        compiled, prefix_state = compiled_state(run, prefix, products="bfloat16")
        _, float32_prefix = compiled_state(run, prefix)
        result = compiled.search(SearchRequest(prefix_state, k, 4))
    assert torch.equal(prefix_state.states[-1], float32_prefix.states[-1])
    scores = [s.log_probability for s in result.completions]
    assert len(scores) == k
    assert scores == sorted(scores, reverse=True)
    assert np.allclose(scores, [logs[s.ids] for s in result.completions], atol=CLOSE)
    assert np.allclose(scores, sorted(logs.values(), reverse=True)[:k], atol=0.1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_errors_are_within_the_margin(variant: str) -> None:
    run = make_letters(("abcdef", "fed"), seed=1, spread=0.3, hidden_size=70, rank=5, layer_norm=True)
    with use_instructions(variant):
        alone = [
            list(map(compiled.search, requests))
            for compiled, requests in (many_requests(run), many_requests(run, "bfloat16"))
        ]
    for float32_result, bfloat16_result in zip(*alone, strict=True):
        assert [c.ids for c in float32_result.completions] == [c.ids for c in bfloat16_result.completions]
    in_float32, in_bfloat16 = (sum(c.expanded_count for c in results) for results in alone)
    assert in_float32 < in_bfloat16 < 1.6 * in_float32


def test_wrong_bfloat16_weights_do_not_change_the_completions() -> None:
    run = make_letters(("abcdefgh",), seed=1, spread=0.8)
    compiled, prefix_state = compiled_state(run, "ab", products="bfloat16")
    packed, in_float32 = compiled.packed, search(run, "ab", 30, 5)
    with torch.no_grad():
        run.model.get_parameter("backbone.layers.0.linear.weight").mul_(-9)
    elsewhere, _ = compiled_state(run, "ab", products="bfloat16")
    arrays = {**packed.arrays, "short_weight": elsewhere.packed.arrays["short_weight"]}
    wrong = PackedModel(packed.layout, arrays, packed.specials)
    right, other = (
        CompiledEngine(run.model, weights).search(SearchRequest(prefix_state, 30, 5)) for weights in (packed, wrong)
    )
    assert right.expanded_count < other.expanded_count
    assert other.expanded_count > in_float32.expanded_count
    for result in (right, other):
        assert not result.is_cut
        assert [s.ids for s in result.completions] == [s.ids for s in in_float32.completions]


def test_bfloat16_is_used_only_on_processors_that_have_it() -> None:
    run = make_letters()
    for variant in VARIANTS:
        with use_instructions(variant):
            for products in PRODUCT_TYPES:
                engine = new_engine(run.model, products)
                assert isinstance(engine, CompiledEngine)
                assert engine.packed.layout.products == (
                    products if variant in library.BFLOAT16_VARIANTS else "float32"
                )


def test_a_bfloat16_run_completes_with_float32_scores() -> None:
    run = make_letters(seed=2, spread=0.8, layer_norm=True)
    float32_suggestions = Completer(run).complete("a", context={"city": "Oslo"}, k=5)
    run.precision = "bfloat16"
    with patch.object(run, "scoring", torch.inference_mode):
        bfloat16_suggestions = Completer(run).complete("a", context={"city": "Oslo"}, k=5)
    assert [s.text for s in bfloat16_suggestions] == [s.text for s in float32_suggestions]
    assert [s.log_probability for s in bfloat16_suggestions] == pytest.approx(
        [s.log_probability for s in float32_suggestions], abs=1e-5
    )
