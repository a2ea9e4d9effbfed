"""What a run has for one user who types: it completes, blends and learns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Allowed, Completer, Suggestions, TypedText
from factorcell.completion.online import Learner, User, report_cut, tells_apart
from factorcell.completion.popularity import Popularity
from factorcell.completion.search import Stop
from factorcell.data.counts import POPULARITY
from factorcell.model.run import Run


@dataclass(frozen=True)
class Assistant:
    """A completer or blend, and a `learner` where the run tells users apart.

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
        """Return the assistant of `run`, which blends if the run keeps popular texts; options as `Completer`."""
        completer = Completer(run, unknown=unknown, seconds=seconds, slips=slips, allowed=allowed)
        if not tells_apart(run):
            return cls(completer, None, allowed)
        blended = (run.folder / POPULARITY).exists()
        suggester = Blend(completer, Popularity.of(run, allowed)) if blended else completer
        return cls(suggester, Learner(run, unknown=unknown), allowed)

    @property
    def popularity(self) -> Popularity | None:
        """The popular texts that are blended, if any."""
        return self.suggester.popularity if isinstance(self.suggester, Blend) else None

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Return the state before anything is typed, as `Completer.begin`."""
        if user is not None and self.allowed is not None:
            shown = tuple(filter(self.allowed, user.history.texts))
            user = replace(user, history=replace(user.history, texts=shown))
        return self.suggester.begin(user, context)

    def type(self, written: TypedText, text: str) -> TypedText:
        """Return the state for `text`, as `Completer.type`."""
        return self.suggester.type(written, text)

    def suggest(
        self, written: TypedText, k: int = 10, seconds: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the best `k` texts that continue what is written; `seconds` and `stop` as `Completer.suggest`."""
        return self.suggester.suggest(written, k, seconds, stop)

    def learn(self, user: User | None, text: str, context: Mapping[str, Any] | None = None) -> User | None:
        """Return the user after a text written in `context`; a `Notice` says if only its beginning is learned."""
        if self.learner is None or user is None:
            return user
        (after,), _ = self.learner.learn([user], [text], None if context is None else [context])
        report_cut(self.learner.run, text)
        return after
