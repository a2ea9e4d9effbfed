"""Tables 3.3, 3.6, 3.7 and 3.8 of the thesis: sixteen ways to adapt, in perplexity and accuracy.

`scale` rescales the recurrent layer, `concat` shifts it, `low_rank` and `hash` shift the softmax. Baselines are control
codes, n-grams, and classifiers (tacl_baselines.py), which learn from the judged values alone. Languages and the roles
of oral arguments have a model each, and a mixture of these.

Turns of oral arguments are split into texts of 45 words, as in the thesis. Intervals are over whole turns.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import corpora
import tacl
from communities import titles
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.bayes_rule import z_scores
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.model.run import Run
from measures import detected, detection, measure_classification
from study import ROWS, Baseline, Experiment, Measured, Options, Row
from tacl_baselines import TargetValues, classifier, classifiers, labelled_texts, ngram_row, per_value

PARTS = ("scale", "concat", "low_rank", "hash")  # the first two adapt the recurrent layer
WORDS, DEVELOPED = 3_000_000, 200_000  # of the oral arguments
LONGEST = 45  # words of a turn; longer ones are split, as in the thesis
TURN = "turn"  # the column that numbers them
MEASURED = ("test", "judged")  # the tables of what texts add to perplexities, and to the share of them that is told
JUSTICES, JUDGED = 11, 1000
LANGUAGES_JUDGED = 2000  # sentences
DETECTED = ("AskMen", "askscience", "AskWomen", "atheism", "changemyview", "Fitness", "politics", "worldnews")
DISTRACTORS = (
    *("books", "chicago", "nyc", "Seattle", "explainlikeimfive"),
    *("science", "running", "nfl", "todayilearned"),
)
WHOLE = "+".join(PARTS)
Tabled = Callable[[Path, Path, float], Tables]


def combined(parts: Sequence[str]) -> Options:
    """The options of a model that adapts by all of `parts`."""
    adapt = [part for part in PARTS[:2] if part in parts]
    output_bias = [part for part in PARTS[2:] if part in parts]
    return {"model": {"adapt": adapt, "output_bias": output_bias}}


def sixteen() -> dict[str, Options]:
    """All subsets of `PARTS`, in the order of the thesis."""
    subsets = itertools.product((False, True), repeat=len(PARTS))
    chosen = [tuple(itertools.compress(PARTS, subset)) for subset in subsets]
    return {"+".join(parts) or "unadapted": combined(parts) for parts in chosen}


def turns(table: pa.Table, words: int) -> pa.Table:
    """The first `words` words of a table of turns; a turn of more than `LONGEST` words becomes several pieces.

    The column `TURN` numbers the turns, so pieces of one share a number.
    """
    pieces: list[Row] = []
    for number, row in enumerate(row for batch in table.to_batches(1000) for row in batch.to_pylist()):
        split = row["text"].split()
        for begin in range(0, len(split), LONGEST):
            part = split[begin : min(begin + LONGEST, begin + words)]
            pieces.append({**row, "text": " ".join(part), TURN: number})
            words -= len(part)
            if words == 0:
                return pa.Table.from_pylist(pieces)
    return pa.Table.from_pylist(pieces)


def justices(dev: pa.Table, count: int) -> pa.Table:
    """The first `count` texts of the `JUSTICES` who speak most."""
    spoken = Counter(row["speaker"] for row in dev.to_pylist() if row["role"] == "justice")
    names = {name for name, _ in spoken.most_common(JUSTICES)}
    rows = [row for row in dev.to_pylist() if row["role"] == "justice" and row["speaker"] in names]
    return pa.Table.from_pylist(rows[:count])


def scotus_tables(data: Path, folder: Path, share: float) -> Tables:
    """Oral arguments: the first words of each part, and the turns of the test whose justice is asked for."""
    counts = {"train": round(WORDS * share), **dict.fromkeys(("dev", "test"), round(DEVELOPED * share))}
    counts["judged"] = max(20, round(JUDGED * share))
    whole = corpora.parts(data, folder, "scotus")

    def pieces(part: str) -> pa.Table:
        if part == "judged":
            return justices(turns(corpora.read(whole["test"]), sys.maxsize), counts[part])
        return turns(corpora.read(whole[part]), counts[part])

    def create(part: str, ending: str, chosen: Callable[[pa.Table], pa.Table]) -> Path:
        return corpora.create_once(
            folder / f"scotus-{part}-{counts[part]}{ending}.parquet", lambda: chosen(pieces(part))
        )

    paths = {part: create(part, "", lambda table: table.drop_columns([TURN])) for part in counts}
    paths |= {f"{part}_{TURN}": create(part, f"-{TURN}", lambda table: table.select([TURN])) for part in MEASURED}
    path = paths["train"].with_name(f"scotus-justices-{counts['train']}-{counts['judged']}.parquet")
    return {
        **paths,
        "labelled_train": corpora.create_once(path, partial(among, paths["train"], paths["judged"], "speaker")),
    }


def of_whole_turns(figures: Figures, tables: Tables) -> Figures:
    """What texts add to figures of oral arguments, summed over the pieces of each turn: an entry for every turn."""
    turn_numbers = {part: corpora.read(tables[f"{part}_{TURN}"])[TURN].to_numpy() for part in MEASURED}
    return {
        name: summed(sums, turn_numbers["test" if name.startswith("perplexity") else "judged"])
        for name, sums in figures.items()
    }


def summed(sums: TextSums, numbers: NDArray[np.int64]) -> TextSums:
    """What N texts add, summed over those of one of the `numbers` (N,)."""
    if len(numbers) != len(sums.numerator):
        raise ValueError(f"{len(sums.numerator)} texts, of which {len(numbers)} have a turn")
    _, places = np.unique(numbers, return_inverse=True)
    above, below = (np.bincount(places, part).astype(np.float64) for part in (sums.numerator, sums.denominator))
    return TextSums(f"{sums.key} {TURN}s", above, below)


def among(train: Path, judged: Path, column: str) -> pa.Table:
    """The training texts of those values of a column whose texts are judged."""
    texts, names = corpora.read(train), corpora.read(judged)[column].unique()
    return texts.filter(pc.is_in(texts[column], names))


def commonvoice9_tables(data: Path, folder: Path, share: float) -> Tables:
    """Sentences in nine languages; that of the first texts of the test is asked for."""
    tables = corpora.parts(data, folder, "commonvoice9", share)
    count = max(20, round(LANGUAGES_JUDGED * share))
    return {**tables, "judged": corpora.first(tables["test"], count)}


def reddit_tables(data: Path, folder: Path, share: float) -> Tables:
    """Titles of communities; those of the ones that are detected, and of the distractors, are judged."""
    paths = titles(data, folder, share, "detected", lambda train: {*DETECTED, *DISTRACTORS})
    path = paths["train"].with_name(f"communities-{share:g}.parquet")
    return {
        **paths,
        "labelled_train": corpora.create_once(path, partial(among, paths["train"], paths["judged"], "subreddit")),
    }


def of_communities(run: Run, tables: Tables) -> Measured:
    """How well communities are told apart, and from distractors."""
    return detected(run, tables, "subreddit", DETECTED, DISTRACTORS)


def detecting(config: Config, tables: Tables, folder: Path, target: str, order: int, kind: str) -> Measured:
    """The same of a classifier that has learned from the titles of these communities alone, distractors among them.

    Like a model it is asked for the communities that are detected and no others: by z-scores over these of naive Bayes,
    which has perplexities, else by their log probability.
    """
    train, test = labelled_texts(config, tables, target)
    known = train.schema.categories[0].values[1:]
    names = [name for name in DETECTED if name in known]
    if len(names) < 2:  # in a trial all of them may be rare
        return Measured({})
    classification = classifier(kind, train, order, config.training.seed)(test)
    among_detected = TargetValues(target, names, names).among(classification, test)
    score = z_scores(among_detected.detection_score) if kind == "bayes" else among_detected.log_posterior
    return detection(replace(among_detected, detection_score=score, is_distractor=among_detected.truth < 0))


def experiment(
    name: str, tables: Tabled, measure: Callable[[Run, Tables], Measured], **baselines: Baseline
) -> Experiment:
    """The sixteen on a set, and baselines: of words, and what has `told` values apart."""
    beside = {**ngram_row(), **baselines}
    rows = {**sixteen(), "prefix": tacl.options("prefix"), **dict.fromkeys(beside, combined(()))}
    recipe = f"thesis_{name.partition('_')[0]}.toml"
    return Experiment(name, recipe, rows, tables, measure, baselines=beside)


def of_all_turns(baseline: Baseline) -> Baseline:
    """One that learns from the turns of everybody, not of the justices alone, and is not asked who speaks."""

    def measure(config: Config, tables: Tables, folder: Path) -> Measured:
        return baseline.measure(config, {part: tables[part] for part in ("train", "dev", "test")}, folder)

    return replace(baseline, measure=measure)


SHORTER = {"training": {"epochs": 0.3}}
TITLES = experiment(
    "reddit_titles", reddit_tables, of_communities, **classifiers("subreddit", "word", measure=detecting)
)
BY_ROLE = {name: of_all_turns(each) for name, each in per_value("role").items()}
ARGUMENTS = experiment(
    "scotus",
    scotus_tables,
    partial(measure_classification, target="speaker"),
    **BY_ROLE,
    **classifiers("speaker", "word"),
)
LANGUAGES = {**per_value("language"), **classifiers("language", "character")}
EXPERIMENTS = {
    "reddit_titles": replace(TITLES, rows={row: {**options, **SHORTER} for row, options in TITLES.rows.items()}),
    "scotus": replace(ARGUMENTS, merge_parts=of_whole_turns),
    "commonvoice9": experiment(
        "commonvoice9", commonvoice9_tables, partial(measure_classification, target="language"), **LANGUAGES
    ),
}
# The rows without a column and with all three are those of the table of oral arguments.
VARIABLES = Experiment("variables", "thesis_scotus.toml", ROWS["variables"], scotus_tables, merge_parts=of_whole_turns)
