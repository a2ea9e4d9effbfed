"""The commands that score texts with a model: `evaluate`, `classify` and `score`."""

import argparse
from collections.abc import Sequence
from typing import Any

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.evaluation import results
from factorcell.evaluation.bayes_rule import Classification, text_accuracies
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.comparison import LOWER_BOUND_MARK, LOWER_BOUND_NOTE, format_difference, format_figure
from factorcell.evaluation.perplexity import evaluate_by_columns
from factorcell.evaluation.run_warnings import training_warnings, unknown_users_notice
from factorcell.evaluation.text_figures import Figures
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from factorcell.training.mixture import open_scorer

SHOWN_PREDICTIONS = 20  # number of texts whose predictions are printed if --out is not specified

Row = dict[str, Any]


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Run `factorcell evaluate`."""
    run = options.open_on_device(open_scorer, arguments.run, arguments)
    baseline = arguments.baseline and options.open_on_device(open_scorer, arguments.baseline, arguments)
    result = evaluate_by_columns(run, arguments.table, by=arguments.by, baseline=baseline, unknown=arguments.unknown)
    saved = results.evaluation_row(run, arguments.table, result)
    row = saved["evaluation"]
    if arguments.json:
        terminal.show_json([row, *(dict(line, by=name) for name in arguments.by for line in result.by[name])])
    else:
        _show(run, row, result.by, arguments, baseline)
    _save_result(run, saved, result.texts)
    terminal.notify(*training_warnings(model for model in (run, baseline) if isinstance(model, Run)))


def _show(
    run: Scorer, total: Row, by: dict[str, list[Row]], arguments: argparse.Namespace, baseline: Scorer | None
) -> None:
    """Print the figures of all texts, and a table of the gains for each column of `by`."""
    other_model = baseline.folder if baseline else "the same model without context"
    over = f"gain over {other_model}"
    terminal.show(
        f"{total['texts']:,} texts, {total['targets']:,} targets ({total['unknown_share']:.1%} out of vocabulary)",
        f"perplexity {total['perplexity']:.2f} over all targets, "
        f"{total['perplexity_known']:.2f} over in-vocabulary targets",
        *_bits_per_byte(total),
    )
    if gain := format_difference("gain", total):
        hint = " (the gain over an unadapted run is smaller; --baseline RUN computes it)"
        terminal.show(
            f"{over} (perplexity {total['perplexity_without']:.2f}; 95 % CI in brackets): {gain}"
            f"{hint if not baseline and total['gain'] > 0 else ''}"
        )
        if total.get("only_unknown_users"):
            terminal.show(unknown_users_notice(run, "text"))
    if difference := format_difference("bits_per_byte_difference", total):
        bound = "at least " if total["bits_per_byte_baseline_bound"] else ""
        figure = f"{bound}{total['bits_per_byte_baseline']:.3f}"
        terminal.show(f"difference in bits per byte to {other_model} ({figure}): {difference}")
    for name in arguments.by:
        terminal.show("", f"by {name}; {over} (95 % CI in brackets)")
        compared = "baseline" if baseline else "without_context"
        lines = [
            {**row, compared: row["perplexity_without"], "gain": format_difference("gain", row)} for row in by[name]
        ]
        terminal.show_table(lines, ("value", "count", "targets", "perplexity", compared, "gain"))


def _bits_per_byte(total: Row) -> list[str]:
    if total.get("bits_per_byte") is None:
        return []
    is_partial = total["bits_per_byte_texts"] < total["texts"]
    texts = f", over the {total['bits_per_byte_texts']:,} texts that were not cut" if is_partial else ""
    lines = [f"bits per byte {format_figure({**total, 'ahead': ()}, 'bits_per_byte', '.3f')}{texts}"]
    if total["bits_per_byte_bound"]:
        lines.append(
            f"{LOWER_BOUND_MARK} is a lower bound: {LOWER_BOUND_NOTE}; "
            f"{total['unknown_targets']:,} targets out of vocabulary"
        )
    return lines


def _save_result(run: Scorer, row: Row, texts: Figures) -> None:
    if line := results.save_result(run, row, texts):
        terminal.notify(line)


def run_classify(arguments: argparse.Namespace) -> None:
    """Run `factorcell classify`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    if (arguments.target is None) == (arguments.points is None):
        raise UserError("give either --target COLUMN or --points TABLE")
    if arguments.points and arguments.calibrate:
        raise UserError("--calibrate requires --target COLUMN; no temperature is fitted with --points")
    settings: dict[str, Any] = {
        "unknown": arguments.unknown,
        "samples": arguments.samples,
        "proposal": arguments.proposal,
        "progress": True,
    }
    table = arguments.table
    if arguments.target:
        candidates = {"values": arguments.values, "distractors": arguments.distractors, "priors": arguments.priors}
        result = classify(run, table, arguments.target, **candidates, calibrate=arguments.calibrate, **settings)
    else:
        points = results.read_points(arguments.points)
        result = classify_points(run, table, points, within=arguments.within, **settings)
    _report(run, result, arguments)


def _report(run: Run, result: Classification, arguments: argparse.Namespace) -> None:
    """Print or write the predictions, and print and save the metrics if any text has a label."""
    metrics = result.metrics()
    rows = [{**row, "row": row["row"] + 1} for row in result.rows()]
    if result.has_labels:
        terminal.show_classification(result, metrics, arguments.json)
    elif arguments.json:
        terminal.show_json(rows)
    elif not arguments.out:
        _show_predictions(rows)
    if arguments.out:
        files.write_rows(arguments.out, rows)
    if result.has_labels:
        row = results.classification_row(run, arguments.table, arguments.target, result, metrics, arguments.samples)
        _save_result(run, row, {"accuracy": text_accuracies(result)})
    else:
        into = f", written to {arguments.out}" if arguments.out else ""
        value = "a value among the candidates" if metrics.get("left_out_other") else "a value"
        texts = "1 text" if len(result.truth) == 1 else f"{len(result.truth):,} texts"
        terminal.notify(f"{texts} classified{into}; accuracy not computed: no text has {value}")
    terminal.notify(*training_warnings([run]))


def _show_predictions(rows: Sequence[Row]) -> None:
    cells = [
        {
            "row": f"{row['row']}",
            "predicted": row["predicted"],
            "probability": f"{max(row['probabilities'].values()):.4f}",
        }
        for row in rows[:SHOWN_PREDICTIONS]
    ]
    terminal.show_table(cells, ("row", "predicted", "probability"))
    if len(rows) > SHOWN_PREDICTIONS:
        terminal.notify(
            f"only the first {SHOWN_PREDICTIONS} are shown; --out FILE writes all, with the probability of every value"
        )


def run_score(arguments: argparse.Namespace) -> None:
    """Run `factorcell score`."""
    rows = options.open_on_device(Run.open, arguments.run, arguments).score(
        arguments.table, tokens=arguments.tokens, unknown=arguments.unknown
    )
    rows = [{**row, "row": row["row"] + 1} for row in rows]
    if arguments.json:
        return terminal.show_json(rows)
    terminal.show_fields("row", "nats", "targets", "perplexity", *(["token"] if arguments.tokens else []))
    for row in rows:
        number = f"{row['row']}"
        no_token = [""] if arguments.tokens else []
        terminal.show_fields(number, f"{row['nats']:z.4f}", f"{row['targets']}", f"{row['perplexity']:.4f}", *no_token)
        for token in row.get("tokens", ()):
            terminal.show_fields(number, f"{token['nats']:z.4f}", "", "", token["token"])
    return None
