"""The commands that score texts with a model: `evaluate`, `classify` and `score`."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.evaluation import results
from factorcell.evaluation.bayes_rule import LINEAR_BASELINE, Classification, accuracy_figures
from factorcell.evaluation.classification import classify
from factorcell.evaluation.combination import missing_baseline
from factorcell.evaluation.comparison import (
    AT_MOST,
    LOWER_BOUND_MARK,
    LOWER_BOUND_NOTE,
    OMITTED_BITS,
    format_difference,
    format_figure,
)
from factorcell.evaluation.conditional_prior import CONTEXT_CLASSIFIER
from factorcell.evaluation.diagnostics import classification_findings, unknown_users_finding
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.evaluation.perplexity import evaluate_by_columns
from factorcell.evaluation.point_classification import classify_points
from factorcell.evaluation.text_figures import Figures
from factorcell.findings import Finding, report
from factorcell.model.run import Run
from factorcell.model.saved_results import EFFECT
from factorcell.model.scoring import Scorer
from factorcell.training.mixture import open_scorer

UNCALIBRATED = (
    "the probabilities are usually too high, after a short training too low; --calibrate DEV fits them to a table with "
    "values"
)
MAX_SHOWN_PREDICTIONS = 20  # maximum number of texts whose predictions are printed if --out is not specified

Row = dict[str, Any]


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Run `factorcell evaluate`."""
    run = options.open_on_device(open_scorer, arguments.run, arguments)
    baseline = arguments.baseline and options.open_on_device(open_scorer, arguments.baseline, arguments)
    result = evaluate_by_columns(run, arguments.table, by=arguments.by, baseline=baseline, unknown=arguments.unknown)
    saved_row = results.evaluation_row(run, arguments.table, result, baseline)
    row = saved_row["evaluation"]
    if arguments.json:
        value_rows = [{**value_row, "by": column} for column in arguments.by for value_row in result.by[column]]
        terminal.show_json([row, *value_rows])
    else:
        _show(run, row, result.by, arguments, baseline)
    _save_result(run, saved_row, result.texts)
    if baseline and result.baseline and not baseline.folder.samefile(run.folder):
        baseline_row = results.evaluation_row(baseline, arguments.table, result.baseline)
        _save_result(baseline, baseline_row, result.baseline.texts)
    if row.get("only_unknown_users"):
        report(unknown_users_finding(run, "text"))
    if row.get("training_difference"):
        report(Finding("unlike trainings", row["training_difference"]))


def _show(
    run: Scorer,
    total: Row,
    rows_by_column: dict[str, list[Row]],
    arguments: argparse.Namespace,
    baseline: Scorer | None,
) -> None:
    """Print the figures `total` of all texts, and for each column of --by a table of the figures of its values.

    The tables have the gains over the baseline, or without a baseline, the effect of removing the context.
    """
    name = f"gain over {baseline.folder}" if baseline else EFFECT
    counts = f"{total['texts']:,} texts, {total['targets']:,} targets"
    perplexity = f"perplexity per {total['unit']} {total['perplexity']:.2f}"
    if run.tokenizer.is_subword:  # no target is out of vocabulary
        terminal.show(counts, *_bits_per_byte_lines(total), f"{perplexity}, which depends on the vocabulary")
    else:
        terminal.show(
            f"{counts} ({total['unknown_share']:.1%} out of vocabulary)",
            f"{perplexity} over all targets, {total['perplexity_known']:.2f} over in-vocabulary targets",
            *_bits_per_byte_lines(total),
        )
    if difference := format_difference("gain", total):
        meaning, hint = "", ""
        if not baseline:
            meaning = f"how much lower the perplexity is with it; without {', '.join(run.schema.columns())}, "
            hint = "; --baseline RUN computes the gain over an unadapted run" if total["gain"] > 0 else ""
        figures = f"{meaning}perplexity {total['perplexity_without']:.2f}; 95 % CI in brackets"
        terminal.show(f"{name} ({figures}): {difference}{hint}")
    if baseline and "bits_per_byte_baseline" in total:
        terminal.show(_bits_difference_line(total, str(run.folder), str(baseline.folder)))
    other_perplexity, difference_title = ("baseline", "gain") if baseline else ("without_context", "effect")
    for column in arguments.by:
        rows = rows_by_column[column]
        has_differences = any("gain" in row for row in rows)
        title = f"{name} (95 % CI in brackets)" if has_differences else "the model reads no context"
        terminal.show("", f"by {column}; {title}")
        shown_rows = [
            {**row, other_perplexity: row.get("perplexity_without"), difference_title: format_difference("gain", row)}
            for row in rows
        ]
        columns = ("value", "count", "targets", "perplexity", other_perplexity, difference_title)
        terminal.show_table(shown_rows, columns)


def _bits_difference_line(total: Row, run: str, baseline: str) -> str:
    """Return the line that states the difference in bits per byte, or its bound and why it is only a bound."""
    at_least = "at least " if total["bits_per_byte_baseline_bound"] else ""
    name = f"difference in bits per byte to {baseline} ({at_least}{total['bits_per_byte_baseline']:.3f})"
    difference = format_difference("bits_per_byte_difference", total)
    if difference is None:
        return f"{name}: unknown, because {run} and {baseline} omit {OMITTED_BITS}, each of other texts"
    if bound := total.get("bits_per_byte_difference_bound"):
        exact, other = (run, baseline) if bound == AT_MOST else (baseline, run)
        return f"{name}: {difference}, over the texts that {exact} restores exactly; {other} omits {OMITTED_BITS}"
    return f"{name}: {difference}"


def _bits_per_byte_lines(total: Row) -> list[str]:
    """Return the lines that state the bits per byte, and what a lower bound means; no lines if they are unknown."""
    if total.get("bits_per_byte") is None:
        return []
    is_partial = total["bits_per_byte_texts"] < total["texts"]
    restriction = f", over the {total['bits_per_byte_texts']:,} texts that were not cut" if is_partial else ""
    # Without a comparison, no figure is marked as the best one.
    figure = format_figure({**total, "ahead": ()}, "bits_per_byte", ".3f")
    lines = [f"bits per byte {figure}{restriction}"]
    if total["bits_per_byte_bound"]:
        lines.append(f"{LOWER_BOUND_MARK} is a lower bound: {LOWER_BOUND_NOTE}")
    return lines


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
    """Print or write the predictions, and print and save the metrics if any text has a label."""
    metrics = result.metrics()
    rows = [{**row, "row": row["row"] + 1} for row in result.rows()]  # users count rows from 1
    if result.has_labels:
        if not metrics["others"] and not arguments.json:  # otherwise, the table of other classifiers has the name
            terminal.show(f"classifier: {result.name}")
        terminal.show_classification(result, metrics, as_json=arguments.json)
    elif arguments.json:
        terminal.show_json(rows)
    elif not arguments.out:
        _show_predictions(rows)
    if arguments.out:
        files.write_rows(arguments.out, rows)
    can_other_columns_predict = CONTEXT_CLASSIFIER in result.other_predictions
    if result.has_labels:
        points = arguments.points and results.describe_points(arguments.points, result, arguments.within)
        row = results.classification_row(run, arguments.table, arguments.target, result, metrics, points)
        _save_result(run, row, accuracy_figures(result))
        can_other_columns_predict = row["accuracy_remark"] is not None
    else:
        output = f", written to {arguments.out}" if arguments.out else ""
        missing_value = "a value among the candidates" if metrics.get("left_out_other") else "a value"
        counted_texts = "1 text" if len(result.truth) == 1 else f"{len(result.truth):,} texts"
        task = f"{counted_texts} classified ({result.name}){output}"
        terminal.notify(f"{task}; accuracy not computed: no text has {missing_value}")
        if arguments.target and not arguments.calibrate:
            terminal.notify(UNCALIBRATED)
    if can_other_columns_predict:
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
    rows: list[Row] = run.score(arguments.table, tokens=arguments.tokens, unknown=arguments.unknown)
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
