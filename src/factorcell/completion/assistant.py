"""All that a run has for one person who types: it completes, blends and learns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Allowed, Completer, Suggestions, TypedText
from factorcell.completion.online import Learner, User, tells_apart
from factorcell.completion.popularity import Popularity
from factorcell.completion.search import Stop
from factorcell.data.cache import report_truncated
from factorcell.data.counts import POPULARITY
from factorcell.data.tokens import truncated
from factorcell.model.run import Run


@dataclass(frozen=True)
class Assistant:
    """What suggests, a blend where the run keeps popular texts, and a `learner` where it tells users apart.

    No source suggests a text that is not `allowed`.
    """

    suggester: Completer | Blend
    learner: Learner | None = None
    allowed: Allowed | None = None

    @classmethod
    def of(
        cls,
        run: Run,
        unknown: str = "error",
        seconds: float | None = None,
        slips: int = 0,
        allowed: Allowed | None = None,
    ) -> "Assistant":
        """All that `run` has; options as `Completer`."""
        completer = Completer(run, unknown=unknown, seconds=seconds, slips=slips, allowed=allowed)
        if not tells_apart(run):
            return cls(completer, None, allowed)
        learner = Learner(run, unknown=unknown)
        if not (run.folder / POPULARITY).exists():
            return cls(completer, learner, allowed)
        return cls(Blend(completer, Popularity.of(run, allowed)), learner, allowed)

    @property
    def popularity(self) -> Popularity | None:
        """The popular texts that are blended, if any."""
        return self.suggester.popularity if isinstance(self.suggester, Blend) else None

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Nothing typed yet, by `user` in `context`, as `Completer.begin`."""
        if user is not None and self.allowed is not None:
            shown = tuple(filter(self.allowed, user.history.texts))
            user = replace(user, history=replace(user.history, texts=shown))
        return self.suggester.begin(user, context)

    def type(self, written: TypedText, text: str) -> TypedText:
        """The same person with `text` typed instead, as `Completer.type`."""
        return self.suggester.type(written, text)

    def suggest(
        self, written: TypedText, k: int = 10, seconds: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """The best `k` texts that go on from what is written; within `seconds`, if given, and until `stop` is set."""
        return self.suggester.suggest(written, k, seconds, stop)

    def learn(self, user: User | None, text: str, context: Mapping[str, Any] | None = None) -> User | None:
        """The user after a text, written in `context`.

        A `Notice` says if the text is cut after `max_tokens` tokens, as in training, so that only its beginning is
        learned.
        """
        if self.learner is None or user is None:
            return user
        (after,), _ = self.learner.learn([user], [text], None if context is None else [context])
        limit = self.learner.run.config.data.max_tokens
        report_truncated(truncated([text], self.learner.run.tokenizer, limit), "the text learned", limit)
        return after
