"""A served model, which suggests texts to a user and learns the user's texts, and a thread that learns them later.

The learned state is a deterministic function of the model and of the saved texts in their order. Therefore the service
can compute the state again at any time, bit for bit, and another model can learn the same texts.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

from factorcell.completion.blend import new_suggester
from factorcell.completion.completer import TextFilter, TypedText
from factorcell.completion.online import Learner, LearningRule, User, distinguishes_users, user_variable
from factorcell.completion.popularity import MAX_HISTORY, History
from factorcell.data.text_folds import same_text
from factorcell.errors import UserError, check_choice
from factorcell.runs.run import Run
from factorcell.service.record import DIGEST_SIZE, LearnedState, Record, StoredText, StoreError, log_unexpected_error

PROBE_SECONDS = 1.0  # longest search of the completion that tries a model out when it is opened
LEARNING_POLICY = "group"  # saved texts are learned with context values that training never saw, read as rare values
MAX_QUEUED = 10_000  # maximum number of queued users; a full queue omits a user until that user's next request


class ServedModel:
    """A run that completes text for users and learns their texts. Any thread may use it.

    Attributes:
        completer: A `Blend` if the run distinguishes users and has popular texts, otherwise a `Completer`.
        identity: A digest of the weights and of the learning rule.
    """

    def __init__(self, run: Run, *, typos: int = 0, is_allowed: TextFilter | None = None) -> None:
        """Prepare a run.

        Args:
            run: A run with trained weights and a tokenizer with which texts can be completed.
            typos: Maximum number of typing errors to correct, 0 to 2.
            is_allowed: Returns whether a text may be suggested; by default, every text without private content may.

        Raises:
            UserError: The run has no trained weights or cannot complete text.
        """
        if not run.fingerprint:
            raise UserError(f"{run.folder}: no trained weights; train the run first")
        self.run = run
        self._learner = Learner(run, unknown=LEARNING_POLICY) if distinguishes_users(run) else None
        self.completer = new_suggester(run, typos=typos, is_allowed=is_allowed)
        rule = LearningRule() if self._learner is None else self._learner.rule
        rule_bytes = f"{rule.optimizer} {float(rule.rate)!r} {float(rule.max_norm)!r} {LEARNING_POLICY}".encode()
        self.identity = hashlib.blake2b(run.fingerprint + rule_bytes, digest_size=DIGEST_SIZE).digest()

    @property
    def learner(self) -> Learner:
        """The online learner. This property raises a `UserError` if the run does not distinguish users."""
        user_variable(self.run)  # raises an error if there is no learner
        assert self._learner is not None
        return self._learner

    def is_truncated(self, text: str, context: Mapping[str, Any], unknown: str) -> bool:
        """Return whether the model learns only the first `max_tokens` tokens of a text.

        Raises:
            UserError: The text or the context cannot be learned.
        """
        self._check_context(context)
        return bool(self.run.read([text], [context], unknown=unknown).truncated[0])

    def probe(self) -> None:
        """Complete and learn one text, to load everything that the first request would otherwise wait for.

        Raises:
            UserError: A suggestion has a probability above 1.
        """
        deadline = time.monotonic() + PROBE_SECONDS
        suggestions = self.completer.suggest(self.begin(None, {}), 1, deadline=deadline).suggestions
        if not all(suggestion.log_probability <= 0 for suggestion in suggestions):
            raise UserError(
                f"{self.run.folder}: the model suggested a text with a probability above 1; train a new run"
            )
        text = suggestions[0].text if suggestions else "a"
        popularity = getattr(self.completer, "popularity", None)
        if popularity is not None:  # it sorts its texts when it first needs this order
            popularity.complete_in_other_case(text, 1)
            popularity.complete(text, 1, self.completer.max_typos)
        if self._learner is not None:
            self._learner.learn([self._learner.new()], [text])

    def has_learned(self, record: Record) -> bool:
        """Return whether the model has learned all texts of a record; True if the run does not distinguish users."""
        if self._learner is None:
            return True
        state = record.state(self.identity)
        return not record.texts if state is None else state.last_number == record.last_number

    def user(self, record: Record | None) -> User | None:
        """Return the user after the learned texts of a record, with its newest texts as history; None without users."""
        if self._learner is None:
            return None
        return self._learner.new() if record is None else self._user_after(record.state(self.identity), record.texts)

    def begin(self, record: Record | None, context: Mapping[str, Any], unknown: str = "error") -> TypedText:
        """Return the state before a user types the first character; raise a `UserError` if the context is invalid."""
        self._check_context(context)
        return self.completer.begin(self.user(record), context, unknown)

    def learn(self, record: Record, max_texts: int | None = None) -> Record:
        """Return a record whose state has learned its texts, or the next `max_texts` texts that it has not learned yet.

        If this model does not know the context of a text, it learns the text without the context. If it cannot learn
        the text either, it skips the text.
        """
        state = record.state(self.identity)
        learned_number = state.last_number if state else 0
        learned_texts = [saved for saved in record.texts if saved.number <= learned_number]
        new_texts = record.texts[len(learned_texts) :]
        learned_now = new_texts[:max_texts]
        user = self._user_after(state, learned_texts)
        for saved in learned_now:
            user = self._learn_one(user, saved)
        last_number = learned_now[-1].number if len(learned_now) < len(new_texts) else record.last_number
        return record.with_state(LearnedState(self.identity, last_number, replace(user, history=History()).to_bytes()))

    def _user_after(self, state: LearnedState | None, texts: Sequence[StoredText]) -> User:
        """Return the user with a learned state, and with the newest of `texts` as history."""
        user = self.learner.new() if state is None else User.from_bytes(state.user_bytes)
        newest_texts = [self.run.tokenizer.normalize(saved.text) for saved in texts[-MAX_HISTORY:]]
        return replace(user, history=History(tuple(map(same_text, newest_texts))))

    def _learn_one(self, user: User, saved: StoredText) -> User:
        """Return the user after learning a text with its context, or without it if the model does not know it."""
        contexts: list[Mapping[str, Any]] = [saved.context, {}] if saved.context else [{}]
        for context in contexts:
            with suppress(UserError):
                (updated_user,), _ = self.learner.learn([user], [saved.text], [context])
                return updated_user
        return user

    def _check_context(self, context: Mapping[str, Any]) -> None:
        """Raise a `UserError` if a context has a value for the column of users or for an unknown column."""
        user_column = self.run.config.data.user if self._learner is not None else ""
        if user_column and user_column in context:
            raise UserError(f"context {user_column}: the model reads this column as the user; set `user` instead")
        for name in context:
            check_choice("context column", name, self.run.schema.columns(without=user_column))


class Relearner:
    """A thread that calls `learn` for each added user, one after the other."""

    def __init__(self, learn: Callable[[str], object]) -> None:
        self._learn = learn
        self._queued: set[str] = set()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, "factorcell-relearning")

    def add(self, user: str) -> None:
        """Queue a user, unless the user is queued already, the queue is full, or `close` was called."""
        with self._lock:
            if user not in self._queued and len(self._queued) < MAX_QUEUED:
                with suppress(RuntimeError):  # `close` was called
                    self._executor.submit(self._run, user)
                    self._queued.add(user)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until the thread has processed all queued users; return False after `seconds` of waiting."""
        return not wait([self._executor.submit(int)], seconds).not_done  # the last task of the only thread

    def close(self) -> None:
        """Finish learning the current user and drop the queue."""
        self._executor.shutdown(cancel_futures=True)

    def _run(self, user: str) -> None:
        with self._lock:
            self._queued.discard(user)
        try:
            self._learn(user)
        except StoreError:
            pass  # the next request of this user queues the user again
        except Exception as error:  # the error concerns one user; the texts of other users must still be learned
            log_unexpected_error(error)
