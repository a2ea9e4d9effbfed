"""The verbs of `factorcell baseline`: what a context model is held against."""

import argparse
from pathlib import Path
from typing import Any

from factorcell.commands import options, terminal
from factorcell.data.corpus import Corpus
from factorcell.evaluation import baselines, results
from factorcell.evaluation.ngram import NGram


def add(verbs: Any) -> None:
    """Add `baseline` and its kinds to the verbs of the command line."""
    text = "what a context model is held against: an n-gram model, classifiers"
    kinds = verbs.add_parser("baseline", help=text, description=text).add_subparsers(metavar="KIND", required=True)
    verb = options.verb(kinds, "ngram", count_ngrams, "an n-gram model (modified Kneser-Ney) for `evaluate`")
    verb.add_argument("--out", required=True, type=Path, help="folder of the model")
    verb.add_argument("--order", type=int, default=4, help="tokens of the longest n-gram (default: 4)")
    _like(verb)

    verb = options.verb(kinds, "bayes", judge_bayes, "naive Bayes: a unigram model of every value")
    verb.add_argument("--priors", default="uniform", choices=("uniform", "training"), help="prior of the values")
    _judging(verb)
    for name, function, text in (
        ("linear", judge_linear, "logistic regression on hashed n-grams"),
        ("fasttext", judge_fasttext, "fastText (extra `fasttext`)"),
    ):
        verb = options.verb(kinds, name, function, text)
        verb.add_argument("--order", type=int, default=2, help="tokens of the longest n-gram (default: 2)")
        verb.add_argument("--seed", type=int, default=0, help="seed of the order of the texts (default: 0)")
        _judging(verb)


def _like(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("train", type=Path, metavar="TRAIN", help="table of texts: CSV, TSV, JSONL or Parquet")
    how = verb.add_mutually_exclusive_group()
    how.add_argument("--like", type=Path, metavar="RUN", help="read texts as this run does, with its vocabulary")
    how.add_argument("--config", type=Path, help="TOML or JSON file that says in [data] how texts are read")


def _judging(verb: argparse.ArgumentParser) -> None:
    _like(verb)
    verb.add_argument("--test", required=True, type=Path, help="table whose texts are judged")
    verb.add_argument("--target", required=True, help="categorical column to find")
    verb.add_argument("--json", action="store_true", help="print a row of JSON")


def count_ngrams(given: argparse.Namespace) -> None:
    """`factorcell baseline ngram`."""
    data, vocabulary = results.reading(given.like, given.config)
    model = NGram.fit(given.train, data, given.out, order=given.order, vocabulary=vocabulary, progress=True)
    terminal.say(f"{given.out}: {' + '.join(f'{len(table.keys):,}' for table in model.grams)} n-grams")


def judge_bayes(given: argparse.Namespace) -> None:
    """`factorcell baseline bayes`."""
    result, tally = baselines.naive_bayes(*_read(given), priors=given.priors)
    terminal.judged(result, {**result.metrics(), "perplexity": tally.perplexity}, given.json)


def judge_linear(given: argparse.Namespace) -> None:
    """`factorcell baseline linear`."""
    result = baselines.linear(*_read(given), order=given.order, seed=given.seed, progress=True)
    terminal.judged(result, result.metrics(), given.json)


def judge_fasttext(given: argparse.Namespace) -> None:
    """`factorcell baseline fasttext`."""
    result = baselines.fasttext(*_read(given), order=given.order, seed=given.seed)
    terminal.judged(result, result.metrics(), given.json)


def _read(given: argparse.Namespace) -> tuple[Corpus, Corpus]:
    data, vocabulary = results.reading(given.like, given.config)
    return baselines.read(given.train, given.test, given.target, data, vocabulary=vocabulary, progress=True)
