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
from typing import Any

import numpy as np
import torch

from factorcell.completion.compiled import new_engine
from factorcell.completion.online import User, user_variable
from factorcell.completion.pieces import PieceEngine
from factorcell.completion.popularity import MIN_PROPOSALS, Suggestion, with_earlier_texts
from factorcell.completion.search import MAX_EXPANDED, Ids, PlainEngine, PrefixState, SearchRequest, Stop
from factorcell.completion.texts import check_text, clean_prefix
from factorcell.completion.typos import Correction, find_corrections, max_typos_for, merge_corrections
from factorcell.data.private_content import is_public
from factorcell.data.text_folds import same_text
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.options import limits
from factorcell.options.limits import check_unknown
from factorcell.runs.run import Run

TextFilter = Callable[[str], bool]  # returns whether a text may be suggested


@dataclass(frozen=True)
class TypedText:
    """Text typed so far, tokenized, with the search state for that prefix.

    Attributes:
        tokens: The characters or graphemes of the typed text.
        fits: Whether the text has at most as many tokens as a suggested text may have; otherwise it is not completed.
        prefix_state: The state of the completer's search engine after these tokens.
        user: The user who types, or None for the unknown user.
        plain_state: The state of the search in PyTorch after these tokens, which the search for corrections uses; None
            if the completer forgives no typos.
    """

    tokens: tuple[str, ...]
    fits: bool
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
        max_expanded: int = MAX_EXPANDED,
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
        self.engine: Any = (  # an engine reads its own search states only
            new_engine(run.predictor, run.precision)
            if self.pieces is None
            else PieceEngine(run.predictor, self.pieces, self.max_text_tokens)
        )

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
            UserError: `text` is not Unicode text, or longer than `texts.MAX_BYTES` bytes.
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
        if deadline is None and self.seconds is not None:
            deadline = time.monotonic() + self.seconds
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
        prefix_tokens, tokens_of_texts = self._split(prefix), [self._split(text) for text in texts]
        columns, override = self._conditions(user, context)
        corpus = self.run.read(texts, [columns] * len(texts), unknown=self.unknown)
        vectors = {name: vector.expand(len(texts), -1) for name, vector in override.items()}
        with torch.inference_mode():
            batch = self.run.batch(corpus, np.arange(len(texts)))
            nats = self.run.predictor(batch, self.run.predictor.condition(batch.context, vectors))
            first_target, log_z = len(prefix_tokens), 0.0
            if self.pieces is not None:
                first_target = 0
                log_z = self.type_text(self.begin(user, context), prefix).prefix_state.log_probability
            nats_after_prefix = nats[:, first_target:].double().sum(1).tolist()
        log_probs = []
        for tokens, text_nats in zip(tokens_of_texts, nats_after_prefix, strict=True):
            begins_with_prefix = tokens[: len(prefix_tokens)] == prefix_tokens
            token_count = len(tokens) if self.pieces is None else len(self.pieces.split("".join(tokens)))
            is_defined = begins_with_prefix and token_count <= self.max_text_tokens
            log_probs.append(-text_nats - log_z if is_defined else math.nan)
        return log_probs

    def _search(
        self,
        typed_text: TypedText,
        k: int,
        deadline: float | None,
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
        request = SearchRequest(typed_text.prefix_state, k, max_tokens, text_of, min_log_prob, stop)
        result = self.engine.search(request, deadline, max_expanded=self.max_expanded)
        suggestions = [
            Suggestion(completion.text, completion.log_probability, "model") for completion in result.completions
        ]
        return Suggestions(suggestions, result.expanded_count, result.is_cut)

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
        assert typed_text.plain_state is not None  # the completer forgives typos
        max_suggestions = max(k, MIN_PROPOSALS)

        def complete(correction: Correction, min_log_prob: float) -> list[Suggestion]:
            """Return the texts that begin with `correction`; their log probabilities given it exceed `min_log_prob`."""
            if correction.is_whole_text:
                text = self._canonical_text(correction.tokens)
                if not text or not self.is_allowed(text):
                    return []
                return [Suggestion(text, log_probability=0.0, source="model")]
            prefix_state = self.engine.read_prefix(typed_text.prefix_state, self.tokenizer.encode(correction.tokens))
            corrected = TypedText(correction.tokens, True, prefix_state)
            result = self._search(
                corrected, max_suggestions, deadline, stop, min_new_tokens=0, min_log_prob=min_log_prob
            )
            results.append(result)
            return result.suggestions

        first_deadline = None if deadline is None else (time.monotonic() + deadline) / 2
        without_typos = self._search(typed_text, max_suggestions, first_deadline, stop)
        results = [without_typos]
        corrections = find_corrections(
            self.run,
            typed_text.tokens,
            typed_text.plain_state,
            max_typos_for(len(typed_text.tokens), self.max_typos),
            max_tokens=self.max_text_tokens,
            deadline=deadline,
            stop=stop,
        )
        merged = merge_corrections(without_typos.suggestions, corrections, complete, max_suggestions)
        expanded_count = corrections.expanded_count + sum(result.expanded_count for result in results)
        return Suggestions(merged[:k], expanded_count, any(result.is_cut for result in results))

    def _split(self, text: str) -> tuple[str, ...]:
        """Return the characters or graphemes of a typed prefix or of a whole text."""
        text = self.tokenizer.normalize(clean_prefix(text))
        return tuple(self.tokenizer.split(text) if self.pieces is None else text)
