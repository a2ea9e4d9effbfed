"""The command `rescore`, which reranks the n-best lists of a speech recognizer with a model."""

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

SHOWN_VALUES = 20  # maximum number of values of columns whose word error rates are printed


def run_rescore(arguments: argparse.Namespace) -> None:
    """Run `factorcell rescore`."""
    if arguments.out is not None and arguments.out.exists():
        raise UserError(f"{arguments.out}: exists already; choose another file")
    if arguments.tune and arguments.weights:
        files.check_writable(arguments.weights)
    lists = _read_lists(arguments.lists, arguments.reference, arguments.utt2context)
    for name in arguments.by:
        choose("column", name, lists.columns)
    model = options.open_on_device(open_model, arguments.run, arguments)
    weights = _fit_or_read_weights(arguments, model, lists)
    scored = _score_lists(arguments, model, lists)
    rows = rescore.rescore(scored, weights)
    summary = rescore.word_error_rates(rows, arguments.by) if lists.has_references else []
    if arguments.out is not None:
        files.write_rows(arguments.out, rows)
    _notify_problems(model, lists, options.parse_context(arguments.context), summary)
    if arguments.json:
        terminal.show_json([{"weights": dict(weights.values)}, *(summary or rows)])
        return
    terminal.show("weights: " + ", ".join(f"{name} {value:z.4g}" for name, value in weights.values.items()))
    if summary:
        terminal.show_table(*rescoring_table(summary[: SHOWN_VALUES + 1]))  # the first row is for all utterances
    else:
        lines = [{"utterance": row["id"], "place": row["place"], "text": row["text"]} for row in rows]
        terminal.show_table(lines, ("utterance", "place", "text"))


def _notify_problems(model: Run | NGram, lists: NBest, context: dict[str, str], summary: list[dict[str, Any]]) -> None:
    """Print a notice if the lists lack all context columns, or if rescoring makes significantly more errors."""
    columns = model.schema.columns()
    if columns and not {*columns} & {*lists.columns, *context}:
        terminal.notify(f"the model is used without context: the lists have none of the columns {', '.join(columns)}")
    if summary and (summary[0]["gain_high"] or 0) < 0:
        terminal.notify(
            "rescoring makes more errors than the first pass; fit the weights on lists with references (--tune)"
        )


def _read_lists(path: Path, reference: Path | None, columns: Path | None) -> NBest:
    """Read n-best lists, with reference transcripts and context columns from the other two files if they are set."""
    lists = nbest.read_nbest(path)
    lists = lists if reference is None else nbest.with_references(lists, reference)
    return lists if columns is None else nbest.with_columns(lists, columns)


def _fit_or_read_weights(arguments: argparse.Namespace, model: Run | NGram, lists: NBest) -> ScoreWeights:
    """Return the weights of the scores: fitted on --tune, or else read from --weights, or else set by --share."""
    if arguments.tune is None:
        for option, value in (("reference", arguments.tune_reference), ("utt2context", arguments.tune_utt2context)):
            if value is not None:
                raise UserError(f"--tune-{option} {value}: requires the lists of --tune")
        if arguments.weights:
            return ScoreWeights.open(arguments.weights)
        return ScoreWeights.with_model_share(lists.names, arguments.share)
    tune = _read_lists(arguments.tune, arguments.tune_reference, arguments.tune_utt2context)
    if tune.names != lists.names:
        raise UserError(
            f"{arguments.tune}: expected the scores {', '.join(lists.names)} of {arguments.lists}, "
            f"got {', '.join(tune.names)}"
        )
    weights, nats = rescore.fit_weights(_score_lists(arguments, model, tune))
    terminal.notify(f"weights fitted on {arguments.tune}: {nats:g} nats per list")
    if arguments.weights is not None:
        weights.save(arguments.weights)
    return weights


def _score_lists(arguments: argparse.Namespace, model: Run | NGram, lists: NBest) -> ScoredNBest:
    context = options.parse_context(arguments.context)
    return rescore.score_hypotheses(model, lists, context=context, unknown=arguments.unknown, progress=True)
