"""The features of texts for a linear classifier: n-grams of tokens, and the values of other columns.

The features of the tokens of a text are the counts of hash buckets of n-grams, divided by the square root of the number
of n-grams of the text.

Shapes: B texts, N features of the texts, U distinct rows of weights of these features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from factorcell.data.corpus import Corpus, extend_hashes
from factorcell.data.ragged import Ragged
from factorcell.data.schema import ContextSchema, Variable
from factorcell.model.encoder import NumberInputs

Ids = NDArray[np.int64]
FeaturePart = tuple[Ids, Ids, NDArray[np.float32]]  # for each feature of some texts: its text, number and value


def select_variables(corpus: Corpus, names: Sequence[str]) -> Corpus:
    """Return a corpus with the same texts, and only the context variables `names`, in this order."""
    schema = ContextSchema(tuple(map(corpus.schema.variable, names)))

    def indices(selected: Sequence[Variable], variables: Sequence[Variable]) -> list[int]:
        return [variables.index(variable) for variable in selected]

    old = corpus.schema
    return replace(
        corpus,
        schema=schema,
        categories=corpus.categories[:, indices(schema.categories, old.categories)],
        numbers=corpus.numbers[:, indices(schema.numbers, old.numbers)],
        vectors=tuple(corpus.vectors[index] for index in indices(schema.vectors, old.vectors)),
        words=tuple(corpus.words[index] for index in indices(schema.texts, old.texts)),
        prompts=tuple(corpus.prompts[index] for index in indices(schema.prompts, old.prompts)),
    )


def informative_variables(corpus: Corpus) -> tuple[Variable, ...]:
    """Return the variables after the first one, the target, whose features differ between the texts of a corpus.

    All rare values of a category have the same feature. Prompts have no features.
    """
    schema = corpus.schema
    arrays = [
        *zip(schema.categories[1:], corpus.categories.T[1:], strict=True),
        *zip(schema.numbers, corpus.numbers.T, strict=True),
        *zip(schema.vectors, corpus.vectors, strict=True),
    ]
    varying = [variable for variable, values in arrays if not np.array_equal(values[1:], values[:-1], equal_nan=True)]
    return tuple(variable for variable in schema.variables if variable in (*varying, *schema.texts))


def _ngram_features(texts: Ragged, order: int, bucket_count: int) -> Iterator[FeaturePart]:
    """Yield the features of the n-grams of each length: the index of their text, hash buckets and values."""
    tokens, offsets = texts.values.astype(np.uint64), texts.offsets
    text_of_token = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    position_in_text = np.arange(len(tokens)) - offsets[text_of_token]
    ngram_counts = sum(np.maximum(0, np.diff(offsets) - shorter) for shorter in range(order))
    values = ngram_counts.astype(np.float32) ** -0.5
    hashes = np.zeros(len(tokens), dtype=np.uint64)  # hash of the n-gram that ends at each token
    for length in range(1, order + 1):
        hashes[1:] = hashes[:-1]  # an n-gram extends the shorter n-gram that ends at the preceding token
        hashes = extend_hashes(hashes, tokens + np.uint64(length), shift=32)
        is_in_text = position_in_text >= length - 1  # whether the n-gram begins in the same text
        text_of_ngram = text_of_token[is_in_text]
        buckets = (hashes[is_in_text] % np.uint64(bucket_count)).astype(np.int64)
        yield text_of_ngram, buckets, values[text_of_ngram]


def sizes_of_features(schema: ContextSchema) -> list[int]:
    """Return the number of features of each category after the target, of all numbers, and of each text and vector."""
    numbers = sum(len(variable.means) or 1 for variable in schema.numbers)
    categories, texts = ([len(variable.values) for variable in part] for part in (schema.categories[1:], schema.texts))
    return [*categories, numbers, *texts, *(len(variable.means) for variable in schema.vectors)]


def context_features(corpus: Corpus) -> Iterator[FeaturePart]:
    """Yield the features of the variables after the target: their texts, numbers of features, and values.

    A category has a feature with value 1 for each of its values; numbers and vectors have their standardized values,
    and a periodic number those of its waves; the words of a text have 1 / sqrt(number of words). A missing value has no
    feature, or the mean 0.
    """
    schema, texts = corpus.schema, np.arange(len(corpus))
    begins = iter(np.append(0, np.cumsum(sizes_of_features(schema))))
    for column in range(1, len(schema.categories)):
        begin, values = next(begins), corpus.categories[:, column].astype(np.int64)
        known = texts[values >= 0]
        yield known, begin + values[known], np.ones(len(known), dtype=np.float32)
    inputs = NumberInputs(schema.numbers) if schema.numbers else nn.Identity()
    dense = [(next(begins), inputs(torch.from_numpy(np.array(corpus.numbers))).numpy())]
    for bag in corpus.words:
        begin, counts = next(begins), np.diff(bag.offsets)
        word_values = np.repeat(np.maximum(counts, 1).astype(np.float32) ** -0.5, counts)
        yield np.repeat(texts, counts), begin + bag.values.astype(np.int64), word_values
    for variable, vectors in zip(schema.vectors, corpus.vectors, strict=True):
        standardized = (vectors - np.array(variable.means)) / np.array(variable.deviations)
        dense.append((next(begins), np.nan_to_num(standardized)))
    for begin, values in dense:
        width = values.shape[1]
        rows = begin + np.tile(np.arange(width), len(corpus))
        yield np.repeat(texts, width), rows, values.astype(np.float32).ravel()


class Features:
    """The features of the texts of a corpus.

    N-grams are hashed when a batch is read, because those of all texts would take much memory. The other features are
    stored text by text: their rows of weights (N,) and values (N,).
    """

    def __init__(self, corpus: Corpus, order: int, bucket_count: int, context_parts: Sequence[FeaturePart]) -> None:
        self.tokens, self.order, self.bucket_count = Ragged(corpus.tokens, corpus.offsets), order, bucket_count
        texts, rows, values = (np.concatenate(arrays) for arrays in zip(*context_parts, strict=True))
        places = np.argsort(texts, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(texts, minlength=len(corpus))))
        self.rows, self.values = Ragged(rows[places], offsets), Ragged(values[places], offsets)

    def take(self, texts: Ids) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the features of `texts` (B,) in the form that `torch.nn.functional.embedding_bag` reads.

        Returns:
            The distinct rows (U,), the position of each feature's row among them (N,), the value of each feature (N,),
            and the index of the first feature of each text (B,).
        """
        (context_rows, offsets), context_values = self.rows.select(texts), self.values.select(texts).values
        parts = [*_ngram_features(self.tokens.select(texts), self.order, self.bucket_count)]
        parts.append((np.repeat(np.arange(len(texts)), np.diff(offsets)), context_rows, context_values))
        text_of_feature, rows, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        places = np.argsort(text_of_feature, kind="stable")
        counts = np.bincount(text_of_feature, minlength=len(texts))
        distinct_rows, positions = np.unique(rows[places], return_inverse=True)
        arrays = (distinct_rows, positions, values[places], np.cumsum(counts) - counts)
        return tuple(map(torch.from_numpy, arrays))  # type: ignore[return-value]
