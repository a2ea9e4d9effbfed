"""Completion of typed text with a model of characters, graphemes or pieces of words.

    run = Run.open("runs/queries")
    completer, user = Completer(run), User.new(run)
    completer.complete("how to ba", user)                          # a whole prefix at once
    typed_text = completer.type_text(completer.begin(user), "how to b")  # or one keystroke at a time
    completer.suggest(typed_text).suggestions
    user = learn_one(run, user, "how to bake bread")               # the text that the user entered

A completer never changes, and each typed text is an immutable value. Threads can therefore share a completer.
"""

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from factorcell.completion.compiled import new_engine
from factorcell.completion.online import User, user_variable
from factorcell.completion.pieces import PieceEngine
from factorcell.completion.popularity import MIN_PROPOSALS, Suggestion, with_earlier_texts
from factorcell.completion.search import Ids, PlainEngine, PrefixState, SearchRequest, Stop
from factorcell.completion.typos import find_corrections, max_typos_for
from factorcell.data.private_content import is_public
from factorcell.data.text_folds import check_text, clean_prefix, is_valid_text, same_text
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.options import limits
from factorcell.options.limits import check_unknown
from factorcell.runs.run import Run

TextFilter = Callable[[str], bool]  # returns whether a text may be suggested


@dataclass(frozen=True)
class TypedText:
    """Text typed so far, tokenized, with the search state for that prefix."""

    tokens: tuple[str, ...]  # the characters or graphemes of the text
    fits: bool  # whether the text has at most as many tokens as a suggested text; otherwise it is not completed
    prefix_state: Any  # the state of the completer's search engine after these tokens
    user: User | None = None  # the user who types; None: the unknown user
    plain_state: PrefixState | None = None  # of the search for corrections; None if no typos are forgiven

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True)
class Suggestions:
    """The suggestions for a typed text."""

    suggestions: list[Suggestion]  # the best first
    expanded_count: int  # number of hypotheses that the model has read
    is_cut: bool  # whether a limit ended the search while better suggestions were possible

    def written(self, tokenizer: Tokenizer) -> list[Suggestion]:
        """Return the suggestions to show, with their texts as people write them (`Tokenizer.written`)."""
        return [replace(suggestion, text=tokenizer.written(suggestion.text)) for suggestion in self.suggestions]


def public_filter(is_allowed: TextFilter | None) -> TextFilter:
    """Return a filter that rejects texts that seem to contain private content, and those that `is_allowed` rejects."""
    return is_public if is_allowed is None else lambda text: is_public(text) and is_allowed(text)


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
        typos: int = 0,
        is_allowed: TextFilter | None = None,
        max_expanded: int = SearchRequest.max_expanded,
    ) -> None:
        """Pack the current weights of `run`; create a new completer after further training of the run.

        Args:
            run: The run; its tokenizer must be `bpe`, or work on characters, such as `char` or `grapheme`.
            unknown: The policy for values that training never saw: "group", "expected" or "error".
            seconds: Time limit of each search.
            typos: Maximum number of typing errors to forgive (0, 1 or 2).
            is_allowed: Returns whether a text may be suggested; the next best texts replace rejected texts. Texts that
                seem to contain private content (`find_private_content`) are never suggested.
            max_expanded: Maximum number of hypotheses that each search expands.

        Raises:
            UserError: The tokenizer is not one of these, a number is out of range, or `bpe` is to forgive typos.
        """
        self.seconds, self.max_typos = limits.check(seconds=seconds, typos=typos)
        self.run, self.unknown, self.max_expanded = run, check_unknown(unknown), max_expanded
        self.tokenizer = run.tokenizer
        # Training cut longer texts, so the model has not learned where they end.
        self.max_text_tokens = run.config.data.max_tokens - 1
        # Pieces of words cover the bytes of the whole text, because the last piece of a prefix may continue.
        self.pieces = run.tokenizer if isinstance(run.tokenizer, BpeTokenizer) else None
        kind = run.config.tokenizer.kind
        if self.pieces is None and not run.tokenizer.is_character_level:
            expected = f"expected tokenizer char, grapheme, bpe or pretrained, got {kind}"
            raise UserError(f"{run.folder}: completion: {expected}; train with --tokenizer char")
        if self.pieces is not None and self.max_typos:
            expected = f"expected a tokenizer of characters, got {kind}"
            raise UserError(f"{run.folder}: typos: {expected}; train with --tokenizer char")
        self.is_allowed = public_filter(is_allowed)
        self.plain_engine = PlainEngine(run.predictor)
        self.engine: Any  # an engine reads its own search states only
        if self.pieces is None:
            self.engine = new_engine(run.predictor, run.precision)
        else:
            self.engine = PieceEngine(run.predictor, self.pieces, self.max_text_tokens)

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
        columns, override = self._conditions(user, context)
        corpus = self.run.read([""], [columns], unknown=unknown or self.unknown)
        encoded = corpus.context(np.zeros(1, np.int64)).to(self.run.device)
        with self.run.scoring():
            plain_state = self.plain_engine.begin(encoded, override) if self.max_typos else None
            return TypedText((), True, self.engine.begin(encoded, override), user, plain_state)

    def _conditions(
        self, user: User | None, context: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, Any], dict[str, torch.Tensor]]:
        """Return the context with the earlier texts of a user, and the vector (1, k) of the user by variable."""
        columns = {} if context is None else context
        if user is None:
            return columns, {}
        user.check(self.run)
        vector = torch.from_numpy(user.vector)[None].to(self.run.device)
        return with_earlier_texts(self.run, user.history, columns), {user_variable(self.run).name: vector}

    def type_text(self, typed_text: TypedText, text: str) -> TypedText:
        """Return the typed text for `text`; the model reads only the tokens after the part shared with `typed_text`.

        Args:
            typed_text: The text typed before, by the same user in the same context.
            text: The whole text typed now.

        Raises:
            UserError: `text` is not Unicode text, or longer than `text_folds.MAX_BYTES` bytes.
        """
        tokens = self._split(text)
        certain_tokens = tokens if self.pieces is None else self.pieces.certain_tokens("".join(tokens))
        fits = len(certain_tokens) <= self.max_text_tokens
        read_tokens = tokens if fits else ()
        ids = self.tokenizer.encode(read_tokens) if self.pieces is None else "".join(read_tokens).encode()
        with self.run.scoring():
            prefix_state = self.engine.read_prefix(typed_text.prefix_state, ids)
            plain_state = typed_text.plain_state
            if plain_state is not None:
                plain_state = self.plain_engine.read_prefix(plain_state, ids)
        return TypedText(tokens, fits, prefix_state, typed_text.user, plain_state)

    def suggest(
        self, typed_text: TypedText, k: int = 10, deadline: float | None = None, stop: Stop | None = None
    ) -> Suggestions:
        """Return the `k` most probable texts that continue a typed text, or a correction of it if typos are forgiven.

        Texts that assume no typo come first. There are no suggestions for a typed text that does not fit
        (`TypedText.fits`), or whose complete words no suggestion may contain (`is_allowed`).

        Args:
            typed_text: The typed text.
            k: Maximum number of suggestions.
            deadline: When to end the search, as a value of `time.monotonic()`; by default after the completer's
                `seconds`.
            stop: Ends the search early.
        """
        [k] = limits.check(count=k)
        if deadline is None:
            deadline = math.inf if self.seconds is None else time.monotonic() + self.seconds
        complete_words = typed_text.text[: typed_text.text.rfind(" ") + 1]
        if not typed_text.fits or (complete_words and not self.is_allowed(complete_words)):
            return Suggestions([], expanded_count=0, is_cut=False)
        with self.run.scoring():
            if max_typos_for(len(typed_text.tokens), self.max_typos):
                return self._suggest_with_typos(typed_text, k, deadline, stop)
            return self._search(typed_text, k, deadline, stop)

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
        prefix_tokens, (columns, override) = self._split(prefix), self._conditions(user, context)
        corpus = self.run.read(texts, [columns] * len(texts), unknown=self.unknown)
        vectors = {name: vector.expand(len(texts), -1) for name, vector in override.items()}
        with torch.inference_mode():
            batch = self.run.batch(corpus, np.arange(len(texts)))
            nats = self.run.predictor(batch, self.run.predictor.condition(batch.context, vectors))
        first_target, log_z = len(prefix_tokens), 0.0
        if self.pieces is not None:
            first_target = 0
            log_z = self.type_text(self.begin(user, context), prefix).prefix_state.log_probability
        log_probs = (-nats[:, first_target:].double().sum(1) - log_z).tolist()
        return [
            log_prob if self._split(text)[: len(prefix_tokens)] == prefix_tokens and not is_truncated else math.nan
            for text, log_prob, is_truncated in zip(texts, log_probs, corpus.truncated, strict=True)
        ]

    def _search(
        self,
        typed_text: TypedText,
        k: int,
        deadline: float,
        stop: Stop | None,
        *,
        min_new_tokens: int = 1,
        min_log_prob: float = -math.inf,
    ) -> Suggestions:
        """Search for continuations of a typed text; with `min_new_tokens` = 0, the text itself is one of them."""
        prefix = typed_text.text

        def text_of(ids: Ids) -> str | None:
            """Return the text that `ids` continue; None if it is not allowed, or has other tokens after splitting."""
            if len(ids) < min_new_tokens:
                return None
            new_tokens = self.tokenizer.decode(ids)
            text = self._canonical_text([*typed_text.tokens, *new_tokens] if self.pieces is None else new_tokens)
            if not text or (min_new_tokens and (text == prefix or not text.startswith(prefix))):
                return None
            return text if self.is_allowed(text) else None

        max_tokens = self.max_text_tokens - (len(typed_text.tokens) if self.pieces is None else 0)
        request = SearchRequest(
            typed_text.prefix_state, k, max_tokens, text_of, min_log_prob, deadline, stop, self.max_expanded
        )
        result = self.engine.search(request)
        suggestions = [
            Suggestion(completion.text, completion.log_probability, "model") for completion in result.completions
        ]
        return Suggestions(suggestions, result.expanded_count, result.is_cut)

    def _canonical_text(self, tokens: Sequence[str]) -> str | None:
        """Return the canonical form of the text of `tokens`; None if the tokenizer splits the text into other tokens.

        Without this test, a search could return a text twice, with different tokens.
        """
        text = self.tokenizer.join(tokens)
        is_canonical = self.tokenizer.split(text) == list(tokens) and is_valid_text(text)
        return same_text(text) if is_canonical else None

    def _suggest_with_typos(self, typed_text: TypedText, k: int, deadline: float, stop: Stop | None) -> Suggestions:
        """Suggest texts with and without typos; the search for texts without typos has half of the time."""
        assert typed_text.plain_state is not None  # the completer forgives typos
        size = max(k, MIN_PROPOSALS)
        results = [self._search(typed_text, size, (time.monotonic() + deadline) / 2, stop)]
        corrections = find_corrections(
            self.run,
            typed_text.tokens,
            typed_text.plain_state,
            max_typos_for(len(typed_text.tokens), self.max_typos),
            max_tokens=self.max_text_tokens,
            deadline=deadline,
            stop=stop,
        )
        log_total = float(np.logaddexp(corrections.typed_log_probability, corrections.log_total))
        best = _with_share(results[0].suggestions, corrections.typed_log_probability - log_total)
        for correction in corrections.corrections:
            log_share = correction.log_probability - log_total
            min_log_prob = best[-1].log_probability if len(best) == size else -math.inf
            if log_share <= min_log_prob:
                break  # no text of this correction, or of a less probable one, can be among the best
            if correction.is_whole_text:
                text = self._canonical_text(correction.tokens)
                suggestions = [Suggestion(text, 0.0, "model")] if text and self.is_allowed(text) else []
            else:
                ids = self.tokenizer.encode(correction.tokens)
                corrected = TypedText(correction.tokens, True, self.engine.read_prefix(typed_text.prefix_state, ids))
                result = self._search(
                    corrected, size, deadline, stop, min_new_tokens=0, min_log_prob=min_log_prob - log_share
                )
                results.append(result)
                suggestions = result.suggestions
            candidates = [*best, *_with_share(suggestions, log_share, correction.typos)]
            distinct: dict[str, Suggestion] = {}  # text -> its suggestion with the fewest typos
            for suggestion in sorted(candidates, key=lambda entry: (entry.typos, -entry.log_probability)):
                distinct.setdefault(suggestion.text, suggestion)
            best = heapq.nlargest(size, distinct.values(), key=lambda entry: entry.log_probability)
        best.sort(key=lambda suggestion: suggestion.typos > 0)  # the sort is stable
        expanded_count = corrections.expanded_count + sum(result.expanded_count for result in results)
        return Suggestions(best[:k], expanded_count, any(result.is_cut for result in results))

    def _split(self, text: str) -> tuple[str, ...]:
        """Return the characters or graphemes of a typed prefix or of a whole text."""
        text = self.tokenizer.normalize(clean_prefix(text))
        return tuple(self.tokenizer.split(text) if self.pieces is None else text)


def _with_share(suggestions: Sequence[Suggestion], log_share: float, typos: int = 0) -> list[Suggestion]:
    """Return suggestions given the typed prefix, from those given a correction with the log probability `log_share`."""
    return [
        replace(suggestion, log_probability=suggestion.log_probability + log_share, typos=typos)
        for suggestion in suggestions
    ]
