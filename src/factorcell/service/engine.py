"""The service: it completes for users, learns them, shows what is kept of them, and forgets.

    service = Service(ServedModel(Run.open("runs/qac")), open_store("sqlite:///users.db"))
    service.complete(CompletionRequest("how to ba", user="ann")).results
    service.accept("ann", "how to bake bread", key="2f6c")

All calls block and may come from any thread. They raise a `UserError` for the caller's mistakes and a `StoreError`
where the store fails.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from factorcell import limits
from factorcell.completion.completer import TypedText
from factorcell.completion.search import Stop, Suggestion
from factorcell.completion.texts import check_text, clean_prefix, clean_text
from factorcell.config import UserError
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

LOCKS = 1024  # locks of writers in one process; two users may share one
CACHE_SIZE = 1000  # users whose adapted weights are kept in memory
ATTEMPTS = 5  # to learn a user again while others write
CHARACTERS = 32  # longest typed text that is kept in memory

Context = Mapping[str, Any]
Key = tuple[ServedModel, str | None, int | None, tuple[tuple[str, bool, Any], ...]]


class UserExistsError(UserError):
    """The store has a user of that id already."""


@dataclass(frozen=True)
class CompletionRequest:
    """What a user typed.

    Attributes:
        query: The typed text.
        user: Who types, or None.
        cursor: The text before it is completed, in characters; by default the whole query.
        context: Context values by column.
        limit: Number of suggestions.
        deadline: The `time.monotonic()` at which the search ends with the best suggestions so far.
        private: Complete as for an unknown user; the store is not read.
        stop: Ends the search early when it is set.
    """

    query: str
    user: str | None = None
    cursor: int | None = None
    context: Context = field(default_factory=dict)
    limit: int = 10
    deadline: float | None = None
    private: bool = False
    stop: Stop | None = None


@dataclass(frozen=True)
class Completions:
    """Suggestions, the best first; each is a whole text that continues what is before the cursor.

    Attributes:
        results: The suggestions.
        degraded: Why they may not be the best: "time" was up, or the "store" failed, as for an unknown user.
        user_version: The version of the user's record that they were made for.
    """

    results: list[Suggestion]
    degraded: Literal["time", "store"] | None = None
    user_version: int | None = None


@dataclass(frozen=True)
class Profile:
    """What is kept of a user: `texts`, the oldest first; `learned`: whether the model has learned all of them."""

    user: str
    version: int
    accepted: int
    texts: tuple[StoredText, ...]
    paused: bool
    learned: bool


class Service:
    """A model and a store of users.

    Args:
        model: The model that completes and learns.
        store: Where users are kept.
        privacy: What is never kept, and for how long the rest is.
        cached: Users whose adapted weights are kept in memory.
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
        self.model, self.store, self.privacy, self.clock = (
            model,
            CircuitBreakerStore(store),
            privacy or Privacy(),
            clock,
        )
        self._typed: LRUCache[Key, TypedText] = LRUCache(cache_size)
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._relearner = Relearner(self.relearn)

    def replace_model(self, model: ServedModel) -> None:
        """Serve this model from the next request on; users are learned again at their next request."""
        self.model = model
        self._typed.drop()

    def complete(self, request: CompletionRequest) -> Completions:
        """Return the best texts that continue what is typed. `UserError` for what cannot be completed."""
        limits.check(count=request.limit)
        prefix, context = _before_cursor(request), checked_context(request.context)
        user = None if request.user is None else checked_id(request.user)
        model, failed = self.model, False
        try:
            version, typed = self._type(model, None if request.private else user, context, prefix)
        except StoreError:
            failed = True
            version, typed = self._type(model, None, context, prefix)
        words = prefix[: prefix.rfind(" ") + 1]
        if model.is_allowed is not None and words and not model.is_allowed(words):  # no suggestion could be allowed
            return Completions([], "store" if failed else None, version)
        found = model.completer.suggest(typed, request.limit, request.deadline, request.stop)
        late = found.cut and request.deadline is not None and time.monotonic() >= request.deadline
        return Completions(found.suggestions, "store" if failed else "time" if late else None, version)

    def accept(self, user: str, text: str, *, context: Context | None = None, key: str | None = None) -> AcceptResult:
        """Learn and keep a text that a user accepted; it is on disk when this returns.

        Args:
            user: The id of the user.
            text: The accepted text.
            context: Context values by column.
            key: An idempotency key, with which the text is applied once, however often this is called.

        Raises:
            UserError: The text or the context cannot be learned.
        """
        model, text, known = self.model, clean_text(text), checked_context(context)
        checked_id(user)
        check_key(key)
        if not text:
            raise UserError("an empty text was accepted; valid is any other")
        truncated = model.check(text, known)
        if why := self.privacy.withhold_reason(text, known):
            return AcceptResult("withheld", why=why)
        accepted = AcceptResult("paused")

        def change(record: Record) -> Record:
            nonlocal accepted
            if (number := changes.number_for_key(record, key, text)) is not None:
                accepted = AcceptResult("repeated", number)
                return record
            if record.paused:
                accepted = AcceptResult("paused")
                return record
            new = StoredText(record.accepted + 1, text, self._now(), known)
            after = changes.add_text(record, new, key, model, self.privacy)
            outcome: changes.Outcome = "learned" if model.has_learned(after) else "kept"
            accepted = AcceptResult(outcome, new.number, truncated=truncated)
            return after

        _, after = self._change(user, change)
        if accepted.outcome == "kept":
            self._relearner.add(user)
        return replace(accepted, user_version=after.version)

    def show(self, user: str) -> Profile | None:
        """Return what is kept of a user, or None."""
        record = self.store.read(checked_id(user))
        if record is None:
            return None
        learned = self.model.has_learned(record)
        return Profile(user, record.version, record.accepted, record.texts, record.paused, learned)

    def export(self, user: str) -> dict[str, Any] | None:
        """Return everything that a user gave, as plain values for JSON, or None. `restore` takes it back."""
        record = self.store.read(checked_id(user))
        return None if record is None else changes.export_record(record)

    def restore(self, values: Any) -> str:
        """Keep a user as `export` returned them, and learn them soon; return the id.

        Texts that the present privacy rules withhold are left out. `UserError` for anything but an export, and if the
        store has a user of that id.
        """
        record, now = changes.import_record(values, self._now()), self._now()
        kept = (one for one in record.texts if not self.privacy.withhold_reason(one.text, one.context))
        record = changes.replace_fields(record, texts=self.privacy.newest(self.privacy.without_expired(kept, now)))
        if not self.store.write(record, None):
            raise UserExistsError("somebody of that id is kept already; delete them first")
        self._relearner.add(record.user)
        return record.user

    def delete(self, user: str) -> bool:
        """Delete a user from the store and from memory; return whether there was one."""
        deleted = self.store.delete(checked_id(user))
        self._typed.drop(lambda key: key[1] == user)
        return deleted

    def forget(self, user: str, text: str) -> int:
        """Delete every copy of a text of a user; return their number.

        What was learned of the user is deleted too; soon the user is learned again from the texts that stay, as if
        this text had never been accepted.
        """
        return self._fewer(user, lambda record: changes.remove_text(record, clean_text(text)))

    def undo(self, user: str) -> int:
        """Delete the newest text of a user, as `forget` does; return 0 if there is none."""
        return self._fewer(user, lambda record: changes.keep_texts(record, record.texts[:-1]))

    def pause(self, user: str, paused: bool = True) -> None:
        """Keep and learn nothing of a user until this is called with `paused=False`."""

        def change(record: Record) -> Record:
            return record if record.paused == paused else changes.replace_fields(record, paused=paused)

        self._change(checked_id(user), change)

    def relearn(self, user: str) -> bool:
        """Learn the texts of a user that the model has not learned; return whether none is left.

        It delays no other writer: if one was first, what was learned until then is used.
        """
        model, state = self.model, None
        covered: tuple[int, ...] = ()
        for _ in range(ATTEMPTS):
            record = self.store.read(user)
            if record is None or model.has_learned(record):
                return True
            if state is None or covered != _numbers(record, state.last_number):
                state = record.state(model.identity)
            state = model.learn(state, record.texts, record.accepted)
            covered = _numbers(record, state.last_number)
            after = changes.replace_fields(record, states=record.with_state(state), version=record.version + 1)
            if self.store.write(after, record.version):
                return True
        return False

    def wait_for_learning(self, seconds: float = changes.WRITE_TIMEOUT) -> bool:
        """Wait until all users that were to be learned again are, at most so many seconds; return whether they are."""
        return self._relearner.wait_until_idle(seconds)

    def expire(self) -> int:
        """Delete texts that are older than `Privacy.keep`, and users without texts; return how many users had some."""
        if self.privacy.retention is None:
            return 0
        count, before = 0, self._now() - self.privacy.retention
        while users := self.store.users_older_than(before):
            for user in users:
                self._expire(user, before)
            count += len(users)
        return count

    def check(self) -> None:
        """Raise a `StoreError` unless the store can be read and written now; it is asked at most once per second."""
        self.store.check()

    def close(self) -> None:
        """Finish the user that is being learned, and close the store."""
        self._relearner.close()
        self.store.close()

    def _now(self) -> int:
        return int(self.clock())

    def _type(
        self, model: ServedModel, user: str | None, context: Context, prefix: str
    ) -> tuple[int | None, TypedText]:
        """Return the version of a user's record, and the prefix as typed by this user."""
        version = None if user is None else self.store.version(user)
        key, record = _key(model, user, version, context), None
        typed = self._typed.get(key)
        if typed is None:
            if user is not None and version is not None:
                record = self.store.read(user)
                key = _key(model, user, record.version if record else None, context)
            typed = model.begin(record, context)
        after = model.completer.type(typed, prefix)
        if record is None or model.has_learned(record):
            self._typed.put(key, after if len(after.tokens) <= CHARACTERS else typed)
        else:  # not kept in memory until the user is learned
            self._relearner.add(record.user)
        return key[2], after

    def _change(self, user: str, change: Change) -> tuple[Record, Record]:
        """Apply a change as `changes.apply`; writers of a user queue here, since many that try again starve some."""
        with self._locks[hash(user) % LOCKS]:
            return changes.apply(self.store, user, change, self._now)

    def _fewer(self, user: str, change: Change) -> int:
        """Apply a change that removes texts; return their number."""
        before, after = self._change(checked_id(user), change)
        if not self.model.has_learned(after):
            self._relearner.add(user)
        return len(before.texts) - len(after.texts)

    def _expire(self, user: str, before: int) -> None:
        try:
            record = self.store.read(user)
        except DamagedRecordError:
            self.store.delete(user)
            return
        if record is None:
            return
        if not (record.paused and record.updated_at >= before) and all(one.time < before for one in record.texts):
            self.store.delete(user, record.version)
            return
        self._fewer(user, lambda found: changes.keep_texts(found, tuple(t for t in found.texts if t.time >= before)))


def _key(model: ServedModel, user: str | None, version: int | None, context: Context) -> Key:
    """Return the key of a typed text in memory; all users without a record share one.

    True == 1 in Python, but they are different categories, so the key says which values are booleans.
    """
    values = tuple((name, isinstance(value, bool), value) for name, value in sorted(context.items()))
    return model, None if version is None else user, version, values


def _before_cursor(request: CompletionRequest) -> str:
    query, cursor = check_text(request.query, "query"), request.cursor
    if cursor is None:
        return clean_prefix(query)
    if type(cursor) is not int or not 0 <= cursor <= len(query):
        raise UserError(f"cursor is {cursor!r:.30}; valid are places in the query, from 0 to {len(query)}")
    return clean_prefix(query[:cursor])


def _numbers(record: Record, through: int) -> tuple[int, ...]:
    return tuple(one.number for one in record.texts if one.number <= through)
