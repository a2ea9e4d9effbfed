"""The searches against all texts written out, and what is typed against reading it anew."""

import itertools
import math
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.completion.search import Ids, PrefixState, SearchRequest, SearchResult, beam, search
from factorcell.config import OUTPUT_BIASES
from factorcell.data.vocabulary import END, START, UNKNOWN
from factorcell.model.cells import CELLS
from factorcell.model.language_model import LanguageModel
from factorcell.model.run import Run
from tests.small import inside, make_letters

CLOSE = 1e-4  # nats: products of 32 bits, in another order


def typed_in(run: Run, prefix: str, city: str = "Oslo") -> PrefixState:
    """What is typed, in a city."""
    context = run.prepare([{"text": "", "city": city}]).context(np.zeros(1, dtype=np.int64))
    with run.scoring():
        begun = PrefixState.begin(run.model, run.model.condition(context))
        return begun.to(run.model, run.vocabulary.encode(prefix))


def written_out(run: Run, prefix: str, city: str, most: int) -> dict[Ids, float]:
    """The log probability of every completion of at most `most` tokens: whole texts, all of their targets at once."""
    letters = run.vocabulary.tokens[END + 1 :]
    endings = [ending for size in range(most + 1) for ending in itertools.product(letters, repeat=size)]
    corpus = run.prepare([{"text": prefix + "".join(ending), "city": city} for ending in endings])
    nats, begin, logs = run.nats(corpus), 0, {}
    for ending in endings:
        after = begin + len(prefix) + len(ending) + 1
        logs[tuple(run.vocabulary.encode(ending))] = -float(nats[begin + len(prefix) : after].sum(dtype=np.float64))
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


MODELS = st.fixed_dictionaries(
    {
        "cell": st.sampled_from(list(CELLS)),
        "layers": st.integers(1, 2),
        "layer_norm": st.booleans(),
        "adapt": st.sampled_from([(), ("concat", "factor"), ("scale", "factor"), ("prefix",)]),
        "output_bias": st.sampled_from([(), *((name,) for name in OUTPUT_BIASES)]),
        "hash_size": st.just(50),
        "bloom_size": st.just(500),
        "seed": st.integers(0, 99),
        "spread": st.sampled_from([0.3, 0.8, 2.0]),
    }
)


@settings(max_examples=40)
@given(model=MODELS, prefix=st.text("abcz", max_size=4), city=st.sampled_from(["Oslo", "Nice"]), data=st.data())
def test_search_finds_what_all_texts_written_out_have(
    model: dict[str, Any], prefix: str, city: str, data: st.DataObject
) -> None:
    """Any cell, layers, adaptations; an unknown letter (z) in the prefix; some texts not accepted."""
    run = make_letters(**model)
    most, k, batch = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 9))
    refused = data.draw(st.sampled_from([None, 3, 4]))
    logs = {ids: log for ids, log in written_out(run, prefix, city, most).items() if refused not in ids}
    with run.scoring():
        typed = typed_in(run, prefix, city)
        wanted = SearchRequest(typed, k, most, accept=lambda ids: refused not in ids)
        found = search(run.model, wanted, batch=batch)
        wide = beam(run.model, typed, 2000, most=most, width=2000, branching=9)
    assert not found.cut
    assert same(found, logs, k)
    everything = [one for one in wide.completions if refused not in one.ids]
    assert same(SearchResult(tuple(everything[:k]), wide.rows, cut=False), logs, k)


@settings(max_examples=40)
@given(
    width=st.integers(1, 12),
    branching=st.integers(1, 5),
    most=st.integers(0, 6),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.3, 0.8]),
)
def test_beam_is_the_beam_with_each_text_read_anew(
    width: int, branching: int, most: int, seed: int, spread: float
) -> None:
    """One pool of texts, finished ones (that end in END) among them; every text by itself."""
    run = make_letters(seed=seed, spread=spread)
    with run.scoring():
        typed = typed_in(run, "a")
        pool: dict[Ids, float] = {(): 0.0}
        rows = 0
        for length in range(most + 1):
            grown = {ids: score for ids, score in pool.items() if END in ids}
            for ids in pool.keys() - grown.keys():
                rows += length > 0
                logs = typed.to(run.model, (*typed.ids, *ids)).logs[-1][0].tolist()
                for token in sorted(set(range(len(logs))) - {UNKNOWN}, key=lambda t: -logs[t])[:branching]:
                    grown[*ids, token] = pool[ids] + logs[token]
            possible = [ids for ids in grown if (END in ids or length < most) and START not in ids]
            pool = {ids: grown[ids] for ids in sorted(possible, key=lambda ids: -grown[ids])[:width]}
        found = beam(run.model, typed, 99, most=most, width=width, branching=branching)
    ended = sorted((ids for ids in pool if END in ids), key=lambda ids: -pool[ids])
    assert [one.ids for one in found.completions] == [ids[:-1] for ids in ended]
    assert [one.log_probability for one in found.completions] == pytest.approx([pool[ids] for ids in ended], abs=CLOSE)
    assert found.rows == rows


@pytest.mark.parametrize("spread", [0.3, 0.8, 2.0])
def test_search_is_never_worse_than_the_published_beam(spread: float) -> None:
    """Longer texts of more letters than can be written out; all that the beam finds above the k-th score is found."""
    better = 0
    for seed in range(4):
        run = make_letters(("abcdefgh",), seed=seed, spread=spread)
        with run.scoring():
            typed = typed_in(run, "ca")
            exact = search(run.model, SearchRequest(typed, 10, 9), rows=50_000, waiting=10**6)
            published = beam(run.model, typed, most=9)
        assert not exact.cut
        assert len(exact.completions) == 10
        least = exact.completions[-1].log_probability
        tenth = published.completions[9].log_probability if len(published.completions) == 10 else -math.inf
        assert least >= tenth - CLOSE
        above = {one.ids for one in published.completions if one.log_probability > least + CLOSE}
        assert above <= {one.ids for one in exact.completions}
        better += least > tenth + CLOSE
    assert spread != 0.8 or better, "the beam is exact here: it is no test"


def test_special_tokens_are_never_suggested() -> None:
    """Not even where the model takes the unknown token for almost certain."""
    run = make_letters()
    with torch.no_grad():
        run.model.output.bias[UNKNOWN] = 20.0
    with run.scoring():
        typed = typed_in(run, "ab")
        assert float(typed.logs[-1][0, UNKNOWN]) > -1e-3
        found = (search(run.model, SearchRequest(typed, 50, 5)), beam(run.model, typed, 50, most=5))
    for one in itertools.chain(*(result.completions for result in found)):
        assert not {UNKNOWN, START, END} & set(one.ids)
    assert len(found[0].completions) == 50


@settings(max_examples=40)
@given(rows=st.integers(0, 60), waiting=st.integers(1, 60), seed=st.integers(0, 9), k=st.integers(1, 8))
def test_a_search_that_ran_out_of_room_says_so(rows: int, waiting: int, seed: int, k: int) -> None:
    """What is not cut is exact; what is cut is still of texts with their own scores, within the bounds."""
    run = make_letters(seed=seed, spread=0.8)
    logs = written_out(run, "b", "Oslo", 4)
    with run.scoring():
        typed = typed_in(run, "b")
        found = search(run.model, SearchRequest(typed, k, 4), rows=rows, waiting=waiting, batch=4)
    assert found.rows <= rows
    exact = same(found, logs, k)
    assert found.cut or exact
    assert all(abs(logs[one.ids] - one.log_probability) < CLOSE for one in found.completions)


def test_bounds_do_cut_and_room_enough_does_not() -> None:
    """Each bound alone; a bound that only drops what was hopeless is not told."""
    run = make_letters(seed=3, spread=0.8)
    with run.scoring():
        wanted = SearchRequest(typed_in(run, "b"), 5, 6)
        whole = search(run.model, wanted)
        assert not whole.cut
        assert search(run.model, wanted, rows=whole.rows // 2).cut
        assert search(run.model, wanted, waiting=1).cut
        assert search(run.model, wanted, seconds=0.0).cut
        assert search(run.model, wanted, seconds=0.0).rows == 0
        kept = next(room for room in range(2, 500) if not search(run.model, wanted, waiting=room).cut)
        tight = search(run.model, wanted, waiting=kept)
        assert [one.ids for one in tight.completions] == [one.ids for one in whole.completions]
        assert search(run.model, wanted, rows=whole.rows, seconds=1e6) == whole


def test_what_is_not_wanted_is_not_looked_for() -> None:
    """Only completions above a log probability, with fewer rows; nothing is cut for their sake."""
    run = make_letters(seed=3, spread=0.8)
    with run.scoring():
        wanted = SearchRequest(typed_in(run, "b"), 9, 6)
        whole = search(run.model, wanted)
        for count in range(10):
            least = whole.completions[count].log_probability if count < 9 else -math.inf
            found = search(run.model, replace(wanted, least=least))
            assert found.completions == whole.completions[:count]
            assert not found.cut
            assert found.rows < whole.rows or (count >= 8 and found.rows == whole.rows)


@settings(max_examples=30)
@given(keys=st.lists(st.sampled_from("abcz<<"), max_size=14), model=MODELS)
def test_typing_is_reading_anew(keys: list[str], model: dict[str, Any]) -> None:
    """After any letters and deletions (<) all that is kept is bit for bit what reading the text at once gives."""
    run = make_letters(**model)
    text, steps, step = "", 0, LanguageModel.step

    def counted(self: LanguageModel, *given: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(self, *given)

    with run.scoring():
        typed = begun = typed_in(run, "")
        for key in keys:
            text, before, taken = text[:-1] if key == "<" else text + key, typed, steps
            with patch.object(LanguageModel, "step", counted):
                typed = typed.to(run.model, run.vocabulary.encode(text))
            assert steps - taken == (key != "<"), "a letter is a step, a deletion none"
            assert len(before.states) == len(before.logs) == len(before.ids) + 1
        anew = typed_in(run, text)
    # One product for all hypotheses: no weights of a hypothesis' own, nothing left in factors.
    assert all(shift.matrix.dim() == 2 and shift.left is None for shift in inside(typed.conditioned.conditions).shifts)
    assert typed.ids == anew.ids == tuple(run.vocabulary.encode(text))
    assert len(typed.logs) == len(anew.logs) == len(text) + 1
    assert begun.ids == ()
    for ours, theirs in zip(typed.logs, anew.logs, strict=True):
        assert torch.equal(ours, theirs)
    for state, other in zip(*(itertools.chain(*inside(one.states)) for one in (typed, anew)), strict=True):
        assert torch.equal(state.hidden, other.hidden)
        assert torch.equal(state.memory, other.memory)
