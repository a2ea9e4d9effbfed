"""N-best lists of a recogniser that does not exist: a noisy channel over real texts. This is a SIMULATION.

    python experiments/nbest.py make DATA OUT
    for model in factorcell unadapted; do
        factorcell train OUT/train.parquet --config experiments/nbest.toml --model $model --out OUT/$model
    done
    python experiments/nbest.py measure OUT

DATA holds train.parquet and dev.parquet of oral arguments (text, speaker, role, case). A word w that was said sounds,
to the recogniser, like the word v of its vocabulary by

    log p(heard | v) = -SHARP d(v, w) + SPREAD sqrt(d(v, w)) e        e ~ normal

as if every sound in which they differ were heard once, with noise: d is the edit distance of the words as they sound,
by rough rules for English, where vowels, or a voiced consonant and its unvoiced partner, differ by half. A word may be
missed, as if its sounds were noise, and short words may be heard between others, at the same price. A beam search over
all this and the bigram model of the first pass gives the 50 best texts. What real lists have and these do not: words
cut otherwise than they were said, errors that come in groups, noise that differs between utterances and speakers.

OUT gets train.parquet (the first three million words without five of the ten who speak most), the n-gram models
bigram and fourgram, and tune.jsonl and test.jsonl: half of the utterances are by those five (column `known`: no).
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from factorcell import files
from factorcell.config import Config
from factorcell.data.tokenizer import splitter
from factorcell.data.vocabulary import END, SPECIALS, START
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.rescoring import rescore, speakers
from factorcell.evaluation.rescoring.nbest import NBest, read_nbest
from factorcell.evaluation.rescoring.rescore import Scored
from factorcell.model.run import Run

SHARP, SPREAD = 3.4, 1.9  # nats a sound, and how much of them is chance
LM_WEIGHT, WORD = 0.6, 1.0  # of the first pass: of its bigram model, and nats for every word
NEAR, BEAM, LIST = 14, 200, 50  # words that a word may be heard as, texts in the search, texts in a list
SHORT = ("a", "the", "to", "of", "and", "it", "is", "in", "i", "that", "uh", "so")
WORDS, FEWEST, MOST = 3_000_000, 5, 25
TUNE, TEST = 400, 600
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


def hear(model: NGram, ear: Ear, words: list[str], random: np.random.Generator) -> list[tuple[str, float]]:
    """The `LIST` best texts for what was said, with the sum of their log p(heard)."""
    column = {word: number for number, word in enumerate(model.vocabulary.tokens)}
    texts: list[tuple[int, ...]] = [()]
    last, sounds, totals = np.array([START]), np.zeros(1), np.zeros(1)

    def grow(ids: NDArray[np.int64], heard: Floats, skip: float) -> None:
        """All texts go on with each of `ids`, or with nothing."""
        nonlocal texts, last, sounds, totals
        longer = totals[:, None] + heard + LM_WEIGHT * log_bigrams(model, last, ids) + WORD
        every = np.concatenate([longer, (totals + skip)[:, None]], axis=1).ravel()
        best = np.argsort(-every, kind="stable")[:BEAM]
        row, choice = np.divmod(best, len(ids) + 1)
        nothing = choice == len(ids)
        picked = np.append(ids, -1)[choice]
        pairs = zip(row.tolist(), picked.tolist(), strict=True)
        texts = [texts[r] if word < 0 else (*texts[r], word) for r, word in pairs]
        last = np.where(nothing, last[row], picked)
        sounds, totals = sounds[row] + np.append(heard, skip)[choice], every[best]

    def evidence(distance: Floats) -> Floats:
        return -SHARP * distance + SPREAD * np.sqrt(distance) * random.normal(size=len(distance))

    for word in words:
        ids, distance = ear.near(word)
        loud = GAP[[LETTERS.index(letter) for letter in sound(word)]].sum()
        grow(ids, evidence(distance), float(evidence(np.array([loud]))[0]))
        between = np.array(
            [column[one] for one in random.choice(SHORT, 2, replace=False) if one in column], dtype=np.int64
        )
        loudness = [
            GAP[[LETTERS.index(letter) for letter in sound(model.vocabulary.tokens[one])]].sum() for one in between
        ]
        grow(between, evidence(np.array(loudness)), 0.0)
    totals = totals + LM_WEIGHT * log_bigrams(model, last, np.array([END]))[:, 0]
    found: dict[str, float] = {}
    for place in np.argsort(-totals, kind="stable"):
        found.setdefault(" ".join(model.vocabulary.decode(texts[place])), float(sounds[place]))
    return list(found.items())[:LIST]


def held(dev: list[Row]) -> set[str]:
    """Every other of the ten who speak most."""
    counts = Counter(row["speaker"] for row in dev if row["role"] != "unidentified")
    return {speaker for speaker, _ in counts.most_common(10)[1::2]}


def utterances(dev: list[Row], new: set[str], seed: int) -> list[Row]:
    """`TUNE` + `TEST` turns that are neither short nor long, half of them of new speakers, in an order of chance."""
    split = splitter(DATA)
    turns = [{**row, "words": split(row["text"])} for row in dev if row["role"] != "unidentified"]
    turns = [row for row in turns if FEWEST <= len(row["words"]) <= MOST]
    random = np.random.default_rng(seed)
    count = (TUNE + TEST) // 2
    kinds = [[row for row in turns if (row["speaker"] in new) == kind] for kind in (True, False)]
    drawn = [kind[place] for kind in kinds for place in random.permutation(len(kind))[:count]]
    return [drawn[place] for place in random.permutation(len(drawn))]


def make(data: Path, out: Path, seed: int) -> None:
    """Write tables, n-gram models and lists."""
    out.mkdir(parents=True, exist_ok=True)
    dev = pq.read_table(data / "dev.parquet").to_pylist()
    new = held(dev)
    table = pq.read_table(data / "train.parquet", columns=["text", "speaker", "role", "case"])
    table = table.filter(pa.array([speaker not in new for speaker in table["speaker"].to_pylist()]))
    ends = np.cumsum([len(text.split()) for text in table["text"].to_pylist()])
    pq.write_table(table.slice(0, int(np.searchsorted(ends, WORDS)) + 1), out / "train.parquet")
    bigram = NGram.fit(out / "train.parquet", DATA, out / "bigram", order=2)
    NGram.fit(out / "train.parquet", DATA, out / "fourgram", order=4, vocabulary=bigram.vocabulary)
    ear, random = Ear(tuple(bigram.vocabulary.tokens)), np.random.default_rng(seed)
    rows = []
    for number, turn in enumerate(tqdm(utterances(dev, new, seed), desc="hearing", unit=" utterances")):
        heard = hear(bigram, ear, turn["words"], random)
        logs = np.split(-bigram.nats(corpus := bigram.prepare([{"text": text} for text, _ in heard])), ends_of(corpus))
        pairs = zip(heard, logs, strict=False)
        found = [{"text": text, "acoustic": sounds, "lm": float(part.sum())} for (text, sounds), part in pairs]
        found.sort(key=first_pass, reverse=True)
        said = {"id": f"turn-{number:04}", "hypotheses": found, "reference": " ".join(turn["words"])}
        known = "no" if turn["speaker"] in new else "yes"
        rows.append({**said, "speaker": turn["speaker"], "role": turn["role"], "case": turn["case"], "known": known})
    files.write_rows(out / "tune.jsonl", rows[:TUNE])
    files.write_rows(out / "test.jsonl", rows[TUNE:])


def first_pass(one: Row) -> float:
    """The total by which the first pass orders its hypotheses."""
    return float(one["acoustic"] + LM_WEIGHT * one["lm"] + WORD * len(one["text"].split()))


def ends_of(corpus: Any) -> NDArray[np.int64]:
    """Where the targets of each text end."""
    ends: NDArray[np.int64] = np.cumsum(corpus.lengths)
    return ends


def measure(out: Path) -> Iterator[Row]:
    """Rows for each system, with weights fitted on tune.jsonl and word error rates on test.jsonl, by whether known.

    Scores are kept in files, so that a measurement that was stopped goes on.
    """
    tune, test = (read_nbest(out / name) for name in ("tune.jsonl", "test.jsonl"))
    nothing = [Scored(lists, tuple(np.zeros(len(one.texts)) for one in lists.utterances)) for lists in (tune, test)]
    yield from judged("first pass, reweighted", nothing)
    yield from judged("4-gram", scored(NGram.open(out / "fourgram"), out / "fourgram.scores.jsonl", (tune, test)))
    unadapted = Run.open(out / "unadapted", precision="bfloat16")
    yield from judged("unadapted", scored(unadapted, out / "unadapted.scores.jsonl", (tune, test)))
    run = Run.open(out / "factorcell", precision="bfloat16")
    plain = scored(run, out / "context.scores.jsonl", (tune, test))
    yield from judged("FactorCell, context", plain)
    weights, _ = rescore.fit(plain[0])
    learned = [speakers.learn(run, lists, weights, unknown="group", progress=True) for lists in (tune, test)]
    yield from judged("FactorCell, learning", learned)
    bare = [read_nbest([_without(row) for row in files.read_rows(out / name)]) for name in ("tune.jsonl", "test.jsonl")]
    yield from judged("FactorCell, no context", scored(run, out / "bare.scores.jsonl", bare))


def judged(name: str, both: Sequence[Scored]) -> list[Row]:
    """Rows of a system, of lists to tune on and lists to judge."""
    weights, _ = rescore.fit(both[0])
    summary = rescore.summarise(rescore.rescore(both[1], weights), ["known"])
    return [{"system": name, **row, "weights": dict(weights.values)} for row in summary]


def scored(model: Run | NGram, kept: Path, both: Sequence[NBest]) -> list[Scored]:
    """The lists with the scores of a model, those of new speakers as of rare ones."""
    return [rescore.score(model, lists, unknown="group", kept=kept, progress=True) for lists in both]


def _without(row: Row) -> Row:
    return {**row, "speaker": None, "role": None, "case": None}


def main() -> None:
    """Make lists, or print a row of JSON for each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "measure"))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "make":
        data, out = given.folders
        return make(data, out, given.seed)
    for row in measure(given.folders[0]):
        print(json.dumps(row), flush=True)
    return None


if __name__ == "__main__":
    main()
