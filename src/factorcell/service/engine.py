"""The service: it completes text for users, learns the texts that they accept, and shows or deletes saved data.

    service = Service(ServedModel(Run.open("runs/qac")), open_store("sqlite:///users.db"))
    service.complete(CompletionRequest("how to ba", user="ann")).results
    service.accept("ann", "how to bake bread", key="2f6c")

All methods block and may be called from any thread. They raise a `UserError` for mistakes of the caller and a
`StoreError` if the store fails.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from factorcell.completion.completer import TypedText
from factorcell.completion.popularity import Suggestion
from factorcell.completion.search import Stop
from factorcell.completion.texts import check_text, clean_text
from factorcell.errors import UserError
from factorcell.service import changes
from factorcell.service.changes import AcceptResult, Change
from factorcell.service.learning import ServedModel
from factorcell.service.lru_cache import LRUCache
from factorcell.service.privacy import Privacy
from factorcell.service.record import (
    DamagedRecordError,
    Record,
    StoredText,
    StoreError,
    check_key,
    checked_context,
    checked_id,
)
from factorcell.service.relearning import Relearner
from factorcell.service.stores.circuit_breaker import CircuitBreakerStore
from factorcell.service.stores.store import Store

LOCK_COUNT = 1024  # number of write locks of a process; users with equal hashes (modulo LOCK_COUNT) share a lock
CACHE_SIZE = 1000  # maximum number of cached `TypedText` objects
ATTEMPTS = 5  # attempts of `relearn` to save a learned state while other writers change the record
MAX_CACHED_TOKENS = 32  # maximum number of tokens of a cached `TypedText`

Context = Mapping[str, Any]
Degradation = Literal["time", "store"]


class CacheKey(NamedTuple):
    """The key of a cached `TypedText`; users without a record share keys, in which `user` and `version` are None."""

    model: ServedModel
    user: str | None
    version: int | None  # of the user's record
    context: tuple[tuple[str, bool, Any], ...]  # per column: its name, whether its value is a boolean, its value
    unknown: str


class UserExistsError(UserError):
    """The store already has a user with this id."""


@dataclass(frozen=True)
class CompletionRequest:
    """A text that a user is typing.

    Attributes:
        query: The typed text.
        user: The id of the user, or None for an unknown user.
        cursor: Number of characters of `query` before the cursor, by default all. Only these characters are completed.
        context: Context values by column.
        limit: Maximum number of suggestions.
        deadline: The `time.monotonic()` at which the search ends with the best suggestions so far, or None.
        private: Whether to complete as for an unknown user, without reading the store.
        stop: A flag that another thread can set to end the search early.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
    """

    query: str
    user: str | None = None
    cursor: int | None = None
    context: Context = field(default_factory=dict)
    limit: int = 10
    deadline: float | None = None
    private: bool = False
    stop: Stop | None = None
    unknown: str = "error"


@dataclass(frozen=True)
class Completions:
    """Suggestions, best first. Each is a whole text that continues the text before the cursor.

    Attributes:
        results: The suggestions.
        degraded: Why better suggestions may exist, or None. "time": the search ended at its deadline. "store": the
            store failed, and the suggestions are those for an unknown user.
        user_version: The version of the user's record that the suggestions are based on, or None without a record.
    """

    results: list[Suggestion]
    degraded: Degradation | None = None
    user_version: int | None = None


@dataclass(frozen=True)
class Profile:
    """The saved data of a user.

    Attributes:
        user: The id of the user.
        version: The version of the record.
        accepted: Number of texts saved since the record was created, including deleted ones.
        texts: The saved texts, oldest first.
        paused: Whether learning is paused.
        learned: Whether the model has learned all saved texts.
    """

    user: str
    version: int
    accepted: int
    texts: tuple[StoredText, ...]
    paused: bool
    learned: bool


class Service:
    """A service with one model, which completes and learns, and one store of the users' records.

    Args:
        model: The model that completes and learns.
        store: The store of the users' records.
        privacy: Rules for which texts are saved, how many, and for how long; by default `Privacy()`.
        cache_size: Maximum number of cached `TypedText` objects; each has the adapted weights of a user in a context.
        clock: Returns the time in Unix seconds.
    """

    def __init__(
        self,
        model: ServedModel,
        store: Store,
        *,
        privacy: Privacy | None = None,
        cache_size: int = CACHE_SIZE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.model, self.clock = model, clock
        self.store, self.privacy = CircuitBreakerStore(store), privacy or Privacy()
        self._typed_texts: LRUCache[CacheKey, TypedText] = LRUCache(cache_size)
        self._locks = [threading.Lock() for _ in range(LOCK_COUNT)]
        self._relearner = Relearner(self.relearn)

    def replace_model(self, model: ServedModel) -> None:
        """Serve another model from now on; the model learns a user's saved texts after that user's next request."""
        self.model = model
        self._typed_texts.drop()

    def complete(self, request: CompletionRequest) -> Completions:
        """Return the best texts that continue the text before the cursor, for an unknown user if the store fails.

        Args:
            request: The typed text, its user and its context.

        Raises:
            UserError: A field of the request is invalid, or the model does not know a context column or value.
        """
        prefix, context = _text_before_cursor(request), checked_context(request.context)
        user = None if request.user is None else checked_id(request.user)
        model, user = self.model, None if request.private else user
        degraded: Degradation | None = None
        try:
            version, typed_text = self._get_typed_text(model, user, context, request.unknown, prefix)
        except StoreError:
            degraded = "store"
            version, typed_text = self._get_typed_text(model, None, context, request.unknown, prefix)
        result = model.completer.suggest(typed_text, request.limit, request.deadline, request.stop)
        is_late = result.is_cut and request.deadline is not None and time.monotonic() >= request.deadline
        return Completions(result.written(model.run.tokenizer), degraded or ("time" if is_late else None), version)

    def accept(
        self, user: str, text: str, *, context: Context | None = None, key: str | None = None, unknown: str = "error"
    ) -> AcceptResult:
        """Save and learn a text that a user accepted. A saved text is on disk when the method returns.

        Args:
            user: The id of the user.
            text: The accepted text.
            context: Context values by column.
            key: An idempotency key: repeated calls with the same key have the effect of one call.
            unknown: "error" refuses context values that training never saw; otherwise they are learned as rare values.

        Returns:
            The outcome, and the number of the text if it was saved.

        Raises:
            UserError: The id, text, context or key is invalid, or the model does not distinguish users.
            StoreError: The store failed.
        """
        model, text, context_values = self.model, clean_text(text), checked_context(context)
        checked_id(user)
        check_key(key)
        if not text:
            raise UserError("text is empty; expected at least one character")
        is_truncated = model.is_truncated(text, context_values, unknown)
        if reason := self.privacy.withhold_reason(text, context_values):
            return AcceptResult("withheld", why=reason)
        result = AcceptResult("paused")  # `change` replaces this value

        def change(record: Record) -> Record:
            nonlocal result
            if (number := changes.find_text_number(record, key, text)) is not None:
                result = AcceptResult("repeated", number)
                return record
            if record.paused:
                result = AcceptResult("paused")
                return changes.set_paused(record, True, self.privacy, self._now())
            new_text = StoredText(record.last_number + 1, text, self._now(), context_values)
            after = changes.add_text(record, new_text, key, model, self.privacy)
            outcome: changes.Outcome = "learned" if model.has_learned(after) else "kept"
            result = AcceptResult(outcome, new_text.number, truncated=is_truncated)
            return after

        _, after = self._change(user, change)
        if result.outcome == "kept":
            self._relearner.add(user)
        return replace(result, user_version=after.version)

    def show(self, user: str) -> Profile | None:
        """Return the saved data of a user, or None if the store has no record of the user."""
        record = self.store.read(checked_id(user))
        if record is None:
            return None
        has_learned = self.model.has_learned(record)
        return Profile(user, record.version, record.last_number, record.texts, record.paused, learned=has_learned)

    def export(self, user: str) -> dict[str, Any] | None:
        """Return the texts and settings of a user as JSON values, which `restore` reads; None if there is no record."""
        record = self.store.read(checked_id(user))
        return None if record is None else changes.export_record(record)

    def restore(self, exported_user: Any) -> str:
        """Save an exported user; a background thread then learns the user's texts.

        This method omits empty texts and texts that the privacy rules of this service do not allow.

        Args:
            exported_user: The JSON values that `export` returned.

        Returns:
            The id of the user.

        Raises:
            UserError: `exported_user` does not have the form of such values.
            UserExistsError: The store already has a user with this id.
        """
        record = changes.import_record(exported_user, self.privacy, self._now()).record
        if not self.store.write(record, expected_version=None):
            raise UserExistsError("the store already has a user with this id; delete that user first")
        self._relearner.add(record.user)
        return record.user

    def delete(self, user: str) -> bool:
        """Delete a user from the store and the cache; return whether the store had a record of the user."""
        had_record = self.store.delete(checked_id(user))
        self._typed_texts.drop(lambda key: key.user == user)
        return had_record

    def forget(self, user: str, text: str) -> int:
        """Delete all texts of a user that the service suggests as `text`, and return the number of deleted texts.

        This method also deletes everything that the model learned from the user. A background thread then learns the
        remaining texts again, as if the user had never accepted the deleted text.
        """
        key = self.model.suggested_form
        return self._remove_texts(user, lambda record: changes.remove_text(record, clean_text(text), key))

    def undo(self, user: str) -> int:
        """Delete the newest text of a user as `forget` does, and return the number of deleted texts, 0 or 1."""
        return self._remove_texts(user, lambda record: changes.keep_texts(record, record.texts[:-1]))

    def pause(self, user: str, paused: bool = True) -> None:
        """Stop saving and learning texts of a user; with `paused=False`, start again."""
        self._change(checked_id(user), lambda record: changes.set_paused(record, paused, self.privacy, self._now()))

    def relearn(self, user: str) -> bool:
        """Learn the saved texts of a user that the model has not learned yet; return False if some remain.

        The method does not block other writers. If one of them changes the record, the method continues with the new
        record. It keeps the state computed so far if the stored state and the texts learned so far are unchanged.
        """
        model, state, stored_state = self.model, None, None
        learned_texts: tuple[StoredText, ...] = ()  # the texts of the record that `state` has learned
        for _ in range(ATTEMPTS):
            record = self.store.read(user)
            if record is None or model.has_learned(record):
                return True
            is_current = stored_state == record.state(model.identity)  # a forgotten text may be learned, but not saved
            if state is None or not is_current or learned_texts != record.texts_up_to(state.last_number):
                state = stored_state = record.state(model.identity)
            state, learned_texts = model.learn(state, record.texts, last_number=record.last_number), record.texts
            after = changes.replace_fields(record, states=record.states_with(state), version=record.version + 1)
            if self.store.write(after, expected_version=record.version):
                return True
        return False

    def wait_for_learning(self, seconds: float = changes.WRITE_TIMEOUT) -> bool:
        """Wait until the background thread has processed all queued users; return False after `seconds` of waiting."""
        return self._relearner.wait_until_idle(seconds)

    def expire(self) -> int:
        """Delete texts older than `Privacy.retention`, and users without newer texts; return how many users changed."""
        if self.privacy.retention is None:
            return 0
        user_count, cutoff = 0, self._now() - self.privacy.retention
        while users := self.store.users_older_than(cutoff):
            for user in users:
                self._expire(user, cutoff)
            user_count += len(users)
        return user_count

    def check(self) -> None:
        """Raise a `StoreError` unless the store can be read and written; query a working store once per second."""
        self.store.check()

    def close(self) -> None:
        """Finish learning the current user, and close the store."""
        self._relearner.close()
        self.store.close()

    def _now(self) -> int:
        return int(self.clock())

    def _get_typed_text(
        self, model: ServedModel, user: str | None, context: Context, unknown: str, prefix: str
    ) -> tuple[int | None, TypedText]:
        """Return the version of the user's record, or None, and the search state after the user typed the prefix."""
        version = None if user is None else self.store.version(user)
        record = None
        key = _cache_key(model, user, version, context, unknown)
        start = self._typed_texts.get(key)
        if start is None:
            if user is not None and version is not None:
                record = self.store.read(user)
                version = record.version if record else None  # another writer may have changed the record
                key = _cache_key(model, user, version, context, unknown)
            start = model.begin(record, context, unknown)
        typed_text = model.completer.type_text(start, prefix)
        if record is None or model.has_learned(record):
            self._typed_texts.put(key, typed_text if len(typed_text.tokens) <= MAX_CACHED_TOKENS else start)
        else:  # nothing is cached, so the next request reads the record again
            self._relearner.add(record.user)
        return version, typed_text

    def _change(self, user: str, change: Change) -> tuple[Record, Record]:
        """Apply a change under the lock of the user: without locks, some writers would retry and never succeed."""
        with self._locks[hash(user) % LOCK_COUNT]:
            return changes.apply(self.store, user, change, self._now)

    def _remove_texts(self, user: str, change: Change) -> int:
        """Apply a change that removes texts; return the number of removed texts."""
        before, after = self._change(checked_id(user), change)
        if not self.model.has_learned(after):
            self._relearner.add(user)
        return len(before.texts) - len(after.texts)

    def _expire(self, user: str, cutoff: int) -> None:
        try:
            record = self.store.read(user)
        except DamagedRecordError:
            self.store.delete(user)
            return
        if record is None:
            return
        has_new_texts = any(text.time >= cutoff for text in record.texts)
        has_new_pause = record.paused and record.updated_at >= cutoff
        if not has_new_texts and not has_new_pause:
            self.store.delete(user, expected_version=record.version)
            return
        self._remove_texts(user, lambda latest: changes.remove_texts_before(latest, cutoff))


def _cache_key(model: ServedModel, user: str | None, version: int | None, context: Context, unknown: str) -> CacheKey:
    # The key marks booleans, because True equals 1 in Python, although a model reads them as different categories.
    columns = tuple((name, isinstance(value, bool), value) for name, value in sorted(context.items()))
    return CacheKey(model, None if version is None else user, version, columns, unknown)


def _text_before_cursor(request: CompletionRequest) -> str:
    """Return the text before the cursor; raise a `UserError` if the text or the cursor is invalid."""
    query, cursor = check_text(request.query, "query"), request.cursor
    if cursor is None:
        return query
    if type(cursor) is not int or not 0 <= cursor <= len(query):
        raise UserError(f"cursor: expected a position in the query, from 0 to {len(query)}, got {cursor!r:.30}")
    return query[:cursor]
