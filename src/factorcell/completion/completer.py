"""From a prefix and a context to suggestions: a run of characters that completes what a user types.

    completer, user = Completer(run := Run.open("runs/queries")), User.new(run)
    completer.complete("how to ba", user)                       # at once
    written = completer.type(completer.begin(user), "how to b")  # or a keystroke at a time
    completer.suggest(written).suggestions
    user = learn_one(run, user, "how to bake bread")            # the text that was meant

A completer never changes, and what is typed is a value of the caller's, so threads can share a completer.
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
from factorcell.completion.search import (
    Ids,
    PlainEngine,
    PrefixState,
    SearchRequest,
    Stop,
    Suggestion,
    merge_rounds,
    round_sizes,
)
from factorcell.completion.texts import check_text, clean_prefix
from factorcell.completion.typos import Correction, TypoCosts, find_corrections, merge_corrections, most_probable
from factorcell.config import UserError
from factorcell.data.canonical import canonical
from factorcell.data.context import Context
from factorcell.model.run import Run

TextFilter = Callable[[str], bool]  # whether a text may be suggested


@dataclass(frozen=True)
class TypedText:
    """Text typed so far, tokenized, with the search state for that prefix.

    `user`: who types, or None for an unknown user. `plain`: the state of the plain search, where typos are
    looked for.
    """

    tokens: tuple[str, ...]
    prefix_state: Any
    user: User | None = None
    plain_state: PrefixState | None = None

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
        typos: int | TypoCosts = 0,
        is_allowed: TextFilter | None = None,
    ) -> None:
        """Prepare the weights of `run` as they are now; a run that is trained further needs a new completer.

        Args:
            run: The run; its tokenizer must be one of characters, such as `char` or `grapheme`.
            unknown: How context values that training never saw are read, as in `Run.prepare`.
            seconds: Bound of each search, in seconds.
            typos: Typing errors to forgive: 0, 1, 2, or their costs.
            is_allowed: Only texts for which it is True are suggested, as many as without it.

        Raises:
            UserError: The run has another tokenizer, or a number is out of range.
        """
        limits.check(seconds=seconds)
        data = run.config.data
        if not run.tokenizer.is_character_level:
            expected = f"expected a tokenizer of characters, got {run.config.tokenizer.kind}"
            raise UserError(f"{run.folder}: completion: {expected}; train with --tokenizer char")
        self.run, self.unknown, self.seconds = run, unknown, seconds
        self.typo_costs, self.is_allowed, self.tokenizer = TypoCosts.of(typos), is_allowed, run.tokenizer
        self.most = data.max_tokens - 1  # a longer text was cut in training: it has no end
        self.plain = PlainEngine(run.model)
        self.engine = compiled.new_engine(run.model, run.precision)

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """Return the `k` most probable texts that continue `prefix`; `user` and `context` as `begin`."""
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Return the state before anything is typed, by `user` in `context`.

        Args:
            user: A user learned online, or None.
            context: Column -> value; a column without a value has its expected value.

        Raises:
            UserError: The run does not know a column or value, or the user belongs to another run.
        """
        vector = self._vector(user)
        given = self._context({} if context is None else context)
        with self.run.scoring():
            plain = self.plain.begin(given, vector) if self.typo_costs.max_typos else None
            return TypedText((), self.engine.begin(given, vector), user, plain)

    def _vector(self, user: User | None) -> dict[str, torch.Tensor]:
        if user is None:
            return {}
        user.check(self.run)
        return {user_variable(self.run).name: torch.from_numpy(user.vector)[None].to(self.run.device)}

    def _context(self, columns: Mapping[str, Any]) -> Context:
        corpus = self.run.read([""], [columns], unknown=self.unknown)
        return corpus.context(np.zeros(1, np.int64)).to(self.run.device)

    def type(self, written: TypedText, text: str) -> TypedText:
        """Return the state for `text`, reusing the prefix that it shares with what was typed.

        Raises:
            UserError: `text` is not Unicode text, or longer than `texts.LONGEST` bytes.
        """
        tokens = self._tokens(text)
        with self.run.scoring():
            ids = self.tokenizer.encode(tokens[: self.most])
            plain = None if written.plain_state is None else self.plain.type(written.plain_state, ids)
            return TypedText(tokens, self.engine.type(written.prefix_state, ids), written.user, plain)

    def fits(self, prefix: str) -> bool:
        """Return whether a prefix is no longer than the texts that the run completes."""
        return len(self._tokens(prefix)) <= self.most

    def suggest(
        self, written: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the `k` most probable texts that continue what is written, or a correction where typos are forgiven.

        Those that continue what is written come first. There are none for a prefix longer than the run's texts.
        The search ends at the `deadline` (`time.monotonic()`), by default after the completer's `seconds`, or when
        `stop` is set.
        """
        return self.suggest_all([written], k, deadline=deadline, stop=stop)[0]

    def log_probabilities(
        self, prefix: str, texts: Sequence[str], user: User | None = None, context: Mapping[str, Any] | None = None
    ) -> list[float]:
        """Return the model's log probability of what follows `prefix` in each of `texts`, their ends included.

        It is NaN for a text that does not begin with `prefix` or is longer than the run completes.
        """
        if not texts:
            return []
        texts = [canonical(check_text(text)) for text in texts]
        tokens, parts = self._tokens(prefix), [self._tokens(text) for text in texts]
        corpus = self.run.read(texts, [{} if context is None else context] * len(texts), unknown=self.unknown)
        vectors = {name: vector.expand(len(texts), -1) for name, vector in self._vector(user).items()}
        with torch.inference_mode():
            batch = self.run.batch(corpus, np.arange(len(texts)))
            nats = self.run.model(batch, self.run.model.condition(batch.context, vectors))
            follows = nats[:, len(tokens) :].double().sum(1).tolist()
        goes_on = [part[: len(tokens)] == tokens and len(part) <= self.most for part in parts]
        return [-one if so else math.nan for one, so in zip(follows, goes_on, strict=True)]

    def suggest_all(
        self,
        written: Sequence[TypedText],
        k: int = 10,
        threads: int = 1,
        deadline: float | None = None,
        stop: Stop | None = None,
    ) -> list[Suggestions]:
        """Return the suggestions for many prefixes, each searched by one of `threads`; as `suggest`."""
        limits.check(count=k, threads=threads)
        if deadline is None and self.seconds is not None:
            deadline = time.monotonic() + self.seconds
        fitting = [one for one in written if len(one.tokens) <= self.most]
        with self.run.scoring():
            if self.typo_costs.max_typos:
                found = [self._forgive(one, k, deadline, stop) for one in fitting]
            else:
                found = self._search(fitting, [self._request(one, k, stop=stop) for one in fitting], deadline, threads)
        of_fitting = iter(found)
        return [next(of_fitting) if len(one.tokens) <= self.most else Suggestions([], 0, False) for one in written]

    def _search(
        self, written: Sequence[TypedText], requests: Sequence[SearchRequest], deadline: float | None, threads: int = 1
    ) -> list[Suggestions]:
        found = self.engine.search(requests, deadline, threads)
        return [
            Suggestions(
                [Suggestion(self._text(typed, one.ids), one.log_probability, "model") for one in result.completions],
                result.rows,
                result.cut,
            )
            for typed, result in zip(written, found, strict=True)
        ]

    def _request(
        self, written: TypedText, k: int, added: int = 1, least: float = -math.inf, stop: Stop | None = None
    ) -> SearchRequest:
        def accept(ids: Ids) -> bool:
            """The text goes on, may be shown, and read again would be the same tokens: no two ways to write one."""
            if len(ids) < added or not self.tokenizer.can_follow(written.tokens, self.tokenizer.decode(ids)):
                return False
            text = form(ids)
            goes_on = text.startswith(written.text) and text != written.text if added else bool(text)
            return goes_on and (self.is_allowed is None or self.is_allowed(text))

        form = partial(self._text, written)
        return SearchRequest(written.prefix_state, k, self.most - len(written.tokens), accept, least, stop, form)

    def _text(self, written: TypedText, ids: Ids) -> str:
        """Return the canonical form of what is written with `ids` after it."""
        return canonical(self.tokenizer.join(written.tokens) + self.tokenizer.join(self.tokenizer.decode(ids)))

    def _forgive(self, written: TypedText, k: int, deadline: float | None, stop: Stop | None) -> Suggestions:
        """Spend half of the time on texts that continue what is written, the rest on what may have been meant."""
        if not self.typo_costs.max_typos_for(len(written.tokens)) or written.plain_state is None:
            return self._search([written], [self._request(written, k, stop=stop)], deadline)[0]
        most = round_sizes(k)[-1]

        def finish(one: Correction, least: float) -> list[Suggestion]:
            if one.is_whole_text:
                whole = canonical(self.tokenizer.join(one.tokens))
                shown = bool(whole) and self.tokenizer.can_follow(one.tokens, ())
                shown = shown and (self.is_allowed is None or self.is_allowed(whole))
                return [Suggestion(whole, 0.0, "model")] if shown else []
            other = TypedText(one.tokens, self.engine.type(written.prefix_state, self.tokenizer.encode(one.tokens)))
            parts.extend(self._search([other], [self._request(other, most, 0, least, stop)], deadline))
            return parts[-1].suggestions

        half = None if deadline is None else (time.monotonic() + deadline) / 2
        parts = self._search([written], [self._request(written, most, stop=stop)], half)
        longest, plain = self.most, written.plain_state
        meanings = find_corrections(
            self.run, written.tokens, plain, self.typo_costs, max_tokens=longest, deadline=deadline, stop=stop
        )
        found = merge_corrections(parts[0].suggestions, meanings, finish, most)
        rows = meanings.rows + sum(part.rows for part in parts)
        return Suggestions(merge_rounds(partial(most_probable, found), k), rows, any(part.cut for part in parts))

    def _tokens(self, text: str) -> tuple[str, ...]:
        return tuple(self.tokenizer.split(self.tokenizer.normalize_fully(clean_prefix(text))))
