"""The compiled search against all texts written out and against the plain one; who shares it, and what bounds it."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion import compiled as compiled_search
from factorcell.completion import search as completion
from factorcell.completion.compiled import CompiledEngine, PackedPrefix, engine, search
from factorcell.completion.completer import Completer
from factorcell.completion.search import Ids, PlainEngine, SearchRequest, SearchResult, beam
from factorcell.config import OUTPUT_BIASES
from factorcell.data.vocabulary import END, START, UNKNOWN
from factorcell.model.kernels import library
from factorcell.model.packing import PRODUCTS, PackedModel
from factorcell.model.run import Run
from tests.completion.test_search import CLOSE, same, typed_in, written_out
from tests.small import inside, make_letters

HERE = library.library()
VARIANTS = [] if HERE is None else library.VARIANTS[: HERE.factorcell_best() + 1]
pytestmark = pytest.mark.skipif(HERE is None, reason="not compiled: there was no C++ compiler at installation")

MODELS = st.fixed_dictionaries(
    {
        "layer_norm": st.booleans(),
        "adapt": st.sampled_from([(), ("concat",), ("factor",), ("concat", "factor")]),
        "output_bias": st.sampled_from([(), *((name,) for name in OUTPUT_BIASES)]),
        "hidden_size": st.sampled_from([1, 5, 16, 17, 37]),
        "embedding_size": st.sampled_from([1, 4, 17]),
        "rank": st.sampled_from([1, 2, 17]),
        "hash_size": st.just(50),
        "bloom_size": st.just(500),
        "seed": st.integers(0, 99),
        "spread": st.sampled_from([0.2, 0.5]),  # with larger weights a rounding grows beyond bounds in a few steps
    }
)


@contextmanager
def instructions(variant: str) -> Iterator[None]:
    """An instruction set."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("FACTORCELL_KERNEL", variant)
        yield


def packed_in(
    run: Run, prefix: str, city: str = "Oslo", products: str = "float32"
) -> tuple[CompiledEngine, PackedPrefix]:
    """The compiled search of a run, and what is typed in a city."""
    packed = PackedModel.of(run.model, products)
    assert packed is not None
    compiled = CompiledEngine(run.model, packed)
    corpus = run.prepare([{"text": "", "city": city}])
    with run.scoring():
        begun = compiled.begin(corpus.context(np.zeros(1, dtype=np.int64)))
    return compiled, compiled.type(begun, run.vocabulary.encode(prefix))


def found_in(run: Run, prefix: str, k: int, most: int, **bounds: Any) -> SearchResult:
    """The compiled search, in Oslo."""
    compiled, typed = packed_in(run, prefix)
    return search(compiled.packed, [SearchRequest(typed, k, most)], **bounds)[0]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=20)
@given(model=MODELS, prefix=st.text("abcz", max_size=4), city=st.sampled_from(["Oslo", "Nice"]), data=st.data())
def test_what_is_found_is_best_of_all_texts_written_out(
    variant: str, model: dict[str, Any], prefix: str, city: str, data: st.DataObject
) -> None:
    """Any sizes and adaptations; an unknown letter (z) in the prefix; some texts not accepted; as the plain search."""
    run = make_letters(**model)
    most, k, batch = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 40))
    refused = data.draw(st.sampled_from([None, (), 3, 4]))

    def accept(ids: Ids) -> bool:
        return ids != refused and refused not in ids

    logs = {ids: log for ids, log in written_out(run, prefix, city, most).items() if accept(ids)}
    with instructions(variant):
        compiled, typed = packed_in(run, prefix, city)
        (found,) = search(compiled.packed, [SearchRequest(typed, k, most, accept)], batch=batch)
    assert not found.cut
    assert same(found, logs, k)
    with run.scoring():
        plain = completion.search(run.model, SearchRequest(typed_in(run, prefix, city), k, most, accept))
    ours, theirs = ([one.log_probability for one in result.completions] for result in (found, plain))
    assert np.allclose(ours, theirs, atol=CLOSE)
    if len(logs) > k and np.diff(sorted(logs.values())[-k - 1 :]).min() > CLOSE:
        assert [one.ids for one in found.completions] == [one.ids for one in plain.completions]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(model=MODELS, keys=st.lists(st.sampled_from("abcz<<"), max_size=10))
def test_typing_is_the_plain_typing(variant: str, model: dict[str, Any], keys: list[str]) -> None:
    """After any letters and deletions (<), one step a letter and none a deletion, bit for bit as read at once."""
    run, text, steps, run_compiled = make_letters(**model), "", 0, compiled_search._run

    def counted(packed: Any, requests: Any, *rest: Any, **named: Any) -> None:
        nonlocal steps
        steps += sum(request.most for request in requests)
        run_compiled(packed, requests, *rest, **named)

    with instructions(variant):
        compiled, typed = packed_in(run, "")
        for key in keys:
            text, taken = text[:-1] if key == "<" else text + key, steps
            with patch.object(compiled_search, "_run", counted):
                typed = compiled.type(typed, run.vocabulary.encode(text))
            assert steps - taken == (key != "<")
        _, anew = packed_in(run, text)
    plain = typed_in(run, text)
    assert typed.ids == anew.ids == plain.ids
    assert len(typed.after) == len(anew.after) == len(plain.logs) == len(text) + 1
    for ours, theirs, (state,), logs in zip(typed.after, anew.after, inside(plain.states), plain.logs, strict=True):
        assert torch.equal(ours, theirs)
        expected = torch.cat([state.hidden[0], state.memory[0], logs[0]])
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


@settings(max_examples=40)
@given(rows=st.integers(0, 60), waiting=st.integers(1, 60), seed=st.integers(0, 9), k=st.integers(1, 8))
def test_a_search_that_ran_out_of_room_says_so(rows: int, waiting: int, seed: int, k: int) -> None:
    """What is not cut is exact; what is cut is still of texts with their own scores, within the bounds."""
    run = make_letters(seed=seed, spread=0.8)
    logs = written_out(run, "b", "Oslo", 4)
    found = found_in(run, "b", k, 4, rows=rows, waiting=waiting, batch=4)
    assert found.rows <= rows
    assert found.cut or same(found, logs, k)
    assert all(abs(logs[one.ids] - one.log_probability) < CLOSE for one in found.completions)


def test_bounds_do_cut_and_room_enough_does_not() -> None:
    """Each bound alone, as of the plain search; a bound that only drops what was hopeless is not told."""
    run = make_letters(seed=3, spread=0.8)
    whole = found_in(run, "b", 5, 6)
    assert not whole.cut
    assert found_in(run, "b", 5, 6, rows=whole.rows // 2).cut
    assert found_in(run, "b", 5, 6, waiting=1).cut
    stopped = found_in(run, "b", 5, 6, seconds=0.0)
    assert stopped.cut
    assert stopped.rows == 0
    kept = next(room for room in range(2, 500) if not found_in(run, "b", 5, 6, waiting=room).cut)
    assert kept > 2
    assert found_in(run, "b", 5, 6, waiting=kept).completions == whole.completions
    assert found_in(run, "b", 5, 6, rows=whole.rows, seconds=1e6) == whole
    for most in range(4):
        assert max(len(one.ids) for one in found_in(run, "b", 200, most).completions) == most


def unlikely_to_end() -> Run:
    """A run of many letters, whose texts are long and of like probability."""
    run = make_letters(("abcdefghijklmnop",), seed=1, spread=0.2, data={"max_tokens": 40})
    with torch.no_grad():
        run.model.output.bias[END] -= 3
    return run


def test_what_is_too_much_waits_no_longer() -> None:
    """Of many more that wait than may, the most probable stay; that others were dropped is told where it may matter."""
    run = unlikely_to_end()
    whole = found_in(run, "a", 10, 12, waiting=10**6)
    assert not whole.cut
    for room in (100, 300, 1000, 3000):
        tight = found_in(run, "a", 10, 12, waiting=room)
        assert tight.cut == (tight.rows < whole.rows) == (room < 3000)
        assert tight.rows > room / 2
        assert [one.ids for one in tight.completions] == [one.ids for one in whole.completions]


def test_time_ends_a_search() -> None:
    """A search that would go on for very long stops; a bound that is never reached changes nothing."""
    run = unlikely_to_end()
    with torch.no_grad():
        run.model.output.bias[END] -= 10
    stopped = found_in(run, "a", 10, 12, rows=10**6, waiting=10**6, seconds=0.05)
    assert stopped.cut
    assert 0 < stopped.rows < 10**6
    small = make_letters(seed=3, spread=0.8)
    assert found_in(small, "b", 5, 6, seconds=1e6) == found_in(small, "b", 5, 6)


def test_few_that_are_accepted_are_found_among_many() -> None:
    """One text in hundreds, far down the order; a search that has no more to give ends; time bounds all tries."""
    run = make_letters(seed=4, spread=0.8)
    logs = written_out(run, "a", "Oslo", 5)
    rarest = sorted(logs, key=lambda ids: logs[ids])[:3]
    compiled, typed = packed_in(run, "a")
    (found,) = search(compiled.packed, [SearchRequest(typed, 2, 5, lambda ids: ids in rarest)])
    assert [one.ids for one in found.completions] == rarest[:0:-1]
    assert not found.cut
    (none,) = search(compiled.packed, [SearchRequest(typed, 2, 5, lambda ids: False)])
    assert none.completions == ()
    assert not none.cut
    (stopped,) = search(compiled.packed, [SearchRequest(typed, 2, 5, lambda ids: ids in rarest)], rows=30)
    assert stopped.cut


def test_what_is_typed_alone_takes_no_other_try() -> None:
    """That it does not count is known before: with all else accepted one call is enough."""
    compiled, typed = packed_in(make_letters(seed=4, spread=0.8), "a")
    tries, run_compiled = [], compiled_search._run

    def counted(packed: Any, requests: Any, *rest: Any, **named: Any) -> None:
        tries.append(len(requests))
        run_compiled(packed, requests, *rest, **named)

    with patch.object(compiled_search, "_run", counted):
        (every,) = search(compiled.packed, [SearchRequest(typed, 5, 6)])
        (others,) = search(compiled.packed, [SearchRequest(typed, 4, 6, lambda ids: ids != ())])
    assert tries == [1, 1]
    assert [one.ids for one in every.completions if one.ids] == [one.ids for one in others.completions]


def test_special_tokens_are_never_found() -> None:
    """Not even where the model takes the unknown token for almost certain."""
    run = make_letters()
    with torch.no_grad():
        run.model.output.bias[UNKNOWN] = 20.0
    found = found_in(run, "ab", 50, 5)
    assert len(found.completions) == 50
    assert not any({UNKNOWN, START, END} & set(one.ids) for one in found.completions)
    with run.scoring():
        plain = completion.search(run.model, SearchRequest(typed_in(run, "ab"), 50, 5))
    for ours, theirs in zip(found.completions, plain.completions, strict=True):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=CLOSE)


def people(
    run: Run, products: str = "float32", count: int = 30
) -> tuple[CompiledEngine, list[SearchRequest[PackedPrefix]]]:
    """What many have typed in two cities, with wishes of their own."""
    begun = {city: packed_in(run, "", city, products) for city in ("Oslo", "Nice")}
    compiled, random = begun["Oslo"][0], np.random.default_rng(0)
    wanted = []
    for place in range(count):
        _, typed = begun["Oslo" if place % 2 else "Nice"]
        ids = run.vocabulary.encode(random.choice(list("abcdefz"), size=place % 6).tolist())
        wanted.append(SearchRequest(compiled.type(typed, ids), 1 + place % 9, 3 + place % 4, lambda ids: ids != ()))
    return compiled, wanted


@pytest.mark.parametrize("products", PRODUCTS)
def test_many_requests_are_each_alone(products: str) -> None:
    """In one call over several threads, and in calls from several threads at once: bit for bit; nothing is changed."""
    compiled, wanted = people(make_letters(("abcdef", "fed"), seed=1, spread=0.8), products)
    before = [torch.cat([*one.typed.after]).clone() for one in wanted]
    alone = [search(compiled.packed, [one])[0] for one in wanted]
    assert len(set(alone)) > 20
    for threads in (1, 3, 50):
        assert search(compiled.packed, wanted, threads=threads) == alone
    with ThreadPoolExecutor(6) as pool:
        shares = [wanted[place % 7 :: 7] for place in range(28)]
        together = list(pool.map(lambda share: search(compiled.packed, share, threads=2), shares))
    for place, result in enumerate(together):
        assert result == alone[place % 7 :: 7]
    for one, was in zip(wanted, before, strict=True):
        assert torch.equal(torch.cat([*one.typed.after]), was)
    assert search(compiled.packed, []) == []


@pytest.mark.parametrize("products", PRODUCTS)
def test_of_the_real_size_it_is_never_worse_than_the_published_beam(products: str) -> None:
    """Weights of chance of 600 hidden units: the tenth score, and all that the beam has above it."""
    letters = ("".join(map(chr, range(48, 48 + 104))),)
    sizes: dict[str, Any] = {
        "hidden_size": 600,
        "embedding_size": 24,
        "rank": 60,
        "context_size": 40,
        "variable_size": 40,
    }
    kind: dict[str, Any] = {"layer_norm": True, "adapt": ("factor",), **sizes}
    run = make_letters(letters, data={"max_tokens": 110}, seed=2, spread=0.08, **kind)
    with torch.no_grad():
        run.model.output.bias[END] += 1.5
        run.model.output.bias[UNKNOWN] -= 5
        run.model.embedding.mul_(12)
    compiled, typed = packed_in(run, "abc", products=products)
    (found,) = search(compiled.packed, [SearchRequest(typed, 10, 5)])
    assert not found.cut
    with run.scoring():
        published = beam(run.model, typed_in(run, "abc"), most=5)
    worst = found.completions[9].log_probability
    assert worst >= published.completions[9].log_probability - CLOSE
    above = {one.ids for one in published.completions if one.log_probability > worst + CLOSE}
    assert above <= {one.ids for one in found.completions}
    assert math.exp(worst) > 1e-12


@pytest.mark.parametrize(
    ("model", "there"),
    [
        ({}, True),
        ({"adapt": ("concat", "factor"), "layer_norm": True, "output_bias": ("hash",), "hash_size": 50}, True),
        ({"rank": 0}, True),
        ({"cell": "lstm"}, False),
        ({"layers": 2}, False),
        ({"adapt": ("scale",)}, False),
        ({"adapt": ("scale", "factor")}, False),
        ({"adapt": ("prefix",)}, False),
    ],
)
def test_what_it_has_is_searched_by_it(model: dict[str, Any], there: bool) -> None:
    """All else by the plain search; either way with the same answers."""
    run = make_letters(spread=0.8, **model)
    assert isinstance(engine(run.model, "float32"), CompiledEngine if there else PlainEngine)
    ours = Completer(run).complete("a", context={"city": "Oslo"}, k=8)
    with instructions("off"):
        assert isinstance(engine(run.model, "float32"), PlainEngine)
        plain = Completer(run).complete("a", context={"city": "Oslo"}, k=8)
    assert [one.text for one in ours] == [one.text for one in plain]
    assert [one.log_probability for one in ours] == pytest.approx([one.log_probability for one in plain], abs=CLOSE)
    run.model.double()
    assert isinstance(engine(run.model, "float32"), PlainEngine)


def test_all_who_type_at_once_get_what_each_gets() -> None:
    """`suggest_all` over threads is `suggest` of each, on either path."""
    run = make_letters(("abcdef", "fed"), seed=1, spread=0.8)
    for variant in (VARIANTS[-1], "off"):
        with instructions(variant):
            completer = Completer(run)
            written = [
                completer.type(completer.begin(context={"city": city}), text)
                for city in ("Oslo", "Nice")
                for text in ("", "a", "zb", "fed", "abc")
            ]
            each = [completer.suggest(one, k=6) for one in written]
            assert completer.suggest_all(written, k=6, threads=3) == each
            assert completer.suggest_all([]) == []
            assert len({str(one) for one in each}) == len(each)
