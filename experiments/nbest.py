"""N-best lists of a recogniser that does not exist: a noisy channel over real texts. This is a SIMULATION.

A word w that was said sounds, to the recogniser, like the word v of its vocabulary by

    log p(heard | v) = -SHARP d(v, w) + SPREAD sqrt(d(v, w)) e        e ~ normal

as if every sound in which they differ were heard once, with noise: d is the edit distance of the words as they sound,
by rough rules for English, where vowels, or a voiced consonant and its unvoiced partner, differ by half. A word may be
missed, as if its sounds were noise, and short words may be heard between others, at the same price. A beam search over
all this and the bigram model of the first pass gives the 50 best texts. What real lists have and these do not: words
cut otherwise than they were said, errors that come in groups, noise that differs between utterances and speakers.

`rescoring.py` has it hear oral arguments (text, speaker, role, case) and rescores what it hears.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from factorcell.config import Config
from factorcell.data.tokenizer import splitter
from factorcell.data.vocabulary import END, SPECIALS, START
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.text_figures import per_text

SHARP, SPREAD = 3.4, 1.9  # nats a sound, and how much of them is chance
LM_WEIGHT, WORD = 0.6, 1.0  # of the first pass: of its bigram model, and nats for every word
NEAR, BEAM, LIST = 14, 200, 50  # words that a word may be heard as, texts in the search, texts in a list
SHORT = ("a", "the", "to", "of", "and", "it", "is", "in", "i", "that", "uh", "so")
FEWEST, MOST = 5, 25  # words of an utterance
KNOWN, COLUMNS = ("no", "yes"), ("speaker", "role", "case", "known")
SPELLINGS = (
    *(("ph", "f"), ("gh", ""), ("ck", "k"), ("kn", "n"), ("wr", "r"), ("wh", "w"), ("tion", "shn"), ("qu", "kw")),
    *((r"c(?=[eiy])", "s"), ("c(?!h)", "k"), ("x", "ks"), (r"(.)\1", r"\1"), (r"(?<=..)e$", ""), (r"[^a-z0-9]", "")),
)
VOWELS = "aeiouy"
PARTNERS = ("bp", "dt", "gk", "vf", "zs", "mn")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"

DATA = Config.from_dict({"data": {"strip_punctuation": True, "min_count": 4, "max_tokens": 100}}).data
Floats = NDArray[np.float64]
Row = dict[str, Any]


def sound(word: str) -> str:
    """A word roughly as it sounds, in letters."""
    for spelling, heard in SPELLINGS:
        word = re.sub(spelling, heard, word)
    return word


def _costs() -> tuple[Floats, Floats]:
    """What it costs to hear a letter as another (36, 36), and to miss or add one (36,)."""
    swap = 1 - np.eye(len(LETTERS))
    for pair in (*(one + two for one in VOWELS for two in VOWELS if one != two), *PARTNERS):
        one, two = map(LETTERS.index, pair)
        swap[one, two] = swap[two, one] = 0.5
    return swap, np.array([0.5 if letter in VOWELS else 1.0 for letter in LETTERS])


SWAP, GAP = _costs()


class Ear:
    """What each word may be heard as, among the words of an n-gram model's vocabulary."""

    def __init__(self, vocabulary: tuple[str, ...]) -> None:
        self.ids = np.arange(len(SPECIALS), len(vocabulary))
        sounds = [sound(word) for word in vocabulary[len(SPECIALS) :]]
        self.lengths = np.array([len(one) for one in sounds])
        self.letters = np.zeros((len(sounds), max(self.lengths)), dtype=np.int64)
        for row, one in enumerate(sounds):
            self.letters[row, : len(one)] = [LETTERS.index(letter) for letter in one]
        self.near = cache(self._near)

    def distances(self, word: str) -> Floats:
        """The distance of `word` to every word of the vocabulary, by sound."""
        added = np.concatenate([np.zeros((len(self.ids), 1)), np.cumsum(GAP[self.letters], axis=1)], axis=1)
        costs = added
        for letter in map(LETTERS.index, sound(word)):
            after = costs + GAP[letter]
            after[:, 1:] = np.minimum(after[:, 1:], costs[:, :-1] + SWAP[letter][self.letters])
            costs = np.minimum.accumulate(after - added, axis=1) + added
        found: Floats = costs[np.arange(len(self.ids)), self.lengths]
        return found

    def _near(self, word: str) -> tuple[NDArray[np.int64], Floats]:
        """Ids and distances of the `NEAR` words that sound most like `word`."""
        found = self.distances(word)
        best = np.argsort(found, kind="stable")[:NEAR]
        return self.ids[best], found[best]


def log_bigrams(model: NGram, before: NDArray[np.int64], after: NDArray[np.int64]) -> Floats:
    """log p of each of `after` (C,) behind each of `before` (K,), (K, C), of a model of order 2."""
    first, second = model.levels
    alone = first.share[after] + first.left[0] * model.uniform
    pairs = second.find(np.repeat(before, len(after)), np.tile(after, len(before))).reshape(len(before), -1)
    logs: Floats = np.log(second.share[pairs] + second.left[before][:, None] * alone)
    return logs


class Beam(NamedTuple):
    """The best texts so far, K of them: their words, the last of these, their log p(heard) and their totals (K,)."""

    texts: list[tuple[int, ...]]
    last: NDArray[np.int64]
    sounds: Floats
    totals: Floats

    def grown(self, model: NGram, ids: NDArray[np.int64], heard: Floats, skip: float) -> "Beam":
        """All texts go on with each of `ids`, or with nothing; the best of them."""
        longer = self.totals[:, None] + heard + LM_WEIGHT * log_bigrams(model, self.last, ids) + WORD
        every = np.concatenate([longer, (self.totals + skip)[:, None]], axis=1).ravel()
        best = np.argsort(-every, kind="stable")[:BEAM]
        row, choice = np.divmod(best, len(ids) + 1)
        picked = np.append(ids, -1)[choice]
        pairs = zip(row.tolist(), picked.tolist(), strict=True)
        texts = [self.texts[r] if word < 0 else (*self.texts[r], word) for r, word in pairs]
        last = np.where(picked < 0, self.last[row], picked)
        return Beam(texts, last, self.sounds[row] + np.append(heard, skip)[choice], every[best])


def hear(model: NGram, ear: Ear, words: list[str], random: np.random.Generator) -> list[tuple[str, float]]:
    """The `LIST` best texts for what was said, with the sum of their log p(heard)."""
    column = {word: number for number, word in enumerate(model.vocabulary.tokens)}
    beam = Beam([()], np.array([START]), np.zeros(1), np.zeros(1))

    def evidence(distance: Floats) -> Floats:
        return -SHARP * distance + SPREAD * np.sqrt(distance) * random.normal(size=len(distance))

    for word in words:
        ids, distance = ear.near(word)
        beam = beam.grown(model, ids, evidence(distance), float(evidence(np.array([loudness(word)]))[0]))
        short = [one for one in random.choice(SHORT, 2, replace=False) if one in column]
        between = np.array([column[one] for one in short], dtype=np.int64)
        beam = beam.grown(model, between, evidence(np.array([loudness(one) for one in short])), 0.0)
    totals = beam.totals + LM_WEIGHT * log_bigrams(model, beam.last, np.array([END]))[:, 0]
    found: dict[str, float] = {}
    for place in np.argsort(-totals, kind="stable"):
        found.setdefault(" ".join(model.vocabulary.decode(beam.texts[place])), float(beam.sounds[place]))
    return list(found.items())[:LIST]


def loudness(word: str) -> float:
    """How far a word is from silence: the price of all its sounds."""
    return float(GAP[[LETTERS.index(letter) for letter in sound(word)]].sum())


def held(rows: Sequence[Row]) -> set[str]:
    """Every other of the ten who speak most."""
    counts = Counter(row["speaker"] for row in rows if row["role"] != "unidentified")
    return {speaker for speaker, _ in counts.most_common(10)[1::2]}


def utterances(rows: Sequence[Row], new: set[str], count: int, seed: int) -> list[Row]:
    """So many turns, neither short nor long, half of `new` speakers if they have so many, in an order of chance.

    Their text is in words, and `known` says whose it is: no or yes.
    """
    split = splitter(DATA)
    named = [{**row, "text": " ".join(split(row["text"]))} for row in rows if row["role"] != "unidentified"]
    turns = [row for row in named if FEWEST <= len(row["text"].split()) <= MOST]
    random = np.random.default_rng(seed)
    kinds = [
        [{**row, "known": known} for row in turns if (row["speaker"] in new) == (known == "no")] for known in KNOWN
    ]
    drawn = [kind[place] for kind in kinds for place in random.permutation(len(kind))[: count // 2]]
    return [drawn[place] for place in random.permutation(len(drawn))]


def lists(bigram: NGram, rows: Sequence[Row], seed: int) -> list[Row]:
    """What is heard of utterances, as `read_nbest` takes it."""
    ear, random = Ear(tuple(bigram.vocabulary.tokens)), np.random.default_rng(seed)
    made = []
    for number, row in enumerate(tqdm(rows, desc="hearing", unit=" utterances")):
        heard = hear(bigram, ear, row["text"].split(), random)
        corpus = bigram.prepare([{"text": text} for text, _ in heard])
        pairs = zip(heard, (-per_text(bigram.nats(corpus), corpus)).tolist(), strict=True)
        found = [{"text": text, "acoustic": sounds, "lm": log} for (text, sounds), log in pairs]
        found.sort(key=first_pass, reverse=True)
        said = {"id": f"turn-{number:04}", "hypotheses": found, "reference": row["text"]}
        made.append({**said, **{name: row[name] for name in COLUMNS}})
    return made


def first_pass(one: Row) -> float:
    """The total by which the first pass orders its hypotheses."""
    return float(one["acoustic"] + LM_WEIGHT * one["lm"] + WORD * len(one["text"].split()))
