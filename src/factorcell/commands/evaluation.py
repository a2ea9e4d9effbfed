"""The commands that evaluate a model on a table: `evaluate` and `classify`."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.errors import UserError
from factorcell.evaluation import results
from factorcell.evaluation.bayes_rule import LINEAR_BASELINE, Classification, text_accuracies
from factorcell.evaluation.classification import classify
from factorcell.evaluation.combination import missing_baseline
from factorcell.evaluation.comparison import format_figure
from factorcell.evaluation.conditional_prior import CONTEXT_CLASSIFIER
from factorcell.evaluation.diagnostics import classification_findings, unknown_users_finding
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.evaluation.perplexity import PERPLEXITY_OF, Evaluation, evaluate
from factorcell.evaluation.point_classification import classify_points
from factorcell.evaluation.text_figures import Figures
from factorcell.io import files
from factorcell.io.findings import Finding, report
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from factorcell.runs.saved_results import (
    BASELINE_BITS,
    BASELINE_GAIN,
    UNKNOWN_CONTEXT_GAIN,
    format_difference,
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
    open_run = partial(Run.open, mixture=not arguments.no_ngram_mixture)
    run = options.open_on_device(open_run, arguments.run, arguments)
    if (arguments.target is None) == (arguments.points is None):
        raise UserError("specify either --target COLUMN or --points TABLE")
    options_of_target = {
        "--calibrate": arguments.calibrate,
        "--combine": arguments.combine,
        "--priors": arguments.priors != "conditional",
    }
    check_adapted(run)
    for flag, value in options_of_target.items():
        if arguments.points and value:
            raise UserError(f"{flag} requires --target COLUMN; it does not apply to --points")
    shared_settings: dict[str, Any] = {
        "unknown": arguments.unknown,
        "samples": arguments.samples,
        "proposal": arguments.proposal,
    }
    table = arguments.table
    if arguments.target:
        result = classify(
            run,
            table,
            arguments.target,
            values=arguments.values,
            distractors=arguments.distractors,
            priors=arguments.priors,
            calibrate=arguments.calibrate,
            combine=arguments.combine,
            **shared_settings,
        )
    else:
        points = results.read_points(arguments.points)
        result = classify_points(run, table, points, within=arguments.within, **shared_settings)
    _report(run, result, arguments)
    if arguments.target and result.has_labels and LINEAR_BASELINE not in result.other_predictions:
        terminal.notify(missing_baseline(run, arguments.target))


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
    if result.has_labels:
        if arguments.save:
            target = arguments.target
            if arguments.points:
                target = results.describe_points(arguments.points, result, arguments.within)
            row = results.classification_row(run, arguments.table, target, result, metrics)
            _save_result(run, row, {"accuracy": text_accuracies(result)})
    else:
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
