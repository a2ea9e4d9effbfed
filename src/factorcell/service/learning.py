"""A model that is served: what it has learned of each user's texts, and its suggestions for them.

What is learned is a function of the model and of the kept texts in their order. So it can be computed again at any
time, by another model too, and comes out bit for bit the same.
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

UNKNOWN_POLICY = "group"  # context values that training never saw count as the rare ones


class ServedModel:
    """A run that completes for users and learns them; any thread may use it.

    Attributes:
        completer: Makes the suggestions: a `Blend` if the run distinguishes users and has popular texts.
        identity: A digest of the weights and of the way of learning.
    """

    def __init__(self, run: Run, *, typos: int = 0, is_allowed: TextFilter | None = None) -> None:
        """Prepare a run.

        Args:
            run: A run with trained weights and the tokenizer `char` or `grapheme`.
            typos: Typing errors to forgive, 0 to 2.
            is_allowed: Returns whether a text may be suggested.

        Raises:
            UserError: The run has no trained weights or cannot complete.
        """
        if not run.fingerprint:
            raise UserError(f"{run.folder}: it has no trained weights")
        self.run, self.is_allowed = run, is_allowed
        self._learner = Learner(run, unknown=UNKNOWN_POLICY) if distinguishes_users(run) else None
        self.completer = new_suggester(run, unknown=UNKNOWN_POLICY, typos=typos, is_allowed=is_allowed)
        rule = LearningRule() if self._learner is None else self._learner.rule
        reach = "" if rule.reach == LearningRule.reach else f"{float(rule.reach)!r} "
        how = f"{rule.optimiser} {float(rule.rate)!r} {reach}{UNKNOWN_POLICY}".encode()
        self.identity = hashlib.blake2b(run.fingerprint + how, digest_size=DIGEST).digest()

    @property
    def learner(self) -> Learner:
        """What learns users. `UserError` for a run that does not distinguish users."""
        if self._learner is None:
            raise UserError("this model does not tell people apart, so it learns nobody; train it with --user COLUMN")
        return self._learner

    def check(self, text: str, context: Mapping[str, Any]) -> bool:
        """Return whether only the first `max_tokens` tokens of a text can be learned.

        `UserError` for a text or context that cannot be learned.
        """
        self._check_context(context)
        return bool(self.run.read([text], [context], unknown=UNKNOWN_POLICY).truncated[0])

    def probe(self) -> None:
        """Complete and learn once, so that the first user need not wait for what is loaded then.

        `UserError` if a suggestion is not as it must be.
        """
        found = self.completer.suggest(self.begin(None, {}), 1).suggestions
        if not all(one.log_probability <= 0 for one in found):
            raise UserError(f"{self.run.folder}: it suggests texts that are more than certain")
        if self._learner is not None:
            self._learner.learn([self._learner.new()], [found[0].text if found else "a"])

    def has_learned(self, record: Record) -> bool:
        """Return whether there is nothing left to learn of a user."""
        if self._learner is None:
            return True
        state = record.state(self.identity)
        return not record.texts if state is None else state.last_number == record.accepted

    def user(self, record: Record | None) -> User | None:
        """Return the user as far as the model has learned them, with their history; None if it learns nobody."""
        if self._learner is None:
            return None
        if record is None:
            return self._learner.new()
        history = History(
            tuple(self.run.tokenizer.normalize_fully(text.text) for text in record.texts[-History.max_texts :])
        )
        return replace(self._before(record.state(self.identity)), history=history)

    def begin(self, record: Record | None, context: Mapping[str, Any]) -> TypedText:
        """Return the empty text typed by a user in a context. `UserError` for a context that the model cannot read."""
        self._check_context(context)
        return self.completer.begin(self.user(record), context)

    def learn(self, state: LearnedState | None, texts: Iterable[StoredText], through: int) -> LearnedState:
        """Return the state after the `texts`, up to the one of number `through`, that it has not learned yet.

        A context that this model does not know is left out; a text of which nothing can be learned changes nothing.
        """
        user, known = self._before(state), state.last_number if state else 0
        for text in texts:
            if text.number > known:
                user = self._learn_one(user, text)
        return LearnedState(self.identity, through, replace(user, history=History()).to_bytes())

    def _before(self, state: LearnedState | None) -> User:
        return self.learner.new() if state is None else User.from_bytes(state.user)

    def _learn_one(self, user: User, text: StoredText) -> User:
        for context in (text.context, {}) if text.context else ({},):
            with suppress(UserError):
                (after,), _ = self.learner.learn([user], [text.text], [context])
                return after
        return user

    def _check_context(self, context: Mapping[str, Any]) -> None:
        column = self.run.config.data.user
        if column in context and self._learner is not None:
            raise UserError(f"context {column}: in this model it is who types; valid is to say `user` alone")
