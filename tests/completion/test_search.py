"""Compare both searches with an enumeration of all texts, and incremental typing with reading a text at once."""

import itertools
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion import compiled as compiled_module
from factorcell.completion import search as search_module
from factorcell.completion.compiled import CompiledEngine, new_engine
from factorcell.completion.search import Ids, PlainEngine, PrefixState, SearchRequest, SearchResult, Stop
from factorcell.config import OUTPUT_BIASES
from factorcell.data.columns.context import Context
from factorcell.data.tokenizers.tokenizer import END, START, UNKNOWN
from factorcell.nn.backbones.cells import CELLS
from factorcell.nn.packing import PRODUCT_TYPES, PackedModel
from factorcell.runs.run import Run
from paper_kinds import SizedSoftmaxOptions
from tests import kernels
from tests.small_runs import as_any, make_letters

CLOSE = 1e-4  # nats: float32 sums in different orders
DEFAULT_KIND = kernels.NATIVE or "pytorch"
BOTH = pytest.mark.parametrize("kind", ["pytorch", *kernels.VARIANTS[-1:]])
ALL = pytest.mark.parametrize("kind", ["pytorch", *kernels.VARIANTS])

SMALL_HASH = {"head": SizedSoftmaxOptions.kind, "hash_size": 50, "bloom_size": 500}
SIZES: dict[str, Any] = {**{name: st.just(value) for name, value in SMALL_HASH.items()}, "seed": st.integers(0, 99)}
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
        "spread": st.sampled_from([0.2, 0.5]),  # larger weights amplify rounding errors too much
        **SIZES,
    }
)


@contextmanager
def use_instructions(variant: str) -> Iterator[None]:
    """Use one instruction set within the block."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("FACTORCELL_KERNEL", variant)
        yield


@contextmanager
def set_batch_size(size: int) -> Iterator[None]:
    """Set the initial number of hypotheses that both searches expand at once."""
    with pytest.MonkeyPatch.context() as changed:
        for module in (compiled_module, search_module):
            changed.setattr(module, "INITIAL_BATCH_SIZE", size)
        yield


def context_of(run: Run, city: str) -> Context:
    return run.prepare([{"text": "", "city": city}]).context(np.zeros(1, dtype=np.int64))


def plain_state(run: Run, prefix: str, city: str = "Oslo") -> PrefixState:
    """Return the state of the plain search for a prefix in a city."""
    plain = PlainEngine(run.model)
    with run.scoring():
        state: PrefixState = plain.read_prefix(plain.begin(context_of(run, city)), run.tokenizer.encode(prefix))
    return state


def compiled_state(
    run: Run, prefix: str, city: str = "Oslo", products: str = "float32"
) -> tuple[CompiledEngine, PrefixState]:
    """Return the compiled search of a run, and its state for a prefix in a city."""
    packed = PackedModel.from_model(run.model, products)
    assert packed is not None
    compiled = CompiledEngine(run.model, packed)
    with run.scoring():
        begun = compiled.begin(context_of(run, city))
    return compiled, compiled.read_prefix(begun, run.tokenizer.encode(prefix))


def search(run: Run, prefix: str, k: int, max_tokens: int, kind: str = DEFAULT_KIND, **options: Any) -> SearchResult:
    """Search the completions of a prefix; `options` are fields of the request."""
    city = options.pop("city", "Oslo")
    with run.scoring(), use_instructions("off" if kind == "pytorch" else kind):
        if kind == "pytorch":
            plain = PlainEngine(run.model)
            return plain.search(SearchRequest(plain_state(run, prefix, city), k, max_tokens, **options))
        compiled, prefix_state = compiled_state(run, prefix, city)
        return compiled.search(SearchRequest(prefix_state, k, max_tokens, **options))


def enumerate_completions(run: Run, prefix: str, city: str, max_tokens: int) -> dict[Ids, float]:
    """Return the log probability of every completion of at most `max_tokens` tokens, computed from whole texts."""
    letters = run.tokenizer.tokens[END + 1 :]
    endings = [ending for size in range(max_tokens + 1) for ending in itertools.product(letters, repeat=size)]
    corpus = run.prepare([{"text": prefix + "".join(ending), "city": city} for ending in endings])
    nats, begin, logs = run.nats(corpus), 0, {}
    for ending in endings:
        after = begin + len(prefix) + len(ending) + 1
        logs[tuple(run.tokenizer.encode(ending))] = -float(nats[begin + len(prefix) : after].sum(dtype=np.float64))
        begin = after
    assert begin == len(nats), "a text was cut"
    return logs


def is_best(result: SearchResult, logs: dict[Ids, float], k: int) -> bool:
    """Return whether the k largest of `logs` were found, each once and in order, up to rounding."""
    scores = [c.log_probability for c in result.completions]
    best = sorted(logs.values(), reverse=True)[:k]
    actual = [logs[c.ids] for c in result.completions]
    return (
        len({c.ids for c in result.completions}) == len(scores) == len(best)
        and scores == sorted(scores, reverse=True)
        and np.allclose(scores, best, atol=CLOSE)
        and np.allclose(scores, actual, atol=CLOSE)
    )


@ALL
@settings(max_examples=20)
@given(data=st.data(), prefix=st.text("abcz", max_size=4), city=st.sampled_from(["Oslo", "Nice"]))
def test_search_finds_the_best_of_all_texts(kind: str, data: st.DataObject, prefix: str, city: str) -> None:
    run = make_letters(**data.draw(ANY_MODEL if kind == "pytorch" else MODELS))
    max_tokens, k, batch = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 40))
    refused = data.draw(st.sampled_from([None, (), 3, 4]))

    def accept(ids: Ids) -> bool:
        return ids != refused and refused not in ids

    logs = {ids: log for ids, log in enumerate_completions(run, prefix, city, max_tokens).items() if accept(ids)}
    with set_batch_size(batch):
        result = search(run, prefix, k, max_tokens, kind, text_of=lambda ids: ids if accept(ids) else None, city=city)
    assert not result.is_cut
    assert is_best(result, logs, k)


@settings(max_examples=30)
@given(keys=st.lists(st.sampled_from("abcz<<"), max_size=14), model=ANY_MODEL)
def test_typing_and_deleting_gives_the_plain_state_of_the_text_read_at_once(
    keys: list[str], model: dict[str, Any]
) -> None:
    run, text = make_letters(**model), ""
    plain = PlainEngine(run.model)
    with run.scoring():
        prefix_state = empty = plain_state(run, "")
        for key in keys:
            text = text[:-1] if key == "<" else text + key
            prefix_state = plain.read_prefix(prefix_state, run.tokenizer.encode(text))
        expected = plain_state(run, text)
    # All hypotheses share one folded matrix.
    assert all(
        weights.matrix.dim() == 2 and weights.left is None
        for weights in as_any(prefix_state.conditioning.conditions).shifts
    )
    assert prefix_state.ids == expected.ids == tuple(run.tokenizer.encode(text))
    assert empty.ids == ()
    for (state, logs), (expected_state, expected_logs) in zip(prefix_state.states, expected.states, strict=True):
        assert torch.equal(logs, expected_logs)
        for layer, expected_layer in zip(state, expected_state, strict=True):
            assert torch.equal(layer.hidden, expected_layer.hidden)
            assert torch.equal(layer.memory, expected_layer.memory)


@kernels.compiled
@pytest.mark.parametrize("variant", kernels.VARIANTS)
@settings(max_examples=15)
@given(model=MODELS, keys=st.lists(st.sampled_from("abcz<<"), max_size=10))
def test_the_compiled_state_equals_the_plain_state_after_typing_and_deleting(
    variant: str, model: dict[str, Any], keys: list[str]
) -> None:
    run, text = make_letters(**model), ""
    with use_instructions(variant):
        compiled, prefix_state = compiled_state(run, "")
        for key in keys:
            text = text[:-1] if key == "<" else text + key
            prefix_state = compiled.read_prefix(prefix_state, run.tokenizer.encode(text))
        _, read_at_once = compiled_state(run, text)
    plain = plain_state(run, text)
    assert prefix_state.ids == read_at_once.ids == plain.ids
    for row, read_at_once_row, ((state,), logs) in zip(
        prefix_state.states, read_at_once.states, plain.states, strict=True
    ):
        assert torch.equal(row, read_at_once_row)
        expected = torch.cat([state.hidden[0], state.memory[0], logs[0]])
        torch.testing.assert_close(row, expected, atol=2e-5, rtol=1e-4)


@BOTH
@settings(max_examples=40)
@given(rows=st.integers(0, 60), waiting=st.integers(1, 60), seed=st.integers(0, 9), k=st.integers(1, 8))
def test_a_search_without_room_is_cut_and_returns_texts_with_correct_scores(
    kind: str, rows: int, waiting: int, seed: int, k: int
) -> None:
    run = make_letters(seed=seed, spread=0.8)
    logs = enumerate_completions(run, "b", "Oslo", 4)
    with set_batch_size(4):
        result = search(run, "b", k, 4, kind, max_expanded=rows, max_waiting=waiting)
    assert result.expanded_count <= rows
    assert result.is_cut or is_best(result, logs, k)
    assert all(abs(logs[c.ids] - c.log_probability) < CLOSE for c in result.completions)


@BOTH
def test_limits_cut_a_search_and_change_nothing_unless_they_are_reached(kind: str) -> None:
    run = make_letters(seed=3, spread=0.8)
    whole = search(run, "b", 5, 6, kind)
    assert not whole.is_cut
    assert search(run, "b", 5, 6, kind, max_expanded=whole.expanded_count // 2).is_cut
    assert search(run, "b", 5, 6, kind, max_waiting=1).is_cut
    stop = Stop()
    assert search(run, "b", 5, 6, kind, stop=stop) == whole
    stop.set()
    for bound in ({"deadline": 0.0}, {"stop": stop}):
        stopped = search(run, "b", 5, 6, kind, **bound)
        assert (stopped.is_cut, stopped.expanded_count) == (True, 0)
    sufficient = next(limit for limit in range(2, 500) if not search(run, "b", 5, 6, kind, max_waiting=limit).is_cut)
    assert search(run, "b", 5, 6, kind, max_waiting=sufficient).completions == whole.completions
    assert search(run, "b", 5, 6, kind, max_expanded=whole.expanded_count, deadline=time.monotonic() + 1e6) == whole
    for max_tokens in range(4):
        assert max(len(c.ids) for c in search(run, "b", 200, max_tokens, kind).completions) == max_tokens


@BOTH
def test_only_completions_above_min_log_prob_are_found(kind: str) -> None:
    run = make_letters(seed=3, spread=0.8)
    whole = search(run, "b", 9, 6, kind)
    for count in range(10):
        min_log_prob = whole.completions[count].log_probability if count < 9 else -math.inf
        result = search(run, "b", 9, 6, kind, min_log_prob=min_log_prob)
        assert result.completions == whole.completions[:count]
        assert not result.is_cut
        assert result.expanded_count < whole.expanded_count or count >= 8 or kind != "pytorch"


@BOTH
def test_special_tokens_are_never_suggested(kind: str) -> None:
    run = make_letters()
    with torch.no_grad():
        as_any(run.model.head).bias[UNKNOWN] = 20.0
    result = search(run, "ab", 50, 5, kind)
    assert len(result.completions) == 50
    assert not any({UNKNOWN, START, END} & set(c.ids) for c in result.completions)


def make_run_with_long_texts(nats: float = 3) -> Run:
    """Return a run of many letters whose texts are long and about equally probable."""
    run = make_letters(("abcdefghijklmnop",), seed=1, spread=0.2, data={"max_tokens": 40})
    with torch.no_grad():
        as_any(run.model.head).bias[END] -= nats
    return run


@kernels.compiled
def test_the_most_probable_waiting_hypotheses_stay() -> None:
    run = make_run_with_long_texts()
    whole = search(run, "a", 10, 12, max_waiting=10**6)
    assert not whole.is_cut
    for max_waiting in (100, 1000, 3000):
        result = search(run, "a", 10, 12, max_waiting=max_waiting)
        assert result.is_cut == (result.expanded_count < whole.expanded_count) == (max_waiting < 3000)
        assert result.expanded_count > max_waiting / 2
        assert [c.ids for c in result.completions] == [c.ids for c in whole.completions]


@kernels.compiled
def test_the_deadline_ends_a_long_search() -> None:
    run = make_run_with_long_texts(13)
    stopped = search(run, "a", 10, 12, max_expanded=10**6, max_waiting=10**6, deadline=time.monotonic() + 0.05)
    assert stopped.is_cut
    assert 0 < stopped.expanded_count < 10**6


@kernels.compiled
def test_another_thread_can_stop_a_search() -> None:
    run, stop = make_run_with_long_texts(13), Stop()
    compiled, prefix_state = compiled_state(run, "a")
    request = SearchRequest(prefix_state, 10, 12, stop=stop, max_expanded=10**6, max_waiting=10**6)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(compiled.search, request)
        time.sleep(0.02)
        stop.set()
        stopped = future.result()
    assert stopped.is_cut
    assert stopped.expanded_count < 10**6


def test_a_stop_ends_the_searches_that_begin_before_and_after_it_is_set() -> None:
    stop, before, after = Stop(), SimpleNamespace(seconds=1.0), SimpleNamespace(seconds=1.0)
    stop.watch(before)
    assert before.seconds == 1.0
    thread = threading.Thread(target=stop.set)
    thread.start()
    thread.join()
    stop.watch(after)
    assert (before.seconds, after.seconds) == (0.0, 0.0)


@kernels.compiled
def test_rare_accepted_completions_are_found() -> None:
    run = make_letters(seed=4, spread=0.8)
    logs = enumerate_completions(run, "a", "Oslo", 5)
    rarest = sorted(logs, key=lambda ids: logs[ids])[:3]
    result = search(run, "a", 2, 5, text_of=lambda ids: ids if ids in rarest else None)
    assert [c.ids for c in result.completions] == rarest[:0:-1]
    assert not result.is_cut
    none = search(run, "a", 2, 5, text_of=lambda ids: None)
    assert (none.completions, none.is_cut) == ((), False)
    assert search(run, "a", 2, 5, text_of=lambda ids: ids if ids in rarest else None, max_expanded=30).is_cut


@kernels.compiled
def test_a_repeated_search_that_is_cut_keeps_what_the_first_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_letters(seed=4, spread=0.8)
    first = {c.ids: c.log_probability for c in search(run, "a", 4, 5).completions}
    rejected, call, rounds = next(iter(first)), CompiledEngine._call, list[int]()

    def call_and_cut(engine: CompiledEngine, *arguments: Any, **options: Any) -> Any:
        if not options.get("is_reading"):
            rounds.append(options["k"])
            if len(rounds) > 1:  # as if the time ended soon
                options["max_rows"] = 2
        return call(engine, *arguments, **options)

    monkeypatch.setattr(CompiledEngine, "_call", call_and_cut)
    result = search(run, "a", 4, 5, text_of=lambda ids: None if ids == rejected else ids)
    assert rounds == [4, 8]
    log_probs = {c.ids: c.log_probability for c in result.completions}
    assert {ids: log_prob for ids, log_prob in first.items() if ids != rejected}.items() <= log_probs.items()


def many_requests(run: Run, products: str = "float32", count: int = 30) -> tuple[CompiledEngine, list[SearchRequest]]:
    """Return requests of many users in two cities."""
    states = {city: compiled_state(run, "", city, products) for city in ("Oslo", "Nice")}
    compiled, random = states["Oslo"][0], np.random.default_rng(0)
    requests = []
    for index in range(count):
        _, empty = states["Oslo" if index % 2 else "Nice"]
        ids = run.tokenizer.encode(random.choice(list("abcdefz"), size=index % 6).tolist())
        prefix_state = compiled.read_prefix(empty, ids)
        requests.append(SearchRequest(prefix_state, 1 + index % 9, 3 + index % 4, lambda ids: ids or None))
    return compiled, requests


@kernels.compiled
@pytest.mark.parametrize("products", PRODUCT_TYPES)
def test_searches_of_several_threads_have_the_same_results_as_single_searches_bit_for_bit(products: str) -> None:
    compiled, requests = many_requests(make_letters(("abcdef", "fed"), seed=1, spread=0.8), products)
    before = [torch.cat([*request.prefix_state.states]).clone() for request in requests]
    alone = list(map(compiled.search, requests))
    assert len(set(alone)) > 20
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(compiled.search, 4 * requests)) == 4 * alone
    for request, expected in zip(requests, before, strict=True):
        assert torch.equal(torch.cat([*request.prefix_state.states]), expected)


@kernels.compiled
@pytest.mark.parametrize("products", PRODUCT_TYPES)
def test_both_searches_agree_on_a_model_of_realistic_size(products: str) -> None:
    letters = ("".join(map(chr, range(48, 48 + 104))),)
    sizes = {"hidden_size": 600, "embedding_size": 24, "rank": 60, "context_size": 40, "variable_size": 40}
    kind: dict[str, Any] = {"layer_norm": True, "adapt": ("factor",), **sizes}
    run = make_letters(letters, data={"max_tokens": 110}, seed=2, spread=0.08, **kind)
    with torch.no_grad():
        as_any(run.model.head).bias[END] += 1.5
        as_any(run.model.head).bias[UNKNOWN] -= 5
        run.model.embedding.mul_(12)
    compiled, prefix_state = compiled_state(run, "abc", products=products)
    result = compiled.search(SearchRequest(prefix_state, 10, 5))
    plain = search(run, "abc", 10, 5, "pytorch")
    assert not result.is_cut
    assert not plain.is_cut
    compiled_logs, plain_logs = ([c.log_probability for c in result.completions] for result in (result, plain))
    assert compiled_logs == pytest.approx(plain_logs, abs=CLOSE)
    assert math.exp(compiled_logs[-1]) > 1e-12


@kernels.compiled
@pytest.mark.parametrize(
    ("model", "is_packed"),
    [
        ({}, True),
        ({"adapt": ("concat", "factor"), "layer_norm": True, "output_bias": ("hash",), **SMALL_HASH}, True),
        ({"rank": 0}, True),
        ({"cell": "lstm"}, False),
        ({"layers": 2}, False),
        ({"adapt": ("scale",)}, False),
        ({"adapt": ("prefix",)}, True),
    ],
)
def test_models_that_cannot_be_packed_use_the_plain_search(model: dict[str, Any], is_packed: bool) -> None:
    run = make_letters(spread=0.8, **model)
    assert isinstance(new_engine(run.model, "float32"), CompiledEngine if is_packed else PlainEngine)
    run.model.double()
    assert isinstance(new_engine(run.model, "float32"), PlainEngine)
