"""Which values training grouped as rare, without their names: a Bloom filter (Bloom 1970) of a column.

    n values, m bits, k probes      a value never seen passes with probability (1 - exp(-k n / m))^k, under 1 %

It has no false negatives: no value that training saw is taken for one never seen. Whoever has the filter and guesses a
name can ask it too, so it hides no name that can be guessed (docs/privacy.md).
"""

import hashlib
from collections.abc import Collection

BITS = 12  # for each value
PROBES = 7  # of every filter, also of those that are kept
FEWEST = 1024  # bits of a filter: in a smaller one the probes of different values fall together


def bloom_filter(names: Collection[str]) -> str:
    """The filter of `names`, in hexadecimal digits; empty where there are none."""
    if not names:
        return ""
    bits = bytearray(-(-max(FEWEST, BITS * len(names)) // 8))
    for name in names:
        for place in _places(name, 8 * len(bits)):
            bits[place // 8] |= 1 << place % 8
    return bits.hex()


def holds(bits: bytes, name: str) -> bool:
    """Whether `name` is among the names of a filter, whose hexadecimal digits stand for `bits`, or passes for one."""
    return bool(bits) and all(bits[place // 8] >> place % 8 & 1 for place in _places(name, 8 * len(bits)))


def _places(name: str, size: int) -> list[int]:
    """The bits that a name sets, by two hashes for all probes (Kirsch and Mitzenmacher 2006)."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first, step = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
    return [(first + probe * step) % size for probe in range(PROBES)]
