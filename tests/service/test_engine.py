"""People served: completed for as in Python, learned as alone, forgotten as if never learned."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from factorcell.completion.online import User
from factorcell.completion.popularity import History
from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.record import Record, StoreError
from factorcell.service.stores import circuit_breaker
from factorcell.service.stores.opening import open_store
from tests.service.oracle import learned_by_library, learned_by_service
from tests.small_runs import make_letters

Opened = Callable[..., Service]


def test_completions_are_those_of_the_library(service: Service, model: ServedModel) -> None:
    texts = ["abab", "acca", "abab"]
    user = User.new(model.run)
    completer = model.completer
    for turn in range(4):
        for context in ({}, {"city": "Oslo"}, {"city": "nowhere"}):
            for query in ("", "a", "ab", "aba", "ab", "b"):
                written = completer.type(completer.begin(user, context), query)
                found = service.complete(CompletionRequest(query, "ann", context=context, limit=7))
                assert found.results == completer.suggest(written, 7).suggestions
                assert found.degraded is None
                assert (found.user_version is None) == (turn == 0)
        if turn < 3:
            service.accept("ann", texts[turn])
            (user,), _ = model.learner.learn([user], [texts[turn]])
    found = service.complete(CompletionRequest("ab", "ann"))
    assert "history" in next(one.source for one in found.results if one.text == "abab")


def test_what_stands_before_the_cursor_is_completed(service: Service) -> None:
    whole = service.complete(CompletionRequest("ab"))
    assert service.complete(CompletionRequest("abcc", cursor=2)) == whole
    assert service.complete(CompletionRequest("abcc", cursor=4)) == service.complete(CompletionRequest("abcc"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"query": "a", "cursor": 2}, "cursor is 2; valid are places in the query, from 0 to 1"),
        ({"query": "a", "cursor": -1}, "cursor is -1"),
        ({"query": "a", "cursor": True}, "cursor is True"),
        ({"query": "\ud800"}, "not Unicode text"),
        ({"query": "a" * 70_000}, "at most 65,536 bytes"),
        ({"query": "a", "limit": 0}, "count is 0"),
        ({"query": "a", "user": ""}, "a user's id"),
        ({"query": "a", "context": {"town": "Oslo"}}, "context column"),
        ({"query": "a", "context": {"city": None}}, "context city"),
    ],
)
def test_requests_that_make_no_sense_are_refused(service: Service, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        service.complete(CompletionRequest(**request_))


def test_out_of_time_it_says_so(service: Service) -> None:
    service.accept("ann", "abbab")
    found = service.complete(CompletionRequest("ab", "ann", deadline=0.0))
    assert found.degraded == "time"
    assert {one.text for one in found.results} >= {"abbab", "abba"}
    assert service.complete(CompletionRequest("ab", "ann", deadline=time.monotonic() + 60)).degraded is None


def test_texts_are_learned_in_order_and_in_their_contexts(service: Service, model: ServedModel) -> None:
    texts: list[Any] = [("abc", {"city": "Oslo"}), "cab", ("cab", {"city": "Nice"}), ("b", {"city": "nowhere"})]
    for text in texts:
        text, context = text if isinstance(text, tuple) else (text, None)
        accepted = service.accept("ann", text, context=context)
        assert accepted.outcome == "learned"
    assert learned_by_service(service, "ann") == learned_by_library(
        model, [t if isinstance(t, tuple) else (t, {}) for t in texts]
    )
    assert learned_by_service(service, "ann") != learned_by_library(
        model, [t[0] if isinstance(t, tuple) else t for t in texts]
    )
    profile = service.show("ann")
    assert profile is not None
    assert [text.number for text in profile.texts] == [1, 2, 3, 4]
    assert (profile.learned, profile.accepted, profile.version) == (True, 4, accepted.user_version)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": ""}, "an empty text"),
        ({"text": " "}, "an empty text"),
        ({"text": "\ud800"}, "not Unicode"),
        ({"text": "a" * 70_000}, "at most 65,536 bytes"),
        ({"text": "a", "user": "a\nb"}, "a user's id"),
        ({"text": "a", "key": ""}, "an idempotency key"),
        ({"text": "a", "context": {"town": "Oslo"}}, "context column"),
    ],
)
def test_texts_that_cannot_be_learned_leave_no_trace(service: Service, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        service.accept(**{"user": "ann", **values})
    assert service.store.users() == []


def test_a_key_is_applied_once_even_after_a_restart(opened: Opened, model: ServedModel) -> None:
    first = opened()
    assert first.accept("ann", "abc", key="k1").outcome == "learned"
    assert first.accept("ann", "abc", key="k1").outcome == "repeated"
    assert first.accept("bob", "abc", key="k1").outcome == "learned", "another person's key is another key"
    with pytest.raises(UserError, match="this idempotency key came before, with another text"):
        first.accept("ann", "cab", key="k1")
    first.close()
    second = opened()
    again = second.accept("ann", "abc", key="k1")
    assert (again.outcome, again.number) == ("repeated", 1)
    assert learned_by_service(second, "ann") == learned_by_library(model, ["abc"])
    assert second.forget("ann", "abc") == 1
    assert second.accept("ann", "abc", key="k1").outcome == "repeated"
    assert learned_by_service(second, "ann") == learned_by_library(model, [])
    assert [second.accept("ann", "abc").outcome for _ in range(2)] == ["learned"] * 2, "without a key each counts"


@pytest.mark.parametrize("text", ["ab", "cab", "c"])
def test_forgetting_is_never_having_learned(service: Service, model: ServedModel, text: str) -> None:
    texts = ["ab", "cab", "ab", "c", "ab", "b"]
    for number, one in enumerate(texts):
        service.accept("ann", one, key=str(number))
    assert service.forget("ann", text) == texts.count(text)
    without = [one for one in texts if one != text]
    profile = service.show("ann")
    assert profile is not None
    assert [one.text for one in profile.texts] == without
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(model, without)
    found = service.complete(CompletionRequest(text[:-1], "ann")).results
    assert text not in {one.text for one in found if "history" in one.source}
    service.accept("ann", "acc")
    assert learned_by_service(service, "ann") == learned_by_library(model, [*without, "acc"])
    assert service.forget("ann", "never there") == 0
    assert service.forget("nobody", "a") == 0
    assert service.store.users() == ["ann"]


def test_undo_takes_back_the_newest(service: Service, model: ServedModel) -> None:
    for text in ("ab", "cab", "ab"):
        service.accept("ann", text)
    for left in (["ab", "cab"], ["ab"], []):
        assert service.undo("ann") == 1
        assert service.wait_for_learning()
        assert learned_by_service(service, "ann") == learned_by_library(model, left)
    assert service.undo("ann") == 0
    service.accept("ann", "b")
    assert learned_by_service(service, "ann") == learned_by_library(model, ["b"])


def test_paused_nothing_is_kept(service: Service, model: ServedModel) -> None:
    service.accept("ann", "ab")
    for user in ("ann", "bob"):
        service.pause(user)
        assert service.accept(user, "cab", key="k").outcome == "paused"
    profile = service.show("bob")
    assert profile is not None
    assert profile.paused
    assert learned_by_service(service, "ann") == learned_by_library(model, ["ab"])
    service.pause("ann", False)
    assert service.accept("ann", "cab", key="k").outcome == "learned"
    assert learned_by_service(service, "ann") == learned_by_library(model, ["ab", "cab"])


def test_nothing_is_kept_of_what_is_private_or_looks_secret(opened: Opened) -> None:
    service = opened(privacy=Privacy(withheld_patterns=("x+",)))
    withheld = service.accept("ann", "ann@example.org")
    assert (withheld.outcome, withheld.why) == ("withheld", "an e-mail address")
    assert service.accept("ann", "bxx").why == "a pattern"
    assert service.store.users() == []


def test_a_private_completion_is_that_of_nobody(service: Service) -> None:
    for _ in range(3):
        service.accept("ann", "abbab")
    found = service.complete(CompletionRequest("ab", "ann", private=True))
    assert found == service.complete(CompletionRequest("ab"))
    assert found != service.complete(CompletionRequest("ab", "ann"))


def test_deleted_is_never_there(service: Service, model: ServedModel) -> None:
    service.accept("ann", "abbab", key="k")
    service.complete(CompletionRequest("ab", "ann"))
    assert service.delete("ann")
    assert not service.delete("ann")
    assert (service.show("ann"), service.export("ann")) == (None, None)
    assert service.complete(CompletionRequest("ab", "ann")) == service.complete(CompletionRequest("ab"))
    assert service.accept("ann", "c", key="k").outcome == "learned"
    assert learned_by_service(service, "ann") == learned_by_library(model, ["c"])


def test_exported_and_restored_somebody_is_the_same(service: Service) -> None:
    for text, context in (("ab", None), ("cab", {"city": "Oslo"})):
        service.accept("ann", text, context=context)
    service.pause("ann")
    before, values = learned_by_service(service, "ann"), service.export("ann")
    values = msgspec.json.decode(msgspec.json.encode(values))
    with pytest.raises(UserError, match="somebody of that id is kept already"):
        service.restore(values)
    service.delete("ann")
    assert service.restore(values) == "ann"
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == before
    assert service.export("ann") == values


def test_a_new_model_learns_everybody_again(opened: Opened, models: tuple[ServedModel, ServedModel]) -> None:
    old, new = models
    service, texts = opened(), ["abab", "cab", "abab"]
    for text in texts:
        service.accept("ann", text)
    service._relearner.close()
    service._relearner.add = lambda user: None  # type: ignore[method-assign]
    service.replace_model(new)
    other = opened(new)
    assert new.identity != old.identity
    unknown = replace(new.learner.new(), history=History(tuple(texts)))
    written = new.completer.type(new.completer.begin(unknown), "a")
    assert service.complete(CompletionRequest("a", "ann")).results == new.completer.suggest(written).suggestions
    profile = service.show("ann")
    assert profile is not None
    assert not profile.learned
    waiting = other.accept("ann", "b")
    assert waiting.outcome == "kept"
    assert other.wait_for_learning()
    assert learned_by_service(other, "ann") == learned_by_library(new, [*texts, "b"])
    assert other.accept("ann", "c").outcome == "learned"
    back = opened(old)
    assert back.relearn("ann")
    assert learned_by_service(back, "ann") == learned_by_library(old, [*texts, "b", "c"]), (
        "the old model goes on from what it knew"
    )
    assert learned_by_service(other, "ann") == learned_by_library(new, [*texts, "b", "c"]), (
        "and the new one has not lost what it knows"
    )


def test_texts_that_are_too_old_leave_no_trace(opened: Opened, model: ServedModel) -> None:
    now = 1_000_000.0
    service = opened(privacy=Privacy(retention=100), clock=lambda: now)
    lived = [(0, "ann", "ab"), (50, "ann", "cab"), (60, "ann", "b"), (0, "bob", "ab"), (55, "eve", "c")]
    for after, user, text in lived:
        now = 1_000_000.0 + after
        service.accept(user, text)
    service.pause("zoe")
    assert service.expire() == 0
    now = 1_000_000.0 + 120
    assert service.expire() == 2
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(model, ["cab", "b"])
    assert service.store.users() == ["ann", "eve", "zoe"]
    now += 1000
    assert service.expire() == 3
    assert service.store.users() == []
    assert opened().expire() == 0


def test_the_newest_texts_are_kept(opened: Opened) -> None:
    service = opened(privacy=Privacy(max_texts=3))
    for text in ("a", "b", "ab", "ba"):
        service.accept("ann", text)
    profile = service.show("ann")
    assert profile is not None
    assert [one.text for one in profile.texts] == ["b", "ab", "ba"]
    assert (profile.accepted, profile.learned) == (4, True)
    assert service.forget("ann", "a") == 0
    assert service.wait_for_learning()
    known = service.model.user(service.store.read("ann"))
    assert known is not None
    assert known.text_count == 3, "a text that is no longer kept is forgotten too"


class Failing:
    """A store that fails when it is told to, and counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self.store, self.failing, self.asked = store, False, 0

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any) -> Any:
            self.asked += 1
            if self.failing:
                raise StoreError("out of order")
            return getattr(self.store, name)(*given)

        return ask


def failing(service: Service) -> Failing:
    store = Failing(service.store.store)
    service.store.store = store
    return store


def test_without_the_store_there_are_suggestions_for_nobody(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    service = opened()
    service.accept("ann", "abbab")
    own, nobody = (service.complete(CompletionRequest("ab", user)) for user in ("ann", None))
    monkeypatch.setattr(circuit_breaker, "RETRY", 0.05)
    monkeypatch.setattr(circuit_breaker, "CHECK", 0.0)
    store = failing(service)
    store.failing = True
    found = service.complete(CompletionRequest("ab", "ann"))
    assert (found.results, found.degraded, found.user_version) == (nobody.results, "store", None)
    assert service.complete(CompletionRequest("ab", "ann")).degraded == "store"
    for ask in (lambda: service.accept("ann", "b"), service.check, lambda: service.show("ann")):
        with pytest.raises(StoreError):
            ask()
    store.failing = False
    until(lambda: service.complete(CompletionRequest("ab", "ann")) == own)
    until(lambda: service.accept("ann", "abb").outcome == "learned")
    service.check()


def until(done: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        with suppress(StoreError):
            if done():
                return
        time.sleep(0.01)
    pytest.fail("it is never done")


def test_another_persons_record_is_never_served(service: Service) -> None:
    service.accept("bob", "abbab")
    read = service.store.read
    service.store.read = lambda user: Record.from_bytes(read("bob").to_bytes(), user)  # type: ignore[method-assign, union-attr]
    service.store.version = lambda user: 7  # type: ignore[method-assign]
    found = service.complete(CompletionRequest("ab", "ann"))
    assert found.degraded == "store"
    assert "abbab" not in [one.text for one in found.results]
    with pytest.raises(StoreError, match="another person"):
        service.accept("ann", "c")


def test_the_cache_is_bounded_and_never_stale(opened: Opened) -> None:
    service, other = opened(cache_size=2), opened()
    for user in ("ann", "bob", "eve"):
        service.accept(user, "abbab")
        service.complete(CompletionRequest("ab", user))
    before = service.complete(CompletionRequest("ab", "eve"))
    other.accept("eve", "abcab")
    after = service.complete(CompletionRequest("ab", "eve"))
    assert after == other.complete(CompletionRequest("ab", "eve"))
    assert after != before
    other.delete("eve")
    assert service.complete(CompletionRequest("ab", "eve")) == service.complete(CompletionRequest("ab"))


def test_a_run_without_people_completes_all_the_same(tmp_path: Path) -> None:
    made = make_letters(spread=0.8)
    run = Run.create(tmp_path / "run", made.config, made.tokenizer, made.schema)
    run.save_weights({})
    service = Service(ServedModel(Run.open(tmp_path / "run")), open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    assert service.complete(CompletionRequest("a", "ann")).results
    with pytest.raises(UserError, match="does not tell people apart"):
        service.accept("ann", "abc")
    service.close()
    with pytest.raises(UserError, match="no trained weights"):
        ServedModel(made)
