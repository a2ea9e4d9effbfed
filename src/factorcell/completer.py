"""From a prefix and a context to suggestions: a run of characters that completes what somebody types.

    completer = Completer(Run.open("runs/queries"))
    completer.complete("how to ba", {"user": "ann"})            # at once
    typed = completer.begin({"user": "ann"})                    # or a keystroke at a time
    typed = completer.type(typed, "how to b")
    completer.suggest(typed).suggestions

Nothing here changes once it is made, and what is typed is a value of the caller's, so threads can share a completer.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorcell.completion import BATCH, Ids, Suggestion, Typed, search
from factorcell.config import UserError, choose
from factorcell.run import Run
from factorcell.slips import Meant, Slips, join, meant
from factorcell.vocabulary import splitter

UNITS = ("char", "grapheme")


@dataclass(frozen=True)
class Written:
    """What somebody has typed: its `tokens` as they are, known to the model or not, and how the model reads them."""

    tokens: tuple[str, ...]
    typed: Typed


@dataclass(frozen=True)
class Suggestions:
    """The best `suggestions` first. `rows` were computed for them; `cut`: there may be better ones."""

    suggestions: list[Suggestion]
    rows: int
    cut: bool


class Completer:
    """Completions by a run of characters or graphemes. A text ends within the run's `max_tokens`."""

    def __init__(
        self,
        run: Run,
        *,
        unknown: str = "error",
        seconds: float | None = None,
        batch: int = BATCH,
        slips: int | Slips = 0,
    ) -> None:
        """`unknown`: what of context values that training never saw, as `Run.prepare`; `seconds` bounds a search.

        `slips` of typing, at most 2, are forgiven (`slips.Slips`).
        """
        data = run.config.data
        if data.unit not in UNITS:
            raise UserError(f"{run.folder}: its unit is {data.unit}; completion needs {' or '.join(UNITS)}")
        self.run, self.unknown, self.seconds, self.batch = run, unknown, seconds, batch
        self.slips = Slips.of(slips)
        self.split, self.most = splitter(data), data.max_tokens - 1  # a longer text was cut in training: it has no end

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
            conditioned = self.run.model.condition(corpus.context(np.zeros(1, np.int64)).to(self.run.device))
            return Written((), Typed.begin(self.run.model, conditioned))

    def type(self, written: Written, text: str) -> Written:
        """The same person with `text` typed instead; what it shares with what was typed is not read again.

        `UserError` for a text that is too long for the run, or that is no Unicode text.
        """
        tokens = self._tokens(text)
        with self.run.scoring():
            return Written(tokens, written.typed.to(self.run.model, self.run.vocabulary.encode(tokens)))

    def suggest(self, written: Written, k: int = 10) -> Suggestions:
        """The `k` most probable texts that go on from what is written, or where slips are forgiven from what was meant.

        Those that go on from what is written come first.
        """
        if k < 1:
            raise UserError(f"{k} suggestions are wanted; it must be at least 1")
        with self.run.scoring():
            if self.slips.within(len(written.tokens)):
                return self._forgive(written, k)
            return self._finish(written, k, self.seconds)

    def _finish(
        self, written: Written, k: int, seconds: float | None, added: int = 1, least: float = -math.inf
    ) -> Suggestions:
        """The `k` most probable texts that go on from what is written by `added` tokens or more, as `search`."""

        def text(ids: Ids) -> str:
            return "".join((*written.tokens, *self.run.vocabulary.decode(ids)))

        def accept(ids: Ids) -> bool:
            """Something is added, and read again the text would be the same tokens: no two ways to write one text."""
            tokens = (*written.tokens, *self.run.vocabulary.decode(ids))
            return len(ids) >= added and tuple(self.split(text(ids))) == tokens

        found = search(
            self.run.model,
            written.typed,
            k,
            most=self.most - len(written.tokens),
            least=least,
            accept=accept,
            batch=self.batch,
            seconds=seconds,
        )
        suggestions = [Suggestion(text(one.ids), one.log_probability, "model") for one in found.completions]
        return Suggestions(suggestions, found.rows, found.cut)

    def _forgive(self, written: Written, k: int) -> Suggestions:
        """The same with slips: half of the time is for what is written, the rest for what may have been meant."""
        model, vocabulary, stop = self.run.model, self.run.vocabulary, None
        if self.seconds is not None:
            stop = time.monotonic() + self.seconds

        def left() -> float | None:
            return None if stop is None else max(0.0, stop - time.monotonic())

        def finish(one: Meant, least: float) -> list[Suggestion]:
            if one.ended:
                whole = "".join(one.tokens)
                return [Suggestion(whole, 0.0, "model")] if tuple(self.split(whole)) == one.tokens else []
            typed = written.typed.to(model, vocabulary.encode(one.tokens))
            parts.append(self._finish(Written(one.tokens, typed), k, left(), 0, least))
            return parts[-1].suggestions

        parts = [self._finish(written, k, None if self.seconds is None else self.seconds / 2)]
        found = meant(model, vocabulary, written.tokens, written.typed, self.slips, longest=self.most, seconds=left())
        suggestions = join(parts[0].suggestions, found, finish, k)
        return Suggestions(suggestions, found.rows + sum(part.rows for part in parts), any(part.cut for part in parts))

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
