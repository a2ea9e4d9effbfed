"""The commands that evaluate models or columns on texts, train baselines, and rerank hypotheses of a recognizer."""

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import COMPUTING, OUTPUT_FILE, OUTPUT_FOLDER, Parser
from factorcell.config import Config
from factorcell.errors import UserError, check_choice
from factorcell.io.findings import Finding, report
from factorcell.options.limits import ADVICE_ROWS, PRIORS, PROPOSALS

if TYPE_CHECKING:
    from factorcell.data.tokenizers.tokenizer import Tokenizer
    from factorcell.evaluation.bayes_rule import Classification
    from factorcell.evaluation.perplexity import Evaluation
    from factorcell.evaluation.rescoring.nbest import NBest
    from factorcell.evaluation.rescoring.rescore import Weights
    from factorcell.evaluation.text_figures import Figures
    from factorcell.ngram.ngram import NGram
    from factorcell.nn.scoring import Scorer
    from factorcell.runs.run import Run

MAX_SHOWN = 20  # maximum number of predictions, or of figures of the values of a column, that are printed

Row = dict[str, Any]


def add_evaluate_arguments(parser: Parser) -> None:
    parser.add_all("run", "table", "--by", "--no-ngram-mixture", "--save", "--unknown", *COMPUTING)
    help_text = "run or n-gram model to compute gains over; if its vocabulary differs, bits per byte are compared, and "
    help_text += "--by is refused"
    parser.add("--baseline", type=Path, metavar="RUN", help=help_text)


def run_evaluate(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.diagnostics import unknown_users_finding
    from factorcell.evaluation.perplexity import evaluate

    run = _open_scorer(arguments.run, arguments)
    baseline = _open_scorer(arguments.baseline, arguments) if arguments.baseline else None
    if arguments.save and arguments.no_ngram_mixture and hasattr(run, "models"):
        raise UserError("--save: cannot save a mixture of models with --no-ngram-mixture, whose results have one name")
    result = evaluate(run, arguments.table, by=arguments.by, baseline=baseline, unknown=arguments.unknown)
    row = result.result_row(run, arguments.table)
    if arguments.json:
        value_rows = [{**value_row, "by": column} for column in arguments.by for value_row in result.by[column]]
        terminal.show_json([{name: value for name, value in row.items() if name != "by"}, *value_rows])
    else:
        _show_evaluation(row, result, baseline)
    if arguments.save:
        _save_result(run, row, result.figures)
        if baseline and result.baseline and not baseline.folder.samefile(run.folder):
            baseline_row = result.baseline.result_row(baseline, arguments.table)
            _save_result(baseline, baseline_row, result.baseline.figures)
    if row.get("only_unknown_users"):
        report(unknown_users_finding(run, "text"))


def _open_scorer(folder: Path, arguments: argparse.Namespace) -> "Scorer":
    """Open a model; with --no-ngram-mixture, runs predict with their neural models alone."""
    from factorcell.training.mixture import open_scorer

    computing = {"device": arguments.device, "precision": arguments.precision}
    return open_scorer(folder, **computing, mixture=not arguments.no_ngram_mixture)


def _show_evaluation(row: Row, result: "Evaluation", baseline: "Scorer | None") -> None:
    """Print a table with a line for all texts, whose figures are `row`, and one for each value of --by."""
    from factorcell.evaluation.perplexity import PERPLEXITY_OF
    from factorcell.runs.saved_results import (
        BASELINE_BITS,
        BASELINE_GAIN,
        UNKNOWN_CONTEXT_GAIN,
        format_difference,
        format_figure,
        gain_title,
        measure_name,
    )

    name, gain = (str(baseline.folder), BASELINE_GAIN) if baseline else (None, UNKNOWN_CONTEXT_GAIN)
    shown = {column: rows[:MAX_SHOWN] for column, rows in result.by.items()}
    value_rows = [(f"{column} {value['value']}", value) for column, rows in shown.items() for value in rows]
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
    _show_omitted(result.by)
    if row["unknown_targets"]:
        terminal.show(f"out of vocabulary: {row['unknown_share']:.1%} of {row['targets']:,} {row['unit']}s")
    if row.get("bits_per_byte_texts", row["texts"]) < row["texts"]:
        terminal.show(f"bits per byte: over the {row['bits_per_byte_texts']:,} texts that were not cut")


def _show_omitted(rows_by_column: Mapping[str, Sequence[Row]]) -> None:
    """Print how many values of each column are not shown."""
    for column, rows in rows_by_column.items():
        if len(rows) > MAX_SHOWN:
            terminal.show(f"{column}: {MAX_SHOWN} of {len(rows):,} values; --json prints all")


def _save_result(run: "Scorer", row: Row, text_figures: "Figures") -> None:
    from factorcell.evaluation.text_figures import save_result

    if failure_notice := save_result(run, row, text_figures):
        terminal.notify(failure_notice)


def add_classify_arguments(parser: Parser) -> None:
    parser.add_all("run", "table", "--no-ngram-mixture", "--save", "--unknown", *COMPUTING)
    parser.add("--target", metavar="COLUMN", help="categorical context column to predict")
    parser.add("--values", nargs="+", default=[], metavar="VALUE", help="candidate values (default: all)")
    help_text = "prior probabilities of the values; without other columns, conditional means training (frequencies)"
    parser.add("--priors", default="conditional", choices=PRIORS, help=help_text)
    help_text = "development table to fit a temperature on, or the weights of --combine"
    parser.add("--calibrate", type=Path, metavar="DEV", help=help_text)
    help_text = "combine the model with the linear baseline of the run, with weights fitted on the table of --calibrate"
    parser.add("--combine", action="store_true", help=help_text)
    help_text = "table of the points to choose from, with a column `name` and the numeric context columns"
    parser.add("--points", type=Path, metavar="TABLE", help=help_text)
    help_text = "leave out texts that are farther than KM from every point"
    parser.add("--within", default=math.inf, metavar="KM", help=help_text)
    help_text = "compute the softmax over N sampled tokens, e.g. a tenth of the vocabulary; 0: all tokens"
    parser.add("--samples", default=0, rare=True, help=help_text)
    help_text = "distribution of --samples: by rank in the vocabulary, or by training frequency as in the papers"
    parser.add("--proposal", choices=PROPOSALS, default="rank", rare=True, help=help_text)
    parser.add("--out", type=OUTPUT_FILE, help="write the probabilities of all values for each text (JSON lines)")


def run_classify(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation import linear_classifier
    from factorcell.evaluation.bayes_rule import LINEAR_BASELINE
    from factorcell.evaluation.classification import classify, classify_points, read_points
    from factorcell.evaluation.likelihoods import check_adapted

    if (arguments.target is None) == (arguments.points is None):
        raise UserError("specify either --target COLUMN or --points TABLE")
    for_target = (arguments.calibrate, arguments.combine, arguments.samples, arguments.values)
    if arguments.points and (any(for_target) or arguments.priors != "conditional"):
        options_of_target = "--calibrate, --combine, --priors, --samples and --values"
        raise UserError(f"{options_of_target} require --target COLUMN, got --points")
    if arguments.target and math.isfinite(arguments.within):
        raise UserError("--within requires --points TABLE, got --target")
    if arguments.out is not None and arguments.out.exists():
        raise UserError(f"{arguments.out}: exists already; choose another file")
    run = options.open_run(arguments)
    check_adapted(run)
    if arguments.points:
        points, unknown = read_points(arguments.points), arguments.unknown
        result = classify_points(run, arguments.table, points, within=arguments.within, unknown=unknown)
    else:
        names = ("unknown", "values", "priors", "samples", "proposal", "calibrate", "combine")
        settings = options.selected(arguments, *names)
        result = classify(run, arguments.table, arguments.target, **settings)
    _report_classification(run, result, arguments)
    if arguments.target and result.has_labels and not any(LINEAR_BASELINE in name for name in result.other_predictions):
        terminal.notify(linear_classifier.missing_baseline(run, arguments.target))


def _report_classification(run: "Run", result: "Classification", arguments: argparse.Namespace) -> None:
    """Print or write the predictions, and print the metrics if any text has a label; save them with --save."""
    from factorcell.data.tables.tables import table_name
    from factorcell.evaluation.bayes_rule import text_accuracies
    from factorcell.io import files

    metrics = result.metrics()
    rows = [{**row, "row": row["row"] + 1} for row in result.rows()]  # users count rows from 1
    if arguments.json:
        terminal.show_json([metrics] if result.has_labels else rows)
    elif result.has_labels:
        show_classification(result, metrics, arguments.verbose)
    elif not arguments.out:
        _show_predictions(rows)
    if arguments.out:
        files.write_rows(arguments.out, rows)
    if result.has_labels and arguments.save:
        target = arguments.target
        if arguments.points:
            limit = f", within {arguments.within:g}" if math.isfinite(arguments.within) else ""
            target = f"the nearest of {len(result.names):,} points of {table_name(arguments.points)}{limit}"
        row = result.result_row(run, arguments.table, target)
        _save_result(run, row, {"accuracy": text_accuracies(result)})
    elif not result.has_labels:
        output = f", written to {arguments.out}" if arguments.out else ""
        counted_texts = "1 text" if len(result.truth) == 1 else f"{len(result.truth):,} texts"
        task = f"{counted_texts} classified ({result.name}){output}"
        terminal.notify(f"{task}; accuracy not computed: no text has a candidate value")
        if arguments.target and not arguments.calibrate:
            terminal.notify("the probabilities are not calibrated; --calibrate DEV fits them to texts with values")


def show_classification(result: "Classification", metrics: Row, verbose: bool) -> None:
    """Print the accuracies of a classification and of other classifiers; if `verbose`, the metrics of each value."""
    from factorcell.data.columns.values import natural_order

    rows = [{"classifier": result.name, "accuracy": terminal.format_interval(metrics, "accuracy")}]
    for row in metrics["others"]:
        gain = terminal.format_difference(row, "difference")
        rows.append({**row, "accuracy": terminal.format_interval(row, "accuracy"), "gain of the first": gain})
    majority = f"majority class ({metrics['majority_value']})"
    terminal.show_table(
        [*rows, {"classifier": majority, "accuracy": f"{metrics['majority']:.4f}"}],
        ("classifier", "accuracy", "gain of the first"),
    )
    left_out = f"; {metrics['left_out']:,} without one of these values are left out" if metrics["left_out"] else ""
    terminal.show(f"{metrics['texts']:,} texts{left_out}")
    if weights := metrics.get("combination_weights"):
        terminal.show("weights: " + ", ".join(f"{name} {weight:z.2f}" for name, weight in weights.items()))
    if verbose:
        order = natural_order(result.names) or range(len(result.names))
        means = {"value": "mean", "count": metrics["texts"], "f1": metrics["macro_f1"], "auc": metrics["auc"]}
        value_rows = [*(metrics["values"][index] for index in order), means]
        terminal.show_table(value_rows, ("value", "count", "precision", "recall", "f1", "auc"))


def _show_predictions(rows: Sequence[Row]) -> None:
    shown_rows = [
        {**row, "row": f"{row['row']}", "probability": f"{max(row['probabilities'].values()):.4f}"}
        for row in rows[:MAX_SHOWN]
    ]
    terminal.show_table(shown_rows, ("row", "predicted", "probability"))
    if len(rows) > MAX_SHOWN:
        terminal.notify(f"only the first {MAX_SHOWN} texts are shown; --out FILE writes all")


def add_score_arguments(parser: Parser) -> None:
    parser.add_all("run", "table", "--unknown", *COMPUTING)
    parser.add("--tokens", action="store_true", help="also score each token")


def run_score(arguments: argparse.Namespace) -> None:
    run = options.open_run(arguments)
    rows: list[Row] = run.score_rows(arguments.table, tokens=arguments.tokens, unknown=arguments.unknown)
    rows = [{**row, "row": row["row"] + 1} for row in rows]  # users count rows from 1
    if arguments.json:
        return terminal.show_json(rows)
    terminal.show_fields("row", "nats", "targets", "perplexity", "out of vocabulary", *["token"] * arguments.tokens)
    for row in rows:
        figures = [f"{row['targets']}", f"{row['perplexity']:.4f}", f"{row['unknown_targets']}"]
        terminal.show_fields(f"{row['row']}", f"{row['nats']:z.4f}", *figures, *[""] * arguments.tokens)
        for token in row.get("tokens", ()):
            terminal.show_fields(f"{row['row']}", f"{token['nats']:z.4f}", "", "", "", token["token"])
    return None


def add_baseline_ngram_arguments(parser: Parser) -> None:
    parser.add("train")
    parser.add("--out", type=OUTPUT_FOLDER, required=True, metavar="FOLDER", help="folder of the model")
    parser.add("--order", help="maximum n of the n-grams, in tokens (default: 4 for words, 9 for characters)")
    _add_reading_options(parser)


def run_baseline_ngram(arguments: argparse.Namespace) -> None:
    from factorcell.ngram.ngram import NGram

    config, tokenizer = _reading_options(arguments)
    model = NGram.fit(arguments.train, config, arguments.out, order=arguments.order, tokenizer=tokenizer)
    counts_by_order = ", ".join(f"{len(order.keys):,}" for order in model.orders)
    terminal.notify(f"{arguments.out}: n-grams by order: {counts_by_order}")


def add_baseline_linear_arguments(parser: Parser) -> None:
    parser.add_all("train", "--json")
    parser.add("--test", required=True, type=Path, metavar="TABLE", help="table of texts to classify")
    parser.add("--target", required=True, metavar="COLUMN", help="categorical column to predict")
    help_text = "other column that the classifier reads: NAME or NAME:KIND (repeatable)"
    parser.add("--context", repeatable=True, metavar="COLUMN", help=help_text)
    _add_reading_options(parser)


def run_baseline_linear(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation import linear_classifier

    config, tokenizer = _reading_options(arguments)
    tables, context = (arguments.train, arguments.test), arguments.context
    train, test = linear_classifier.read_train_and_test(
        *tables, arguments.target, config, context=context, tokenizer=tokenizer
    )
    result = linear_classifier.classify_with_linear_baseline(train, test)
    if arguments.json:
        terminal.show_json([result.metrics()])
    else:
        show_classification(result, result.metrics(), arguments.verbose)


def _add_reading_options(parser: Parser) -> None:
    help_text = "use the vocabulary of this run and its options for reading texts"
    parser.add("--like", type=Path, metavar="RUN", help=help_text)
    parser.add("--config", type=Path, help="TOML or JSON file with options for reading texts in its section [data]")
    parser.add("--text", metavar="COLUMN", help="column with the texts (default: as in RUN or the file, else text)")


def _reading_options(arguments: argparse.Namespace) -> "tuple[Config, Tokenizer | None]":
    """Return the options for reading texts, and the tokenizer, of the model --like; or the options of --config."""
    from factorcell.training.mixture import open_scorer

    if arguments.like is not None and arguments.config is not None:
        raise UserError("expected either --like or --config, got both")
    config, tokenizer = Config.of(config=arguments.config) if arguments.config else Config(), None
    if arguments.like is not None:
        model = open_scorer(arguments.like)
        config, tokenizer = model.config, model.tokenizer
    return (config if arguments.text is None else config.with_options(text=arguments.text)), tokenizer


def add_advise_arguments(parser: Parser) -> None:
    parser.add_all("table", "--config", "--json", "--threads")
    parser.add("--rows", default=ADVICE_ROWS, help="number of rows to read, sampled at random")
    parser.add("--seed", default=0, help="seed of the random samples")
    options.add_config_options(parser, "data", "tokenizer")


def run_advise(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.advice import advise

    config = Config.of(**options.option_values(arguments))
    result = advise(arguments.table, config, rows=arguments.rows, seed=arguments.seed)
    if arguments.json:
        return terminal.show_json([*result.columns, {"gain": result.gain}])
    sampling = "" if result.row_count <= arguments.rows else f" of {result.row_count:,}, sampled at random"
    size = f"{result.text_count:,} texts{sampling}, {result.targets_per_text:.1f} targets per text"
    terminal.show(f"{size}; gains per {result.unit}")
    terminal.show(f"all columns together: perplexity about {result.gain:.1%} lower")
    rows = [_advice_cells(row) for row in result.columns]
    terminal.show_table(rows, list(rows[0]))
    terminal.show(*(f"{row['column']}: {row['advice']}: {row['why']}" for row in result.columns))
    if command := train_command(arguments.table, config, result.columns, options.option_values(arguments)):
        terminal.show(f"to train with this advice: {command}")
    return terminal.notify(f"estimates from {result.test_count:,} random held-out texts; a trained model may also lose")


def train_command(table: Path, config: Config, rows: Sequence[Row], specified: Mapping[str, Any]) -> str:
    """Return the command that trains with the `specified` options and all columns that are not left out, if any."""
    from factorcell.data.columns.declarations import parse_column

    used = {row["column"] for row in rows if row["advice"] != "leave out"}
    if not used:
        return ""
    flags: dict[str, None] = {}
    for text in config.data.columns:
        column, kind = parse_column(text).name, parse_column(text).kind
        if used & {column, f"{column}.{kind}"}:
            option = "--user" if column == config.data.user else "--context"
            flags[f"{option} {shlex.quote(text if option == '--context' else column)}"] = None
    for name, value in specified.items():
        if name not in ("context", "user") and value is not None:
            option = name.replace("_", "-")
            switch = f"--{option}" if value else f"--no-{option}"
            flags[switch if isinstance(value, bool) else f"--{option} {shlex.quote(str(value))}"] = None
    return " ".join(["factorcell train", shlex.quote(str(table)), *flags, "--out RUN"])


def _advice_cells(row: Row) -> dict[str, str | None]:
    """Return the cells of the table about a context column, by title."""
    return {
        "column": row["column"],
        "values": f"{row['values']:,}",
        "texts per value (median)": f"{row['texts_per_value']:,.0f}",
        **{name: f"{row[name]:.1%}" if row[name] else None for name in ("rare", "missing")},
        "expected gain": f"{row['gain']:.1%}",
        "added gain": f"{row['added']:.1%}",
    }


def add_rescore_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder, or the folder of an n-gram model")
    help_text = "n-best lists: JSON lines, or the formats of Kaldi, NeMo or SRILM"
    parser.add("lists", type=Path, metavar="NBEST", help=help_text)
    parser.add("--tune", type=Path, metavar="DEV", help="n-best lists to fit the weights on")
    parser.add("--weights", type=Path, help="JSON file of weights; --tune writes it, otherwise the command reads it")
    help_text = "without --tune and --weights: weight of RUN, 0 to 1; the first-pass language model has 1 - X"
    parser.add("--share", default=0.5, help=help_text)
    for prefix, lists in (("", "the lists"), ("tune-", "the lists of --tune")):
        parser.add(f"--{prefix}reference", type=Path, help=f"reference transcripts of {lists}: lines ID WORD ...")
        help_text = f"table of context columns for {lists}; its first column has the ids of the utterances"
        parser.add(f"--{prefix}utt2context", type=Path, metavar="TABLE", help=help_text)
    parser.add_all("--context", "--by", "--unknown", *COMPUTING)
    parser.add("--out", type=OUTPUT_FILE, help="write a row for each utterance (JSON lines)")


def run_rescore(arguments: argparse.Namespace) -> None:
    from factorcell.evaluation.diagnostics import report_run
    from factorcell.evaluation.rescoring import rescore
    from factorcell.io import files
    from factorcell.training.mixture import MixedModels, open_scorer

    if arguments.out is not None and arguments.out.exists():
        raise UserError(f"{arguments.out}: exists already; choose another file")
    if arguments.tune and arguments.weights:
        files.check_writable(arguments.weights)
    lists = _read_lists(arguments.lists, arguments.reference, arguments.utt2context)
    for column in arguments.by:
        check_choice("column", column, lists.columns)
    model = open_scorer(arguments.run, device=arguments.device, precision=arguments.precision)
    if isinstance(model, MixedModels):
        raise UserError(f"{arguments.run}: expected a run or an n-gram model, got a mixture of models")
    report_run(model)
    weights = _fit_or_read_weights(arguments, model, lists)
    scored_lists = _score_lists(arguments, model, lists)
    rows = rescore.rescore(scored_lists, weights)
    if arguments.out is not None:
        files.write_rows(arguments.out, rows)
    summary = rescore.word_error_rates(rows, arguments.by) if lists.has_references else []
    if summary and (summary[0]["gain_high"] or 0) < 0:  # of all utterances
        text = "rescoring makes more errors than the first pass; fit the weights on lists with references (--tune)"
        report(Finding("more errors", text))
    if arguments.json:
        terminal.show_json([{"weights": weights}, *(summary or rows)])
        return
    terminal.show("weights: " + ", ".join(f"{name} {value:z.4g}" for name, value in weights.items()))
    if summary:
        groups = {column: [row for row in summary if row["by"] == column] for column in ("all", *arguments.by)}
        _show_rates([row for rows_of_column in groups.values() for row in rows_of_column[:MAX_SHOWN]])
        _show_omitted(groups)
    else:
        shown_rows = [{"utterance": row["id"], "place": row["place"], "text": row["text"]} for row in rows]
        terminal.show_table(shown_rows, ("utterance", "place", "text"))


def _read_lists(path: Path, reference_path: Path | None, columns_path: Path | None) -> "NBest":
    """Read n-best lists, and add reference transcripts and context columns from the other two files, if any."""
    from factorcell.evaluation.rescoring import nbest

    lists = nbest.read_nbest(path)
    if reference_path is not None:
        lists = nbest.with_references(lists, reference_path)
    return lists if columns_path is None else nbest.with_columns(lists, columns_path)


def _fit_or_read_weights(arguments: argparse.Namespace, model: "Run | NGram", lists: "NBest") -> "Weights":
    """Return the weights of the scores: fitted on --tune, read from --weights, or computed from --share."""
    from factorcell.evaluation.rescoring.rescore import fit_weights, read_weights, share_weights
    from factorcell.io import files

    if arguments.tune is None:
        tune_files = {"--tune-reference": arguments.tune_reference, "--tune-utt2context": arguments.tune_utt2context}
        for option, path in tune_files.items():
            if path is not None:
                raise UserError(f"{option} {path}: requires the lists of --tune")
        if arguments.weights:
            return read_weights(arguments.weights)
        return share_weights(lists.score_names, arguments.share)
    tune_lists = _read_lists(arguments.tune, arguments.tune_reference, arguments.tune_utt2context)
    if tune_lists.score_names != lists.score_names:
        expected, actual = (", ".join(names) for names in (lists.score_names, tune_lists.score_names))
        raise UserError(f"{arguments.tune}: expected the scores {expected} of {arguments.lists}, got {actual}")
    weights, nats_per_list = fit_weights(_score_lists(arguments, model, tune_lists))
    terminal.notify(f"weights fitted on {arguments.tune}: {nats_per_list:g} nats per list")
    if arguments.weights is not None:
        files.write_json(arguments.weights, weights)
    return weights


def _score_lists(arguments: argparse.Namespace, model: "Run | NGram", lists: "NBest") -> "NBest":
    from factorcell.evaluation.rescoring.rescore import score_hypotheses
    from factorcell.runs.run import Run

    context = options.parse_context(model if isinstance(model, Run) else None, arguments.context)
    return score_hypotheses(model, lists, context=context, unknown=arguments.unknown)


def _show_rates(summary: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of word error rates."""
    rows = [
        {
            "value": "all" if row["by"] == "all" else f"{row['by']} {row['value']}",
            **{name: f"{row[name]:,}" for name in ("utterances", "words")},
            **{name: f"{row[name]:.2%}" for name in ("first", "rescored", "oracle")},
            "gain": terminal.format_difference(row, "gain", ".2f", scale=100.0),
        }
        for row in summary
    ]
    terminal.show_table(rows, list(rows[0]))
