"""The commands `baseline`, which train n-gram models and classifiers, for comparison with context models."""

import argparse

from factorcell.commands import terminal
from factorcell.data.corpus import Corpus
from factorcell.evaluation import baselines, results
from factorcell.model.ngram import NGram


def run_baseline_ngram(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline ngram`."""
    config, tokenizer = results.reading_options(arguments.like, arguments.config, arguments.text)
    model = NGram.fit(arguments.train, config, arguments.out, order=arguments.order, tokenizer=tokenizer)
    counts_by_order = ", ".join(f"{len(table.keys):,}" for table in model.grams)
    terminal.notify(f"{arguments.out}: n-grams by order: {counts_by_order}")


def run_baseline_bayes(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline bayes`."""
    train, test = _read_train_and_test(arguments)
    result, test_tally = baselines.classify_with_naive_bayes(train, test, priors=arguments.priors)
    metrics = {**result.metrics(), "perplexity": test_tally.perplexity}
    terminal.show_classification(result, metrics, as_json=arguments.json)


def run_baseline_linear(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline linear`."""
    _train_and_evaluate(baselines.LinearClassifier, arguments)


def run_baseline_fasttext(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline fasttext`."""
    _train_and_evaluate(baselines.FastTextClassifier, arguments)


def _train_and_evaluate(
    classifier_type: type[baselines.LinearClassifier] | type[baselines.FastTextClassifier],
    arguments: argparse.Namespace,
) -> None:
    train, test = _read_train_and_test(arguments)
    classifier = classifier_type(train, order=arguments.order, seed=arguments.seed)
    result = classifier(test)
    terminal.show_classification(result, result.metrics(), as_json=arguments.json)
    terminal.notify(f"the classifier reads {classifier.inputs}")
    if ignored := [column for column in train.schema.columns(arguments.target) if column not in classifier.columns]:
        reason = "all training texts have the same value (rare values count as one)"
        terminal.notify(f"it ignores {', '.join(ignored)}: {reason}")


def _read_train_and_test(arguments: argparse.Namespace) -> tuple[Corpus, Corpus]:
    config, tokenizer = results.reading_options(arguments.like, arguments.config, arguments.text)
    return baselines.read_train_and_test(
        arguments.train,
        arguments.test,
        arguments.target,
        config,
        context=getattr(arguments, "context", ()),
        tokenizer=tokenizer,
    )
