"""All that a run has for one person who types: it completes, blends and learns."""

from dataclasses import dataclass

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer, Suggestions, TypedText
from factorcell.completion.online import Learner, User, tells_apart
from factorcell.completion.popularity import Popularity
from factorcell.data.counts import POPULARITY
from factorcell.model.run import Run


@dataclass(frozen=True)
class Assistant:
    """What completes and what learns: a `blend` where there is one, a `learner` where the run tells users apart."""

    completer: Completer
    blend: Blend | None = None
    learner: Learner | None = None

    @classmethod
    def of(cls, run: Run, unknown: str = "error", seconds: float | None = None, slips: int = 0) -> "Assistant":
        """A blend where the run keeps popular texts, learning where it tells users apart; options as `Completer`."""
        completer = Completer(run, unknown=unknown, seconds=seconds, slips=slips)
        if not tells_apart(run):
            return cls(completer)
        blend = Blend(completer, Popularity.of(run)) if (run.folder / POPULARITY).exists() else None
        return cls(completer, blend, Learner(run))

    def suggest(self, written: TypedText, user: User | None, count: int) -> Suggestions:
        """The best `count` texts that go on from what `user` has written."""
        if self.blend is None or user is None:
            return self.completer.suggest(written, count)
        return self.blend.suggest(written, user, count)

    def learn(self, user: User | None, text: str) -> User | None:
        """The user after a text."""
        if self.learner is None or user is None:
            return user
        (after,), _ = self.learner.learn([user], [text])
        return after
