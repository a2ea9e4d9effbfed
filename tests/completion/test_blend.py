"""The blend against its sources alone, and its weights against choices made by known ones."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factorcell import files
from factorcell.completion.blend import DEFAULT, FEATURES, SOURCES, Blend, BlendWeights, Candidate
from factorcell.completion.completer import Completer, Suggestions
from factorcell.completion.online import User
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.search import Suggestion
from factorcell.config import UserError
from factorcell.model.run import Run
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}
POPULAR = Popularity.fit(["abc"] * 5 + ["abba"] * 3 + ["cab"] * 3)


def make() -> Run:
    return make_letters(data=CITY, spread=0.8)


def only(source: str) -> BlendWeights:
    """Weights of one source that leave all others without a say."""
    return BlendWeights({f: (1.0 if f in SOURCES[source] and f != "model rest" else 0.0) for f in FEATURES})


def test_candidates_say_what_their_sources_know() -> None:
    blend, history = Blend(Completer(make()), POPULAR), History(("abba", "b", "abba", "acc", "b"))
    model = Suggestions(
        [Suggestion("abc", math.log(0.5), "model"), Suggestion("acc", math.log(0.25), "model")], 7, False
    )
    found = {one.text: list(one.features) for one in blend.candidates("a", model, history, 10)}
    popular = {"abc": math.log(5 / 8), "abba": math.log(3 / 8)}  # of those that begin so
    own = {one.text: one.log_probability for one in history.complete("a")}
    typed = math.log(2)
    assert list(found) == ["abc", "acc", "abba"]
    assert found["abc"] == pytest.approx([1, math.log(0.5), 0, 1, popular["abc"], 0, 0, 0, 0])
    assert found["acc"] == pytest.approx([1, math.log(0.25), 0, 0, 0, 1, own["acc"], math.log(2), typed])
    rest = math.log(1 - 0.75)
    assert found["abba"] == pytest.approx(
        [0, math.log(0.25), rest, 1, popular["abba"], 1, own["abba"], math.log(3), typed]
    )


def test_with_the_weight_of_one_source_its_order_comes_first() -> None:
    run = make()
    completer, user = Completer(run), User.new(run)
    user = replace(user, history=History(("abab", "acc", "abab")))
    written = completer.type(completer.begin(user), "a")
    alone = {
        "model": completer.suggest(written).suggestions,
        "popularity": POPULAR.complete("a"),
        "history": user.history.complete("a"),
    }
    for source, expected in alone.items():
        found = Blend(completer, POPULAR, only(source)).suggest(written, 10).suggestions
        assert [one.text for one in found][: len(expected)] == [one.text for one in expected]


def test_a_text_says_which_sources_propose_it() -> None:
    run = make()
    completer, user = Completer(run), replace(User.new(run), history=History(("abab", "abba")))
    written = completer.type(completer.begin(user), "a")
    proposed = {
        "model": completer.suggest(written).suggestions,
        "popularity": POPULAR.complete("a"),
        "history": user.history.complete("a"),
    }
    found = Blend(completer, POPULAR).suggest(written, 10).suggestions
    assert len({one.source for one in found}) > 2
    for one in found:
        names = [name for name, texts in proposed.items() if one.text in {other.text for other in texts}]
        assert one.source == "+".join(names)


def test_probabilities_and_parts_add_up() -> None:
    run = make()
    random = np.random.default_rng(3)
    weights = BlendWeights(dict(zip(FEATURES, random.normal(size=len(FEATURES)).tolist(), strict=True)))
    blend, user = Blend(Completer(run), POPULAR, weights), replace(User.new(run), history=History(("abab", "aa")))
    written = blend.type(blend.begin(user), "a")
    found = blend.merge(blend.candidates("a", blend.completer.suggest(written, 1000), user.history, 1000), 1000)
    assert blend.suggest(written, 10).suggestions == blend.merge(
        blend.candidates("a", blend.completer.suggest(written, 10), user.history, 10), 10
    )
    assert sum(math.exp(one.log_probability) for one in found) == pytest.approx(1)
    logs = [one.log_probability for one in found]
    assert logs == sorted(logs, reverse=True)
    assert len({one.text for one in found}) == len(found)
    scores = [sum(one.parts.values()) for one in found]
    assert [score - scores[0] for score in scores] == pytest.approx([log - logs[0] for log in logs])
    assert all(list(one.parts) == list(SOURCES) and {*one.source.split("+")} <= {*SOURCES} for one in found)


def test_popular_and_own_texts_remain_when_time_is_up() -> None:
    run = make()
    user = replace(User.new(run), history=History(("abab",)))
    completer = Completer(run, seconds=0.0)
    found = Blend(completer, POPULAR).suggest(completer.type(completer.begin(user), "a"))
    assert found.cut
    assert {"abab", "abc", "abba"} <= {one.text for one in found.suggestions}
    assert Blend(completer, None).complete("zzz", user) == []


def test_who_is_not_told_apart_has_what_the_model_suggests() -> None:
    completer = Completer(make())
    blend = Blend(completer, POPULAR)
    written = blend.type(blend.begin(context={"city": "Oslo"}), "a")
    assert blend.suggest(written, 5) == completer.suggest(written, 5)
    assert blend.complete("a", context={"city": "Oslo"}) == completer.complete("a", context={"city": "Oslo"})


def test_slips_are_forgiven_by_all_sources() -> None:
    run = make()
    user = replace(User.new(run), history=History(("abccba",)))
    weights = BlendWeights({**dict.fromkeys(FEATURES, 0.0), "popular": 9.0, "own": 9.0})
    blend = Blend(Completer(run, typos=1), Popularity.fit(["abcc"] * 3 + ["acbb"] * 2, min_count=1), weights)
    found = blend.complete("acb", user, k=10)
    typos = {one.text: one.typos for one in found}
    assert (typos["acbb"], typos["abcc"], typos["abccba"]) == (0, 1, 1)
    assert [one.typos for one in found] == sorted(one.typos for one in found)
    assert all((one.typos == 0) == one.text.startswith("acb") for one in found)
    alone = Blend(Completer(run), blend.popularity).complete("acb", user, k=10)
    assert {one.typos for one in alone} == {0}


def test_weights_are_those_that_made_the_choices() -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=len(FEATURES))
    lists = []
    for _ in range(2000):
        features = random.normal(size=(random.integers(2, 9), len(FEATURES)))
        scores = np.exp(features @ true)
        texts = [Candidate(str(row), tuple(one)) for row, one in enumerate(features)]
        lists.append((texts, str(random.choice(len(texts), p=scores / scores.sum()))))
    lists.append(([Candidate("a", tuple(random.normal(size=len(FEATURES))))], "not there"))
    fitted = BlendWeights.fit(lists)
    assert fitted.array == pytest.approx(true, abs=0.2)

    def loss(weights: np.ndarray) -> float:
        total = 0.1 * float((weights**2).sum())
        for found, text in lists[:-1]:
            scores = np.array([one.features for one in found]) @ weights
            total += float(np.logaddexp.reduce(scores) - scores[int(text)])
        return total

    best = loss(fitted.array)
    for _ in range(10):
        assert loss(fitted.array + random.normal(size=len(FEATURES)) * 0.05) > best
    with pytest.raises(UserError, match="nothing to learn the blend from"):
        BlendWeights.fit(lists[-1:])


def test_a_run_without_its_files_of_completion_has_default_weights_and_no_popular_texts(tmp_path: Path) -> None:
    run = make()
    run.folder = tmp_path
    assert BlendWeights.load(tmp_path) == DEFAULT
    BlendWeights({**DEFAULT.values, "own": 5.0}).save(run)
    assert BlendWeights.load(tmp_path).values["own"] == 5.0
    files.write_json(tmp_path / "blend.json", {"format": 1, "own": 1})
    with pytest.raises(UserError, match="not the weights of a blend"):
        BlendWeights.load(tmp_path)
    with pytest.raises(UserError, match=r"no popularity\.jsonl; training keeps it with --user"):
        Popularity.from_run(run)
