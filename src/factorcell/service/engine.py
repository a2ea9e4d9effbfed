"""People served: completed for, learned, shown what is kept of them, and forgotten.

    service = Service(ServedModel(Run.open("runs/qac")), open_store("sqlite:///users.db"))
    service.complete(CompletionRequest("how to ba", user="ann")).results
    service.accept("ann", "how to bake bread", key="2f6c")

Everything blocks, and may be called from any thread. Errors are a `UserError` for what the caller gave, a `StoreError`
where the store fails.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from factorcell import limits
from factorcell.completion.completer import TypedText
from factorcell.completion.search import Stop, Suggestion
from factorcell.completion.texts import checked, clean_prefix, clean_text
from factorcell.config import UserError
from factorcell.service import changes
from factorcell.service.changes import Accepted, Change
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.recent import Recent
from factorcell.service.record import (
    DamagedRecordError,
    KeptText,
    Record,
    StoreError,
    checked_context,
    checked_id,
    checked_key,
)
from factorcell.service.relearning import Relearner
from factorcell.service.stores.attended import AttendedStore
from factorcell.service.stores.store import Store

CACHED = 1000  # people whose weights are kept in memory
LOCKS = 1024  # people who write at once in one process; two may share one
WRITING = 10.0  # seconds within which a change is written, whoever else writes
PAUSE = 0.01  # seconds at most before a change that came second is tried again
ATTEMPTS = 5  # to learn somebody again while others write
CHARACTERS = 32  # of what is typed that are kept read in memory

Context = Mapping[str, Any]
Key = tuple[ServedModel, str | None, int | None, tuple[tuple[str, bool, Any], ...]]


class UserExistsError(UserError):
    """Somebody of that id is kept already."""


@dataclass(frozen=True)
class CompletionRequest:
    """What somebody typed: `query`, completed at the `cursor` (in characters; its end unless given).

    `user`: who, None for anybody. `private`: as if it were nobody, and the store is not asked. `context`: column ->
    value. At most `limit` suggestions within `seconds`, if given; `stop` may end the search before.
    """

    query: str
    user: str | None = None
    cursor: int | None = None
    context: Context = field(default_factory=dict)
    limit: int = 10
    seconds: float | None = None
    private: bool = False
    stop: Stop | None = None


@dataclass(frozen=True)
class Completions:
    """The best `results` first, each a whole text that goes on from what stands before the cursor.

    `degraded`: why they are not all that they could be: "time", "store" (what is learned of the person is missing), or
    None. `user_version`: that of the person they were made for, None for anybody.
    """

    results: list[Suggestion]
    degraded: Literal["time", "store"] | None = None
    user_version: int | None = None


@dataclass(frozen=True)
class Profile:
    """All that is kept of a person: `texts` by age, the oldest first; `learned`: whether the model knows them all."""

    user: str
    version: int
    accepted: int
    texts: tuple[KeptText, ...]
    paused: bool
    learned: bool


class Service:
    """A model and a store. `clock` gives Unix seconds."""

    def __init__(
        self,
        model: ServedModel,
        store: Store,
        *,
        privacy: Privacy | None = None,
        cached: int = CACHED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.model, self.store, self.privacy, self.clock = model, AttendedStore(store), privacy or Privacy(), clock
        self._typed: Recent[Key, TypedText] = Recent(cached)
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._relearner = Relearner(self.relearn)

    def use(self, model: ServedModel) -> None:
        """Serve this model from the next request on; people are learned again as they come."""
        self.model = model
        self._typed.drop()

    def complete(self, request: CompletionRequest) -> Completions:
        """The best texts that go on from what is typed. `UserError` for what cannot be completed."""
        stop = None if request.seconds is None else time.monotonic() + request.seconds
        limits.check(count=request.limit, seconds=request.seconds)
        prefix, context = _before_cursor(request), checked_context(request.context)
        user = None if request.user is None else checked_id(request.user)
        model, failed = self.model, False
        try:
            version, written = self._type(model, None if request.private else user, context, prefix)
        except StoreError:
            failed = True
            version, written = self._type(model, None, context, prefix)
        if _nothing_allowed(model, prefix):
            return Completions([], "store" if failed else None, version)
        left = None if stop is None else max(0.0, stop - time.monotonic())
        found = model.assistant.suggest(written, request.limit, left, request.stop)
        late = found.cut and stop is not None and time.monotonic() >= stop
        return Completions(found.suggestions, "store" if failed else "time" if late else None, version)

    def accept(
        self, user: str, text: str, *, context: Context | None = None, key: str | None = None, private: bool = False
    ) -> Accepted:
        """Learn and keep a text that a person accepted; it is on disk when this returns.

        With an idempotency `key` it is applied once, however often it comes. `private`: nothing is kept of it.
        `UserError` for a text or a context that cannot be learned.
        """
        model, text, known = self.model, clean_text(text), checked_context(context)
        checked_id(user)
        if key is not None:
            checked_key(key)
        if not text:
            raise UserError("an empty text was accepted; valid is any other")
        truncated = model.check(text, known)
        if private:
            return Accepted("private")
        if why := self.privacy.withholds(text, known):
            return Accepted("withheld", why=why)
        accepted = Accepted("paused")

        def change(record: Record) -> Record:
            nonlocal accepted
            if (number := changes.repeated(record, key, text)) is not None:
                accepted = Accepted("repeated", number)
                return record
            if record.paused:
                accepted = Accepted("paused")
                return record
            new = KeptText(record.accepted + 1, text, self._now(), known)
            after = changes.with_text(record, new, key, model, self.privacy)
            outcome: changes.Outcome = "learned" if model.has_learned(after) else "kept"
            accepted = Accepted(outcome, new.number, truncated=truncated)
            return after

        version = self._change(user, change).version
        if accepted.outcome == "kept":
            self._relearner.add(user)
        return replace(accepted, user_version=version)

    def show(self, user: str) -> Profile | None:
        """All that is kept of a person, None of nobody."""
        record = self.store.read(checked_id(user))
        if record is None:
            return None
        learned = self.model.has_learned(record)
        return Profile(user, record.version, record.accepted, record.texts, record.paused, learned)

    def export(self, user: str) -> dict[str, Any] | None:
        """All that a person gave, as plain values for JSON, None of nobody. `restore` takes it back."""
        record = self.store.read(checked_id(user))
        return None if record is None else changes.exported(record)

    def restore(self, values: Any) -> str:
        """Keep a person as `export` gave them, learn them soon, and say who it is.

        `UserError` for what is no export, and where somebody of that id is kept. What the rules of privacy of today
        withhold is left out.
        """
        record, now = changes.imported(values, self._now()), self._now()
        kept = (one for one in record.texts if not self.privacy.withholds(one.text, one.context))
        record = changes.changed(record, texts=self.privacy.fitting(self.privacy.fresh(kept, now)))
        if not self.store.write(record, None):
            raise UserExistsError("somebody of that id is kept already; delete them first")
        self._relearner.add(record.user)
        return record.user

    def delete(self, user: str) -> bool:
        """Delete all of a person, from the store and from memory; whether there was somebody."""
        deleted = self.store.delete(checked_id(user))
        self._typed.drop(lambda key: key[1] == user)
        return deleted

    def forget(self, user: str, text: str) -> int:
        """Delete a text of a person, and say how often it was there.

        At once nothing is learned of them; soon they are learned again from the texts that stay, so that they are as
        if they had never accepted it.
        """
        return self._fewer(user, lambda record: changes.without(record, clean_text(text)))

    def undo(self, user: str) -> int:
        """Delete the newest text of a person, as `forget` does; 0 if there is none."""
        return self._fewer(user, changes.undone)

    def pause(self, user: str, paused: bool = True) -> None:
        """Keep and learn nothing of a person until it is resumed (`paused` False)."""
        self._change(
            checked_id(user),
            lambda record: record if record.paused == paused else changes.changed(record, paused=paused),
        )

    def relearn(self, user: str) -> bool:
        """Have the model learn what it has not learned of a person; whether nothing is left to learn.

        It holds up no other writer: where one was first, what was learned until then counts.
        """
        model, state = self.model, None
        covered: tuple[int, ...] = ()
        for _ in range(ATTEMPTS):
            record = self.store.read(user)
            if record is None or model.has_learned(record):
                return True
            if state is None or covered != _numbers(record, state.through):
                state = record.state(model.identity)
            state = model.learn(state, record.texts, record.accepted)
            covered = _numbers(record, state.through)
            after = changes.changed(record, states=record.with_state(state), version=record.version + 1)
            if self.store.write(after, record.version):
                return True
        return False

    def settle(self, seconds: float = WRITING) -> bool:
        """Wait until everybody who was to be learned again is, at most so long; whether everybody is."""
        return self._relearner.settle(seconds)

    def expire(self) -> int:
        """Delete texts that are too old to be kept, and people of whom none stays; how many people had some.

        Of the others nothing is learned at once, and soon what the texts that stay say.
        """
        if self.privacy.keep is None:
            return 0
        count, before = 0, self._now() - self.privacy.keep
        while users := self.store.aged(before):
            for user in users:
                self._expire(user, before)
            count += len(users)
        return count

    def check(self) -> None:
        """`StoreError` unless the store can be read and written now."""
        self.store.check()

    def close(self) -> None:
        """Finish who is being learned, and close the store."""
        self._relearner.close()
        self.store.close()

    def _now(self) -> int:
        return int(self.clock())

    def _type(
        self, model: ServedModel, user: str | None, context: Context, prefix: str
    ) -> tuple[int | None, TypedText]:
        """What is typed, by a person as they are now, and the version of the person; None of nobody."""
        version = None if user is None else self.store.version(user)
        key, record = _key(model, user, version, context), None
        typed = self._typed.get(key)
        if typed is None:
            if user is not None and version is not None:
                record = self.store.read(user)
                key = _key(model, user, record.version if record else None, context)
            typed = model.begin(record, context)
        written = model.assistant.type(typed, prefix)
        if record is None or model.has_learned(record):
            self._typed.put(key, written if len(written.tokens) <= CHARACTERS else typed)
        else:  # until they are learned, every request sees to it that they will be
            self._relearner.add(record.user)
        return key[2], written

    def _change(self, user: str, change: Change) -> Record:
        """The person after a change, which is applied once, to what is kept of them then."""
        stop, lock = time.monotonic() + WRITING, self._locks[hash(user) % LOCKS]
        if not lock.acquire(timeout=WRITING):
            raise StoreError("others are writing this person all the time")
        try:
            while True:
                before = self.store.read(user)
                record = before or Record.new(user, self._now())
                after = change(record)
                if after is record:
                    return record
                after = changes.changed(after, version=record.version + 1, touched=self._now())
                if self.store.write(after, before.version if before else None):
                    return after
                if time.monotonic() > stop:
                    raise StoreError("others are writing this person all the time")
                time.sleep(random.uniform(0, PAUSE))  # another process was first
        finally:
            lock.release()

    def _fewer(self, user: str, change: Change) -> int:
        """How many texts fewer a person has after a change."""
        removed = 0

        def counted(record: Record) -> Record:
            nonlocal removed
            after = change(record)
            removed = len(record.texts) - len(after.texts)
            return after

        after = self._change(checked_id(user), counted)
        if not self.model.has_learned(after):
            self._relearner.add(user)
        return removed

    def _expire(self, user: str, before: int) -> None:
        """Have a person without what is from `before` that time."""
        try:
            record = self.store.read(user)
        except DamagedRecordError:
            self.store.delete(user)
            return
        if record is None:
            return
        if not (record.paused and record.touched >= before) and all(one.time < before for one in record.texts):
            self.store.delete(user, record.version)
            return
        self._fewer(user, lambda found: changes.with_texts(found, tuple(t for t in found.texts if t.time >= before)))


def _key(model: ServedModel, user: str | None, version: int | None, context: Context) -> Key:
    """Return the key of a typed text in memory; all users without a record share one.

    A boolean equals a number in Python (True == 1) but is another category, so the key has which of them a value is.
    """
    values = tuple((name, isinstance(value, bool), value) for name, value in sorted(context.items()))
    return model, None if version is None else user, version, values


def _before_cursor(request: CompletionRequest) -> str:
    """What is to be completed."""
    query, cursor = checked(request.query, "query"), request.cursor
    if cursor is None:
        return clean_prefix(query)
    if type(cursor) is not int or not 0 <= cursor <= len(query):
        raise UserError(f"cursor is {cursor!r:.30}; valid are places in the query, from 0 to {len(query)}")
    return clean_prefix(query[:cursor])


def _nothing_allowed(model: ServedModel, prefix: str) -> bool:
    """Whether the whole words that are typed hold what is suggested to nobody: no search could find anything."""
    whole = prefix[: prefix.rfind(" ") + 1]
    return model.assistant.allowed is not None and bool(whole) and not model.assistant.allowed(whole)


def _numbers(record: Record, through: int) -> tuple[int, ...]:
    """The texts up to this number."""
    return tuple(one.number for one in record.texts if one.number <= through)
