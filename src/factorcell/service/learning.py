"""One model that is served: what it has learned of a person's kept texts, and that person as it knows them.

What is learned is a function of the model and of the kept texts, one after the other. So it can be computed again at
any time, by another model too, and comes out bit for bit the same.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from factorcell.completion.assistant import Assistant
from factorcell.completion.completer import Allowed, TypedText
from factorcell.completion.online import Learner, LearningRule, User
from factorcell.completion.popularity import History
from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.record import DIGEST, KeptText, LearnedState, Record


class ServedModel:
    """A run that completes for people and learns them. Nothing in it changes: any thread may use it.

    `identity` is the same for the same weights and the same way of learning, wherever they are opened.
    """

    def __init__(self, run: Run, *, unknown: str = "group", slips: int = 0, allowed: Allowed | None = None) -> None:
        """Options as `Assistant.of`. `UserError` for a run without trained weights, or that cannot complete."""
        if not run.fingerprint:
            raise UserError(f"{run.folder}: it has no trained weights")
        self.run, self.unknown = run, unknown
        self.assistant = Assistant.of(run, unknown=unknown, slips=slips, allowed=allowed)
        rule = LearningRule() if self.assistant.learner is None else self.assistant.learner.rule
        reach = "" if rule.reach == LearningRule.reach else f"{float(rule.reach)!r} "
        how = f"{rule.optimiser} {float(rule.rate)!r} {reach}{unknown}".encode()
        self.identity = hashlib.blake2b(run.fingerprint + how, digest_size=DIGEST).digest()

    @property
    def learner(self) -> Learner:
        """What learns, or a `UserError` for a run that does not tell people apart."""
        if self.assistant.learner is None:
            raise UserError("this model does not tell people apart, so it learns nobody; train it with --user COLUMN")
        return self.assistant.learner

    def check_context(self, context: Mapping[str, Any]) -> None:
        """`UserError` for a context that says who types, which would change nothing beside a person who is learned."""
        column = self.run.config.data.user
        if column in context and self.assistant.learner is not None:
            raise UserError(f"context {column}: in this model it is who types; valid is to say `user` alone")

    def check(self, text: str, context: Mapping[str, Any]) -> bool:
        """Return whether the text is cut, so that only its first `max_tokens` tokens can be learned.

        `UserError` for a text, or a context of it, that cannot be learned.
        """
        self.check_context(context)
        return bool(self.run.read([text], [context], unknown=self.unknown).truncated[0])

    def probe(self) -> None:
        """Complete and learn once, so that the first person need not wait for what is loaded then.

        `UserError` if a suggestion or what was learned is not as it must be.
        """
        user = None if self.assistant.learner is None else self.learner.new()
        found = self.assistant.suggest(self.assistant.begin(user), 1).suggestions
        if not all(one.log_probability <= 0 for one in found):
            raise UserError(f"{self.run.folder}: it suggests texts that are more than certain")
        if user is not None:
            self.learner.learn([user], [found[0].text if found else "a"])

    def has_learned(self, record: Record) -> bool:
        """Whether there is nothing of a person that it could still learn."""
        if self.assistant.learner is None:
            return True
        state = record.state(self.identity)
        return not record.texts if state is None else state.through == record.accepted

    def user(self, record: Record | None) -> User | None:
        """The person as the model knows them: as far as it has learned, with all of the history.

        None if it does not tell people apart.
        """
        learner = self.assistant.learner
        if learner is None:
            return None
        if record is None:
            return learner.new()
        history = History(tuple(learner.as_read(text.text) for text in record.texts[-History.most :]))
        return replace(self._before(record.state(self.identity)), history=history)

    def begin(self, record: Record | None, context: Mapping[str, Any]) -> TypedText:
        """Nothing typed yet, by the person as the model knows them. `UserError` for a context that it cannot read."""
        self.check_context(context)
        return self.assistant.begin(self.user(record), context)

    def learn(self, state: LearnedState | None, texts: Iterable[KeptText], through: int) -> LearnedState:
        """The state after those of the texts, up to the one of number `through`, that it has not learned yet.

        A context that this model does not know is left out; a text of which nothing can be learned changes nothing.
        """
        user, known = self._before(state), state.through if state else 0
        for text in texts:
            if text.number > known:
                user = self._learn_one(user, text)
        return LearnedState(self.identity, through, replace(user, history=History()).to_bytes())

    def _before(self, state: LearnedState | None) -> User:
        return self.learner.new() if state is None else User.from_bytes(state.user)

    def _learn_one(self, user: User, text: KeptText) -> User:
        for context in (text.context, {}) if text.context else ({},):
            with suppress(UserError):
                (after,), _ = self.learner.learn([user], [text.text], [context])
                return after
        return user
