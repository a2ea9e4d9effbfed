"""From a prefix and a context to suggestions: a run of characters that completes what somebody types.

    completer = Completer(Run.open("runs/queries"))
    completer.complete("how to ba", {"user": "ann"})            # at once
    typed = completer.begin({"user": "ann"})                    # or a keystroke at a time
    typed = completer.type(typed, "how to b")
    completer.suggest(typed).suggestions

Nothing here changes once it is made, and what is typed is a value of the caller's, so threads can share a completer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorcell import compiled_search
from factorcell.completion import Found, Ids, Suggestion, Wanted
from factorcell.config import UserError, choose
from factorcell.run import Run
from factorcell.vocabulary import splitter

UNITS = ("char", "grapheme")


@dataclass(frozen=True)
class Written:
    """What somebody has typed: its `tokens` as they are, known to the model or not, and how the search keeps them."""

    tokens: tuple[str, ...]
    typed: Any


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

    def complete(self, prefix: str, context: Mapping[str, Any] | None = None, k: int = 10) -> list[Suggestion]:
        """The `k` most probable texts that begin with `prefix` and go on, in `context`, as `begin`."""
        return self.suggest(self.type(self.begin(context), prefix), k).suggestions

    def begin(self, context: Mapping[str, Any] | None = None) -> Written:
        """Nothing typed yet, by somebody whose `context` is given as column -> value; what is not given is expected.

        `UserError` for a column or value that the run does not know.
        """
        given, schema = dict(context or {}), self.run.schema
        for name in given:
            choose("context column", name, dict.fromkeys(variable.source for variable in schema.variables))
        missing = tuple(variable.name for variable in schema.variables if variable.source not in given)
        row = {**given, self.run.config.data.text: ""}
        corpus = self.run.prepare([row], unknown=self.unknown, optional=missing)
        with self.run.scoring():
            return Written((), self.engine.begin(corpus.context(np.zeros(1, np.int64)).to(self.run.device)))

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
