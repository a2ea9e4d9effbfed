"""The commands `factorcell baseline`: n-gram models and classifiers to compare with."""

import argparse

from factorcell.commands import terminal
from factorcell.data.corpus import Corpus
from factorcell.evaluation import baselines, results
from factorcell.evaluation.ngram import NGram


def run_baseline_ngram(given: argparse.Namespace) -> None:
    """`factorcell baseline ngram`."""
    config, tokenizer = results.reading_options(given.like, given.config, given.text)
    model = NGram.fit(given.train, config, given.out, order=given.order, tokenizer=tokenizer, progress=True)
    terminal.notify(f"{given.out}: {' + '.join(f'{len(table.keys):,}' for table in model.grams)} n-grams")


def run_baseline_bayes(given: argparse.Namespace) -> None:
    """`factorcell baseline bayes`."""
    result, tally = baselines.naive_bayes(*_read(given), priors=given.priors)
    terminal.show_classification(result, {**result.metrics(), "perplexity": tally.perplexity}, given.json)


def run_baseline_linear(given: argparse.Namespace) -> None:
    """`factorcell baseline linear`."""
    _judge(baselines.LinearClassifier, given)


def run_baseline_fasttext(given: argparse.Namespace) -> None:
    """`factorcell baseline fasttext`."""
    _judge(baselines.FastTextClassifier, given)


def _judge(
    kind: type[baselines.LinearClassifier] | type[baselines.FastTextClassifier], given: argparse.Namespace
) -> None:
    train, test = _read(given)
    result = kind(train, order=given.order, seed=given.seed, progress=True)(test)
    terminal.show_classification(result, result.metrics(), given.json)


def _read(given: argparse.Namespace) -> tuple[Corpus, Corpus]:
    config, tokenizer = results.reading_options(given.like, given.config, given.text)
    return baselines.read_train_and_test(
        given.train, given.test, given.target, config, tokenizer=tokenizer, progress=True
    )
