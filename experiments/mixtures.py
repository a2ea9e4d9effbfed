"""The n-gram mixture of `train --preset best`, and its combination with a linear classifier, on the sets of tacl.py.

    python experiments/mixtures.py [SET ...] --data DATA [--out OUT] [--results RESULTS] [--minutes MINUTES]

A run is trained for each set with the command that a user would type. It is measured with its mixture and without:
perplexity, accuracy by Bayes' rule, reading time, and completion where the tokens are characters. OUT/mixtures has the
runs, RESULTS/mixtures.jsonl a row for each set. A stopped command resumes; finished sets are skipped.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import corpora
from corpora import Tables
from factorcell.bootstrap import Interval
from factorcell.completion.completer import Completer
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import Ratios, TextSums, accuracy_sums
from factorcell.io import files
from factorcell.runs.run import Run, training_facts
from measures import MAX_DISTANCE, Cities
from study import EXPERIMENTS_FOLDER, Row, current_commit, processor_name
from tacl import SETS as TACL_SETS

TIMED_TEXTS, REPETITIONS = 500, 3
COMPLETED_TEXTS, SUGGESTIONS = 300, 10
CALIBRATION_TEXTS = 1000  # development texts to which the weights of the combination are fitted


@dataclass(frozen=True)
class DataSet:
    """A data set, its context columns, the target of its classification, and the number of texts to classify."""

    source: str
    target: str | Cities
    context: tuple[str, ...]
    tokenizer: str = "word"
    judged_texts: int = 2000

    @property
    def completes(self) -> bool:
        """Whether completion searches the tokens."""
        return self.tokenizer == "char"


def of_tacl(name: str, judged_texts: int = 2000) -> DataSet:
    """Return a set of tacl.py, with the context columns and the tokenizer of its recipe."""
    recipe: Mapping[str, Any] = tomllib.loads((EXPERIMENTS_FOLDER / f"tacl_{name}.toml").read_text(encoding="utf-8"))
    source, target = TACL_SETS[name].source, TACL_SETS[name].target
    return DataSet(source, target, tuple(recipe["data"]["context"]), recipe["tokenizer"]["kind"], judged_texts)


SETS = {
    "agnews": of_tacl("agnews"),
    "dbpedia": of_tacl("dbpedia", judged_texts=1000),
    "hotels": of_tacl("hotels"),
    "hotels13": of_tacl("hotels13", judged_texts=500),
    "imdb": of_tacl("imdb", judged_texts=500),
    "clothing": DataSet("womens_clothing", "class", ("class", "department", "rating", "age:number"), judged_texts=1000),
    "languages": of_tacl("languages"),
    "tweets": of_tacl("tweets"),
    "places": of_tacl("places"),
}


def train(data_set: DataSet, tables: Tables, folder: Path, minutes: float) -> None:
    """Train a run with the command line, or resume its training; a trained run stays as it is."""
    if (folder / "training.json").is_file():
        return
    columns = [option for column in data_set.context for option in ("--context", column)]
    command = ["train", str(tables["train"]), "--dev", str(tables["dev"]), *columns, "--tokenizer", data_set.tokenizer]
    command += ["--preset", "best", "--minutes", f"{minutes:g}", "--threads", "1", "--out", str(folder)]
    command += ["--resume"] if folder.exists() else []
    subprocess.run([sys.executable, "-m", "factorcell", *command], check=True)


def measure(data_set: DataSet, tables: Tables, folder: Path) -> Row:
    """Return the figures of a run with its mixture, and of its neural model alone."""
    neural, mixture = Run.open(folder, mixture=False), Run.open(folder)
    if mixture.mixture is None:
        raise UserError(f"{folder}: expected a run with an n-gram mixture, got none")
    row: Row = {"components": training_facts(folder)["ngram"]["components"][1:]}
    row |= perplexities(neural, mixture, tables["test"])
    row["time"] = relative_time(neural, mixture, corpora.first(tables["test"], TIMED_TEXTS))
    judged = corpora.first(tables["test"], data_set.judged_texts)
    row |= uniform_accuracies(neural, mixture, data_set.target, judged)
    if isinstance(data_set.target, str):
        row |= combination(mixture, data_set.target, judged, tables)
    return row | completion(neural, mixture, data_set, tables["test"]) if data_set.completes else row


def perplexities(neural: Run, mixture: Run, test: Path) -> Row:
    evaluation = evaluate(mixture, test, baseline=neural)
    row = evaluation.row
    return {
        "texts": row["texts"],
        "perplexity_neural": row["perplexity_baseline"],
        "perplexity": row["perplexity"],
        **{f"gain{end}": row[f"gain_over_baseline{end}"] for end in ("", "_low", "_high")},
    }


def relative_time(neural: Run, mixture: Run, texts: Path) -> float:
    """Return the median time of reading texts with the mixture, relative to the neural model, in alternating turns."""
    corpus, times = neural.prepare(texts, unknown="group"), np.zeros((REPETITIONS, 2))
    for repetition, (index, run) in itertools.product(range(REPETITIONS), enumerate((neural, mixture))):
        begin = time.perf_counter()
        run.nats(corpus)
        times[repetition, index] = time.perf_counter() - begin
    neural_time, mixture_time = np.median(times, axis=0)
    return float(mixture_time / neural_time)


def uniform_accuracies(neural: Run, mixture: Run, target: str | Cities, judged: Path) -> Row:
    """Return the accuracies with a uniform prior and equal candidates, and their difference."""

    def classification(run: Run) -> Classification:
        if isinstance(target, Cities):
            return classify_points(run, judged, target.cities(), within=MAX_DISTANCE)
        return classify(run, judged, target, priors="uniform")

    results = [classification(run) for run in (neural, mixture)]
    neural_sums, mixture_sums = (text_accuracies(result) for result in results)
    row: Row = {"judged": int(mixture_sums.denominator.sum()), "candidates": len(results[0].names)}
    row |= {"accuracy_neural": neural_sums.ratio, "accuracy": mixture_sums.ratio}
    return row | difference(mixture_sums, neural_sums).to_row("accuracy_difference")


def combination(mixture: Run, target: str, judged: Path, tables: Tables) -> Row:
    """Return the accuracies of the mixture with the default prior, of the linear classifier and of both combined."""
    calibration = corpora.first(tables["dev"], CALIBRATION_TEXTS)
    result = classify(mixture, judged, target, calibrate=calibration, combine=True)
    combined = text_accuracies(result)
    row: Row = {"priors": result.priors, "weights": result.combination_weights, "accuracy_combined": combined.ratio}
    for name in ("model", "linear"):
        classifier = next(other for other in result.other_predictions if other.startswith(name))
        is_correct = result.other_predictions[classifier] == result.truth
        sums = accuracy_sums(result.key, is_correct, result.truth >= 0)
        row |= {f"accuracy_{name}": sums.ratio, **difference(combined, sums).to_row(f"combined_minus_{name}")}
    return row


def difference(first: TextSums, second: TextSums) -> Interval:
    ratios = Ratios.from_sums([[first], [second]])
    assert ratios is not None  # both have the same texts
    return ratios.difference(0, 1)


def completion(neural: Run, mixture: Run, data_set: DataSet, test: Path) -> Row:
    """Return the mean reciprocal rank and the median time of completing half-typed texts."""
    columns = [column.partition(":")[0] for column in data_set.context]
    texts = corpora.read(test).slice(0, COMPLETED_TEXTS).select(["text", *columns]).to_pylist()
    neural_ranks, row_neural = complete(neural, texts, "_neural")
    mixture_ranks, row_mixture = complete(mixture, texts, "")
    return {
        "completed": len(texts),
        **row_neural,
        **row_mixture,
        **difference(mixture_ranks, neural_ranks).to_row("mrr_difference"),
    }


def complete(run: Run, texts: Sequence[Row], suffix: str) -> tuple[TextSums, Row]:
    """Complete the first half of each text, whose context is the rest of its row."""
    completer, seconds = Completer(run, unknown="group"), []
    reciprocal_ranks = np.zeros(len(texts))
    for number, row in enumerate(texts):
        text, context = row["text"], {name: value for name, value in row.items() if name != "text"}
        begin = time.perf_counter()
        suggestions = completer.complete(text[: len(text) // 2], context=context, k=SUGGESTIONS)
        seconds.append(time.perf_counter() - begin)
        suggested_texts = [suggestion.text for suggestion in suggestions]
        if text in suggested_texts:
            reciprocal_ranks[number] = 1 / (1 + suggested_texts.index(text))
    sums = TextSums("completed", reciprocal_ranks, np.ones(len(texts)))
    return sums, {f"mrr{suffix}": sums.ratio, f"milliseconds{suffix}": 1000 * statistics.median(seconds)}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="The n-gram mixture of --preset best, with and without.")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"data sets (default: all): {', '.join(SETS)}")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for runs and tables")
    parser.add_argument("--results", type=Path, default=EXPERIMENTS_FOLDER / "results", help="folder of the rows")
    parser.add_argument("--minutes", type=float, default=5, help="minutes of each training (default: 5)")
    options = parser.parse_args(argv)
    try:
        for name in options.sets or SETS:
            check_choice("set", name, tuple(SETS))
            make_row(name, options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def make_row(name: str, options: argparse.Namespace) -> None:
    """Train and measure a set, unless the results have its row."""
    path, data_set = options.results / "mixtures.jsonl", SETS[name]
    if any(row["row"] == name for row in files.read_rows(path)):
        return
    tables, folder = (
        corpora.parts(options.data, options.out / "tables", data_set.source),
        options.out / "mixtures" / name,
    )
    train(data_set, tables, folder, options.minutes)
    facts = {"minutes": options.minutes, "commit": current_commit(), "machine": processor_name()}
    row = {"row": name, "seed": 0, **facts, **measure(data_set, tables, folder)}
    files.append_row(path, row)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
