"""The command `factorcell rescore`: choose again from n-best lists."""

import argparse
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError, choose
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.rescoring import nbest, rescore
from factorcell.evaluation.rescoring.nbest import NBest
from factorcell.evaluation.rescoring.rescore import ScoredNBest, ScoreWeights
from factorcell.evaluation.results import open_model
from factorcell.model.run import Run
from factorcell.reports.wording import rescoring_table

SHOWN = 20  # values of a column that are printed


def run_rescore(given: argparse.Namespace) -> None:
    """`factorcell rescore`."""
    if given.out is not None and given.out.exists():
        raise UserError(f"{given.out}: exists already; choose another file")
    if given.tune and given.weights:
        files.check_writable(given.weights)
    lists = _read(given.lists, given.reference, given.utt2context)
    for name in given.by:
        choose("column", name, lists.columns)
    model = options.open_on_device(open_model, given.run, given)
    weights = _weights(given, model, lists)
    scored = _scored(given, model, lists)
    rows = rescore.rescore(scored, weights)
    summary = rescore.word_error_rates(rows, given.by) if lists.has_references else []
    if given.out is not None:
        files.write_rows(given.out, rows)
    _warn(model, lists, options.parse_context(given.context), summary)
    if given.json:
        terminal.show_json([{"weights": dict(weights.values)}, *(summary or rows)])
        return
    terminal.show("weights: " + ", ".join(f"{name} {value:z.4g}" for name, value in weights.values.items()))
    if summary:
        terminal.show_table(*rescoring_table(summary[: SHOWN + 1]))
    else:
        lines = [{"utterance": row["id"], "place": row["place"], "text": row["text"]} for row in rows]
        terminal.show_table(lines, ("utterance", "place", "text"))


def _warn(model: Run | NGram, lists: NBest, context: dict[str, str], summary: list[dict[str, Any]]) -> None:
    columns = model.schema.columns()
    if columns and not {*columns} & {*lists.columns, *context}:
        terminal.notify(
            f"the lists have none of the columns {', '.join(columns)}: the model reads them without context"
        )
    if summary and (summary[0]["gain_high"] or 0) < 0:
        terminal.notify("more errors than the first pass: fit the weights on lists with references (--tune)")


def _read(path: Path, reference: Path | None, columns: Path | None) -> NBest:
    lists = nbest.read_nbest(path)
    lists = lists if reference is None else nbest.with_references(lists, reference)
    return lists if columns is None else nbest.with_columns(lists, columns)


def _weights(given: argparse.Namespace, model: Run | NGram, lists: NBest) -> ScoreWeights:
    """Return the weights fitted on --tune, those of the file, or a share of the first pass."""
    if given.tune is None:
        for option, value in (("reference", given.tune_reference), ("utt2context", given.tune_utt2context)):
            if value is not None:
                raise UserError(f"--tune-{option} {value} is of the lists of --tune, which is not given")
        return (
            ScoreWeights.open(given.weights)
            if given.weights
            else ScoreWeights.with_model_share(lists.names, given.share)
        )
    tune = _read(given.tune, given.tune_reference, given.tune_utt2context)
    if tune.names != lists.names:
        raise UserError(f"{given.tune}: has the scores {', '.join(tune.names)}; {given.lists} {', '.join(lists.names)}")
    weights, nats = rescore.fit_weights(_scored(given, model, tune))
    terminal.notify(f"fitted on {given.tune}: {nats:g} nats a list")
    if given.weights is not None:
        weights.save(given.weights)
    return weights


def _scored(given: argparse.Namespace, model: Run | NGram, lists: NBest) -> ScoredNBest:
    context = options.parse_context(given.context)
    return rescore.score_hypotheses(model, lists, context=context, unknown=given.unknown, progress=True)
