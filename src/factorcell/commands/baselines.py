"""The commands `baseline`, which train n-gram models and linear classifiers, for comparison with context models."""

import argparse

from factorcell.commands.cli import terminal
from factorcell.evaluation import baselines, results
from factorcell.ngram.ngram import NGram


def run_baseline_ngram(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline ngram`."""
    config, tokenizer = results.reading_options(arguments.like, arguments.config, arguments.text)
    model = NGram.fit(arguments.train, config, arguments.out, order=arguments.order, tokenizer=tokenizer)
    counts_by_order = ", ".join(f"{len(table.keys):,}" for table in model.grams)
    terminal.notify(f"{arguments.out}: n-grams by order: {counts_by_order}")


def run_baseline_linear(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline linear`."""
    config, tokenizer = results.reading_options(arguments.like, arguments.config, arguments.text)
    train, test = baselines.read_train_and_test(
        arguments.train,
        arguments.test,
        arguments.target,
        config,
        context=arguments.context,
        tokenizer=tokenizer,
    )
    result = baselines.classify_with_linear_baseline(train, test)
    if arguments.json:
        terminal.show_json([result.metrics()])
    else:
        terminal.show_classification(result, result.metrics(), arguments.verbose)
