"""A served model: suggestions for a user, and the learned state of a user.

The learned state is a deterministic function of the model and the saved texts in order. It can therefore be computed
again at any time with identical bits, and another model can learn the same user from the same texts.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from factorcell.completion.blend import new_suggester
from factorcell.completion.completer import TextFilter, TypedText
from factorcell.completion.online import Learner, LearningRule, User, distinguishes_users
from factorcell.completion.popularity import History
from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.record import DIGEST, LearnedState, Record, StoredText

UNKNOWN_POLICY = "group"  # context values that training never saw are treated as rare values


class ServedModel:
    """A run that completes text for users and learns them. Any thread may use it.

    Attributes:
        completer: Makes the suggestions: a `Blend` if the run distinguishes users and has popular texts.
        identity: A digest of the weights and of the learning rule.
    """

    def __init__(self, run: Run, *, typos: int = 0, is_allowed: TextFilter | None = None) -> None:
        """Prepare a run.

        Args:
            run: A run with trained weights and the tokenizer `char` or `grapheme`.
            typos: Typing errors to correct, 0 to 2.
            is_allowed: Returns whether a text may be suggested.

        Raises:
            UserError: The run has no trained weights or cannot complete text.
        """
        if not run.fingerprint:
            raise UserError(f"{run.folder}: no trained weights; train the run first")
        self.run, self.is_allowed = run, is_allowed
        self._learner = Learner(run, unknown=UNKNOWN_POLICY) if distinguishes_users(run) else None
        self.completer = new_suggester(run, unknown=UNKNOWN_POLICY, typos=typos, is_allowed=is_allowed)
        rule = LearningRule() if self._learner is None else self._learner.rule
        reach = "" if rule.reach == LearningRule.reach else f"{float(rule.reach)!r} "
        settings = f"{rule.optimiser} {float(rule.rate)!r} {reach}{UNKNOWN_POLICY}".encode()
        self.identity = hashlib.blake2b(run.fingerprint + settings, digest_size=DIGEST).digest()

    @property
    def learner(self) -> Learner:
        """The online learner. `UserError` if the run does not distinguish users."""
        if self._learner is None:
            raise UserError("the model does not distinguish users and cannot learn them; train it with --user COLUMN")
        return self._learner

    def check(self, text: str, context: Mapping[str, Any]) -> bool:
        """Check that a text and its context can be learned.

        Returns:
            Whether only the first `max_tokens` tokens of the text can be learned.

        Raises:
            UserError: The text or the context cannot be learned.
        """
        self._check_context(context)
        return bool(self.run.read([text], [context], unknown=UNKNOWN_POLICY).truncated[0])

    def probe(self) -> None:
        """Complete and learn once, which loads everything that the first request would otherwise wait for.

        Raises:
            UserError: A suggestion has a probability above 1.
        """
        suggestions = self.completer.suggest(self.begin(None, {}), 1).suggestions
        if not all(suggestion.log_probability <= 0 for suggestion in suggestions):
            raise UserError(f"{self.run.folder}: the model suggested a text with a probability above 1; train it again")
        if self._learner is not None:
            self._learner.learn([self._learner.new()], [suggestions[0].text if suggestions else "a"])

    def has_learned(self, record: Record) -> bool:
        """Return whether the model has learned all texts of a user."""
        if self._learner is None:
            return True
        state = record.state(self.identity)
        return not record.texts if state is None else state.last_number == record.accepted

    def user(self, record: Record | None) -> User | None:
        """Return the user in the last learned state, with the history; None if the run does not distinguish users."""
        if self._learner is None:
            return None
        if record is None:
            return self._learner.new()
        history = History(
            tuple(self.run.tokenizer.normalize_fully(text.text) for text in record.texts[-History.max_texts :])
        )
        return replace(self._before(record.state(self.identity)), history=history)

    def begin(self, record: Record | None, context: Mapping[str, Any]) -> TypedText:
        """Return the state before a user types the first character in a context. `UserError` if it is invalid."""
        self._check_context(context)
        return self.completer.begin(self.user(record), context)

    def learn(self, state: LearnedState | None, texts: Iterable[StoredText], last_number: int) -> LearnedState:
        """Return the state after learning the texts that `state` does not cover yet.

        Contexts that this model does not know are omitted. A text from which nothing can be learned has no effect.

        Args:
            state: The state so far, or None.
            texts: All saved texts, by number.
            last_number: The number of the last text that the new state covers.
        """
        user, last_learned = self._before(state), state.last_number if state else 0
        for text in texts:
            if text.number > last_learned:
                user = self._learn_one(user, text)
        return LearnedState(self.identity, last_number, replace(user, history=History()).to_bytes())

    def _before(self, state: LearnedState | None) -> User:
        return self.learner.new() if state is None else User.from_bytes(state.user)

    def _learn_one(self, user: User, text: StoredText) -> User:
        for context in (text.context, {}) if text.context else ({},):
            with suppress(UserError):
                (updated,), _ = self.learner.learn([user], [text.text], [context])
                return updated
        return user

    def _check_context(self, context: Mapping[str, Any]) -> None:
        column = self.run.config.data.user
        if column in context and self._learner is not None:
            raise UserError(f"context {column}: this column is the user of the model; set `user` instead")
