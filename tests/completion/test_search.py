"""The plain and the compiled search against all texts written out; typing on against reading a text anew."""

import itertools
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion.compiled import CompiledEngine, PackedPrefix, new_engine
from factorcell.completion.search import Ids, PlainEngine, PrefixState, SearchRequest, SearchResult, Stop
from factorcell.config import OUTPUT_BIASES
from factorcell.data.context import Context
from factorcell.data.vocabulary import END, START, UNKNOWN
from factorcell.model.cells import CELLS
from factorcell.model.kernels import library
from factorcell.model.packing import PRODUCT_TYPES, PackedModel
from factorcell.model.run import Run
from tests.small_runs import as_any, make_letters

CLOSE = 1e-4  # nats: products of 32 bits, in another order
HERE = library.library()
VARIANTS = [] if HERE is None else library.VARIANTS[: HERE.factorcell_best() + 1]
compiled_here = pytest.mark.skipif(HERE is None, reason="not compiled: there was no C++ compiler at installation")
BOTH = pytest.mark.parametrize("kind", ["pytorch", *VARIANTS[-1:]])
ALL = pytest.mark.parametrize("kind", ["pytorch", *VARIANTS])

SIZES: dict[str, Any] = {"hash_size": st.just(50), "bloom_size": st.just(500), "seed": st.integers(0, 99)}
BIASES = st.sampled_from([(), *((name,) for name in OUTPUT_BIASES)])
ANY_MODEL = st.fixed_dictionaries(
    {
        "cell": st.sampled_from(list(CELLS)),
        "layers": st.integers(1, 2),
        "layer_norm": st.booleans(),
        "adapt": st.sampled_from([(), ("concat", "factor"), ("scale", "factor"), ("prefix",)]),
        "output_bias": BIASES,
        "spread": st.sampled_from([0.3, 0.8, 2.0]),
        **SIZES,
    }
)
MODELS = st.fixed_dictionaries(
    {
        "layer_norm": st.booleans(),
        "adapt": st.sampled_from([(), ("concat",), ("factor",), ("concat", "factor")]),
        "output_bias": BIASES,
        "hidden_size": st.sampled_from([1, 5, 16, 17, 37]),
        "embedding_size": st.sampled_from([1, 4, 17]),
        "rank": st.sampled_from([1, 2, 17]),
        "spread": st.sampled_from([0.2, 0.5]),  # with larger weights a rounding grows beyond bounds in a few steps
        **SIZES,
    }
)


@contextmanager
def instructions(variant: str) -> Iterator[None]:
    """Use one instruction set."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("FACTORCELL_KERNEL", variant)
        yield


def context_of(run: Run, city: str) -> Context:
    return run.prepare([{"text": "", "city": city}]).context(np.zeros(1, dtype=np.int64))


def typed_in(run: Run, prefix: str, city: str = "Oslo") -> PrefixState:
    """Return the state of the plain search for a prefix in a city."""
    plain = PlainEngine(run.model)
    with run.scoring():
        return plain.type(plain.begin(context_of(run, city)), run.tokenizer.encode(prefix))


def packed_in(
    run: Run, prefix: str, city: str = "Oslo", products: str = "float32"
) -> tuple[CompiledEngine, PackedPrefix]:
    """Return the compiled search of a run, and its state for a prefix in a city."""
    packed = PackedModel.from_model(run.model, products)
    assert packed is not None
    compiled = CompiledEngine(run.model, packed)
    with run.scoring():
        begun = compiled.begin(context_of(run, city))
    return compiled, compiled.type(begun, run.tokenizer.encode(prefix))


def found_in(
    run: Run, prefix: str, k: int, most: int, kind: str = VARIANTS[-1] if VARIANTS else "pytorch", **more: Any
) -> SearchResult:
    """Search what may follow a prefix by an engine; `more` are fields of the request, or bounds of the search."""
    fields = {name: more.pop(name) for name in ("accept", "least", "stop") if name in more}
    city = more.pop("city", "Oslo")
    with run.scoring(), instructions("off" if kind == "pytorch" else kind):
        if kind == "pytorch":
            plain = PlainEngine(run.model)
            return plain.search([SearchRequest(typed_in(run, prefix, city), k, most, **fields)], **more)[0]
        compiled, typed = packed_in(run, prefix, city)
        return compiled.search([SearchRequest(typed, k, most, **fields)], **more)[0]


def written_out(run: Run, prefix: str, city: str, most: int) -> dict[Ids, float]:
    """The log probability of every completion of at most `most` tokens: whole texts, all of their targets at once."""
    letters = run.tokenizer.tokens[END + 1 :]
    endings = [ending for size in range(most + 1) for ending in itertools.product(letters, repeat=size)]
    corpus = run.prepare([{"text": prefix + "".join(ending), "city": city} for ending in endings])
    nats, begin, logs = run.nats(corpus), 0, {}
    for ending in endings:
        after = begin + len(prefix) + len(ending) + 1
        logs[tuple(run.tokenizer.encode(ending))] = -float(nats[begin + len(prefix) : after].sum(dtype=np.float64))
        begin = after
    assert begin == len(nats), "a text was cut"
    return logs


def same(found: SearchResult, logs: dict[Ids, float], k: int) -> bool:
    """Whether the k largest of all `logs` were found, each once and the best first, but for roundings."""
    scores = [one.log_probability for one in found.completions]
    best = sorted(logs.values(), reverse=True)[:k]
    own = [logs[one.ids] for one in found.completions]
    return (
        len({one.ids for one in found.completions}) == len(scores) == len(best)
        and scores == sorted(scores, reverse=True)
        and np.allclose(scores, best, atol=CLOSE)
        and np.allclose(scores, own, atol=CLOSE)
    )


@ALL
@settings(max_examples=20)
@given(data=st.data(), prefix=st.text("abcz", max_size=4), city=st.sampled_from(["Oslo", "Nice"]))
def test_search_finds_the_best_of_all_texts_written_out(kind: str, data: st.DataObject, prefix: str, city: str) -> None:
    run = make_letters(**data.draw(ANY_MODEL if kind == "pytorch" else MODELS))
    most, k, batch = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 40))
    refused = data.draw(st.sampled_from([None, (), 3, 4]))

    def accept(ids: Ids) -> bool:
        return ids != refused and refused not in ids

    logs = {ids: log for ids, log in written_out(run, prefix, city, most).items() if accept(ids)}
    found = found_in(run, prefix, k, most, kind, accept=accept, city=city, batch=batch)
    assert not found.cut
    assert same(found, logs, k)


@settings(max_examples=30)
@given(keys=st.lists(st.sampled_from("abcz<<"), max_size=14), model=ANY_MODEL)
def test_typing_on_and_deleting_gives_the_plain_state_of_the_text_read_at_once(
    keys: list[str], model: dict[str, Any]
) -> None:
    run, text = make_letters(**model), ""
    plain = PlainEngine(run.model)
    with run.scoring():
        typed = begun = typed_in(run, "")
        for key in keys:
            text = text[:-1] if key == "<" else text + key
            typed = plain.type(typed, run.tokenizer.encode(text))
        anew = typed_in(run, text)
    # One product for all hypotheses: no weights for each hypothesis, nothing left in factors.
    assert all(
        weights.matrix.dim() == 2 and weights.left is None for weights in as_any(typed.conditioning.conditions).shifts
    )
    assert typed.ids == anew.ids == tuple(run.tokenizer.encode(text))
    assert begun.ids == ()
    for ours, theirs in zip(typed.logs, anew.logs, strict=True):
        assert torch.equal(ours, theirs)
    for state, other in zip(*(itertools.chain(*as_any(one.states)) for one in (typed, anew)), strict=True):
        assert torch.equal(state.hidden, other.hidden)
        assert torch.equal(state.memory, other.memory)


@compiled_here
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(model=MODELS, keys=st.lists(st.sampled_from("abcz<<"), max_size=10))
def test_the_compiled_state_is_the_plain_one_after_typing_on_and_deleting(
    variant: str, model: dict[str, Any], keys: list[str]
) -> None:
    run, text = make_letters(**model), ""
    with instructions(variant):
        compiled, typed = packed_in(run, "")
        for key in keys:
            text = text[:-1] if key == "<" else text + key
            typed = compiled.type(typed, run.tokenizer.encode(text))
        _, anew = packed_in(run, text)
    plain = typed_in(run, text)
    assert typed.ids == anew.ids == plain.ids
    for ours, theirs, (state,), logs in zip(typed.rows, anew.rows, as_any(plain.states), plain.logs, strict=True):
        assert torch.equal(ours, theirs)
        expected = torch.cat([state.hidden[0], state.memory[0], logs[0]])
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


@BOTH
@settings(max_examples=40)
@given(rows=st.integers(0, 60), waiting=st.integers(1, 60), seed=st.integers(0, 9), k=st.integers(1, 8))
def test_a_search_without_room_says_so_and_still_gives_texts_with_their_scores(
    kind: str, rows: int, waiting: int, seed: int, k: int
) -> None:
    run = make_letters(seed=seed, spread=0.8)
    logs = written_out(run, "b", "Oslo", 4)
    found = found_in(run, "b", k, 4, kind, max_rows=rows, max_waiting=waiting, batch=4)
    assert found.rows <= rows
    assert found.cut or same(found, logs, k)
    assert all(abs(logs[one.ids] - one.log_probability) < CLOSE for one in found.completions)


@BOTH
def test_each_bound_cuts_a_search_and_a_bound_that_is_not_reached_changes_nothing(kind: str) -> None:
    run = make_letters(seed=3, spread=0.8)
    whole = found_in(run, "b", 5, 6, kind)
    assert not whole.cut
    assert found_in(run, "b", 5, 6, kind, max_rows=whole.rows // 2).cut
    assert found_in(run, "b", 5, 6, kind, max_waiting=1).cut
    stop = Stop()
    assert found_in(run, "b", 5, 6, kind, stop=stop) == whole
    stop.set()
    for bound in ({"deadline": 0.0}, {"stop": stop}):
        stopped = found_in(run, "b", 5, 6, kind, **bound)
        assert (stopped.cut, stopped.rows) == (True, 0)
    kept = next(room for room in range(2, 500) if not found_in(run, "b", 5, 6, kind, max_waiting=room).cut)
    assert found_in(run, "b", 5, 6, kind, max_waiting=kept).completions == whole.completions
    assert found_in(run, "b", 5, 6, kind, max_rows=whole.rows, deadline=time.monotonic() + 1e6) == whole
    for most in range(4):
        assert max(len(one.ids) for one in found_in(run, "b", 200, most, kind).completions) == most


@BOTH
def test_only_completions_above_the_least_are_found(kind: str) -> None:
    run = make_letters(seed=3, spread=0.8)
    whole = found_in(run, "b", 9, 6, kind)
    for count in range(10):
        least = whole.completions[count].log_probability if count < 9 else -math.inf
        found = found_in(run, "b", 9, 6, kind, min_log_prob=least)
        assert found.completions == whole.completions[:count]
        assert not found.cut
        assert found.rows < whole.rows or count >= 8 or kind != "pytorch"


@BOTH
def test_special_tokens_are_never_suggested(kind: str) -> None:
    run = make_letters()
    with torch.no_grad():
        as_any(run.model.head).bias[UNKNOWN] = 20.0
    found = found_in(run, "ab", 50, 5, kind)
    assert len(found.completions) == 50
    assert not any({UNKNOWN, START, END} & set(one.ids) for one in found.completions)


def unlikely_to_end(nats: float = 3) -> Run:
    """A run of many letters, whose texts are long and of like probability."""
    run = make_letters(("abcdefghijklmnop",), seed=1, spread=0.2, data={"max_tokens": 40})
    with torch.no_grad():
        as_any(run.model.head).bias[END] -= nats
    return run


@compiled_here
def test_of_too_many_that_wait_the_most_probable_stay() -> None:
    run = unlikely_to_end()
    whole = found_in(run, "a", 10, 12, max_waiting=10**6)
    assert not whole.cut
    for room in (100, 1000, 3000):
        tight = found_in(run, "a", 10, 12, max_waiting=room)
        assert tight.cut == (tight.rows < whole.rows) == (room < 3000)
        assert tight.rows > room / 2
        assert [one.ids for one in tight.completions] == [one.ids for one in whole.completions]


@compiled_here
def test_time_ends_a_search_that_would_go_on_for_very_long() -> None:
    stopped = found_in(
        unlikely_to_end(13), "a", 10, 12, max_rows=10**6, max_waiting=10**6, deadline=time.monotonic() + 0.05
    )
    assert stopped.cut
    assert 0 < stopped.rows < 10**6


@compiled_here
def test_another_thread_ends_a_search_and_none_of_those_in_the_same_call() -> None:
    run, stop = unlikely_to_end(13), Stop()
    compiled, typed = packed_in(run, "a")
    requests = [SearchRequest(typed, 10, 12, stop=stop), SearchRequest(typed, 10, 1)]
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(compiled.search, requests, max_rows=10**6, max_waiting=10**6)
        time.sleep(0.02)
        stop.set()
        stopped, whole = searching.result()
    assert stopped.cut
    assert stopped.rows < 10**6
    assert whole == found_in(run, "a", 10, 1)


def test_a_stop_calls_from_any_thread_at_once_where_it_is_set_and_nothing_that_has_ended() -> None:
    stop, called = Stop(), list[str]()
    with stop.callback(lambda: called.append("ended")):
        pass
    with stop.callback(lambda: called.append("first")):
        thread = threading.Thread(target=stop.set)
        thread.start()
        thread.join()
    with stop.callback(lambda: called.append("second")):
        assert called == ["first", "second"]


@compiled_here
def test_few_that_are_accepted_are_found_among_many() -> None:
    run = make_letters(seed=4, spread=0.8)
    logs = written_out(run, "a", "Oslo", 5)
    rarest = sorted(logs, key=lambda ids: logs[ids])[:3]
    found = found_in(run, "a", 2, 5, accept=lambda ids: ids in rarest)
    assert [one.ids for one in found.completions] == rarest[:0:-1]
    assert not found.cut
    none = found_in(run, "a", 2, 5, accept=lambda ids: False)
    assert (none.completions, none.cut) == ((), False)
    assert found_in(run, "a", 2, 5, accept=lambda ids: ids in rarest, max_rows=30).cut


def people(run: Run, products: str = "float32", count: int = 30) -> tuple[CompiledEngine, list[SearchRequest]]:
    """Return requests for what many users have typed in two cities."""
    begun = {city: packed_in(run, "", city, products) for city in ("Oslo", "Nice")}
    compiled, random = begun["Oslo"][0], np.random.default_rng(0)
    requests = []
    for place in range(count):
        _, typed = begun["Oslo" if place % 2 else "Nice"]
        ids = run.tokenizer.encode(random.choice(list("abcdefz"), size=place % 6).tolist())
        requests.append(SearchRequest(compiled.type(typed, ids), 1 + place % 9, 3 + place % 4, lambda ids: ids != ()))
    return compiled, requests


@compiled_here
@pytest.mark.parametrize("products", PRODUCT_TYPES)
def test_many_requests_are_each_answered_as_alone_bit_for_bit(products: str) -> None:
    compiled, requests = people(make_letters(("abcdef", "fed"), seed=1, spread=0.8), products)
    before = [torch.cat([*one.prefix_state.rows]).clone() for one in requests]
    alone = [compiled.search([one])[0] for one in requests]
    assert len(set(alone)) > 20
    for threads in (1, 3, 50):
        assert compiled.search(requests, None, threads) == alone
    with ThreadPoolExecutor(6) as pool:
        shares = [requests[place % 7 :: 7] for place in range(28)]
        together = list(pool.map(lambda share: compiled.search(share, None, 2), shares))
    for place, result in enumerate(together):
        assert result == alone[place % 7 :: 7]
    for one, was in zip(requests, before, strict=True):
        assert torch.equal(torch.cat([*one.prefix_state.rows]), was)
    assert compiled.search([]) == []


@compiled_here
@pytest.mark.parametrize("products", PRODUCT_TYPES)
def test_a_model_of_the_real_size_is_searched_as_by_the_plain_search(products: str) -> None:
    letters = ("".join(map(chr, range(48, 48 + 104))),)
    sizes = {"hidden_size": 600, "embedding_size": 24, "rank": 60, "context_size": 40, "variable_size": 40}
    kind: dict[str, Any] = {"layer_norm": True, "adapt": ("factor",), **sizes}
    run = make_letters(letters, data={"max_tokens": 110}, seed=2, spread=0.08, **kind)
    with torch.no_grad():
        as_any(run.model.head).bias[END] += 1.5
        as_any(run.model.head).bias[UNKNOWN] -= 5
        run.model.embedding.mul_(12)
    compiled, typed = packed_in(run, "abc", products=products)
    (found,) = compiled.search([SearchRequest(typed, 10, 5)])
    plain = found_in(run, "abc", 10, 5, "pytorch")
    assert not found.cut
    assert not plain.cut
    ours, theirs = ([one.log_probability for one in result.completions] for result in (found, plain))
    assert ours == pytest.approx(theirs, abs=CLOSE)
    assert math.exp(ours[-1]) > 1e-12


@compiled_here
@pytest.mark.parametrize(
    ("model", "there"),
    [
        ({}, True),
        ({"adapt": ("concat", "factor"), "layer_norm": True, "output_bias": ("hash",), "hash_size": 50}, True),
        ({"rank": 0}, True),
        ({"cell": "lstm"}, False),
        ({"layers": 2}, False),
        ({"adapt": ("scale",)}, False),
        ({"adapt": ("prefix",)}, False),
    ],
)
def test_models_that_cannot_be_packed_have_the_plain_search(model: dict[str, Any], there: bool) -> None:
    run = make_letters(spread=0.8, **model)
    assert isinstance(new_engine(run.model, "float32"), CompiledEngine if there else PlainEngine)
    run.model.double()
    assert isinstance(new_engine(run.model, "float32"), PlainEngine)
