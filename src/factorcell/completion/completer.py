"""Completion of typed text with a model of characters or graphemes.

    run = Run.open("runs/queries")
    completer, user = Completer(run), User.new(run)
    completer.complete("how to ba", user)                          # a whole prefix at once
    typed_text = completer.type(completer.begin(user), "how to b")  # or one keystroke at a time
    completer.suggest(typed_text).suggestions
    user = learn_one(run, user, "how to bake bread")               # the text that the user entered

A completer never changes, and the typed text is a value. Threads can therefore share a completer.
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

TextFilter = Callable[[str], bool]  # returns whether a text may be suggested


@dataclass(frozen=True)
class TypedText:
    """Text typed so far, tokenized, with the search state for that prefix.

    Attributes:
        tokens: The tokens of the typed text.
        prefix_state: The state of the completer's search engine after these tokens.
        user: The user who types, or None for the unknown user.
        plain_state: The state of the search in PyTorch, which finds corrections; None if typos are not forgiven.
    """

    tokens: tuple[str, ...]
    prefix_state: Any
    user: User | None = None
    plain_state: PrefixState | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True)
class Suggestions:
    """The suggestions for a typed text.

    Attributes:
        suggestions: The suggestions, the best first.
        rows: Number of hypotheses that the model has read.
        cut: Whether a limit of time or of hypotheses ended the search while better suggestions were possible.
    """

    suggestions: list[Suggestion]
    rows: int
    cut: bool


class Completer:
    """Completes typed texts with a model of characters or graphemes.

    Suggested texts have at most `max_tokens` - 1 tokens, where `max_tokens` is that of the run.
    """

    def __init__(
        self,
        run: Run,
        *,
        unknown: str = "error",
        seconds: float | None = None,
        typos: int | TypoCosts = 0,
        is_allowed: TextFilter | None = None,
    ) -> None:
        """Pack the current weights of `run`; after more training of the run, create a new completer.

        Args:
            run: The run; its tokenizer must work on characters, such as `char` or `grapheme`.
            unknown: How to read context values that training never saw, as in `Run.prepare`.
            seconds: Time limit of each search.
            typos: Maximum number of typing errors to forgive (0, 1 or 2), or their costs.
            is_allowed: Returns whether a text may be suggested; the next best texts replace the others.

        Raises:
            UserError: The tokenizer does not work on characters, or a number is out of range.
        """
        limits.check(seconds=seconds)
        data = run.config.data
        if not run.tokenizer.is_character_level:
            expected = f"expected a tokenizer of characters, got {run.config.tokenizer.kind}"
            raise UserError(f"{run.folder}: completion: {expected}; train with --tokenizer char")
        self.run, self.unknown, self.seconds = run, unknown, seconds
        self.typo_costs, self.is_allowed, self.tokenizer = TypoCosts.of(typos), is_allowed, run.tokenizer
        self.max_text_tokens = data.max_tokens - 1  # training cut longer texts, so the model never read how they end
        self.plain_engine = PlainEngine(run.model)
        self.engine = compiled.new_engine(run.model, run.precision)

    def complete(
        self, prefix: str, user: User | None = None, context: Mapping[str, Any] | None = None, k: int = 10
    ) -> list[Suggestion]:
        """Return the `k` most probable texts that continue `prefix`.

        Args:
            prefix: The typed text.
            user: A user learned online, or None.
            context: Column -> value; a column without a value is read as its expected value.
            k: Maximum number of suggestions.

        Raises:
            UserError: The prefix, a context value or the user is not valid.
        """
        return self.suggest(self.type(self.begin(user, context), prefix), k).suggestions

    def begin(self, user: User | None = None, context: Mapping[str, Any] | None = None) -> TypedText:
        """Return the empty typed text of `user` in `context`.

        Args:
            user: A user learned online, or None.
            context: Column -> value; a column without a value is read as its expected value.

        Raises:
            UserError: The run does not know a column or value, or the user belongs to another run.
        """
        vector = self._user_override(user)
        encoded = self._encode_context({} if context is None else context)
        with self.run.scoring():
            plain_state = self.plain_engine.begin(encoded, vector) if self.typo_costs.max_typos else None
            return TypedText((), self.engine.begin(encoded, vector), user, plain_state)

    def _user_override(self, user: User | None) -> dict[str, torch.Tensor]:
        if user is None:
            return {}
        user.check(self.run)
        return {user_variable(self.run).name: torch.from_numpy(user.vector)[None].to(self.run.device)}

    def _encode_context(self, columns: Mapping[str, Any]) -> Context:
        corpus = self.run.read([""], [columns], unknown=self.unknown)
        return corpus.context(np.zeros(1, np.int64)).to(self.run.device)

    def type(self, typed_text: TypedText, text: str) -> TypedText:
        """Return the typed text for `text`; the model reads only the tokens after the part shared with `typed_text`.

        Args:
            typed_text: The text typed before, by the same user in the same context.
            text: The whole text typed now.

        Raises:
            UserError: `text` is not Unicode text, or longer than `texts.MAX_BYTES` bytes.
        """
        tokens = self._tokens(text)
        with self.run.scoring():
            ids = self.tokenizer.encode(tokens[: self.max_text_tokens])
            plain_state = typed_text.plain_state
            plain_state = None if plain_state is None else self.plain_engine.type(plain_state, ids)
            return TypedText(tokens, self.engine.type(typed_text.prefix_state, ids), typed_text.user, plain_state)

    def fits(self, prefix: str) -> bool:
        """Return whether a prefix has no more tokens than the texts that the run completes."""
        return len(self._tokens(prefix)) <= self.max_text_tokens

    def suggest(
        self, typed_text: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the `k` most probable texts that continue a typed text, or a correction of it if typos are forgiven.

        Texts without typos come first. If the typed text does not fit (`fits`), the list is empty.

        Args:
            typed_text: The typed text.
            k: Maximum number of suggestions.
            deadline: When to end the search, as a value of `time.monotonic()`; by default after the completer's
                `seconds`.
            stop: Ends the search early.
        """
        return self.suggest_all([typed_text], k, deadline=deadline, stop=stop)[0]

    def log_probabilities(
        self, prefix: str, texts: Sequence[str], user: User | None = None, context: Mapping[str, Any] | None = None
    ) -> list[float]:
        """Return the log probability, under the model, of each text given that it begins with `prefix`.

        Args:
            prefix: The typed text.
            texts: Whole texts, including the prefix.
            user: A user learned online, or None.
            context: Column -> value; a column without a value is read as its expected value.

        Returns:
            Log probabilities in nats, including the end of the text; NaN for a text that does not begin with `prefix`
            or is too long to be completed.
        """
        if not texts:
            return []
        texts = [canonical(check_text(text)) for text in texts]
        tokens, text_tokens = self._tokens(prefix), [self._tokens(text) for text in texts]
        corpus = self.run.read(texts, [{} if context is None else context] * len(texts), unknown=self.unknown)
        vectors = {name: vector.expand(len(texts), -1) for name, vector in self._user_override(user).items()}
        with torch.inference_mode():
            batch = self.run.batch(corpus, np.arange(len(texts)))
            nats = self.run.model(batch, self.run.model.condition(batch.context, vectors))
            nats_after_prefix = nats[:, len(tokens) :].double().sum(1).tolist()
        is_continuation = [
            parts[: len(tokens)] == tokens and len(parts) <= self.max_text_tokens for parts in text_tokens
        ]
        return [-nats if fits else math.nan for nats, fits in zip(nats_after_prefix, is_continuation, strict=True)]

    def suggest_all(
        self,
        typed_texts: Sequence[TypedText],
        k: int = 10,
        threads: int = 1,
        deadline: float | None = None,
        stop: Stop | None = None,
    ) -> list[Suggestions]:
        """Return the suggestions for many typed texts; one thread searches for those of one text.

        Args:
            typed_texts: The typed texts.
            k: Maximum number of suggestions for each.
            threads: Number of threads.
            deadline: When to end all searches, as a value of `time.monotonic()`; by default after the completer's
                `seconds`.
            stop: Ends all searches early.
        """
        limits.check(count=k, threads=threads)
        if deadline is None and self.seconds is not None:
            deadline = time.monotonic() + self.seconds
        fitting = [typed_text for typed_text in typed_texts if len(typed_text.tokens) <= self.max_text_tokens]
        with self.run.scoring():
            if self.typo_costs.max_typos:
                results = [self._suggest_with_typos(typed_text, k, deadline, stop) for typed_text in fitting]
            else:
                requests = [self._request(typed_text, k, stop=stop) for typed_text in fitting]
                results = self._search(fitting, requests, deadline, threads)
        remaining = iter(results)
        return [
            next(remaining) if len(typed_text.tokens) <= self.max_text_tokens else Suggestions([], 0, False)
            for typed_text in typed_texts
        ]

    def _search(
        self,
        typed_texts: Sequence[TypedText],
        requests: Sequence[SearchRequest],
        deadline: float | None,
        threads: int = 1,
    ) -> list[Suggestions]:
        results = self.engine.search(requests, deadline, threads)
        return [
            Suggestions(
                [
                    Suggestion(self._text(typed_text, completion.ids), completion.log_probability, "model")
                    for completion in result.completions
                ],
                result.rows,
                result.cut,
            )
            for typed_text, result in zip(typed_texts, results, strict=True)
        ]

    def _request(
        self,
        typed_text: TypedText,
        k: int,
        min_new_tokens: int = 1,
        min_log_prob: float = -math.inf,
        stop: Stop | None = None,
    ) -> SearchRequest:
        def accept(ids: Ids) -> bool:
            """Return whether `ids` are an allowed continuation that the tokenizer splits into the same tokens."""
            if len(ids) < min_new_tokens:
                return False
            if not self.tokenizer.can_follow(typed_text.tokens, self.tokenizer.decode(ids)):
                return False
            text = to_text(ids)
            is_new = text.startswith(typed_text.text) and text != typed_text.text if min_new_tokens else bool(text)
            return is_new and (self.is_allowed is None or self.is_allowed(text))

        to_text = partial(self._text, typed_text)
        max_tokens = self.max_text_tokens - len(typed_text.tokens)
        return SearchRequest(typed_text.prefix_state, k, max_tokens, accept, min_log_prob, stop, to_text)

    def _text(self, typed_text: TypedText, ids: Ids) -> str:
        """Return the canonical form of the typed text followed by `ids`."""
        return canonical(self.tokenizer.join(typed_text.tokens) + self.tokenizer.join(self.tokenizer.decode(ids)))

    def _suggest_with_typos(
        self, typed_text: TypedText, k: int, deadline: float | None, stop: Stop | None
    ) -> Suggestions:
        """Suggest texts with and without typos; half of the time is for texts that continue the prefix as typed."""
        if not self.typo_costs.max_typos_for(len(typed_text.tokens)) or typed_text.plain_state is None:
            return self._search([typed_text], [self._request(typed_text, k, stop=stop)], deadline)[0]
        size = round_sizes(k)[-1]

        def complete(correction: Correction, min_log_prob: float) -> list[Suggestion]:
            if correction.is_whole_text:
                text = canonical(self.tokenizer.join(correction.tokens))
                is_shown = bool(text) and self.tokenizer.can_follow(correction.tokens, ())
                is_shown = is_shown and (self.is_allowed is None or self.is_allowed(text))
                return [Suggestion(text, 0.0, "model")] if is_shown else []
            prefix_state = self.engine.type(typed_text.prefix_state, self.tokenizer.encode(correction.tokens))
            corrected = TypedText(correction.tokens, prefix_state)
            searches.extend(
                self._search([corrected], [self._request(corrected, size, 0, min_log_prob, stop)], deadline)
            )
            return searches[-1].suggestions

        half = None if deadline is None else (time.monotonic() + deadline) / 2
        searches = self._search([typed_text], [self._request(typed_text, size, stop=stop)], half)
        corrections = find_corrections(
            self.run,
            typed_text.tokens,
            typed_text.plain_state,
            self.typo_costs,
            max_tokens=self.max_text_tokens,
            deadline=deadline,
            stop=stop,
        )
        merged = merge_corrections(searches[0].suggestions, corrections, complete, size)
        rows = corrections.rows + sum(search.rows for search in searches)
        suggestions = merge_rounds(partial(most_probable, merged), k)
        return Suggestions(suggestions, rows, any(search.cut for search in searches))

    def _tokens(self, text: str) -> tuple[str, ...]:
        return tuple(self.tokenizer.split(self.tokenizer.normalize_fully(clean_prefix(text))))
