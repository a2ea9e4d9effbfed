"""The verbs that judge texts by a run: perplexity, the contexts they have, nats."""

import argparse
from collections.abc import Sequence
from typing import Any

from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.evaluation import results
from factorcell.evaluation.bayes_rule import Classification, judged_texts
from factorcell.evaluation.cautions import unfinished, unknown_users
from factorcell.evaluation.classification import classify, classify_points
from factorcell.evaluation.comparison import AT_LEAST, BOUND, figure, told_difference
from factorcell.evaluation.perplexity import TOP
from factorcell.evaluation.text_figures import Figures
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from factorcell.training.mixture import open_scorer

SHOWN = 20  # texts whose predictions are shown where they are not kept in a file


def run_evaluate(given: argparse.Namespace) -> None:
    """`factorcell evaluate`."""
    run = options.opened(open_scorer, given.run, given)
    baseline = given.baseline and options.opened(open_scorer, given.baseline, given)
    rows, texts = results.evaluate(
        run, given.table, by=given.by, baseline=baseline, unknown=given.unknown, top=given.top
    )
    if given.json:
        terminal.lines([rows["evaluation"], *(dict(row, by=name) for name in given.by for row in rows["by"][name])])
    else:
        _show(run, rows, given, baseline)
    _note(run, rows, texts)
    terminal.say(*unfinished(one for one in (run, baseline) if isinstance(one, Run)))


def _show(run: Scorer, rows: dict[str, Any], given: argparse.Namespace, baseline: Scorer | None) -> None:
    """The perplexities as a person reads them."""
    whole = rows["evaluation"]
    other_model = baseline.folder if baseline else "the same model without its context"
    over = f"gain over {other_model}"
    terminal.show(
        f"{whole['texts']:,} texts, {whole['targets']:,} targets ({whole['unknown_share']:.1%} out of vocabulary)",
        f"perplexity {whole['perplexity']:.2f} of all targets, "
        f"{whole['perplexity_known']:.2f} without out-of-vocabulary ones",
        *_bits(whole),
    )
    if gain := told_difference("gain", whole):
        less = " (over an unadapted run it is less: --baseline RUN)" if not baseline and whole["gain"] > 0 else ""
        terminal.show(f"{over}, {whole['perplexity_without']:.2f}: {gain}{less}")
        if whole.get("strangers"):
            terminal.show(unknown_users(run, "text"))
    if difference := told_difference("bits_per_byte_difference", whole):
        bound = "at least " if whole["bits_per_byte_baseline_bound"] else ""
        terminal.show(f"bits per byte above {other_model}, {bound}{whole['bits_per_byte_baseline']:.3f}: {difference}")
    if given.top:
        terminal.show("next token right" + "".join(f", {whole[f'top_{n}']:.4f} among {n}" for n in TOP))
    for name in given.by:
        terminal.show("", f"by {name}; {over}")
        other = "baseline" if baseline else "without_context"
        lines = [
            {**row, other: row["perplexity_without"], "gain": told_difference("gain", row)} for row in rows["by"][name]
        ]
        terminal.table(lines, ("value", "count", "targets", "perplexity", other, "gain"))


def _bits(whole: dict[str, Any]) -> list[str]:
    """Return the lines about bits per byte: the figure, of which texts it is, and why it is a lower bound."""
    if whole.get("bits_per_byte") is None:
        return []
    cut = whole["bits_per_byte_texts"] < whole["texts"]
    texts = f", of the {whole['bits_per_byte_texts']:,} texts that were read whole" if cut else ""
    lines = [f"bits per byte {figure({**whole, 'ahead': ()}, 'bits_per_byte', '.3f')}{texts}"]
    if whole["bits_per_byte_bound"]:
        lines.append(f"{AT_LEAST} is a lower bound: {BOUND}; {whole['unknown_targets']:,} targets out of vocabulary")
    return lines


def _note(run: Scorer, row: dict[str, Any], texts: Figures) -> None:
    """Keep a result that has been shown; a run that may only be read keeps none, which is no mistake."""
    if line := results.note(run, row, texts):
        terminal.say(line)


def run_classify(given: argparse.Namespace) -> None:
    """`factorcell classify`."""
    run = options.opened(Run.open, given.run, given)
    if (given.target is None) == (given.points is None):
        raise UserError("give either --target COLUMN or --points TABLE")
    if given.points and given.calibrate:
        raise UserError("--calibrate is for the values of --target COLUMN; named points have no temperature")
    if given.target:
        result = classify(
            run,
            given.table,
            given.target,
            values=given.values,
            distractors=given.distractors,
            priors=given.priors,
            unknown=given.unknown,
            samples=given.samples,
            proposal=given.proposal,
            calibrate=given.calibrate,
            progress=True,
        )
    else:
        points = results.read_points(given.points)
        result = classify_points(
            run,
            given.table,
            points,
            within=given.within,
            unknown=given.unknown,
            samples=given.samples,
            proposal=given.proposal,
            progress=True,
        )
    _keep(run, result, given)


def _keep(run: Run, result: Classification, given: argparse.Namespace) -> None:
    """Show what was predicted, and keep it where that is asked; of texts that can be judged, how good it is."""
    metrics = result.metrics()
    if result.labelled:
        terminal.judged(result, metrics, given.json)
    elif given.json or not given.out:
        _show_predictions(results.predictions(result), given.json)
    if given.out:
        results.write_predictions(given.out, result)
    if result.labelled:
        row = results.classified(run, given.table, given.target, result, metrics, given.samples)
        _note(run, row, {"accuracy": judged_texts(result)})
    else:
        into = f" into {given.out}" if given.out else ""
        other = "a value among the candidates" if metrics.get("left_out_other") else "a value"
        texts = "1 text" if len(result.truth) == 1 else f"{len(result.truth):,} texts"
        terminal.say(f"{texts} classified{into}; none has {other} to judge by")
    terminal.say(*unfinished([run]))


def _show_predictions(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """What is predicted of each text; of many texts only of the first ones, unless as rows of JSON."""
    if as_json:
        return terminal.lines(rows)
    shown = [
        {
            "row": f"{row['row']}",
            "predicted": row["predicted"],
            "probability": f"{max(row['probabilities'].values()):.4f}",
        }
        for row in rows[:SHOWN]
    ]
    terminal.table(shown, ("row", "predicted", "probability"))
    if len(rows) > SHOWN:
        terminal.say(f"these are the first {SHOWN}; --out FILE keeps all, with the probability of every value")
    return None


def run_score(given: argparse.Namespace) -> None:
    """`factorcell score`."""
    rows = options.opened(Run.open, given.run, given).score(given.table, tokens=given.tokens, unknown=given.unknown)
    rows = [{**row, "row": row["row"] + 1} for row in rows]
    if given.json:
        return terminal.lines(rows)
    terminal.fields("row", "nats", "targets", "perplexity", *(["token"] if given.tokens else []))
    for row in rows:
        number, empty = f"{row['row']}", [""] if given.tokens else []
        terminal.fields(number, f"{row['nats']:z.4f}", f"{row['targets']}", f"{row['perplexity']:.4f}", *empty)
        for token in row.get("tokens", ()):
            terminal.fields(number, f"{token['nats']:z.4f}", "", "", token["token"])
    return None
