"""The contract of an engine, held by the plain one, the compiled one, and the plain one over another backbone.

Runs of three letters, whose completions can be written out.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from factorcell.completion.compiled import CompiledEngine, engine
from factorcell.completion.search import Engine, PlainEngine, SearchRequest, Stop
from factorcell.data.context import Context
from factorcell.model.kernels import library
from factorcell.model.run import Run
from tests.growing import regrown
from tests.small import make_letters, nats_of

CLOSE = 1e-4
LONGEST = 3

Ready = tuple[Run, Engine[Any]]


def compiled() -> Ready:
    """The compiled engine, where there is one."""
    if library.library() is None:
        pytest.skip("no compiled kernels here")
    run = make_letters()
    found = engine(run.model, "float32")
    assert isinstance(found, CompiledEngine)
    return run, found


def plain(run: Run) -> Ready:
    """The plain engine of a run."""
    return run, PlainEngine(run.model)


ENGINES: dict[str, Callable[[], Ready]] = {
    "plain": lambda: plain(make_letters()),
    "two layers": lambda: plain(make_letters(layers=2, cell="gru")),
    "growing": lambda: plain(regrown(make_letters())),
    "compiled": compiled,
}


@pytest.fixture(params=ENGINES)
def ready(request: pytest.FixtureRequest) -> Ready:
    """A run and an engine of its model."""
    return ENGINES[request.param]()


def context(run: Run, city: str) -> Context:
    """One city."""
    return run.prepare([{"text": "", "city": city}]).context(np.zeros(1, dtype=np.int64))


def written_out(run: Run, prefix: str, city: str) -> dict[str, float]:
    """The log probability of every completion of at most `LONGEST` letters."""
    endings = ["".join(letters) for size in range(LONGEST + 1) for letters in itertools.product("abc", repeat=size)]
    nats = (nats_of(run, {"text": prefix + ending, "city": city})[len(prefix) :] for ending in endings)
    return {ending: -sum(own) for ending, own in zip(endings, nats, strict=True)}


def found(ready: Ready, typed: Any, k: int = 4, seconds: float | None = None, **more: Any) -> list[tuple[str, float]]:
    """The completions of one request, as text, with their log probabilities."""
    run, engine = ready
    with run.scoring():
        (result,) = engine.search([SearchRequest(typed, k, LONGEST, **more)], seconds, 1)
    return [("".join(run.vocabulary.decode(one.ids)), one.log_probability) for one in result.completions]


def typed_in(ready: Ready, *texts: str, city: str = "Oslo") -> Any:
    """Each of `texts` typed in place of the one before."""
    run, engine = ready
    with run.scoring():
        typed = engine.begin(context(run, city))
        for text in texts:
            typed = engine.type(typed, run.vocabulary.encode(text))
    return typed


@pytest.mark.parametrize("prefix", ["", "b", "ca"])
def test_the_best_are_found(ready: Ready, prefix: str) -> None:
    """In order, in every context, against all completions written out."""
    for city in ("Oslo", "Nice"):
        expected = sorted(written_out(ready[0], prefix, city).items(), key=lambda one: -one[1])[:4]
        ours = found(ready, typed_in(ready, prefix, city=city))
        assert [log for _, log in ours] == pytest.approx([log for _, log in expected], abs=CLOSE)
        assert {text for text, _ in ours} == {text for text, _ in expected}


def test_only_what_is_accepted_and_above_the_least(ready: Ready) -> None:
    """Others take no place of theirs."""
    logs = written_out(ready[0], "b", "Oslo")
    longer = sorted((log for ending, log in logs.items() if len(ending) > 1), reverse=True)
    typed = typed_in(ready, "b")
    ours = found(ready, typed, accept=lambda ids: len(ids) > 1)
    assert [log for _, log in ours] == pytest.approx(longer[:4], abs=CLOSE)
    least = sorted(logs.values(), reverse=True)[1]
    assert len(found(ready, typed, least=least - CLOSE)) == 2


def test_what_is_typed_is_a_value(ready: Ready) -> None:
    """Typing on and deleting leads to the same as typing at once; what was typed before stays as it was."""
    before = typed_in(ready, "a")
    first = found(ready, before)
    with ready[0].scoring():
        ready[1].type(before, ready[0].vocabulary.encode("ab"))
    assert found(ready, before) == first
    again = found(ready, typed_in(ready, "ab", "abc", "a"))
    assert [text for text, _ in again] == [text for text, _ in first]
    assert [log for _, log in again] == pytest.approx([log for _, log in first], abs=CLOSE)


def test_stopped_search_gives_what_there_is(ready: Ready) -> None:
    """What is stopped before it begins looks at nothing; who asks with a stop that nobody sets gets all."""
    stop, typed = Stop(), typed_in(ready, "b")
    assert found(ready, typed, stop=stop) == found(ready, typed)
    stop.set()
    run, engine = ready
    with run.scoring():
        (stopped,) = engine.search([SearchRequest(typed, 4, LONGEST, stop=stop)], None, 1)
    assert stopped.rows == 0
    assert stopped.cut


def test_many_requests_are_answered_each_for_itself(ready: Ready) -> None:
    """In their order, whatever the threads; without time something comes back all the same, marked as cut."""
    run, engine = ready
    typed = [typed_in(ready, prefix) for prefix in ("", "a", "cb")]
    requests = [SearchRequest(one, k, LONGEST) for k, one in enumerate(typed, 1)]
    with run.scoring():
        results = engine.search(requests, None, 2)
        (hurried,) = engine.search(requests[:1], 0.0, 1)
    assert [len(one.completions) for one in results] == [1, 2, 3]
    for one, k, result in zip(typed, (1, 2, 3), results, strict=True):
        assert [c.log_probability for c in result.completions] == pytest.approx(
            [log for _, log in found(ready, one, k)], abs=CLOSE
        )
        assert not result.cut
    assert hurried.cut or len(hurried.completions) == 1
