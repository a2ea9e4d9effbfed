"""Everything outside `model` works with a backbone whose state is a growing list, since states are opaque.

Generation and completion are compared with an enumeration of all texts, token by token.
"""

import itertools

import numpy as np
import pytest

from factorcell.completion.completer import Completer
from factorcell.completion.online import User, learn_one
from factorcell.completion.search import PlainEngine, SearchRequest
from factorcell.config import EXTENSIBLE
from factorcell.evaluation.classification import classify
from factorcell.evaluation.explaining.token_evidence import explain
from factorcell.evaluation.perplexity import evaluate
from factorcell.generation.generate import GenerationOptions, generate, stream
from factorcell.nn.backbones.backbone import register_backbone
from factorcell.runs.run import Run
from tests.completion.test_search import set_batch_size
from tests.plugins import Growing
from tests.small_runs import make_letters, nats_of

ROWS = [{"text": "abc", "city": "Oslo"}, {"text": "cab", "city": "Nice"}, {"text": "", "city": "Oslo"}]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXTENSIBLE["backbone"], "registered", {})
    register_backbone("growing", Growing)


@pytest.fixture
def run() -> Run:
    """A run of the letters a, b and c, with two cities."""
    return make_letters(backbone="growing", spread=0.6)


def enumerate_completions(run: Run, prefix: str, max_letters: int) -> dict[str, float]:
    """Return the log probability of every text in Oslo that continues `prefix` by at most `max_letters` and ends."""
    endings = ["".join(letters) for size in range(max_letters + 1) for letters in itertools.product("abc", repeat=size)]
    nats = (nats_of(run, {"text": prefix + ending, "city": "Oslo"}) for ending in endings)
    return {prefix + ending: -sum(costs[len(prefix) :]) for ending, costs in zip(endings, nats, strict=True)}


def test_scores_in_batches_equal_scores_of_single_texts(run: Run) -> None:
    corpus = run.prepare(ROWS)
    expected = [nats for row in ROWS for nats in nats_of(run, row)]
    assert run.nats(corpus) == pytest.approx(expected, abs=1e-5)
    assert evaluate(run, corpus).perplexity == pytest.approx(np.exp(np.mean(expected)))
    assert len(classify(run, ROWS, "city").predicted) == len(ROWS)


@pytest.mark.parametrize("method", ["sample", "greedy", "beam", "stochastic"])
def test_the_log_prob_of_a_text_is_the_sum_over_its_letters(run: Run, method: str) -> None:
    options = GenerationOptions(method, max_tokens=6, width=4, branching=2)
    for row in generate(run, [{"city": "Oslo"}, {"city": "Nice"}], options=options, prompt="c"):
        nats = nats_of(run, {"text": row["text"], **row["context"]})[1:]
        assert row["log_probability"] == pytest.approx(-sum(nats[: None if row["ended"] else -1]), abs=1e-4)


def test_a_wide_beam_finds_the_best_text(run: Run) -> None:
    options = GenerationOptions("beam", max_tokens=3, width=200, length_penalty=0.0)
    (row,) = generate(run, [{"city": "Oslo"}], options=options)
    best = enumerate_completions(run, "", 2)
    assert row["log_probability"] >= max(best.values()) - 1e-5
    (whole,) = generate(run, [{"city": "Oslo"}], options=GenerationOptions("greedy", max_tokens=5))
    assert "".join(stream(run, {"city": "Oslo"}, options=GenerationOptions("greedy", max_tokens=5))) == whole["text"]


@pytest.mark.parametrize("prefix", ["", "c", "ab"])
def test_the_exact_search_finds_the_best_completions(run: Run, prefix: str) -> None:
    context = run.prepare([{"text": "", "city": "Oslo"}]).context(np.zeros(1, dtype=np.int64))
    engine = PlainEngine(run.model)
    with run.scoring():
        typed = engine.read_prefix(engine.begin(context), run.tokenizer.encode(prefix))
        with set_batch_size(3):
            result = engine.search(SearchRequest(typed, 5, 4))
    expected = sorted(enumerate_completions(run, prefix, 4).values(), reverse=True)[:5]
    assert [item.log_probability for item in result.completions] == pytest.approx(expected, abs=1e-4)


def test_a_user_gets_completions_and_is_learned_online() -> None:
    run = make_letters(data={"context": (), "user": "city", "min_user_count": 1}, backbone="growing", spread=0.6)
    user, completer = User.new(run), Completer(run, typos=1)
    learned = learn_one(run, user, "abc")
    assert np.abs(learned.vector - user.vector).max() > 0
    typed = completer.type_text(completer.begin(learned), "ab")
    again = completer.type_text(completer.type_text(typed, "abc"), "ab")
    first, second = (completer.suggest(text, 4).suggestions for text in (typed, again))
    assert [item.text for item in first] == [item.text for item in second]
    assert [item.log_probability for item in first] == pytest.approx([item.log_probability for item in second])
    assert Completer(run).complete("ab", user) != Completer(run).complete("ab", learned)


def test_explain_works_with_any_backbone(run: Run) -> None:
    (row,) = explain(run, ["abca"], {"north": {"city": "Oslo"}, "south": {"city": "Nice"}})
    for name, city in (("north", "Oslo"), ("south", "Nice")):
        assert row["nats"][name] == pytest.approx(sum(nats_of(run, {"text": "abca", "city": city})), abs=1e-4)
