"""Searches by products of bfloat16 numbers: against scores by floats, where they are wrong, and which are chosen."""

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
from factorcell.model.kernels import library
from factorcell.model.packing import PRODUCT_TYPES, PackedModel
from tests.completion.test_search import (
    CLOSE,
    MODELS,
    VARIANTS,
    compiled_here,
    found_in,
    instructions,
    packed_in,
    people,
    written_out,
)
from tests.small_runs import make_letters

pytestmark = compiled_here


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(model=MODELS, prefix=st.text("abcz", max_size=3), k=st.integers(1, 9))
def test_what_short_products_find_has_scores_by_floats(
    variant: str, model: dict[str, Any], prefix: str, k: int
) -> None:
    run = make_letters(**model)
    logs = written_out(run, prefix, "Oslo", 4)
    with instructions(variant):
        compiled, typed = packed_in(run, prefix, products="bfloat16")
        _, of_floats = packed_in(run, prefix)
        (found,) = compiled.search([SearchRequest(typed, k, 4)])
    assert torch.equal(typed.rows[-1], of_floats.rows[-1])
    scores = [one.log_probability for one in found.completions]
    assert len(scores) == k
    assert scores == sorted(scores, reverse=True)
    assert np.allclose(scores, [logs[one.ids] for one in found.completions], atol=CLOSE)
    assert np.allclose(scores, sorted(logs.values(), reverse=True)[:k], atol=0.1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_errors_of_short_products_are_within_the_margin(variant: str) -> None:
    run = make_letters(("abcdef", "fed"), seed=1, spread=0.3, hidden_size=70, rank=5, layer_norm=True)
    with instructions(variant):
        alone = [compiled.search(requests) for compiled, requests in (people(run), people(run, "bfloat16"))]
    for ours, theirs in zip(*alone, strict=True):
        assert [one.ids for one in ours.completions] == [one.ids for one in theirs.completions]
    by_floats, by_others = (sum(one.rows for one in results) for results in alone)
    assert by_floats < by_others < 1.6 * by_floats


def test_where_short_products_are_wrong_floats_find() -> None:
    run = make_letters(("abcdefgh",), seed=1, spread=0.8)
    compiled, typed = packed_in(run, "ab", products="bfloat16")
    packed, by_floats = compiled.packed, found_in(run, "ab", 30, 5)
    with torch.no_grad():
        run.model.get_parameter("backbone.layers.0.linear.weight").mul_(-9)
    elsewhere, _ = packed_in(run, "ab", products="bfloat16")
    arrays = {**packed.arrays, "short_weight": elsewhere.packed.arrays["short_weight"]}
    wrong = PackedModel(packed.layout, arrays, packed.specials)
    right, other = (CompiledEngine(run.model, one).search([SearchRequest(typed, 30, 5)])[0] for one in (packed, wrong))
    assert right.rows < other.rows
    assert other.rows > by_floats.rows
    for found in (right, other):
        assert not found.cut
        assert [one.ids for one in found.completions] == [one.ids for one in by_floats.completions]


def test_short_numbers_are_for_processors_that_have_them() -> None:
    run = make_letters()
    for variant in VARIANTS:
        with instructions(variant):
            for products in PRODUCT_TYPES:
                chosen = new_engine(run.model, products)
                assert isinstance(chosen, CompiledEngine)
                assert chosen.packed.layout.products == (products if variant in library.WITH_SHORT else "float32")


def test_a_run_of_short_products_completes_with_scores_by_floats() -> None:
    run = make_letters(seed=2, spread=0.8, layer_norm=True)
    ours = Completer(run).complete("a", context={"city": "Oslo"}, k=5)
    run.precision = "bfloat16"
    with patch.object(run, "scoring", torch.inference_mode):
        short = Completer(run).complete("a", context={"city": "Oslo"}, k=5)
    assert [one.text for one in short] == [one.text for one in ours]
    assert [one.log_probability for one in short] == pytest.approx([one.log_probability for one in ours], abs=1e-5)
