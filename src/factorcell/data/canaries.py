"""Canaries: random texts that are planted among the training texts, to measure how much a model memorizes.

    |R| = A ** L      number of possible canaries: L tokens, each drawn uniformly from an alphabet of A tokens

The alphabet consists of tokens of the vocabulary. A sequence that is not the tokens of its own text, such as two pieces
of words that byte-pair encoding merges, is drawn again. Each canary has the context (including the user) of one
training text, and is planted 1 to 10 times.

References:
    Carlini, Liu, Erlingsson, Kos and Song 2019, "The Secret Sharer", section 4.

Shapes: N canaries of L tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import regex
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import Config, UserError
from factorcell.data.corpus import Corpus, context_fields
from factorcell.data.schema import MISSING, ContextSchema
from factorcell.data.tokenizer import Tokenizer

CANARIES_FILE = "canaries.json"  # the file of a run folder with the planted canaries
FORMAT = 1  # version of the format of `CANARIES_FILE`
NOTE = (
    "Random texts that were planted among the training texts to measure what the model memorizes. "
    "None is real; use this run for measurements only."
)
MAX_REPETITIONS = 10
WORD_LENGTH, CHARACTER_LENGTH = 5, 10  # number of tokens of a canary of words and of a canary of characters
MAX_WORDS, MAX_CHARACTERS = 500, 36  # maximum sizes of an alphabet of words and of an alphabet of characters
MIN_SPACE = 10**6  # minimum of |R|, so that a model does not predict a canary by chance
MAX_DRAWS_PER_TEXT = 100  # limits the draws of texts that are not the tokens of their text, or were drawn before
ALPHANUMERIC = regex.compile(r"[\p{L}\p{N}]+")


@dataclass(frozen=True)
class CanaryForm:
    """The form of canaries: `length` tokens, each drawn uniformly from `alphabet`."""

    alphabet: tuple[str, ...]
    length: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_tokens: int) -> "CanaryForm":
        """Return the form of canaries for `tokenizer`; the alphabet has the most frequent letters, digits or words.

        Raises:
            UserError: The form allows fewer than `MIN_SPACE` texts.
        """
        special_tokens = {*tokenizer.decode(tokenizer.specials)}
        ordinary_tokens = (token for token in tokenizer.tokens if token not in special_tokens)
        alphanumeric_tokens = (token for token in ordinary_tokens if _is_alphanumeric(token, tokenizer))
        length = CHARACTER_LENGTH if tokenizer.is_character_level else WORD_LENGTH
        form = cls(_separable_tokens(alphanumeric_tokens, tokenizer), min(length, max_tokens - 1))
        if form.length < 1 or form.space < MIN_SPACE:
            raise UserError(
                f"canaries: {form.length} tokens from {len(form.alphabet)} known letters, digits or words make too "
                f"few texts ({MIN_SPACE:,} are needed); raise max_tokens, or train on more texts"
            )
        return form

    @property
    def space(self) -> int:
        """The number of texts of this form, |R|."""
        return int(len(self.alphabet) ** self.length)

    def draw(self, tokenizer: Tokenizer, count: int, key: Sequence[int]) -> list[tuple[str, ...]]:
        """Draw `count` different texts, each a tuple of tokens; `key` is the seed of the random numbers.

        The tokens are those of their text: `tokenizer` splits the joined text into the same tokens.

        Raises:
            UserError: Too few of the sequences that were drawn are the tokens of their text.
        """
        generator = np.random.default_rng(key)
        distinct_texts = dict[tuple[str, ...], None]()  # a set in the order in which its items were added
        for _ in range(MAX_DRAWS_PER_TEXT * count):
            if len(distinct_texts) == count:
                break
            indices = generator.integers(len(self.alphabet), size=self.length)
            if text := _tokens_of_text([self.alphabet[index] for index in indices], tokenizer):
                distinct_texts[text] = None
        if len(distinct_texts) < count:
            raise UserError(
                f"canaries: only {len(distinct_texts):,} of {MAX_DRAWS_PER_TEXT * count:,} sequences of tokens are the "
                f"tokens of their text, expected {count:,} different ones; choose the tokenizer char or word"
            )
        return list(distinct_texts)


def _is_alphanumeric(token: str, tokenizer: Tokenizer) -> bool:
    """Return whether a token has only letters and digits; a piece of a word must begin a word, after a space."""
    if not tokenizer.is_subword:
        return ALPHANUMERIC.fullmatch(token) is not None
    word = tokenizer.readable(token)
    return word.startswith(" ") and ALPHANUMERIC.fullmatch(word[1:]) is not None


def _tokens_of_text(tokens: Sequence[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the tokens of the joined text of `tokens`, or nothing if they are not as many or differ after the first.

    The text does not begin with the space of a piece that begins a word, so its first token may differ.
    """
    text = tuple(tokenizer.split(tokenizer.join(tokens).lstrip(" ")))
    return text if len(text) == len(tokens) and text[1:] == tuple(tokens[1:]) else ()


def _separable_tokens(tokens: Iterable[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the first tokens that stay separate in the joined text of two tokens.

    For characters, all pairs are tested. Words are joined with a space, and pieces of words begin with one, so each is
    tested only with itself.
    """
    separable_tokens: list[str] = []
    is_character_level = tokenizer.is_character_level
    max_count = MAX_CHARACTERS if is_character_level else MAX_WORDS
    for token in tokens:
        if len(separable_tokens) == max_count:
            break
        others = [token, *separable_tokens] if is_character_level else [token]
        pairs = [pair for other in others for pair in ([token, other], [other, token])]
        if all(_tokens_of_text(pair, tokenizer) for pair in pairs):
            separable_tokens.append(token)
    return tuple(separable_tokens)


@dataclass(frozen=True)
class Canaries:
    """N canaries.

    Attributes:
        form: The form of all canaries.
        texts: The tokens of each canary (N tuples of L tokens).
        repetitions: How often each canary was planted (N,).
        corpus: The canaries with their contexts, one row for each canary.
    """

    form: CanaryForm
    texts: tuple[tuple[str, ...], ...]
    repetitions: NDArray[np.int64]
    corpus: Corpus

    @classmethod
    def draw(cls, corpus: Corpus, max_tokens: int, count: int, seed: int) -> "Canaries":
        """Draw `count` canaries, each with the context of a random text of `corpus`.

        The canaries are planted 1, 2, ..., `MAX_REPETITIONS`, 1, 2, ... times.
        """
        form = CanaryForm.of(corpus.tokenizer, max_tokens)
        # 0xCA9A makes these random numbers differ from those of other uses of the same seed.
        texts = form.draw(corpus.tokenizer, count, (seed, 0xCA9A, 0))
        rows = np.random.default_rng((seed, 0xCA9A, 1)).choice(len(corpus), count, replace=count > len(corpus))
        repetitions = np.arange(count) % MAX_REPETITIONS + 1
        return cls(form, tuple(texts), repetitions, replace_texts(corpus.select(rows), texts))

    def plant(self, corpus: Corpus) -> Corpus:
        """Return `corpus` followed by the canaries, each repeated as often as `repetitions` specifies."""
        rows = np.repeat(np.arange(len(self.texts)), self.repetitions)
        return corpus.concatenate(self.corpus.select(rows))

    def save(self, path: Path) -> None:
        """Write the form, the canaries and their contexts into a JSON file, with a note that the texts are random."""
        form = {"alphabet": self.form.alphabet, "length": self.form.length, "space": self.form.space}
        contexts = {name: array.tolist() for name, array in self.corpus.context_arrays().items()}
        content = {
            "note": NOTE,
            "form": form,
            "texts": self.texts,
            "times": self.repetitions.tolist(),
            "contexts": contexts,
        }
        files.write_versioned(path, content, FORMAT)

    @classmethod
    def open(cls, path: Path, tokenizer: Tokenizer, schema: ContextSchema) -> "Canaries":
        """Return the canaries in a file that `save` wrote for a run with this tokenizer and schema.

        Raises:
            UserError: The file is damaged.
        """
        content = files.read_versioned(path, FORMAT)
        try:
            form = CanaryForm(tuple(content["form"]["alphabet"]), int(content["form"]["length"]))
            texts = tuple(tuple(map(str, text)) for text in content["texts"])
            repetitions = np.array(content["times"], np.int64)
            arrays = {
                name: np.array(values, np.int64 if name.startswith(("categories", "words", "prompts")) else np.float32)
                for name, values in content["contexts"].items()
            }
            contexts = Corpus(  # without tokens, which `replace_texts` adds
                tokens=np.zeros(0, np.int64),
                offsets=np.zeros(len(texts) + 1, np.int64),
                tokenizer=tokenizer,
                **context_fields(arrays, schema),
            )
            value_counts = np.array([len(variable.values) for variable in schema.categories])
            if contexts.categories.shape != (len(texts), len(value_counts)) or len(repetitions) != len(texts):
                raise ValueError("the contexts belong to another schema")
            if (contexts.categories >= value_counts).any() or (contexts.categories < MISSING).any():
                raise ValueError("a category is out of range")
            return cls(form, texts, repetitions, replace_texts(contexts, texts))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path}: not a file of canaries ({error!r})") from None


def plant_canaries(corpus: Corpus, config: Config, folder: Path) -> Corpus:
    """Return `corpus` with the canaries that `config` requests, if any, and write the canaries into `folder`."""
    options = config.training
    if not options.canaries:
        return corpus
    canaries = Canaries.draw(corpus, config.data.max_tokens, options.canaries, options.seed)
    canaries.save(folder / CANARIES_FILE)
    return canaries.plant(corpus)


def replace_texts(corpus: Corpus, texts: Sequence[Sequence[str]]) -> Corpus:
    """Return `corpus` with its texts replaced by `texts`: for each row, a sequence of in-vocabulary tokens."""
    specials, encode = corpus.tokenizer.specials, corpus.tokenizer.encode
    ids_of_texts = [[specials.start, *encode(text), specials.end] for text in texts]
    offsets = np.cumsum([0, *map(len, ids_of_texts)]).astype(np.int64)
    tokens = np.array([token_id for ids in ids_of_texts for token_id in ids], dtype=np.int64)
    return replace(corpus, tokens=tokens, offsets=offsets, originals=None, spellings=None)
