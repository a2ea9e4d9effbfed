"""The service completes as the library does, learns as the library does, and forgets as if it had never learned."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from factorcell.completion.online import User
from factorcell.completion.popularity import History
from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest, Completions
from factorcell.service.privacy import Privacy
from factorcell.service.record import Record, StoreError
from factorcell.service.stores import store as stores
from factorcell.service.stores.store import CircuitBreakerStore, Store, open_store
from tests.service.oracle import learned_by_library, learned_by_service
from tests.service.runs import make_run
from tests.small_runs import make_letters

OpenService = Callable[..., Service]

UNSEEN = {"city": "nowhere"}


def scores_of(completions: Completions) -> list[tuple[str, str, float, int]]:
    return [(result.text, result.source, result.score, result.typos) for result in completions.results]


def expected_scores(search_result: Any) -> list[tuple[str, str, float, int]]:
    suggestions = search_result.suggestions
    return [(item.text, item.source, item.log_probability, item.typos) for item in suggestions]


def test_completions_equal_those_of_the_library(service: Service, model: ServedModel) -> None:
    texts = ["abab", "acca", "abab"]
    user = User.new(model.run)
    completer = model.completer
    for turn in range(4):
        for context, unknown in (
            ({}, "error"),
            ({"city": "Oslo"}, "error"),
            *((UNSEEN, p) for p in ("group", "expected")),
        ):
            for query in ("", "a", "ab", "aba", "ab", "b"):
                typed = completer.type_text(completer.begin(user, context, unknown), query)
                request = CompletionRequest(query, "ann", context=context, limit=7, unknown=cast(Any, unknown))
                completions = service.complete(request)
                assert scores_of(completions) == expected_scores(completer.suggest(typed, 7))
                assert completions.degraded is None
                assert (completions.user_version is None) == (turn == 0)
        if turn < 3:
            service.accept("ann", texts[turn])
            (user,), _ = model.learner.learn([user], [texts[turn]])
    completions = service.complete(CompletionRequest("ab", "ann"))
    assert "history" in next(result.source for result in completions.results if result.text == "abab")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"query": "\ud800"}, "not Unicode text"),
        ({"query": "a" * 70_000}, "at most 65,536 bytes"),
        ({"query": "a", "limit": 0}, "count is 0"),
        ({"query": "a", "user": ""}, "user id"),
        ({"query": "a", "context": {"town": "Oslo"}}, "context column"),
        ({"query": "a", "context": {"citi": "Oslo"}}, r"context column 'citi' \(did you mean 'city'"),
        ({"query": "a", "context": {"city": "Olso"}}, r"city 'Olso' was never seen in training \(did you mean 'Oslo'"),
        ({"query": "a", "unknown": "ignore"}, "unknown policy for unknown values 'ignore'"),
        ({"query": "a", "context": {"city": None}}, "context city"),
    ],
)
def test_invalid_requests_are_refused(service: Service, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        service.complete(CompletionRequest(**request_))


def test_reached_deadline_is_reported(service: Service) -> None:
    service.accept("ann", "abbab")
    completions = service.complete(CompletionRequest("ab", "ann"), deadline=0.0)
    assert completions.degraded == "time"
    assert {result.text for result in completions.results} >= {"abbab", "abba"}
    assert service.complete(CompletionRequest("ab", "ann", deadline_ms=60_000)).degraded is None


def test_texts_are_learned_in_order_with_their_contexts(service: Service, model: ServedModel) -> None:
    texts: list[Any] = [("abc", {"city": "Oslo"}), "cab", ("cab", {"city": "Nice"}), ("b", {"city": "nowhere"})]
    for text in texts:
        text, context = text if isinstance(text, tuple) else (text, None)
        accepted = service.accept("ann", text, context=context, unknown="group")
        assert accepted.outcome == "learned"
    assert learned_by_service(service, "ann") == learned_by_library(
        model, [t if isinstance(t, tuple) else (t, {}) for t in texts]
    )
    assert learned_by_service(service, "ann") != learned_by_library(
        model, [t[0] if isinstance(t, tuple) else t for t in texts]
    )
    profile = service.show("ann")
    assert profile is not None
    assert (profile.learned, profile.accepted, profile.version) == (True, 4, accepted.user_version)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": " "}, "text is empty"),
        ({"text": "\ud800"}, "not Unicode"),
        ({"text": "a" * 70_000}, "at most 65,536 bytes"),
        ({"text": "a", "user": "a\nb"}, "user id"),
        ({"text": "a", "key": ""}, "idempotency key"),
        ({"text": "a", "context": {"town": "Oslo"}}, "context column"),
        ({"text": "a", "context": {"city": "Olso"}}, r"city 'Olso' was never seen in training \(did you mean 'Oslo'"),
    ],
)
def test_invalid_texts_leave_no_trace(service: Service, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        service.accept(**{"user": "ann", **values})
    assert service.store.users() == []


def test_idempotency_key_applies_once_even_after_a_restart(open_service: OpenService, model: ServedModel) -> None:
    first = open_service()
    assert first.accept("ann", "abc", key="k1").outcome == "learned"
    assert first.accept("ann", "abc", key="k1").outcome == "repeated"
    assert first.accept("bob", "abc", key="k1").outcome == "learned", "keys of different users are independent"
    with pytest.raises(UserError, match="used with another text"):
        first.accept("ann", "cab", key="k1")
    first.close()
    second = open_service()
    again = second.accept("ann", "abc", key="k1")
    assert (again.outcome, again.number) == ("repeated", 1)
    assert learned_by_service(second, "ann") == learned_by_library(model, ["abc"])
    assert second.forget("ann", "abc") == 1
    assert second.accept("ann", "abc", key="k1").outcome == "repeated"
    assert learned_by_service(second, "ann") == learned_by_library(model, [])
    assert [second.accept("ann", "abc").outcome for _ in range(2)] == ["learned"] * 2, "without a key each call counts"


@pytest.mark.parametrize("text", ["Abba", "ABBA", "ａbba"])
def test_texts_in_other_case_or_with_look_alikes_are_forgotten(service: Service, text: str) -> None:
    for other in ("abba", "Abba", "abbab"):
        service.accept("ann", other)
    assert service.forget("ann", text) == 2
    profile = service.show("ann")
    assert profile is not None
    assert [other.text for other in profile.texts] == ["abbab"]


@pytest.mark.parametrize("text", ["ab", "cab", "c"])
def test_forgetting_equals_never_having_learned(service: Service, model: ServedModel, text: str) -> None:
    texts = ["ab", "cab", "ab", "c", "ab", "b"]
    for number, other in enumerate(texts):
        service.accept("ann", other, key=str(number))
    assert service.forget("ann", text) == texts.count(text)
    without = [other for other in texts if other != text]
    profile = service.show("ann")
    assert profile is not None
    assert [other.text for other in profile.texts] == without
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(model, without)
    results = service.complete(CompletionRequest(text[:-1], "ann")).results
    assert text not in {other.text for other in results if "history" in other.source}
    service.accept("ann", "acc")
    assert learned_by_service(service, "ann") == learned_by_library(model, [*without, "acc"])
    assert service.forget("ann", "never accepted") == 0
    assert service.forget("nobody", "a") == 0
    assert service.store.users() == ["ann"]


def test_undo_deletes_the_newest_text(service: Service, model: ServedModel) -> None:
    for text in ("ab", "cab", "ab"):
        service.accept("ann", text)
    for remaining in (["ab", "cab"], ["ab"], []):
        assert service.undo("ann") == 1
        assert service.wait_for_learning()
        assert learned_by_service(service, "ann") == learned_by_library(model, remaining)
    assert service.undo("ann") == 0
    service.accept("ann", "b")
    assert learned_by_service(service, "ann") == learned_by_library(model, ["b"])


def test_nothing_is_saved_while_learning_is_paused(service: Service, model: ServedModel) -> None:
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


def test_secret_texts_are_withheld(open_service: OpenService) -> None:
    service = open_service(privacy=Privacy(withheld_patterns=("x+",)))
    withheld = service.accept("ann", "ann@example.org")
    assert (withheld.outcome, withheld.why) == ("withheld", "an e-mail address")
    assert service.accept("ann", "bxx").why == "a withheld pattern"
    assert service.store.users() == []


def test_private_completion_equals_that_of_an_unknown_user(service: Service) -> None:
    for _ in range(3):
        service.accept("ann", "abbab")
    completions = service.complete(CompletionRequest("ab", "ann", learn=False))
    assert completions == service.complete(CompletionRequest("ab"))
    assert completions != service.complete(CompletionRequest("ab", "ann"))


def test_deleted_user_equals_an_unknown_user(service: Service, model: ServedModel) -> None:
    service.accept("ann", "abbab", key="k")
    service.complete(CompletionRequest("ab", "ann"))
    assert service.delete("ann")
    assert not service.delete("ann")
    assert service.show("ann") is None
    assert service.complete(CompletionRequest("ab", "ann")) == service.complete(CompletionRequest("ab"))
    assert service.accept("ann", "c", key="k").outcome == "learned"
    assert learned_by_service(service, "ann") == learned_by_library(model, ["c"])


def test_restored_export_equals_the_original_user(service: Service) -> None:
    for text, context in (("ab", None), ("cab", {"city": "Oslo"})):
        service.accept("ann", text, context=context)
    service.pause("ann")
    before, profile = learned_by_service(service, "ann"), service.show("ann")
    values = msgspec.json.decode(msgspec.json.encode(profile))
    with pytest.raises(UserError, match="already has a user with this id"):
        service.restore(values)
    service.delete("ann")
    assert service.restore(profile) == "ann"
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == before
    restored = service.show("ann")
    assert profile is not None
    assert restored is not None
    assert (restored.paused, restored.texts) == (True, profile.texts)


def test_new_model_learns_all_users_again(open_service: OpenService, models: tuple[ServedModel, ServedModel]) -> None:
    old, new = models
    service, texts = open_service(), ["abab", "cab", "abab"]
    for text in texts:
        service.accept("ann", text)
    service._relearner.close()
    service._relearner.add = lambda user: None  # type: ignore[method-assign]
    service.replace_model(new)
    other = open_service(new)
    assert new.identity != old.identity
    unknown = replace(new.learner.new(), history=History(tuple(texts)))
    typed = new.completer.type_text(new.completer.begin(unknown), "a")
    completions = service.complete(CompletionRequest("a", "ann"))
    assert scores_of(completions) == expected_scores(new.completer.suggest(typed))
    profile = service.show("ann")
    assert profile is not None
    assert not profile.learned
    waiting = other.accept("ann", "b")
    assert waiting.outcome == "kept"
    assert other.wait_for_learning()
    assert learned_by_service(other, "ann") == learned_by_library(new, [*texts, "b"])
    assert other.accept("ann", "c").outcome == "learned"
    restored = open_service(old)
    assert restored.relearn("ann")
    assert learned_by_service(restored, "ann") == learned_by_library(old, [*texts, "b", "c"]), (
        "the old model continues from its learned state"
    )
    assert learned_by_service(other, "ann") == learned_by_library(new, [*texts, "b", "c"]), (
        "the new model keeps its learned state"
    )


def test_only_the_newest_texts_are_saved(open_service: OpenService) -> None:
    service = open_service(privacy=Privacy(max_texts=3))
    for text in ("a", "b", "ab", "ba"):
        service.accept("ann", text)
    profile = service.show("ann")
    assert profile is not None
    assert [saved.text for saved in profile.texts] == ["b", "ab", "ba"]
    assert (profile.accepted, profile.learned) == (4, True)
    assert service.forget("ann", "a") == 0
    assert service.wait_for_learning()
    user = service.model.user(service.store.read("ann"))
    assert user is not None
    assert user.text_count == 3, "a text that is no longer saved is forgotten too"


class Failing:
    """A store that fails while `failing` is set, and counts its calls."""

    def __init__(self, store: Any) -> None:
        self.store, self.failing, self.calls = store, False, 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.failing:
                raise StoreError("out of order")
            return getattr(self.store, name)(*arguments, **options)

        return call


def failing(service: Service) -> Failing:
    store = Failing(service.store._store)
    service.store = CircuitBreakerStore(cast(Store, store))
    return store


def test_suggestions_are_not_personalized_while_the_store_fails(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = open_service()
    service.accept("ann", "abbab")
    personal, anonymous = (service.complete(CompletionRequest("ab", user)) for user in ("ann", None))
    monkeypatch.setattr(stores, "PROBE_INTERVAL", 0.05)
    monkeypatch.setattr(stores, "CHECK_INTERVAL", 0.0)
    store = failing(service)
    store.failing = True
    completions = service.complete(CompletionRequest("ab", "ann"))
    assert (completions.results, completions.degraded, completions.user_version) == (anonymous.results, "store", None)
    assert service.complete(CompletionRequest("ab", "ann")).degraded == "store"
    for call in (lambda: service.accept("ann", "b"), service.check, lambda: service.show("ann")):
        with pytest.raises(StoreError):
            call()
    store.failing = False
    wait_until(lambda: service.complete(CompletionRequest("ab", "ann")) == personal)
    wait_until(lambda: service.accept("ann", "abb").outcome == "learned")
    service.check()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(StoreError):
            if condition():
                return
        time.sleep(0.01)
    pytest.fail("the condition was never met")


def test_record_of_another_user_is_never_served(service: Service) -> None:
    service.accept("bob", "abbab")
    read = service.store.read
    service.store.read = lambda user: Record.from_bytes(read("bob").to_bytes(), user)  # type: ignore[union-attr]
    service.store.version = lambda user: 7
    completions = service.complete(CompletionRequest("ab", "ann"))
    assert completions.degraded == "store"
    assert "abbab" not in [result.text for result in completions.results]
    with pytest.raises(StoreError, match="another user"):
        service.accept("ann", "c")


def test_cache_is_bounded_and_never_stale(open_service: OpenService) -> None:
    service, other = open_service(cache_size=2), open_service()
    for user in ("ann", "bob", "eve"):
        service.accept(user, "abbab")
        service.complete(CompletionRequest("ab", user))
    before = service.complete(CompletionRequest("ab", "eve"))
    assert len(service._typed_texts) == 2
    other.accept("eve", "abcab")
    after = service.complete(CompletionRequest("ab", "eve"))
    assert after == other.complete(CompletionRequest("ab", "eve"))
    assert after != before
    other.delete("eve")
    assert service.complete(CompletionRequest("ab", "eve")) == service.complete(CompletionRequest("ab"))


@pytest.mark.parametrize("clears", ["a new model", "a deletion"])
def test_a_request_in_flight_caches_nothing_after_the_cache_was_cleared(
    clears: str, open_service: OpenService, models: tuple[ServedModel, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = open_service(models[0])
    service.accept("ann", "abba")
    type_text = models[0].completer.type_text

    def change_and_type(*arguments: Any) -> Any:
        if clears == "a new model":
            service.replace_model(models[1])
        else:
            service.delete("ann")
        return type_text(*arguments)

    monkeypatch.setattr(models[0].completer, "type_text", change_and_type)
    service.complete(CompletionRequest("a", user="ann"))
    assert service._typed_texts == {}


def test_run_that_does_not_distinguish_users_still_completes(tmp_path: Path) -> None:
    letters = make_letters(spread=0.8)
    run = Run.create(tmp_path / "run", letters.config, letters.tokenizer, letters.schema)
    run.save_weights({})
    service = Service(ServedModel(Run.open(tmp_path / "run")), open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    assert service.complete(CompletionRequest("a", "ann")).results
    with pytest.raises(UserError, match="does not distinguish users"):
        service.accept("ann", "abc")
    service.close()
    with pytest.raises(UserError, match="no trained weights"):
        ServedModel(letters)


def test_true_and_one_are_different_values_of_a_context(open_service: OpenService, tmp_path: Path) -> None:
    served = ServedModel(make_run(tmp_path / "run", cities=(True, 1), context=("city:category",)))
    service, requests = open_service(served), [CompletionRequest("ab", context={"city": value}) for value in (1, True)]
    with_one, with_true = map(service.complete, requests)
    assert scores_of(with_one) != scores_of(with_true)
    assert scores_of(with_true) == scores_of(open_service(served).complete(requests[1])), (
        "that of a service without a cache"
    )
