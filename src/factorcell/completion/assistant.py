"""All that a run has for one person who types: it completes, blends and learns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer, Suggestions, TypedText
from factorcell.completion.online import Learner, User, tells_apart
from factorcell.completion.popularity import Popularity
from factorcell.data.counts import POPULARITY
from factorcell.model.run import Run


@dataclass(frozen=True)
class Assistant:
    """What suggests, a blend where the run keeps popular texts, and a `learner` where it tells users apart."""

    suggester: Completer | Blend
    learner: Learner | None = None

    @classmethod
    def of(cls, run: Run, unknown: str = "error", seconds: float | None = None, slips: int = 0) -> "Assistant":
        """All that `run` has; options as `Completer`."""
        completer = Completer(run, unknown=unknown, seconds=seconds, slips=slips)
        if not tells_apart(run):
            return cls(completer)
        if not (run.folder / POPULARITY).exists():
            return cls(completer, Learner(run))
        return cls(Blend(completer, Popularity.of(run)), Learner(run))

    @property
    def popularity(self) -> Popularity | None:
        """The popular texts that are blended, if any."""
        return self.suggester.popularity if isinstance(self.suggester, Blend) else None

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Nothing typed yet, by `user` in `context`, as `Completer.begin`."""
        return self.suggester.begin(user, context)

    def type(self, written: TypedText, text: str) -> TypedText:
        """The same person with `text` typed instead, as `Completer.type`."""
        return self.suggester.type(written, text)

    def suggest(self, written: TypedText, k: int = 10) -> Suggestions:
        """The best `k` texts that go on from what is written."""
        return self.suggester.suggest(written, k)

    def learn(self, user: User | None, text: str) -> User | None:
        """The user after a text."""
        if self.learner is None or user is None:
            return user
        (after,), _ = self.learner.learn([user], [text])
        return after
