"""Completion of typed text with a model of characters, graphemes or pieces of words.

    run = Run.open("runs/queries")
    completer, user = Completer(run), User.new(run)
    completer.complete("how to ba", user)                          # a whole prefix at once
    typed_text = completer.type_text(completer.begin(user), "how to b")  # or one keystroke at a time
    completer.suggest(typed_text).suggestions
    user = learn_one(run, user, "how to bake bread")               # the text that the user entered

A completer never changes, and each typed text is an immutable value. Threads can therefore share a completer.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch

from factorcell.completion.online import User, user_variable
from factorcell.completion.popularity import with_earlier_texts
from factorcell.completion.prefixes import typed_reader
from factorcell.completion.search import MAX_EXPANDED, Ids, PlainEngine, PrefixState, SearchRequest, Stop
from factorcell.completion.suggestions import Suggestion, merge_rounds, sizes_of_rounds
from factorcell.completion.texts import check_text, clean_prefix
from factorcell.completion.typos import Correction, TypoCosts, find_corrections, merge_corrections, most_probable
from factorcell.data.columns.context import Context
from factorcell.data.private_content import is_public
from factorcell.data.text_folds import same_text
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.options import limits
from factorcell.options.choices import check_unknown
from factorcell.runs.run import Run

TextFilter = Callable[[str], bool]  # returns whether a text may be suggested


@dataclass(frozen=True)
class TypedText:
    """Text typed so far, tokenized, with the search state for that prefix.

    Attributes:
        tokens: The characters or graphemes of the typed text.
        prefix_state: The state of the completer's search engine after these tokens.
        user: The user who types, or None for the unknown user.
        plain_state: The state of the search in PyTorch after these tokens, which the search for corrections uses; None
            if the completer forgives no typos.
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
        expanded_count: Number of hypotheses that the model has read.
        is_cut: Whether a limit of time or of hypotheses ended the search while better suggestions were possible.
    """

    suggestions: list[Suggestion]
    expanded_count: int
    is_cut: bool

    def written(self, tokenizer: Tokenizer) -> list[Suggestion]:
        """Return the suggestions to show, with their texts as people write them (`Tokenizer.written`)."""
        return [replace(suggestion, text=tokenizer.written(suggestion.text)) for suggestion in self.suggestions]


class Completer:
    """Completes typed texts with a model of characters, graphemes or pieces of words.

    A suggested text has at most `max_tokens` - 1 tokens, where `max_tokens` is an option of the run's training.
    """

    def __init__(
        self,
        run: Run,
        *,
        unknown: str = "error",
        seconds: float | None = None,
        typos: int | TypoCosts = 0,
        is_allowed: TextFilter | None = None,
        max_expanded: int = MAX_EXPANDED,
    ) -> None:
        """Pack the current weights of `run`; create a new completer after further training of the run.

        Args:
            run: The run; its tokenizer must be `bpe`, or work on characters, such as `char` or `grapheme`.
            unknown: The policy for values that training never saw: "group", "expected" or "error".
            seconds: Time limit of each search.
            typos: Maximum number of typing errors to forgive (0, 1 or 2), or their costs.
            is_allowed: Returns whether a text may be suggested; the next best texts replace rejected texts. Texts that
                seem to contain private content (`find_private_content`) are never suggested.
            max_expanded: Maximum number of hypotheses that each search expands.

        Raises:
            UserError: The tokenizer is not one of these, a number is out of range, or `bpe` is to forgive typos.
        """
        [seconds] = limits.check(seconds=seconds)
        data = run.config.data
        self.typed_reader = typed_reader(run)
        self.run, self.unknown, self.seconds, self.max_expanded = run, check_unknown(unknown), seconds, max_expanded
        self.typo_costs, self.tokenizer = TypoCosts.of(typos), run.tokenizer
        if self.typo_costs.max_typos and self.typed_reader.returns_whole_texts:
            kind = f"typos: expected a tokenizer of characters, got {run.config.tokenizer.kind}"
            raise UserError(f"{run.folder}: {kind}; train with --tokenizer char")
        self.is_allowed = is_public if is_allowed is None else lambda text: is_public(text) and is_allowed(text)
        # Training cut longer texts, so the model has not learned where they end.
        self.max_text_tokens = data.max_tokens - 1
        self.plain_engine = PlainEngine(run.predictor)
        self.engine = self.typed_reader.engine(run)

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
        return self.suggest(self.type_text(self.begin(user, context), prefix), k).suggestions

    def begin(
        self, user: User | None = None, context: Mapping[str, Any] | None = None, unknown: str | None = None
    ) -> TypedText:
        """Return the empty typed text of `user` in `context`.

        Args:
            user: A user learned online, or None. If the run reads earlier texts, it reads the last texts of this user.
            context: Column -> value; a column without a value is read as its expected value.
            unknown: The policy for values that training never saw; None: that of the completer.

        Raises:
            UserError: The run does not know a column or value, or the user belongs to another run.
        """
        vector = self._user_override(user)
        columns = self._with_earlier_texts(user, context)
        encoded = self._encode_context(columns, unknown or self.unknown)
        with self.run.scoring():
            plain_state = self.plain_engine.begin(encoded, vector) if self.typo_costs.max_typos else None
            return TypedText((), self.engine.begin(encoded, vector), user, plain_state)

    def _user_override(self, user: User | None) -> dict[str, torch.Tensor]:
        if user is None:
            return {}
        user.check(self.run)
        return {user_variable(self.run).name: torch.from_numpy(user.vector)[None].to(self.run.device)}

    def _with_earlier_texts(self, user: User | None, context: Mapping[str, Any] | None) -> Mapping[str, Any]:
        columns = {} if context is None else context
        return columns if user is None else with_earlier_texts(self.run, user.history, columns)

    def _encode_context(self, columns: Mapping[str, Any], unknown: str) -> Context:
        corpus = self.run.read([""], [columns], unknown=unknown)
        return corpus.context(np.zeros(1, np.int64)).to(self.run.device)

    def type_text(self, typed_text: TypedText, text: str) -> TypedText:
        """Return the typed text for `text`; the model reads only the tokens after the part shared with `typed_text`.

        Args:
            typed_text: The text typed before, by the same user in the same context.
            text: The whole text typed now.

        Raises:
            UserError: `text` is not Unicode text, or longer than `texts.MAX_BYTES` bytes.
        """
        tokens = self._split(text)
        with self.run.scoring():
            fits = self.typed_reader.min_count(tokens) <= self.max_text_tokens
            ids = self.typed_reader.ids(tokens if fits else ())  # a text that does not fit is not completed
            prefix_state = self.engine.read_prefix(typed_text.prefix_state, ids)
            plain_state = typed_text.plain_state
            if plain_state is not None:
                plain_state = self.plain_engine.read_prefix(plain_state, ids)
            return TypedText(tokens, prefix_state, typed_text.user, plain_state)

    def fits(self, prefix: str) -> bool:
        """Return whether a prefix has at most as many tokens as a suggested text may have."""
        return self.typed_reader.min_count(self._split(prefix)) <= self.max_text_tokens

    def suggest(
        self, typed_text: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the `k` most probable texts that continue a typed text, or a correction of it if typos are forgiven.

        Texts that assume no typo come first. There are no suggestions for a typed text that does not fit (`fits`), or
        whose complete words no suggestion may contain (`is_allowed`).

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
        """Return the log probability of the rest of each text after `prefix`, under the model.

        Args:
            prefix: The typed text.
            texts: Whole texts, including the prefix.
            user: A user learned online, or None.
            context: Column -> value; a column without a value is read as its expected value.

        Returns:
            Log probabilities in nats, including that of the end token; NaN for a text that does not begin with `prefix`
            or has more tokens than a suggested text may have.
        """
        if not texts:
            return []
        texts = [same_text(check_text(text)) for text in texts]
        prefix_tokens, tokens_of_texts = self._split(prefix), [self._split(text) for text in texts]
        columns = self._with_earlier_texts(user, context)
        corpus = self.run.read(texts, [columns] * len(texts), unknown=self.unknown)
        vectors = {name: vector.expand(len(texts), -1) for name, vector in self._user_override(user).items()}
        with torch.inference_mode():
            batch = self.run.batch(corpus, np.arange(len(texts)))
            nats = self.run.predictor(batch, self.run.predictor.condition(batch.context, vectors))
            if self.typed_reader.returns_whole_texts:
                first_target = 0
                log_z = self.type_text(self.begin(user, context), prefix).prefix_state.log_probability
            else:
                first_target, log_z = len(prefix_tokens), 0.0
            nats_after_prefix = nats[:, first_target:].double().sum(1).tolist()
        log_probs = []
        for tokens, text_nats in zip(tokens_of_texts, nats_after_prefix, strict=True):
            begins_with_prefix = tokens[: len(prefix_tokens)] == prefix_tokens
            is_defined = begins_with_prefix and self.typed_reader.count(tokens) <= self.max_text_tokens
            log_probs.append(-text_nats - log_z if is_defined else math.nan)
        return log_probs

    def suggest_all(
        self,
        typed_texts: Sequence[TypedText],
        k: int = 10,
        threads: int = 1,
        deadline: float | None = None,
        stop: Stop | None = None,
    ) -> list[Suggestions]:
        """Return the suggestions for each of several typed texts; one thread serves each text.

        Args:
            typed_texts: The typed texts.
            k: Maximum number of suggestions for each typed text.
            threads: Number of threads.
            deadline: When to end all searches, as a value of `time.monotonic()`; by default after the completer's
                `seconds`.
            stop: Ends all searches early.
        """
        k, threads = limits.check(count=k, threads=threads)
        if deadline is None and self.seconds is not None:
            deadline = time.monotonic() + self.seconds
        is_fitting = list(map(self._is_completable, typed_texts))
        fitting = list(compress(typed_texts, is_fitting))
        with self.run.scoring():
            if self.typo_costs.max_typos:
                results = [self._suggest_with_typos(typed_text, k, deadline, stop) for typed_text in fitting]
            else:
                requests = [self._new_request(typed_text, k, stop=stop) for typed_text in fitting]
                results = self._search(requests, deadline, threads)
        remaining = iter(results)
        return [next(remaining) if fits else Suggestions([], expanded_count=0, is_cut=False) for fits in is_fitting]

    def _is_completable(self, typed_text: TypedText) -> bool:
        """Return whether a typed text fits, and its complete words do not rule out every suggestion."""
        complete_words = typed_text.text[: typed_text.text.rfind(" ") + 1]
        return self.typed_reader.min_count(typed_text.tokens) <= self.max_text_tokens and (
            not complete_words or self.is_allowed(complete_words)
        )

    def _search(self, requests: Sequence[SearchRequest], deadline: float | None, threads: int = 1) -> list[Suggestions]:
        results = self.engine.search(requests, deadline, threads, max_expanded=self.max_expanded)
        return [
            Suggestions(
                [Suggestion(completion.text, completion.log_probability, "model") for completion in result.completions],
                result.expanded_count,
                result.is_cut,
            )
            for result in results
        ]

    def _new_request(
        self,
        typed_text: TypedText,
        k: int,
        min_new_tokens: int = 1,
        min_log_prob: float = -math.inf,
        stop: Stop | None = None,
    ) -> SearchRequest:
        """Return a request for continuations of a typed text; with `min_new_tokens` = 0, also for the text itself."""
        prefix = typed_text.text

        def text_of(ids: Ids) -> str | None:
            """Return the text that `ids` continue; None if it is not allowed, or has other tokens after splitting."""
            if len(ids) < min_new_tokens:
                return None
            text = self._canonical_text(self.typed_reader.whole_tokens(typed_text.tokens, ids))
            if not text or (min_new_tokens and (text == prefix or not text.startswith(prefix))):
                return None
            return text if self.is_allowed(text) else None

        max_tokens = self.max_text_tokens - (0 if self.typed_reader.returns_whole_texts else len(typed_text.tokens))
        return SearchRequest(typed_text.prefix_state, k, max_tokens, text_of, min_log_prob, stop)

    def _canonical_text(self, tokens: Sequence[str]) -> str | None:
        """Return the canonical form of the text of `tokens`; None if the tokenizer splits the text into other tokens.

        Without this test, a search could return a text twice, with different tokens.
        """
        text = self.tokenizer.join(tokens)
        return same_text(text) if self.tokenizer.split(text) == list(tokens) else None

    def _suggest_with_typos(
        self, typed_text: TypedText, k: int, deadline: float | None, stop: Stop | None
    ) -> Suggestions:
        """Suggest texts with and without typos; the search for texts without typos has half of the time."""
        if not self.typo_costs.max_typos_for(len(typed_text.tokens)) or typed_text.plain_state is None:
            return self._search([self._new_request(typed_text, k, stop=stop)], deadline)[0]
        max_suggestions = sizes_of_rounds(k)[-1]

        def complete(correction: Correction, min_log_prob: float) -> list[Suggestion]:
            """Return the texts that begin with `correction`; their log probabilities given it exceed `min_log_prob`."""
            if correction.is_whole_text:
                text = self._canonical_text(correction.tokens)
                if not text or not self.is_allowed(text):
                    return []
                return [Suggestion(text, log_probability=0.0, source="model")]
            prefix_state = self.engine.read_prefix(typed_text.prefix_state, self.tokenizer.encode(correction.tokens))
            corrected = TypedText(correction.tokens, prefix_state)
            request = self._new_request(
                corrected, max_suggestions, min_new_tokens=0, min_log_prob=min_log_prob, stop=stop
            )
            (result,) = self._search([request], deadline)
            results.append(result)
            return result.suggestions

        first_deadline = None if deadline is None else (time.monotonic() + deadline) / 2
        request = self._new_request(typed_text, max_suggestions, stop=stop)
        results = self._search([request], first_deadline)
        (without_typos,) = results
        corrections = find_corrections(
            self.run,
            typed_text.tokens,
            typed_text.plain_state,
            self.typo_costs,
            max_tokens=self.max_text_tokens,
            deadline=deadline,
            stop=stop,
        )
        merged = merge_corrections(without_typos.suggestions, corrections, complete, max_suggestions)
        expanded_count = corrections.expanded_count + sum(result.expanded_count for result in results)
        suggestions = merge_rounds(partial(most_probable, merged), k)
        return Suggestions(suggestions, expanded_count, any(result.is_cut for result in results))

    def _split(self, text: str) -> tuple[str, ...]:
        """Return the tokens of a typed prefix or of a whole text."""
        return self.typed_reader.split(self.tokenizer.normalize(clean_prefix(text)))
