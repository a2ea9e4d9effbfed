"""The commands `baseline`, which train the n-gram models and classifiers that context models are compared with."""

import argparse

from factorcell.commands import terminal
from factorcell.data.corpus import Corpus
from factorcell.evaluation import baselines, results
from factorcell.evaluation.ngram import NGram


def run_baseline_ngram(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline ngram`."""
    config, tokenizer = results.reading_options(arguments.like, arguments.config, arguments.text)
    model = NGram.fit(arguments.train, config, arguments.out, order=arguments.order, tokenizer=tokenizer, progress=True)
    terminal.notify(f"{arguments.out}: n-grams by order: {', '.join(f'{len(table.keys):,}' for table in model.grams)}")


def run_baseline_bayes(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline bayes`."""
    result, tally = baselines.classify_with_naive_bayes(*_read_train_and_test(arguments), priors=arguments.priors)
    terminal.show_classification(result, {**result.metrics(), "perplexity": tally.perplexity}, arguments.json)


def run_baseline_linear(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline linear`."""
    _train_and_evaluate(baselines.LinearClassifier, arguments)


def run_baseline_fasttext(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline fasttext`."""
    _train_and_evaluate(baselines.FastTextClassifier, arguments)


def _train_and_evaluate(
    classifier: type[baselines.LinearClassifier] | type[baselines.FastTextClassifier], arguments: argparse.Namespace
) -> None:
    train, test = _read_train_and_test(arguments)
    result = classifier(train, order=arguments.order, seed=arguments.seed, progress=True)(test)
    terminal.show_classification(result, result.metrics(), arguments.json)


def _read_train_and_test(arguments: argparse.Namespace) -> tuple[Corpus, Corpus]:
    config, tokenizer = results.reading_options(arguments.like, arguments.config, arguments.text)
    return baselines.read_train_and_test(
        arguments.train, arguments.test, arguments.target, config, tokenizer=tokenizer, progress=True
    )
