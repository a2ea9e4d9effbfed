"""Searches by products of short numbers: against scores by floats, where they are wrong, and which are chosen."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion import compiled as compiled_search
from factorcell.completion.compiled import CompiledEngine, engine, search
from factorcell.completion.completer import Completer
from factorcell.completion.search import PlainEngine, SearchRequest
from factorcell.model.kernels import library
from factorcell.model.packing import PRODUCTS, SHORT, PackedModel
from tests.completion.test_compiled import HERE, MODELS, VARIANTS, found_in, instructions, packed_in, people
from tests.completion.test_search import CLOSE, written_out
from tests.small import make_letters

pytestmark = pytest.mark.skipif(HERE is None, reason="not compiled: there was no C++ compiler at installation")


@pytest.mark.parametrize("products", SHORT)
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(model=MODELS, prefix=st.text("abcz", max_size=3), k=st.integers(1, 9))
def test_what_short_products_find_has_scores_by_floats(
    variant: str, products: str, model: dict[str, Any], prefix: str, k: int
) -> None:
    """Each text with its own score, the best first, next to none missed; the typed states are those of floats."""
    run = make_letters(**model)
    logs = written_out(run, prefix, "Oslo", 4)
    with instructions(variant):
        compiled, typed = packed_in(run, prefix, products=products)
        _, of_floats = packed_in(run, prefix)
        (found,) = search(compiled.packed, [SearchRequest(typed, k, 4)])
    assert torch.equal(typed.after[-1], of_floats.after[-1])
    scores = [one.log_probability for one in found.completions]
    assert len(scores) == k
    assert scores == sorted(scores, reverse=True)
    assert np.allclose(scores, [logs[one.ids] for one in found.completions], atol=CLOSE)
    assert np.allclose(scores, sorted(logs.values(), reverse=True)[:k], atol=0.1)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 7), (37, 50), (64, 48)])
def test_bytes_are_the_matrix_they_were_made_from(rows: int, columns: int) -> None:
    """Word by word: four rows of a column, next to its scale; before them what 128 too much in each comes to."""
    matrix = torch.randn(rows, columns) * torch.logspace(-3, 3, columns)
    matrix[:, columns // 2] = 0
    packed = SHORT["int8"](matrix, 16)
    assert packed.shape == (-(-columns // 48), -(-rows // 4) + 2, 48)
    assert packed.is_contiguous()
    scale = packed[:, -1].reshape(-1).view(torch.float32)[:columns] * 127
    inner = packed[:, 1:-1].contiguous().view(torch.int8).view(*packed[:, 1:-1].shape, 4)
    whole = inner.permute(1, 3, 0, 2).reshape(-1, inner.shape[0] * 48)[:, :columns].int()
    assert not whole[rows:].any()
    assert torch.allclose(scale * 127, matrix.abs().amax(0), rtol=1e-6)
    assert ((whole[:rows] * scale - matrix).abs() <= scale * 0.501).all()
    assert torch.equal(packed[:, 0].reshape(-1)[:columns], -128 * whole.sum(0).int())


@pytest.mark.parametrize("products", SHORT)
@pytest.mark.parametrize("variant", VARIANTS)
def test_errors_of_short_products_are_within_the_margin(variant: str, products: str) -> None:
    """So little is searched twice, and a little more than floats search, which have no margin."""
    run = make_letters(("abcdef", "fed"), seed=1, spread=0.3, hidden_size=70, rank=5, layer_norm=True)
    with instructions(variant):
        alone = [search(packed.packed, wanted) for packed, wanted in (people(run), people(run, products))]
    for ours, theirs in zip(*alone, strict=True):
        assert [one.ids for one in ours.completions] == [one.ids for one in theirs.completions]
    by_floats, by_others = (sum(one.rows for one in results) for results in alone)
    assert by_floats < by_others < 1.6 * by_floats


@pytest.mark.parametrize("products", SHORT)
def test_where_short_products_are_wrong_floats_find(products: str) -> None:
    """With other weights of that type other texts are expanded; the scores by floats tell, and all is done anew."""
    run = make_letters(("abcdefgh",), seed=1, spread=0.8)
    compiled, typed = packed_in(run, "ab", products=products)
    packed, by_floats = compiled.packed, found_in(run, "ab", 30, 5)
    with torch.no_grad():
        run.model.get_parameter("backbone.layers.0.matrix").mul_(-9)
    elsewhere, _ = packed_in(run, "ab", products=products)
    arrays = {**packed.arrays, "short_weight": elsewhere.packed.arrays["short_weight"]}
    wrong = PackedModel(packed.layout, arrays, packed.specials)
    right, other = (search(one, [SearchRequest(typed, 30, 5)])[0] for one in (packed, wrong))
    assert right.rows < other.rows
    assert other.rows > by_floats.rows
    for found in (right, other):
        assert not found.cut
        assert [one.ids for one in found.completions] == [one.ids for one in by_floats.completions]


def test_short_numbers_are_for_processors_that_have_them() -> None:
    """Where they are asked for; elsewhere floats, which are as good."""
    run = make_letters()
    for variant in VARIANTS:
        with instructions(variant):
            for products in PRODUCTS:
                chosen = engine(run.model, products)
                assert isinstance(chosen, CompiledEngine)
                assert chosen.packed.layout.products == (products if variant in library.WITH_SHORT else "float32")


@pytest.mark.parametrize("products", SHORT)
def test_a_run_of_short_products_completes_with_scores_by_floats(products: str) -> None:
    """What a context decides is computed by floats, too."""
    run = make_letters(seed=2, spread=0.8, layer_norm=True)
    ours = Completer(run).complete("a", context={"city": "Oslo"}, k=5)
    run.precision = products
    with patch.object(run, "scoring", torch.inference_mode):
        short = Completer(run).complete("a", context={"city": "Oslo"}, k=5)
    assert [one.text for one in short] == [one.text for one in ours]
    assert [one.log_probability for one in short] == pytest.approx([one.log_probability for one in ours], abs=1e-5)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ((1.0, 0.6, 0.4), "int8"),
        ((1.0, 0.3, 0.4), "bfloat16"),
        ((1.0, 2.0, 0.95), "float32"),
    ],
)
def test_the_fastest_search_is_found(seconds: tuple[float, ...], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was opened so that the faster numbers are found; the slower of two times does not count."""
    run, clock, times = make_letters(), [0.0], dict(zip(PRODUCTS, seconds, strict=True))
    asked: list[str] = []

    def searched(packed: PackedModel, wanted: Any, rows: int) -> None:
        products = packed.layout.products
        clock[0] += times[products] * (1 if products in asked else 3)
        asked.append(products)

    monkeypatch.setattr(compiled_search, "search", searched)
    monkeypatch.setattr("factorcell.completion.compiled.time.perf_counter", lambda: clock[0])
    assert run.gain == 1.0
    assert Completer(run).engine.packed.layout.products == "float32"  # type: ignore[attr-defined]
    assert not asked
    run.gain = 0.7
    here = chosen if VARIANTS[-1] in library.WITH_SHORT else "float32"
    assert Completer(run).engine.packed.layout.products == here  # type: ignore[attr-defined]
    for variant in set(VARIANTS) - set(library.WITH_SHORT):
        with instructions(variant):
            assert Completer(run).engine.packed.layout.products == "float32"  # type: ignore[attr-defined]
    with instructions("off"):
        assert isinstance(Completer(run).engine, PlainEngine)
