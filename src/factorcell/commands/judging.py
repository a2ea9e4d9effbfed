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

SHOWN = 20  # texts whose predictions are printed if they are not written to a file

Row = dict[str, Any]


def run_evaluate(given: argparse.Namespace) -> None:
    """`factorcell evaluate`."""
    run = options.open_on_device(open_scorer, given.run, given)
    baseline = given.baseline and options.open_on_device(open_scorer, given.baseline, given)
    found = evaluate_by_columns(run, given.table, by=given.by, baseline=baseline, unknown=given.unknown)
    kept = results.evaluation_row(run, given.table, found)
    row = kept["evaluation"]
    if given.json:
        terminal.show_json([row, *(dict(line, by=name) for name in given.by for line in found.by[name])])
    else:
        _show(run, row, found.by, given, baseline)
    _note(run, kept, found.texts)
    terminal.notify(*training_warnings(one for one in (run, baseline) if isinstance(one, Run)))


def _show(
    run: Scorer, whole: Row, by: dict[str, list[Row]], given: argparse.Namespace, baseline: Scorer | None
) -> None:
    other_model = baseline.folder if baseline else "the same model without its context"
    over = f"gain over {other_model}"
    terminal.show(
        f"{whole['texts']:,} texts, {whole['targets']:,} targets ({whole['unknown_share']:.1%} out of vocabulary)",
        f"perplexity {whole['perplexity']:.2f} of all targets, "
        f"{whole['perplexity_known']:.2f} without out-of-vocabulary ones",
        *_bits(whole),
    )
    if gain := format_difference("gain", whole):
        less = " (over an unadapted run it is less: --baseline RUN)" if not baseline and whole["gain"] > 0 else ""
        terminal.show(f"{over}, {whole['perplexity_without']:.2f}: {gain}{less}")
        if whole.get("only_unknown_users"):
            terminal.show(unknown_users_notice(run, "text"))
    if difference := format_difference("bits_per_byte_difference", whole):
        bound = "at least " if whole["bits_per_byte_baseline_bound"] else ""
        terminal.show(f"bits per byte above {other_model}, {bound}{whole['bits_per_byte_baseline']:.3f}: {difference}")
    for name in given.by:
        terminal.show("", f"by {name}; {over}")
        other = "baseline" if baseline else "without_context"
        lines = [{**row, other: row["perplexity_without"], "gain": format_difference("gain", row)} for row in by[name]]
        terminal.show_table(lines, ("value", "count", "targets", "perplexity", other, "gain"))


def _bits(whole: Row) -> list[str]:
    if whole.get("bits_per_byte") is None:
        return []
    cut = whole["bits_per_byte_texts"] < whole["texts"]
    texts = f", of the {whole['bits_per_byte_texts']:,} texts that were read whole" if cut else ""
    lines = [f"bits per byte {format_figure({**whole, 'ahead': ()}, 'bits_per_byte', '.3f')}{texts}"]
    if whole["bits_per_byte_bound"]:
        lines.append(
            f"{LOWER_BOUND_MARK} is a lower bound: {LOWER_BOUND_NOTE}; "
            f"{whole['unknown_targets']:,} targets out of vocabulary"
        )
    return lines


def _note(run: Scorer, row: Row, texts: Figures) -> None:
    if line := results.save_result(run, row, texts):
        terminal.notify(line)


def run_classify(given: argparse.Namespace) -> None:
    """`factorcell classify`."""
    run = options.open_on_device(Run.open, given.run, given)
    if (given.target is None) == (given.points is None):
        raise UserError("give either --target COLUMN or --points TABLE")
    if given.points and given.calibrate:
        raise UserError("--calibrate is for the values of --target COLUMN; named points have no temperature")
    how: dict[str, Any] = {
        "unknown": given.unknown,
        "samples": given.samples,
        "proposal": given.proposal,
        "progress": True,
    }
    if given.target:
        candidates = {"values": given.values, "distractors": given.distractors, "priors": given.priors}
        result = classify(run, given.table, given.target, **candidates, calibrate=given.calibrate, **how)
    else:
        result = classify_points(run, given.table, results.read_points(given.points), within=given.within, **how)
    _report(run, result, given)


def _report(run: Run, result: Classification, given: argparse.Namespace) -> None:
    """Print and save the predictions, and the metrics if any text can be judged."""
    metrics = result.metrics()
    rows = [{**row, "row": row["row"] + 1} for row in result.rows()]
    if result.has_labels:
        terminal.show_classification(result, metrics, given.json)
    elif given.json:
        terminal.show_json(rows)
    elif not given.out:
        _show_predictions(rows)
    if given.out:
        files.write_rows(given.out, rows)
    if result.has_labels:
        row = results.classification_row(run, given.table, given.target, result, metrics, given.samples)
        _note(run, row, {"accuracy": text_accuracies(result)})
    else:
        into = f" into {given.out}" if given.out else ""
        other = "a value among the candidates" if metrics.get("left_out_other") else "a value"
        texts = "1 text" if len(result.truth) == 1 else f"{len(result.truth):,} texts"
        terminal.notify(f"{texts} classified{into}; none has {other} to judge by")
    terminal.notify(*training_warnings([run]))


def _show_predictions(rows: Sequence[Row]) -> None:
    shown = [
        {
            "row": f"{row['row']}",
            "predicted": row["predicted"],
            "probability": f"{max(row['probabilities'].values()):.4f}",
        }
        for row in rows[:SHOWN]
    ]
    terminal.show_table(shown, ("row", "predicted", "probability"))
    if len(rows) > SHOWN:
        terminal.notify(f"these are the first {SHOWN}; --out FILE keeps all, with the probability of every value")


def run_score(given: argparse.Namespace) -> None:
    """`factorcell score`."""
    rows = options.open_on_device(Run.open, given.run, given).score(
        given.table, tokens=given.tokens, unknown=given.unknown
    )
    rows = [{**row, "row": row["row"] + 1} for row in rows]
    if given.json:
        return terminal.show_json(rows)
    terminal.show_fields("row", "nats", "targets", "perplexity", *(["token"] if given.tokens else []))
    for row in rows:
        number, empty = f"{row['row']}", [""] if given.tokens else []
        terminal.show_fields(number, f"{row['nats']:z.4f}", f"{row['targets']}", f"{row['perplexity']:.4f}", *empty)
        for token in row.get("tokens", ()):
            terminal.show_fields(number, f"{token['nats']:z.4f}", "", "", token["token"])
    return None
