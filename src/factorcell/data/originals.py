"""Sizes and digests of the texts of a corpus, after normalization and lower-casing, before tokenization.

Models with different tokenizers or vocabularies have different targets, but their bits per byte of the same texts can
be compared if their tokens determine the texts (`Tokenizer.is_lossless`).

Shapes: N texts.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPELLING_END = b"\xff"  # follows each token in `Corpus.spellings`; UTF-8 never contains this byte


class OriginalTexts(NamedTuple):
    """Sizes and digests of normalized texts.

    Attributes:
        sizes: The size of each text in bytes of UTF-8 (N,).
        digests: A 64-bit digest of each text (N,).
    """

    sizes: NDArray[np.int64]
    digests: NDArray[np.uint64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "OriginalTexts":
        """Return the sizes and digests of `texts`."""
        encoded_texts = [text.encode("utf-8", "surrogatepass") for text in texts]
        digests = b"".join(hashlib.blake2b(encoded, digest_size=8).digest() for encoded in encoded_texts)
        return cls(
            np.array([len(encoded) for encoded in encoded_texts], np.int64),
            np.frombuffer(digests, "<u8").astype(np.uint64),  # little-endian on every machine
        )

    @classmethod
    def concatenated(cls, parts: Iterable["OriginalTexts"]) -> "OriginalTexts":
        """Return the entries of all `parts`, of which there is at least one, one part after the other."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def select(self, rows: NDArray[np.int64]) -> "OriginalTexts":
        """Return the entries of the texts with the indices `rows`, in that order."""
        return OriginalTexts(self.sizes[rows], self.digests[rows])

    @property
    def key(self) -> str:
        """A digest of all texts and their order."""
        return hashlib.sha256(np.ascontiguousarray(self.digests).tobytes()).hexdigest()[:16]
