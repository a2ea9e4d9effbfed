"""From a prefix and a context to suggestions: a run of characters that completes what somebody types.

    completer, user = Completer(run := Run.open("runs/queries")), User.new(run)
    completer.complete("how to ba", user)                       # at once
    written = completer.type(completer.begin(user), "how to b")  # or a keystroke at a time
    completer.suggest(written).suggestions
    user = learn_one(run, user, "how to bake bread")            # what was meant

Nothing here changes once it is made, and what is typed is a value of the caller's, so threads can share a completer.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from factorcell import limits
from factorcell.completion import compiled
from factorcell.completion.online import User, user_variable
from factorcell.completion.rounds import in_rounds, sizes
from factorcell.completion.search import (
    Engine,
    Ids,
    PlainEngine,
    PrefixState,
    SearchRequest,
    SearchResult,
    Stop,
    Suggestion,
)
from factorcell.completion.texts import checked, clean_prefix
from factorcell.completion.typos import Correction, Slips, best, join, meant
from factorcell.config import UserError
from factorcell.data.canonical import canonical
from factorcell.data.context import Context
from factorcell.data.tokenizer import Tokenizer
from factorcell.model.run import Run

Allowed = Callable[[str], bool]  # whether a text may be suggested


@dataclass(frozen=True)
class TypedText:
    """What somebody has typed: its `tokens` as they are, known to the model or not, and how the search keeps them.

    `user`: who types, None for nobody told apart. `plain`: the same as the plain search keeps it, where slips are
    looked for.
    """

    tokens: tuple[str, ...]
    typed: object
    user: User | None = None
    plain: PrefixState | None = None

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

    def __init__(
        self,
        run: Run,
        *,
        unknown: str = "error",
        seconds: float | None = None,
        slips: int | Slips = 0,
        allowed: Allowed | None = None,
    ) -> None:
        """`unknown`: what of context values that training never saw, as `Run.prepare`; `seconds` bounds a search.

        `slips` of typing, at most 2, are forgiven (`slips.Slips`). Only texts that are `allowed` are suggested, as
        many as without it. The weights are those of now: a run that learns on needs a completer anew.
        """
        limits.check(seconds=seconds)
        data = run.config.data
        if not run.tokenizer.is_character_level:
            expected = f"expected a tokenizer of characters, got {run.config.tokenizer.kind}"
            raise UserError(f"{run.folder}: completion: {expected}; train with --tokenizer char")
        self.run, self.unknown, self.seconds = run, unknown, seconds
        self.slips, self.allowed = Slips.of(slips), allowed
        self.tokenizer: Tokenizer = run.tokenizer
        self.most = data.max_tokens - 1  # a longer text was cut in training: it has no end
        self.engine: Engine[Any] = (
            compiled.engine(run.model, run.precision)
            if run.gain == 1.0  # else the faster numbers are wanted: those of a search may be others than of scoring
            else compiled.fastest(run.model, self._context({}), self.most)
        )

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """The `k` most probable texts that begin with `prefix` and go on, by `user` in `context`, as `begin`."""
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Nothing typed yet, by `user` in `context`, column -> value; what is not given is expected.

        `UserError` for a column or value that the run does not know, and for a user of another run.
        """
        own = self._own(user)
        given = self._context({} if context is None else context)
        with self.run.scoring():
            plain = PlainEngine(self.run.model).begin(given, own) if self.slips.most else None
            return TypedText((), self.engine.begin(given, own), user, plain)

    def _own(self, user: User | None) -> dict[str, torch.Tensor]:
        """The vector (1, k) of `user` by the name of the variable that it stands for; none of nobody told apart."""
        if user is None:
            return {}
        user.check(self.run)
        return {user_variable(self.run).name: torch.from_numpy(user.vector)[None].to(self.run.device)}

    def _context(self, columns: Mapping[str, Any]) -> Context:
        """What the run makes of column -> value, where the model is."""
        corpus = self.run.read([""], [columns], unknown=self.unknown)
        return corpus.context(np.zeros(1, np.int64)).to(self.run.device)

    def type(self, written: TypedText, text: str) -> TypedText:
        """The same person with `text` typed instead; what it shares with what was typed is not read again.

        Of a text that is too long for the run no more is read. `UserError` for one that breaks the rule of `texts`.
        """
        tokens = self._tokens(text)
        with self.run.scoring():
            ids = self.tokenizer.encode(tokens[: self.most])
            plain = None if written.plain is None else written.plain.to(self.run.model, ids)
            return TypedText(tokens, self.engine.type(written.typed, ids), written.user, plain)

    def fits(self, prefix: str) -> bool:
        """Whether a prefix is no longer than the texts that the run completes."""
        return len(self._tokens(prefix)) <= self.most

    def suggest(
        self, written: TypedText, k: int = 10, seconds: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """The `k` most probable texts that go on from what is written, or where slips are forgiven from what was meant.

        Those that go on from what is written come first. None go on from what is longer than the run's texts.
        `seconds` bounds this search instead of that of the completer; `stop` may end it early.
        """
        return self.suggest_all([written], k, seconds=seconds, stop=stop)[0]

    def log_probabilities(
        self, prefix: str, texts: Sequence[str], user: User | None = None, context: Mapping[str, Any] | None = None
    ) -> list[float]:
        """What the model alone says of each of `texts`, by `user` in `context` as `begin`, whoever suggests it.

        log p of what follows `prefix`, the end of the text counted, by floats. NaN of a text that begins otherwise, or
        is longer than the run completes.
        """
        if not texts:
            return []
        texts = [canonical(checked(text)) for text in texts]
        tokens, parts = self._tokens(prefix), [self._tokens(text) for text in texts]
        corpus = self.run.read(texts, [{} if context is None else context] * len(texts), unknown=self.unknown)
        own = {name: vector.expand(len(texts), -1) for name, vector in self._own(user).items()}
        with torch.inference_mode():
            batch = self.run.batch(corpus, np.arange(len(texts)))
            nats = self.run.model(batch, self.run.model.condition(batch.context, own))
            follows = nats[:, len(tokens) :].double().sum(1).tolist()
        goes_on = [part[: len(tokens)] == tokens and len(part) <= self.most for part in parts]
        return [-one if so else math.nan for one, so in zip(follows, goes_on, strict=True)]

    def suggest_all(
        self,
        written: Sequence[TypedText],
        k: int = 10,
        threads: int = 1,
        seconds: float | None = None,
        stop: Stop | None = None,
    ) -> list[Suggestions]:
        """The same for many who type, each done by one of `threads`."""
        limits.check(count=k, threads=threads, seconds=seconds)
        bound = self.seconds if seconds is None else seconds
        fitting = [one for one in written if len(one.tokens) <= self.most]
        with self.run.scoring():
            if self.slips.most:
                found = [self._forgive(one, k, bound, stop) for one in fitting]
            else:
                found = self._finish([self._wanted(one, k, stop=stop) for one in fitting], fitting, bound, threads)
        of_fitting = iter(found)
        return [next(of_fitting) if len(one.tokens) <= self.most else Suggestions([], 0, False) for one in written]

    def _finish(
        self,
        wanted: Sequence[SearchRequest[Any]],
        written: Sequence[TypedText],
        seconds: float | None,
        threads: int = 1,
    ) -> list[Suggestions]:
        found = self.engine.search(wanted, seconds, threads)
        return [self._suggestions(one, of) for one, of in zip(written, found, strict=True)]

    def _wanted(
        self, written: TypedText, k: int, added: int = 1, least: float = -math.inf, stop: Stop | None = None
    ) -> SearchRequest[Any]:
        def accept(ids: Ids) -> bool:
            """The text goes on, may be shown, and read again would be the same tokens: no two ways to write one."""
            if len(ids) < added or not self.tokenizer.follows(written.tokens, self.tokenizer.decode(ids)):
                return False
            text = form(ids)
            goes_on = text.startswith(written.text) and text != written.text if added else bool(text)
            return goes_on and (self.allowed is None or self.allowed(text))

        form = partial(self._text, written)
        return SearchRequest(written.typed, k, self.most - len(written.tokens), accept, least, stop, form)

    def _suggestions(self, written: TypedText, found: SearchResult) -> Suggestions:
        suggestions = [
            Suggestion(self._text(written, one.ids), one.log_probability, "model") for one in found.completions
        ]
        return Suggestions(suggestions, found.rows, found.cut)

    def _text(self, written: TypedText, ids: Ids) -> str:
        """Return the canonical form of what is written with `ids` after it."""
        return canonical(self.tokenizer.join(written.tokens) + self.tokenizer.join(self.tokenizer.decode(ids)))

    def _forgive(self, written: TypedText, k: int, seconds: float | None, stop: Stop | None) -> Suggestions:
        """The best with slips: half of the time is for what is written, the rest for what may have been meant."""
        tokenizer, end = self.run.tokenizer, None if seconds is None else time.monotonic() + seconds
        if not self.slips.within(len(written.tokens)) or written.plain is None:
            return self._finish([self._wanted(written, k, stop=stop)], [written], seconds)[0]
        most = sizes(k)[-1]

        def left() -> float | None:
            if stop is not None and stop.is_set:
                return 0.0
            return None if end is None else max(0.0, end - time.monotonic())

        def finish(one: Correction, least: float) -> list[Suggestion]:
            if one.ended:
                whole = canonical(self.tokenizer.join(one.tokens))
                shown = bool(whole) and self.tokenizer.follows(one.tokens, ())
                shown = shown and (self.allowed is None or self.allowed(whole))
                return [Suggestion(whole, 0.0, "model")] if shown else []
            other = TypedText(one.tokens, self.engine.type(written.typed, self.tokenizer.encode(one.tokens)))
            parts.extend(self._finish([self._wanted(other, most, 0, least, stop)], [other], left()))
            return parts[-1].suggestions

        half = None if seconds is None else seconds / 2
        parts = self._finish([self._wanted(written, most, stop=stop)], [written], half)
        meanings = meant(
            self.run.model,
            tokenizer,
            written.tokens,
            written.plain,
            self.slips,
            longest=self.most,
            seconds=left(),
        )
        found = join(parts[0].suggestions, meanings, finish, most)
        rows = meanings.rows + sum(part.rows for part in parts)
        return Suggestions(in_rounds(partial(best, found), k), rows, any(part.cut for part in parts))

    def _tokens(self, text: str) -> tuple[str, ...]:
        text = clean_prefix(text)
        # Lower-casing can leave letters that NFC would join: split again, so that suggestions are read as they were.
        split = self.tokenizer.split
        return tuple(split(self.tokenizer.join(split(text))))
