"""The service: it completes text for users, learns the texts that they accept, and shows or deletes saved data.

    service = Service(ServedModel(Run.open("runs/qac")), open_store("sqlite:///users.db"))
    service.complete(CompletionRequest("how to ba", user="ann")).results
    service.accept("ann", "how to bake bread", key="2f6c")

All methods block and may be called from any thread. They raise a `UserError` for mistakes of the caller and a
`StoreError` if the store fails.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from factorcell.completion.completer import TypedText
from factorcell.completion.search import Stop
from factorcell.config import HISTORY_COLUMN
from factorcell.data.text_folds import check_text, clean_text
from factorcell.errors import UserError
from factorcell.service.learning import Relearner, ServedModel
from factorcell.service.messages import (
    AcceptResult,
    CompletionRequest,
    Completions,
    Outcome,
    Profile,
    Result,
    export_record,
    import_record,
)
from factorcell.service.privacy import Privacy
from factorcell.service.record import (
    DAMAGED,
    LOG,
    DamagedRecordError,
    Record,
    StoredText,
    StoreError,
    check_key,
    checked_context,
    checked_id,
)
from factorcell.service.stores.store import PAGE_SIZE, WRITE_TIMEOUT, CircuitBreakerStore, Store, update

LOCK_COUNT = 1024  # number of write locks of a process; users with equal hashes (modulo LOCK_COUNT) share a lock
CACHE_SIZE = 1000  # maximum number of cached `TypedText` objects
ATTEMPTS = 5  # attempts of `relearn` to save a learned state while other writers change the record
MAX_LEARNED_TEXTS = 50  # `relearn` saves the learned state after this number of texts
MAX_CACHED_TOKENS = 32  # maximum number of tokens of a cached `TypedText`

Context = Mapping[str, Any]
Change = Callable[[Record], Record]


class UserExistsError(UserError):
    """The store already has a user with this id."""


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
        self._cache_size, self._cache_lock = cache_size, threading.Lock()
        self._typed_texts: dict[Hashable, TypedText] = {}  # the least recently used one first
        self._clearings = 0  # of the cache
        self._locks = [threading.Lock() for _ in range(LOCK_COUNT)]
        self._relearner = Relearner(self.relearn)

    def replace_model(self, model: ServedModel) -> None:
        """Serve another model from now on; the model learns a user's saved texts after that user's next request."""
        self.model = model
        self._clear_cache()

    def complete(
        self, request: CompletionRequest, deadline: float | None = None, stop: Stop | None = None
    ) -> Completions:
        """Return the best texts that continue the typed text, for an unknown user if the store fails.

        Args:
            request: The typed text, its user and its context.
            deadline: The `time.monotonic()` at which the search ends, by default that of `request.deadline_ms`.
            stop: A flag that another thread can set to end the search early.

        Raises:
            UserError: A field of the request is invalid, or the model does not know a context column or value.
        """
        if deadline is None and request.deadline_ms is not None:
            deadline = time.monotonic() + request.deadline_ms / 1000
        prefix, context = check_text(request.query, "query"), checked_context(request.context)
        model = self.model
        user = None if request.user is None or not request.learn else checked_id(request.user)
        degraded: Literal["time", "store"] | None = None
        try:
            version, typed_text = self._get_typed_text(model, user, context, request.unknown, prefix)
        except StoreError:
            degraded = "store"
            version, typed_text = self._get_typed_text(model, None, context, request.unknown, prefix)
        result = model.completer.suggest(typed_text, request.limit, deadline, stop)
        if degraded is None and result.is_cut and deadline is not None and time.monotonic() >= deadline:
            degraded = "time"
        results = [
            Result(
                text=suggestion.text,
                source=suggestion.source,
                score=suggestion.log_probability,
                typos=suggestion.typos,
                parts=dict(suggestion.parts) if request.explain else None,
            )
            for suggestion in result.written(model.run.tokenizer)
        ]
        return Completions(results=results, degraded=degraded, user_version=version)

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
            return AcceptResult(outcome="withheld", why=reason)
        context_values.pop(HISTORY_COLUMN, None)  # the saved texts; a copy would keep those that the user forgets
        result = AcceptResult(outcome="paused")  # `change` replaces this value

        def change(record: Record) -> Record:
            nonlocal result
            number = None if key is None else record.number_of(key)
            if number is not None:
                result = AcceptResult(outcome="repeated", number=number)
                # A text that is no longer saved cannot be compared; it counts as equal.
                if text != next((saved.text for saved in record.texts if saved.number == number), text):
                    raise UserError("idempotency key: it was used with another text; use a new key for each text")
                return record
            if record.paused:
                result = AcceptResult(outcome="paused")
                return replace(record)  # a new object is written, which renews `updated_at`: `expire` keeps the pause
            after = record.with_text(StoredText(record.last_number + 1, text, self._now(), context_values), key)
            if model.has_learned(record):
                after = model.learn(after)
            outcome: Outcome = "learned" if model.has_learned(after) else "kept"
            result = AcceptResult(outcome=outcome, number=after.last_number, truncated=is_truncated)
            return after.with_newest(self.privacy.newest(after.texts))

        _, after = self._change(user, change)
        if result.outcome == "kept":
            self._relearner.add(user)
        return replace(result, user_version=after.version)

    def show(self, user: str) -> Profile | None:
        """Return the saved data of a user, which `restore` reads, or None if the store has no record of the user."""
        record = self.store.read(checked_id(user))
        if record is None:
            return None
        details = {"version": record.version, "accepted": record.last_number, "learned": self.model.has_learned(record)}
        return msgspec.convert(export_record(record) | details, Profile)

    def restore(self, exported_user: Any) -> str:
        """Save an exported user; a background thread then learns the user's texts.

        This method omits empty texts and texts that the privacy rules of this service do not allow.

        Args:
            exported_user: A `Profile`, or its JSON values.

        Returns:
            The id of the user.

        Raises:
            UserError: `exported_user` does not have the form of such values.
            UserExistsError: The store already has a user with this id.
        """
        record, _ = import_record(exported_user, self.privacy, self._now())
        if not self.store.write(record, expected_version=None):
            raise UserExistsError("the store already has a user with this id; delete that user first")
        self._relearner.add(record.user)
        return record.user

    def delete(self, user: str) -> bool:
        """Delete a user from the store, and clear the cache; return whether the store had a record of the user."""
        had_record = self.store.delete(checked_id(user))
        self._clear_cache()
        return had_record

    def forget(self, user: str, text: str) -> int:
        """Delete all texts of a user that the service suggests as `text`, and return the number of deleted texts.

        Case and characters that look alike make no difference. This method also deletes everything that the model
        learned from the user. A background thread then learns the remaining texts again, as if the user had never
        accepted the deleted text.
        """
        text, normalize = check_text(text), self.model.run.tokenizer.normalize
        return self._remove_texts(user, lambda record: record.without_text(text, normalize))

    def undo(self, user: str) -> int:
        """Delete the newest text of a user as `forget` does, and return the number of deleted texts, 0 or 1."""
        return self._remove_texts(user, lambda record: record.with_texts(record.texts[:-1]))

    def pause(self, user: str, paused: bool = True) -> None:
        """Stop saving and learning texts of a user; with `paused=False`, start again."""
        self._change(
            checked_id(user), lambda record: replace(record, paused=paused) if paused or record.paused else record
        )

    def relearn(self, user: str) -> bool:
        """Learn the saved texts of a user that the model has not learned yet; return False if some remain.

        The method saves the learned state after every `MAX_LEARNED_TEXTS` texts. It does not block other writers: if
        one of them was faster, the method learns these texts again from the new record.
        """
        model, failure_count = self.model, 0
        while failure_count < ATTEMPTS:
            record = self.store.read(user)
            if record is None or model.has_learned(record):
                return True
            learned = model.learn(record, max_texts=MAX_LEARNED_TEXTS)
            after = replace(learned, version=record.version + 1)
            failure_count += not self.store.write(after, expected_version=record.version)
        return False

    def wait_for_learning(self, seconds: float = WRITE_TIMEOUT) -> bool:
        """Wait until the background thread has processed all queued users; return False after `seconds` of waiting."""
        return self._relearner.wait_until_idle(seconds)

    def expire(self, seconds: float = math.inf) -> int:
        """Delete texts older than `Privacy.retention`, what was learned from them, and users without newer texts.

        It ends after about `seconds`, and returns how many users changed. Damaged records stay, for an operator.
        """
        if self.privacy.retention is None:
            return 0
        visited, count, has_damaged = set[str](), 0, False
        cutoff, end = self._now() - self.privacy.retention, time.monotonic() + seconds
        while time.monotonic() <= end:
            users = set(self.store.users_older_than(cutoff, PAGE_SIZE + len(visited) - count)) - visited
            if not users:
                break
            for user in users:
                if time.monotonic() > end:
                    break
                try:
                    count += self._expire(user, cutoff)
                except DamagedRecordError:
                    has_damaged = True
                visited.add(user)
        if has_damaged:
            LOG.error("%s and does not expire; %s", *DAMAGED)
        return count

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
        # The key marks booleans, because True equals 1 in Python, although a model reads them as different categories.
        columns = tuple((name, isinstance(value, bool), value) for name, value in sorted(context.items()))
        version, record = None if user is None else self.store.version(user), None
        key = (model, None if version is None else user, version, columns, unknown)  # unknown users share keys
        clearings = self._clearings  # before the comparison of models: a replacement sets the model, and then clears
        is_current, start = model is self.model, self._typed_texts.get(key)
        if start is None:
            if user is not None and version is not None:
                record = self.store.read(user)
                version = record.version if record else None  # another writer may have changed the record
                key = (model, None if version is None else user, version, columns, unknown)
            start = model.begin(record, context, unknown)
        typed_text = model.completer.type_text(start, prefix)
        if is_current and (record is None or model.has_learned(record)):
            self._cache(key, typed_text if len(typed_text.tokens) <= MAX_CACHED_TOKENS else start, clearings)
        elif record is not None:  # nothing is cached, so the next request reads the record again
            self._relearner.add(record.user)
        return version, typed_text

    def _cache(self, key: Hashable, typed_text: TypedText, clearings: int) -> None:
        """Cache a state, unless the cache was cleared since it was computed: its model or user may be deleted."""
        with self._cache_lock:
            if clearings != self._clearings:
                return
            self._typed_texts.pop(key, None)
            self._typed_texts[key] = typed_text
            if len(self._typed_texts) > self._cache_size:
                del self._typed_texts[next(iter(self._typed_texts))]

    def _clear_cache(self) -> None:
        with self._cache_lock:
            self._typed_texts.clear()
            self._clearings += 1

    def _change(self, user: str, change: Change) -> tuple[Record, Record]:
        """Apply a change under the lock of the user: without locks, some writers would retry and never succeed."""
        with self._locks[hash(user) % LOCK_COUNT]:
            return update(self.store, user, change, self._now)

    def _remove_texts(self, user: str, change: Change) -> int:
        """Apply a change that removes texts; return the number of removed texts."""
        before, after = self._change(checked_id(user), change)
        if not self.model.has_learned(after):
            self._relearner.add(user)
        return len(before.texts) - len(after.texts)

    def _expire(self, user: str, cutoff: int) -> bool:
        """Delete the texts of a user that were written before `cutoff`.

        Return whether the record changed; it does not if another thread writes it meanwhile.
        """
        record = self.store.read(user)
        if record is None:
            return False
        has_new_texts = any(text.time >= cutoff for text in record.texts)
        has_new_pause = record.paused and record.updated_at >= cutoff
        if has_new_texts or has_new_pause:
            self._remove_texts(user, lambda latest: latest.since(cutoff))
            return True
        return self.store.delete(user, expected_version=record.version)
