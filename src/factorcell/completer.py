"""From a prefix and a context to suggestions: a run of characters that completes what somebody types.

    completer, user = Completer(run := Run.open("runs/queries")), User.new(run)
    completer.complete("how to ba", user)                       # at once
    written = completer.type(completer.begin(user), "how to b")  # or a keystroke at a time
    completer.suggest(written).suggestions
    user = learn_one(run, user, "how to bake bread")            # what was meant

Nothing here changes once it is made, and what is typed is a value of the caller's, so threads can share a completer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from factorcell import compiled_search
from factorcell.completion import Found, Ids, Suggestion, Wanted
from factorcell.config import UserError
from factorcell.online import User, user_variable
from factorcell.run import Run
from factorcell.vocabulary import splitter

UNITS = ("char", "grapheme")


@dataclass(frozen=True)
class Written:
    """What somebody has typed: its `tokens` as they are, known to the model or not, and how the search keeps them."""

    tokens: tuple[str, ...]
    typed: Any

    @property
    def text(self) -> str:
        """The tokens as one text."""
        return "".join(self.tokens)


@dataclass(frozen=True)
class Suggestions:
    """The best `suggestions` first. `rows` were computed for them; `cut`: there may be better ones."""

    suggestions: list[Suggestion]
    rows: int
    cut: bool


class Completer:
    """Completions by a run of characters or graphemes. A text ends within the run's `max_tokens`."""

    def __init__(self, run: Run, *, unknown: str = "error", seconds: float | None = None) -> None:
        """`unknown`: what of context values that training never saw, as `Run.prepare`; `seconds` bounds a search.

        The weights are those of now: a run that learns on needs a completer anew.
        """
        data = run.config.data
        if data.unit not in UNITS:
            raise UserError(f"{run.folder}: its unit is {data.unit}; completion needs {' or '.join(UNITS)}")
        self.run, self.unknown, self.seconds = run, unknown, seconds
        self.split, self.most = splitter(data), data.max_tokens - 1  # a longer text was cut in training: it has no end
        self.engine: Any = compiled_search.engine(run.model, run.precision)

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """The `k` most probable texts that begin with `prefix` and go on, by `user` in `context`, as `begin`."""
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> Written:
        """Nothing typed yet, by `user` in `context`, column -> value; what is not given is expected.

        `UserError` for a column or value that the run does not know.
        """
        override = {} if user is None else {user_variable(self.run).name: torch.from_numpy(user.vector)[None]}
        corpus = self.run.read([""], [context or {}], unknown=self.unknown)
        with self.run.scoring():
            own = {name: vector.to(self.run.device) for name, vector in override.items()}
            return Written((), self.engine.begin(corpus.context(np.zeros(1, np.int64)).to(self.run.device), own))

    def type(self, written: Written, text: str) -> Written:
        """The same person with `text` typed instead; what it shares with what was typed is not read again.

        `UserError` for a text that is too long for the run, or that is no Unicode text.
        """
        tokens = self._tokens(text)
        with self.run.scoring():
            return Written(tokens, self.engine.type(written.typed, self.run.vocabulary.encode(tokens)))

    def suggest(self, written: Written, k: int = 10) -> Suggestions:
        """The `k` most probable texts that go on from what is written."""
        return self.suggest_all([written], k)[0]

    def suggest_all(self, written: Sequence[Written], k: int = 10, threads: int = 1) -> list[Suggestions]:
        """The same for many who type, each done by one of `threads`."""
        if k < 1:
            raise UserError(f"{k} suggestions are wanted; it must be at least 1")
        with self.run.scoring():
            found = self.engine.search([self._wanted(one, k) for one in written], self.seconds, threads)
        return [self._suggestions(one, of) for one, of in zip(written, found, strict=True)]

    def _wanted(self, written: Written, k: int) -> Wanted[Any]:
        def accept(ids: Ids) -> bool:
            """Something is added, and read again the text would be the same tokens: no two ways to write one text."""
            tokens = (*written.tokens, *self.run.vocabulary.decode(ids))
            return bool(ids) and tuple(self.split("".join(tokens))) == tokens

        return Wanted(written.typed, k, self.most - len(written.tokens), accept)

    def _suggestions(self, written: Written, found: Found) -> Suggestions:
        typed = "".join(written.tokens)
        suggestions = [
            Suggestion(typed + "".join(self.run.vocabulary.decode(one.ids)), one.log_probability, "model")
            for one in found.completions
        ]
        return Suggestions(suggestions, found.rows, found.cut)

    def _tokens(self, text: str) -> tuple[str, ...]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"prefix {text[:50]!a}: not Unicode text (character {error.start + 1})") from None
        # Lower-casing can leave letters that NFC would join: split again, so that suggestions are read as they were.
        tokens = tuple(self.split("".join(self.split(text))))
        if len(tokens) > self.most:
            unit = self.run.config.data.unit
            raise UserError(f"a prefix of {len(tokens):,} {unit}s; this run completes texts of up to {self.most:,}")
        return tokens
