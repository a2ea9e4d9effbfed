"""The commands that evaluate a model on a table (`evaluate`, `classify`, `score`) or train one to compare with."""

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.config import Config
from factorcell.data.tables.tables import table_name
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.evaluation import baselines, results
from factorcell.evaluation.bayes_rule import (
    CONTEXT_CLASSIFIER,
    LINEAR_BASELINE,
    Classification,
    text_accuracies,
)
from factorcell.evaluation.classification import classify, classify_points, read_points
from factorcell.evaluation.diagnostics import classification_findings, unknown_users_finding
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.evaluation.perplexity import PERPLEXITY_OF, Evaluation, evaluate
from factorcell.evaluation.text_figures import Figures
from factorcell.io import files
from factorcell.io.findings import Finding, report
from factorcell.ngram.ngram import NGram
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from factorcell.runs.saved_results import (
    BASELINE_BITS,
    BASELINE_GAIN,
    UNKNOWN_CONTEXT_GAIN,
    format_difference,
    format_figure,
    gain_title,
    measure_name,
)
from factorcell.training.mixture import open_scorer

UNCALIBRATED = (
    "the probabilities are usually too high, after a short training too low; --calibrate DEV fits them to a table with "
    "values"
)
MAX_SHOWN_PREDICTIONS = 20  # maximum number of texts whose predictions are printed if --out is not specified

Row = dict[str, Any]


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Run `factorcell evaluate`."""
    run = _open_scorer(arguments.run, arguments)
    baseline = _open_scorer(arguments.baseline, arguments) if arguments.baseline else None
    result = evaluate(run, arguments.table, by=arguments.by, baseline=baseline, unknown=arguments.unknown)
    row = results.evaluation_row(run, arguments.table, result, baseline)
    if arguments.json:
        value_rows = [{**value_row, "by": column} for column in arguments.by for value_row in result.by[column]]
        terminal.show_json([{name: value for name, value in row.items() if name != "by"}, *value_rows])
    else:
        _show(row, result, baseline)
    if arguments.save:
        _save_result(run, row, result.figures)
        if baseline and result.baseline and not baseline.folder.samefile(run.folder):
            baseline_row = results.evaluation_row(baseline, arguments.table, result.baseline)
            _save_result(baseline, baseline_row, result.baseline.figures)
    if row.get("only_unknown_users"):
        report(unknown_users_finding(run, "text"))
    if row.get("training_difference"):
        report(Finding("unlike trainings", row["training_difference"]))


def _open_scorer(folder: Path, arguments: argparse.Namespace) -> Scorer:
    """Open a model; with --no-ngram-mixture, a run predicts with its neural model alone."""
    model: Scorer = options.open_on_device(open_scorer, folder, arguments)
    if arguments.no_ngram_mixture and isinstance(model, Run):
        model.mixture = None
    return model


def _show(row: Row, result: Evaluation, baseline: Scorer | None) -> None:
    """Print a table with a line for all texts, whose figures are `row`, and one for each value of --by."""
    name, gain = (str(baseline.folder), BASELINE_GAIN) if baseline else (None, UNKNOWN_CONTEXT_GAIN)
    value_rows = [(f"{column} {value['value']}", value) for column, rows in result.by.items() for value in rows]
    shown_rows = [
        {
            "": label,
            "texts": figures["count"],
            measure_name("perplexity", row["unit"]): figures["perplexity"],
            f"perplexity of {name}": figures.get(PERPLEXITY_OF[BASELINE_GAIN]),
            **{gain_title(key, name): format_difference(figures, key) for key in (gain, BASELINE_BITS)},
            "bits per byte": format_figure(figures, "bits_per_byte") if "bits_per_byte" in figures else None,
        }
        for label, figures in [("all texts", {**row, "count": row["texts"]}), *value_rows]
    ]
    terminal.show_table(shown_rows, list(shown_rows[0]))
    if row["unknown_targets"]:
        terminal.show(f"out of vocabulary: {row['unknown_share']:.1%} of {row['targets']:,} {row['unit']}s")
    if row.get("bits_per_byte_texts", row["texts"]) < row["texts"]:
        terminal.show(f"bits per byte: over the {row['bits_per_byte_texts']:,} texts that were not cut")


def _save_result(run: Scorer, row: Row, text_figures: Figures) -> None:
    if failure_notice := results.save_result(run, row, text_figures):
        terminal.notify(failure_notice)


def run_classify(arguments: argparse.Namespace) -> None:
    """Run `factorcell classify`."""
    if (arguments.target is None) == (arguments.points is None):
        raise UserError("specify either --target COLUMN or --points TABLE")
    options_of_target = {
        "calibrate": arguments.calibrate,
        "combine": arguments.combine,
        "priors": None if arguments.priors == "conditional" else arguments.priors,
    }
    for name, value in options_of_target.items():
        if arguments.points and value:
            raise UserError(f"--{name} requires --target COLUMN; it does not apply to --points")
    run = options.open_on_device(partial(Run.open, mixture=not arguments.no_ngram_mixture), arguments.run, arguments)
    check_adapted(run)
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in ("unknown", "samples", "proposal")}
    if arguments.points:
        points = read_points(arguments.points)
        result = classify_points(run, arguments.table, points, within=arguments.within, **settings)
    else:
        names = ("values", "distractors", "priors", "calibrate", "combine")
        settings |= {name: getattr(arguments, name) for name in names}
        result = classify(run, arguments.table, arguments.target, **settings)
    _report(run, result, arguments)
    if arguments.target and result.has_labels and LINEAR_BASELINE not in result.other_predictions:
        terminal.notify(baselines.missing_baseline(run, arguments.target))


def _report(run: Run, result: Classification, arguments: argparse.Namespace) -> None:
    """Print or write the predictions, and print the metrics if any text has a label; save them with --save."""
    metrics = result.metrics()
    rows = [{**row, "row": row["row"] + 1} for row in result.rows()]  # users count rows from 1
    if arguments.json:
        terminal.show_json([metrics] if result.has_labels else rows)
    elif result.has_labels:
        terminal.show_classification(result, metrics, arguments.verbose)
    elif not arguments.out:
        _show_predictions(rows)
    if arguments.out:
        files.write_rows(arguments.out, rows)
    if result.has_labels and arguments.save:
        target = arguments.target
        if arguments.points:
            limit = f", within {arguments.within:g}" if math.isfinite(arguments.within) else ""
            target = f"the nearest of {len(result.names):,} points of {table_name(arguments.points)}{limit}"
        row = results.classification_row(run, arguments.table, target, result, metrics)
        _save_result(run, row, {"accuracy": text_accuracies(result)})
    elif not result.has_labels:
        output = f", written to {arguments.out}" if arguments.out else ""
        missing_value = "a value among the candidates" if metrics.get("left_out_other") else "a value"
        counted_texts = "1 text" if len(result.truth) == 1 else f"{len(result.truth):,} texts"
        task = f"{counted_texts} classified ({result.name}){output}"
        terminal.notify(f"{task}; accuracy not computed: no text has {missing_value}")
        if arguments.target and not arguments.calibrate:
            terminal.notify(UNCALIBRATED)
    if CONTEXT_CLASSIFIER in result.other_predictions:
        report(*classification_findings(run, arguments.target))


def _show_predictions(rows: Sequence[Row]) -> None:
    shown_rows = [
        {
            "row": f"{row['row']}",
            "predicted": row["predicted"],
            "probability": f"{max(row['probabilities'].values()):.4f}",
        }
        for row in rows[:MAX_SHOWN_PREDICTIONS]
    ]
    terminal.show_table(shown_rows, ("row", "predicted", "probability"))
    if len(rows) > MAX_SHOWN_PREDICTIONS:
        terminal.notify(
            f"only the first {MAX_SHOWN_PREDICTIONS} texts are shown; "
            "--out FILE writes all, with the probability of every value"
        )


def run_score(arguments: argparse.Namespace) -> None:
    """Run `factorcell score`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    rows: list[Row] = run.score_rows(arguments.table, tokens=arguments.tokens, unknown=arguments.unknown)
    rows = [{**row, "row": row["row"] + 1} for row in rows]  # users count rows from 1
    if arguments.json:
        return terminal.show_json(rows)
    token_header, empty_token = (["token"], [""]) if arguments.tokens else ([], [])
    terminal.show_fields("row", "nats", "targets", "perplexity", *token_header)
    for row in rows:
        number, nats, perplexity = f"{row['row']}", f"{row['nats']:z.4f}", f"{row['perplexity']:.4f}"
        terminal.show_fields(number, nats, f"{row['targets']}", perplexity, *empty_token)
        for token in row.get("tokens", ()):
            terminal.show_fields(number, f"{token['nats']:z.4f}", "", "", token["token"])
    return None


def run_baseline_ngram(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline ngram`."""
    config, tokenizer = _reading_options(arguments)
    model = NGram.fit(arguments.train, config, arguments.out, order=arguments.order, tokenizer=tokenizer)
    counts_by_order = ", ".join(f"{len(order.keys):,}" for order in model.orders)
    terminal.notify(f"{arguments.out}: n-grams by order: {counts_by_order}")


def run_baseline_linear(arguments: argparse.Namespace) -> None:
    """Run `factorcell baseline linear`."""
    config, tokenizer = _reading_options(arguments)
    tables, context = (arguments.train, arguments.test), arguments.context
    train, test = baselines.read_train_and_test(*tables, arguments.target, config, context=context, tokenizer=tokenizer)
    result = baselines.classify_with_linear_baseline(train, test)
    if arguments.json:
        terminal.show_json([result.metrics()])
    else:
        terminal.show_classification(result, result.metrics(), arguments.verbose)


def _reading_options(arguments: argparse.Namespace) -> tuple[Config, Tokenizer | None]:
    """Return the options for reading texts, and the tokenizer, of the model --like; or the options of --config."""
    if arguments.like is not None and arguments.config is not None:
        raise UserError("expected either --like or --config, got both")
    config, tokenizer = Config.of(config=arguments.config) if arguments.config else Config(), None
    if arguments.like is not None:
        model = results.open_model(arguments.like)
        config, tokenizer = model.config, model.tokenizer
    return (config if arguments.text is None else config.with_options(text=arguments.text)), tokenizer
