"""The command `rescore`, which reranks the n-best lists of a speech recognizer with a model."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.commands.cli import options, terminal
from factorcell.errors import UserError, check_choice
from factorcell.evaluation.diagnostics import report_run
from factorcell.evaluation.rescoring import nbest, rescore
from factorcell.evaluation.rescoring.nbest import NBest
from factorcell.evaluation.rescoring.rescore import ScoreWeights
from factorcell.evaluation.results import open_model
from factorcell.io import files
from factorcell.io.findings import Finding, report
from factorcell.ngram.ngram import NGram
from factorcell.runs.run import Run

MAX_SHOWN_VALUES = 20  # maximum number of column values whose word error rates are printed


def run_rescore(arguments: argparse.Namespace) -> None:
    """Run `factorcell rescore`."""
    if arguments.out is not None and arguments.out.exists():
        raise UserError(f"{arguments.out}: exists already; choose another file")
    if arguments.tune and arguments.weights:
        files.check_writable(arguments.weights)
    lists = _read_lists(arguments.lists, arguments.reference, arguments.utt2context)
    for column in arguments.by:
        check_choice("column", column, lists.columns)
    model = options.open_on_device(open_model, arguments.run, arguments)
    report_run(model)
    weights = _fit_or_read_weights(arguments, model, lists)
    scored_lists = _score_lists(arguments, model, lists)
    rows = rescore.rescore(scored_lists, weights)
    summary = rescore.word_error_rates(rows, arguments.by) if lists.has_references else []
    if arguments.out is not None:
        files.write_rows(arguments.out, rows)
    if summary and (summary[0]["gain_high"] or 0) < 0:  # of all utterances
        text = "rescoring makes more errors than the first pass; fit the weights on lists with references (--tune)"
        report(Finding("more errors", text))
    if arguments.json:
        terminal.show_json([{"weights": dict(weights.values)}, *(summary or rows)])
        return
    terminal.show("weights: " + ", ".join(f"{name} {value:z.4g}" for name, value in weights.values.items()))
    if summary:
        _show_rates(summary[: 1 + MAX_SHOWN_VALUES])  # the first row is about all utterances
    else:
        shown_rows = [{"utterance": row["id"], "place": row["place"], "text": row["text"]} for row in rows]
        terminal.show_table(shown_rows, ("utterance", "place", "text"))


def _read_lists(path: Path, reference_path: Path | None, columns_path: Path | None) -> NBest:
    """Read n-best lists, and add reference transcripts and context columns from the other two files, if any."""
    lists = nbest.read_nbest(path)
    if reference_path is not None:
        lists = nbest.with_references(lists, reference_path)
    return lists if columns_path is None else nbest.with_columns(lists, columns_path)


def _fit_or_read_weights(arguments: argparse.Namespace, model: Run | NGram, lists: NBest) -> ScoreWeights:
    """Return the weights of the scores: fitted on --tune, read from --weights, or computed from --share."""
    if arguments.tune is None:
        tune_files = {"--tune-reference": arguments.tune_reference, "--tune-utt2context": arguments.tune_utt2context}
        for option, path in tune_files.items():
            if path is not None:
                raise UserError(f"{option} {path}: requires the lists of --tune")
        if arguments.weights:
            return ScoreWeights.open(arguments.weights)
        return ScoreWeights.with_model_share(lists.score_names, arguments.share)
    tune_lists = _read_lists(arguments.tune, arguments.tune_reference, arguments.tune_utt2context)
    if tune_lists.score_names != lists.score_names:
        expected, actual = (", ".join(names) for names in (lists.score_names, tune_lists.score_names))
        raise UserError(f"{arguments.tune}: expected the scores {expected} of {arguments.lists}, got {actual}")
    weights, nats_per_list = rescore.fit_weights(_score_lists(arguments, model, tune_lists))
    terminal.notify(f"weights fitted on {arguments.tune}: {nats_per_list:g} nats per list")
    if arguments.weights is not None:
        weights.save(arguments.weights)
    return weights


def _score_lists(arguments: argparse.Namespace, model: Run | NGram, lists: NBest) -> NBest:
    context = options.parse_context(arguments.context)
    return rescore.score_hypotheses(model, lists, context=context, unknown=arguments.unknown)


def _show_rates(summary: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of word error rates."""
    rows = [
        {
            "value": "all" if row["by"] == "all" else f"{row['by']} {row['value']}",
            **{name: f"{row[name]:,}" for name in ("utterances", "words")},
            **{name: f"{row[name]:.2%}" for name in ("first", "rescored", "oracle")},
            "gain": Interval(row["gain"], row["gain_low"], row["gain_high"]).to_text(".2f", 100.0),
        }
        for row in summary
    ]
    terminal.show_table(rows, list(rows[0]))
