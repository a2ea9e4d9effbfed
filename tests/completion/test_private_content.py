"""Texts that seem to contain private content are neither learned, nor counted as popular, nor suggested."""

import numpy as np
import pytest

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, learn_one
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay import Stream, known_texts_system, replay
from factorcell.data.counts import TextCounts
from factorcell.data.private_content import is_public
from factorcell.runs.run import Run
from tests.small_runs import make_letters

SECRET, ORDINARY = "pin 4821", "pin it"


@pytest.fixture(scope="module")
def run() -> Run:
    return make_letters((SECRET, ORDINARY), data={"user": "city", "context": (), "min_user_count": 1})


def test_the_search_skips_texts_with_private_content(run: Run) -> None:
    completer, permissive = Completer(run), Completer(run)
    permissive.is_allowed = lambda text: True
    for prefix in ("pin 48", "pin ", ""):
        unfiltered = permissive.complete(prefix, k=200)
        public = [suggestion for suggestion in unfiltered if is_public(suggestion.text)]
        filtered = completer.complete(prefix, k=max(1, len(public)))
        assert filtered[: len(public)] == public
        assert all(is_public(suggestion.text) for suggestion in filtered)
    assert len(public) > 100
    assert any(not is_public(suggestion.text) for suggestion in permissive.complete("pin 48", k=200))
    assert completer.complete(f"{SECRET} ") == []
    assert permissive.complete(f"{SECRET} ") != []


def test_an_own_filter_does_not_replace_the_recognition(run: Run) -> None:
    completer = Completer(run, is_allowed=lambda text: not text.endswith("n"))
    assert [completer.is_allowed(text) for text in (SECRET, ORDINARY, "pin")] == [False, True, False]


def test_a_blend_suggests_no_private_text_of_a_history(run: Run) -> None:
    user = User(User.new(run).vector, User.new(run).state, history=History((SECRET, ORDINARY)))
    blend = Blend(run, None)
    suggested = {suggestion.text: suggestion.source for suggestion in blend.complete("pin ", user, k=50)}
    assert "history" in suggested[ORDINARY]
    assert SECRET not in suggested


def test_a_private_text_does_not_change_a_user(run: Run) -> None:
    user = learn_one(run, User.new(run), ORDINARY)
    assert learn_one(run, user, SECRET) is user
    assert not np.array_equal(learn_one(run, user, "pin 48").vector, user.vector)


def test_a_replay_forgets_private_texts() -> None:
    rows = tuple({"text": text} for text in (SECRET, ORDINARY, SECRET))
    system = known_texts_system(Popularity.fit(["pin up"], min_count=1))
    replayed = list(replay({"known": system}, [Stream("u", rows, (None, None, "pin"))], "text"))
    assert [row["rank"] for row in replayed] == [None]
    texts = [suggestion.text for suggestion in system("pin", {}, History((ORDINARY,)), None)]
    assert texts == [ORDINARY, "pin up"]


def test_a_private_text_is_never_popular() -> None:
    texts = [SECRET, ORDINARY] * 5
    assert TextCounts.of(texts, 1).counts == {ORDINARY: 5}
    assert TextCounts.of(texts, 1, list("abcde" * 2), 3).counts == {ORDINARY: 5}
    assert [suggestion.text for suggestion in Popularity.fit(texts).complete("pin")] == [ORDINARY]
