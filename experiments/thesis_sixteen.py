"""Tables 3.3, 3.6, 3.7 and 3.8 of the thesis: sixteen combinations of adaptations, in perplexity and accuracy.

`scale` rescales the recurrent layer, `concat` shifts it, `low_rank` and `hash` shift the logits. Baselines are control
codes, n-grams, and classifiers (tacl_baselines.py), which learn only from texts of the judged values. Languages and the
roles of oral arguments also have a model for each value, and mixtures of these.

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
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.runs.run import Run
from measures import detection_figures, detection_scores, measure_classification, measure_detection
from study import ROWS, Baseline, Experiment, Measurement, Options, Row
from tacl_baselines import TargetValues, classifier, classifiers, labelled_texts, ngram_row, per_value

PARTS = ("scale", "concat", "low_rank", "hash")  # the first two adapt the recurrent layer
WORDS, DEV_WORDS = 3_000_000, 200_000  # words of oral arguments in the training part, and in the other parts
MAX_TURN_WORDS = 45  # words of a turn; longer ones are split, as in the thesis
TURN = "turn"  # the column of the number of a turn
PARTS_BY_TURN = ("test", "judged")  # the tables that perplexities and accuracies are measured on
JUSTICES, JUDGED_TEXTS = 11, 1000
JUDGED_SENTENCES = 2000  # sentences whose language is inferred
DETECTED = ("AskMen", "askscience", "AskWomen", "atheism", "changemyview", "Fitness", "politics", "worldnews")
DISTRACTORS = (
    *("books", "chicago", "nyc", "Seattle", "explainlikeimfive"),
    *("science", "running", "nfl", "todayilearned"),
)
WHOLE = "+".join(PARTS)
TablesFunction = Callable[[Path, Path, float], Tables]


def adaptation_options(parts: Sequence[str]) -> Options:
    adapt = [part for part in PARTS[:2] if part in parts]
    output_bias = [part for part in PARTS[2:] if part in parts]
    return {"model": {"adapt": adapt, "output_bias": output_bias}}


def all_combinations() -> dict[str, Options]:
    subsets = itertools.product((False, True), repeat=len(PARTS))
    combinations = [tuple(itertools.compress(PARTS, subset)) for subset in subsets]
    return {"+".join(parts) or "unadapted": adaptation_options(parts) for parts in combinations}


def split_turns(table: pa.Table, words: int) -> pa.Table:
    """Split the first `words` words into texts of `MAX_TURN_WORDS` words; the column `TURN` numbers the turns."""
    pieces: list[Row] = []
    for number, row in enumerate(row for batch in table.to_batches(1000) for row in batch.to_pylist()):
        split = row["text"].split()
        for begin in range(0, len(split), MAX_TURN_WORDS):
            part = split[begin : min(begin + MAX_TURN_WORDS, begin + words)]
            pieces.append({**row, "text": " ".join(part), TURN: number})
            words -= len(part)
            if words == 0:
                return pa.Table.from_pylist(pieces)
    return pa.Table.from_pylist(pieces)


def justice_texts(dev: pa.Table, count: int) -> pa.Table:
    turn_counts = Counter(row["speaker"] for row in dev.to_pylist() if row["role"] == "justice")
    names = {name for name, _ in turn_counts.most_common(JUSTICES)}
    rows = [row for row in dev.to_pylist() if row["role"] == "justice" and row["speaker"] in names]
    return pa.Table.from_pylist(rows[:count])


def scotus_tables(data: Path, folder: Path, share: float) -> Tables:
    counts = {"train": round(WORDS * share), **dict.fromkeys(("dev", "test"), round(DEV_WORDS * share))}
    counts["judged"] = max(20, round(JUDGED_TEXTS * share))
    whole = corpora.parts(data, folder, "scotus")

    def pieces(part: str) -> pa.Table:
        if part == "judged":
            return justice_texts(split_turns(corpora.read(whole["test"]), sys.maxsize), counts[part])
        return split_turns(corpora.read(whole[part]), counts[part])

    def create(part: str, ending: str, chosen: Callable[[pa.Table], pa.Table]) -> Path:
        return corpora.create_once(
            folder / f"scotus-{part}-{counts[part]}{ending}.parquet", lambda: chosen(pieces(part))
        )

    paths = {part: create(part, "", lambda table: table.drop_columns([TURN])) for part in counts}
    paths |= {f"{part}_{TURN}": create(part, f"-{TURN}", lambda table: table.select([TURN])) for part in PARTS_BY_TURN}
    path = paths["train"].with_name(f"scotus-justices-{counts['train']}-{counts['judged']}.parquet")
    return {
        **paths,
        "labelled_train": corpora.create_once(
            path, partial(texts_of_judged_values, paths["train"], paths["judged"], "speaker")
        ),
    }


def sum_over_turns(figures: Figures, tables: Tables) -> Figures:
    """Sum the contributions of texts to figures of oral arguments over the parts of each turn."""
    turn_numbers = {part: corpora.read(tables[f"{part}_{TURN}"])[TURN].to_numpy() for part in PARTS_BY_TURN}
    return {
        name: sum_by_turn(sums, turn_numbers["test" if name.startswith("perplexity") else "judged"])
        for name, sums in figures.items()
    }


def sum_by_turn(sums: TextSums, numbers: NDArray[np.int64]) -> TextSums:
    if len(numbers) != len(sums.numerator):
        raise ValueError(f"expected a turn for each of {len(sums.numerator)} texts, got {len(numbers)}")
    _, places = np.unique(numbers, return_inverse=True)
    above, below = (np.bincount(places, part).astype(np.float64) for part in (sums.numerator, sums.denominator))
    return TextSums(f"{sums.key} {TURN}s", above, below)


def texts_of_judged_values(train: Path, judged: Path, column: str) -> pa.Table:
    """Return the training texts of the values of a column that occur in the judged texts."""
    texts, names = corpora.read(train), corpora.read(judged)[column].unique()
    return texts.filter(pc.is_in(texts[column], names))


def commonvoice9_tables(data: Path, folder: Path, share: float) -> Tables:
    tables = corpora.parts(data, folder, "commonvoice9", share)
    count = max(20, round(JUDGED_SENTENCES * share))
    return {**tables, "judged": corpora.first(tables["test"], count)}


def reddit_tables(data: Path, folder: Path, share: float) -> Tables:
    paths = titles(data, folder, share, "detected", lambda train: {*DETECTED, *DISTRACTORS})
    path = paths["train"].with_name(f"communities-{share:g}.parquet")
    return {
        **paths,
        "labelled_train": corpora.create_once(
            path, partial(texts_of_judged_values, paths["train"], paths["judged"], "subreddit")
        ),
    }


def measure_communities(run: Run, tables: Tables) -> Measurement:
    return measure_detection(run, tables, "subreddit", DETECTED, DISTRACTORS)


def detect_by_classifier(
    config: Config, tables: Tables, folder: Path, target: str, order: int, kind: str
) -> Measurement:
    """Measure the detection of communities by a classifier: naive Bayes by z-scores of perplexities, like a model."""
    train, test = labelled_texts(config, tables, target)
    known = train.schema.categories[0].values[1:]
    names = [name for name in DETECTED if name in known]
    if len(names) < 2:  # in a trial all values may be rare
        return Measurement({})
    classification = classifier(kind, train, order, config.training.seed)(test)
    among_detected = TargetValues(target, names, names).restrict(classification, test)
    scores = detection_scores(among_detected, test.lengths) if kind == "bayes" else among_detected.log_posterior
    return detection_figures(among_detected, scores, among_detected.truth < 0)


def experiment(
    name: str, tables: TablesFunction, measure: Callable[[Run, Tables], Measurement], **baselines: Baseline
) -> Experiment:
    baseline_rows = {**ngram_row(), **baselines}
    rows = {
        **all_combinations(),
        "prefix": tacl.options("prefix"),
        **dict.fromkeys(baseline_rows, adaptation_options(())),
    }
    recipe = f"thesis_{name.partition('_')[0]}.toml"
    return Experiment(name, recipe, rows, tables, measure, baselines=baseline_rows)


def trained_on_all_turns(baseline: Baseline) -> Baseline:
    def measure(config: Config, tables: Tables, folder: Path) -> Measurement:
        return baseline.measure(config, {part: tables[part] for part in ("train", "dev", "test")}, folder)

    return replace(baseline, measure=measure)


SHORT_TRAINING = {"training": {"epochs": 0.3}}
TITLES = experiment(
    "reddit_titles",
    reddit_tables,
    measure_communities,
    **classifiers("subreddit", "word", measure=detect_by_classifier),
)
BY_ROLE = {name: trained_on_all_turns(baseline) for name, baseline in per_value("role").items()}
ARGUMENTS = experiment(
    "scotus",
    scotus_tables,
    partial(measure_classification, target="speaker"),
    **BY_ROLE,
    **classifiers("speaker", "word"),
)
LANGUAGES = {**per_value("language"), **classifiers("language", "character")}
EXPERIMENTS = {
    "reddit_titles": replace(TITLES, rows={row: {**options, **SHORT_TRAINING} for row, options in TITLES.rows.items()}),
    "scotus": replace(ARGUMENTS, merge_parts=sum_over_turns),
    "commonvoice9": experiment(
        "commonvoice9", commonvoice9_tables, partial(measure_classification, target="language"), **LANGUAGES
    ),
}
# Table 3.8 takes the rows without a column and with all three columns from the experiment `scotus`.
VARIABLES = Experiment("variables", "thesis_scotus.toml", ROWS["variables"], scotus_tables, merge_parts=sum_over_turns)
