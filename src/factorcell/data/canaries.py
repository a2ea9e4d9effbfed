"""Canaries: random texts that are planted among training texts, to measure what a model memorises of a text.

    |R| = A ** L      the texts of one form: L tokens, each drawn uniformly from an alphabet of A known tokens

(Carlini, Liu, Erlingsson, Kos and Song 2019, "The Secret Sharer", section 4.) Each canary has the whole context of one
training text, so that it is one person's, and is repeated 1 to 10 times.

Shapes: N canaries, L tokens of each.
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

CANARIES_FILE = "canaries.json"  # in a run folder: what was planted
FORMAT = 1  # of the file
NOTE = (
    "Random texts that were planted among the training texts to measure what the model memorises. "
    "None is real, and this run is for measuring only."
)
MAX_REPETITIONS = 10  # the most often that a canary is repeated
LENGTH, CHARACTERS = 5, 10  # tokens of a canary, and of one of characters
WORDS, LETTERS = 500, 36  # the most words or characters that are drawn from
LEAST_SPACE = 10**6  # texts of a form, so that a random one is found by chance by nobody
PLAIN = regex.compile(r"[\p{L}\p{N}]+")

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class CanaryForm:
    """The form of canaries: `length` tokens, each drawn uniformly from `alphabet`."""

    alphabet: tuple[str, ...]
    length: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_tokens: int) -> "CanaryForm":
        """The form for a model that reads texts with `tokenizer`: its most frequent letters, digits or words.

        `UserError` where they make too few texts for a canary to be random.
        """
        plain = (token for token in tokenizer.tokens[len(tokenizer.specials) :] if PLAIN.fullmatch(token))
        form = cls(
            _apart(plain, tokenizer), min(CHARACTERS if tokenizer.is_character_level else LENGTH, max_tokens - 1)
        )
        if form.length < 1 or form.space < LEAST_SPACE:
            raise UserError(
                f"canaries of {form.length} tokens from {len(form.alphabet)} known letters, digits or words are too "
                f"few ({LEAST_SPACE:,} are needed); raise max_tokens, or train on more texts"
            )
        return form

    @property
    def space(self) -> int:
        """|R|, how many texts have this form."""
        return int(len(self.alphabet) ** self.length)

    def draw(self, count: int, key: Sequence[int]) -> list[tuple[str, ...]]:
        """`count` different texts, as tokens; the `key` decides which."""
        random, drawn = np.random.default_rng(key), dict[tuple[str, ...], None]()
        while len(drawn) < count:
            places = random.integers(len(self.alphabet), size=self.length)
            drawn[tuple(self.alphabet[place] for place in places)] = None
        return list(drawn)


def _apart(tokens: Iterable[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The first of `tokens` that can stand in any order: joined and split again, no two become another token."""
    chosen: list[str] = []
    letters = tokenizer.is_character_level
    for token in tokens:
        if len(chosen) == (LETTERS if letters else WORDS):
            break
        among = [token, *chosen] if letters else [token]
        pairs = [pair for other in among for pair in ([token, other], [other, token])]
        if all(tokenizer.split(tokenizer.join(pair)) == pair for pair in pairs):
            chosen.append(token)
    return tuple(chosen)


@dataclass(frozen=True)
class Canaries:
    """N canaries of one `form`: their `texts` (tokens), how many `times` each was planted (N,), and their contexts.

    `owners`: a corpus of N rows with the contexts; row n has the text of canary n.
    """

    form: CanaryForm
    texts: tuple[tuple[str, ...], ...]
    repetitions: Whole
    corpus: Corpus

    @classmethod
    def draw(cls, corpus: Corpus, max_tokens: int, count: int, seed: int) -> "Canaries":
        """`count` canaries, each with the context of a random text of `corpus`; repetitions are balanced."""
        form = CanaryForm.of(corpus.tokenizer, max_tokens)
        texts = form.draw(count, (seed, 0xCA9A, 0))
        rows = np.random.default_rng((seed, 0xCA9A, 1)).choice(len(corpus), count, replace=count > len(corpus))
        return cls(
            form, tuple(texts), np.arange(count) % MAX_REPETITIONS + 1, replace_texts(corpus.select(rows), texts)
        )

    def plant(self, corpus: Corpus) -> Corpus:
        """`corpus` and, after its texts, every canary as often as it is repeated."""
        return corpus.concatenate(self.corpus.select(np.repeat(np.arange(len(self.texts)), self.repetitions)))

    def save(self, path: Path) -> None:
        """JSON: a note that none of it is real, the form, the canaries as tokens, and their contexts as ids."""
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
        """What `save` wrote, of a run with this tokenizer and schema; `UserError` where it is damaged."""
        content = files.read_versioned(path, FORMAT)
        try:
            form = CanaryForm(tuple(content["form"]["alphabet"]), int(content["form"]["length"]))
            texts = tuple(tuple(map(str, text)) for text in content["texts"])
            times = np.array(content["times"], np.int64)
            arrays = {
                name: np.array(rows, np.int64 if name.startswith(("categories", "bags")) else np.float32)
                for name, rows in content["contexts"].items()
            }
            offsets = np.zeros(len(texts) + 1, np.int64)
            owners = Corpus(offsets[:0], offsets, tokenizer=tokenizer, **context_fields(arrays, schema))
            counts = np.array([len(variable.values) for variable in schema.categories])
            if owners.categories.shape != (len(texts), len(counts)) or len(times) != len(texts):
                raise ValueError("the contexts are of another schema")
            if (owners.categories >= counts).any() or (owners.categories < MISSING).any():
                raise ValueError("a category is out of range")
            return cls(form, texts, times, replace_texts(owners, texts))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path}: not a file of canaries ({error!r})") from None


def plant_canaries(corpus: Corpus, config: Config, folder: Path) -> Corpus:
    """The texts that a run of `config` trains on: `corpus`, with canaries if asked for, which `folder` then keeps."""
    training = config.training
    if not training.canaries:
        return corpus
    canaries = Canaries.draw(corpus, config.data.max_tokens, training.canaries, training.seed)
    canaries.save(folder / CANARIES_FILE)
    return canaries.plant(corpus)


def replace_texts(corpus: Corpus, texts: Sequence[Sequence[str]]) -> Corpus:
    """The contexts of `corpus` with other `texts`, a text of known tokens for each row."""
    specials, encode = corpus.tokenizer.specials, corpus.tokenizer.encode
    lines = [[specials.start, *encode(text), specials.end] for text in texts]
    offsets = np.cumsum([0, *map(len, lines)]).astype(np.int64)
    tokens = np.array([i for line in lines for i in line], dtype=np.int64)
    return replace(corpus, tokens=tokens, offsets=offsets, originals=None)
