"""The commands `complete`, which suggests texts, `tune-online`, which fits how, and `replay`, which evaluates it."""

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import Parser
from factorcell.errors import UserError
from factorcell.io import findings
from factorcell.options.limits import ONLINE_OPTIMIZERS

if TYPE_CHECKING:
    from factorcell.completion.completer import Completer
    from factorcell.completion.online import User
    from factorcell.runs.run import Run

# Groups of texts whose mean reciprocal rank `replay` shows -> their title
REPLAY_GROUPS = {"prefix_length": "prefix length", "position": "earlier texts", "user": "user"}
COMPARED_POPULAR_TEXTS = 1500  # whose gains `complete --explain` compares


def add_complete_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder of a model with tokenizer char, grapheme, bpe or pretrained")
    help_text = "text typed so far (default: complete interactively in the terminal)"
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", help=help_text)
    help_text = "complete each line of standard input and print a row of JSON for it"
    parser.add_argument("--stdin", action="store_true", help=help_text)
    options.add_context(parser)
    help_text = "earlier text of the user (repeatable; the texts are learned in this order)"
    parser.add_argument("--history", action="append", default=[], metavar="TEXT", help=help_text)
    help_text = "show what the model, the popular texts and the history add to each score"
    parser.add_argument("--explain", action="store_true", help=help_text)
    parser.add_argument("--count", type=int, default=10, help="number of suggestions")
    parser.add_argument("--seconds", type=float, help="time limit, after which the search returns its best suggestions")
    parser.add_argument("--typos", type=int, default=0, help="typing errors to tolerate, 0 to 2")
    options.add_no_ngram_mixture(parser)
    options.add_computing(parser, unknown="error")


def run_complete(arguments: argparse.Namespace) -> None:
    from factorcell.completion.blend import Blend, new_suggester
    from factorcell.completion.online import Learner
    from factorcell.evaluation.diagnostics import report_run

    run = options.open_run(arguments)
    suggester = new_suggester(run, unknown=arguments.unknown, seconds=arguments.seconds, typos=arguments.typos)
    context = options.parse_context(run, arguments.context)
    report_run(run, context)
    findings.show()
    if arguments.unknown == "error":
        _check_user_in_context(run, context)
    user = _new_user(run, context, arguments.history)
    if arguments.stdin:
        return _complete_lines(run, suggester, user, context, arguments)
    if arguments.prefix is None:
        return _complete_interactively(run, suggester, user, context, arguments.count)
    typed_text = suggester.type_text(suggester.begin(user, context), arguments.prefix)
    if not typed_text.fits:
        max_text_tokens = run.config.data.max_tokens - 1
        terminal.notify(f"PREFIX is too long: the run completes texts of at most {max_text_tokens:,} tokens")
    result = suggester.suggest(typed_text, arguments.count)
    texts = [suggestion.text for suggestion in result.suggestions]
    log_probs = suggester.log_probabilities(arguments.prefix, texts, user, context)
    rows = [
        {**dataclasses.asdict(suggestion), "probability": None if math.isnan(log_prob) else math.exp(log_prob)}
        for suggestion, log_prob in zip(result.written(run.tokenizer), log_probs, strict=True)
    ]
    if result.is_cut:
        terminal.notify(f"the search stopped after {result.expanded_count:,} hypotheses; better suggestions may exist")
    if arguments.explain and rows and not rows[0]["parts"]:
        needs = "a blend needs a new user, and a run with popular texts that distinguishes users"
        terminal.notify(f"--explain: all suggestions are from the model alone; {needs}")
    gains = []
    if arguments.explain and isinstance(suggester, Blend) and suggester.popularity and user and user.text_count:
        popular_texts = suggester.popularity.most_popular(COMPARED_POPULAR_TEXTS)
        gains = Learner(run).largest_gains(user, popular_texts, arguments.count)
    return _show(rows, [(text, nats) for text, nats in gains if nats > 0], arguments)


def add_tune_online_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder of a model trained with --user")
    parser.add_argument("dev", type=Path, metavar="DEV", help="table of texts of users who were not in training")
    _add_stream_options(parser, "complete about one in N texts to fit the weights of the blend")
    help_text = "optimizer to try (repeatable; default: all)"
    parser.add_argument("--optimizer", action="append", choices=ONLINE_OPTIMIZERS, help=help_text)
    help_text = "time limit; the command ends earlier if no other settings are better"
    parser.add_argument("--minutes", type=float, default=5.0, help=help_text)
    help_text = "maximum norm of a user vector, relative to the largest norm in training; 0: no limit"
    parser.rare.add_argument("--max-norm", type=float, default=2.0, metavar="X", help=help_text)
    options.add_computing(parser)


def run_tune_online(arguments: argparse.Namespace) -> None:
    from factorcell.completion import online, tuning
    from factorcell.completion.blend import Blend, BlendWeights, save_settings
    from factorcell.completion.popularity import Popularity
    from factorcell.completion.replay import read_streams
    from factorcell.data.counts import POPULARITY
    from factorcell.evaluation.diagnostics import report_run

    run = options.open_run(arguments)
    report_run(run)
    user_column = online.user_variable(run).source_column
    user_streams = read_streams(
        arguments.dev,
        run.config,
        user_column=user_column,
        time_column=choose_column(arguments.dev, "--time", arguments.time, run.config.data.time),
        context_columns=run.schema.columns(without=user_column),
        max_rows_per_user=arguments.rows_per_user,
        every=arguments.every,
    )
    start, seconds = time.monotonic(), 60 * arguments.minutes
    rule, rule_rows = tuning.fit_rule(
        run,
        user_streams,
        arguments.optimizer or ONLINE_OPTIMIZERS,
        arguments.max_norm,
        unknown=arguments.unknown,
        deadline=start + tuning.RULE_SHARE * seconds,
    )
    weights, blend_rows = BlendWeights.load(run.folder), list[dict[str, Any]]()
    if (run.folder / POPULARITY).exists():
        blend = Blend(run, Popularity.from_run(run), unknown=arguments.unknown, seconds=arguments.seconds)
        learner = online.Learner(run, rule, arguments.unknown)
        weights, ranks = tuning.fit_blend(blend, learner, user_streams, start + seconds)
        blend_rows = [{**ranks, "weights": dict(weights.values), "threshold": weights.threshold}]
    save_settings(run, rule, weights)
    if arguments.json:
        return terminal.show_json([*rule_rows, *blend_rows])
    shown_rows = [{**row, "rate": f"{row['rate']:g}", "perplexity": f"{row['perplexity']:.4f}"} for row in rule_rows]
    for row in shown_rows[1:]:
        row["change"] = f"{row['change']:+.1%}"
    terminal.show_table(shown_rows, ("optimizer", "rate", "perplexity", "change"))
    texts = sum(len(stream.rows) for stream in user_streams)
    terminal.show(f"{run.folder}: learning rule set to {rule} ({online.SETTINGS})")
    terminal.show(f"perplexities of all {texts:,} texts of {len(user_streams):,} users; they also chose the rate")
    for row in blend_rows:
        _show_blend(row)
    return terminal.notify(
        f"`factorcell replay {run.folder} TABLE --out FOLDER` measures learning and blend on texts of other users"
    )


def _show_blend(row: Mapping[str, Any]) -> None:
    """Print the mean reciprocal ranks of the blend and of its sources alone."""
    from factorcell.completion.blend import ORDERS

    count = f"{row['queries']:,} of these texts, by {row['users']:,} users"
    terminal.show(f"mean reciprocal rank on {count} (blend: with weights fitted to other users):")
    terminal.show(f"  {'blend':<14} {terminal.format_interval(row, 'mrr')} (weights fitted to all users)")
    for source in ORDERS:
        terminal.show(f"  {f'{source} alone':<14} {terminal.format_interval(row, f'mrr_{source}')}")
    terminal.show(f"  blend - model  {terminal.format_difference(row, 'mrr_difference')}")


def add_replay_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder of a model with tokenizer char, grapheme, bpe or pretrained")
    help_text = "table of held-out texts with columns for user and time"
    parser.add_argument("heldout", type=Path, metavar="HELDOUT", help=help_text)
    help_text = "systems to compare: plain (the run without online learning, for the unknown user), "
    help_text += "mpc (popular texts), history (texts of the user), online (the run with online learning), blend "
    help_text += "(default: all systems that RUN supports)"
    parser.add_argument("--compare", metavar="NAME[,NAME...]", help=help_text)
    help_text = "new folder for rows and summary"
    options.add_output(parser, "--out", help_text, folder=True, required=True, metavar="FOLDER")
    help_text = "column that identifies the user (default: the run's user column, else user)"
    parser.add_argument("--user", metavar="COLUMN", help=help_text)
    _add_stream_options(parser, "evaluate about one in N texts; the systems learn all texts")
    options.add_no_ngram_mixture(parser)
    options.add_computing(parser)


def run_replay(arguments: argparse.Namespace) -> None:
    from factorcell.completion.online import Learner, distinguishes_users
    from factorcell.completion.replay import context_columns, open_systems, read_streams, replay, summarise
    from factorcell.evaluation.diagnostics import report_run
    from factorcell.io import files

    files.check_new(arguments.out)
    run = options.open_run(arguments)
    report_run(run)
    data = run.config.data
    names = None if arguments.compare is None else arguments.compare.split(",")
    user_column = choose_column(arguments.heldout, "--user", arguments.user, data.user) or "user"
    time_column = choose_column(arguments.heldout, "--time", arguments.time, data.time)
    systems = open_systems(run, names, user_column=user_column, unknown=arguments.unknown, seconds=arguments.seconds)
    user_streams = read_streams(
        arguments.heldout,
        run.config,
        user_column=user_column,
        time_column=time_column,
        context_columns=context_columns(run, user_column),
        max_rows_per_user=arguments.rows_per_user,
        every=arguments.every,
    )
    learner = Learner(run, unknown=arguments.unknown) if distinguishes_users(run) else None
    rows = list(replay(systems, user_streams, data.text, learner))
    seen_users = None
    if data.user == user_column:
        frequent_users = run.schema.variable(user_column).index_by_value
        seen_users = {stream.user: stream.user in frequent_users for stream in user_streams}
    summary = summarise(rows, seen_users)
    files.create_new_folder(arguments.out)
    files.write_rows(arguments.out / "rows.jsonl", rows)
    files.write_json(arguments.out / "summary.json", summary)
    if arguments.json:
        return terminal.show_json(summary)
    terminal.show(f"{summary[0]['queries']:,} queries of {summary[0]['users']:,} users")
    _show_systems([row for row in summary if row["by"] == "all"])
    for by, title in REPLAY_GROUPS.items():
        _show_group(title, [row for row in summary if row["by"] == by])
    return terminal.notify(f"rows.jsonl and summary.json are in {arguments.out}")


def _add_stream_options(parser: Parser, every_help: str) -> None:
    """Add the options that select and order the texts of each user; `every_help` is the help of --every."""
    help_text = "column of times or numbers by which texts are ordered (default: the run's time column, else time)"
    parser.add_argument("--time", metavar="COLUMN", help=help_text)
    parser.add_argument("--rows-per-user", type=int, help="use the first N texts of each user (default: all)")
    parser.add_argument("--every", type=int, default=1, help=every_help)
    parser.add_argument("--seconds", type=float, help="time limit per completion, as for `complete`")


def _show_systems(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of each system for all texts."""
    shown_rows = [
        {
            "system": row["system"],
            "MRR": terminal.format_interval(row, "mrr"),
            f"difference to {rows[0]['system']}": terminal.format_difference(row, "mrr_difference", ".3f"),
            "success at 1": f"{row['success_1']:.1%}",
            "success at 10": f"{row['success_10']:.1%}",
            "characters saved": f"{row['saved']:.2f}",
            "ms": f"{row['milliseconds']:.1f}",
        }
        for row in rows
    ]
    terminal.show_table(shown_rows, list(shown_rows[0]))


def _show_group(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the MRR of every system for each group of texts."""
    cells_by_group: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = cells_by_group.setdefault(row["value"], {title: row["value"], "queries": f"{row['queries']:,}"})
        cells[f"MRR of {row['system']}"] = f"{row['mrr']:.3f}"
    if cells_by_group:
        shown_rows = list(cells_by_group.values())
        terminal.show("")
        terminal.show_table(shown_rows, list(shown_rows[0]))


def choose_column(path: Path, option: str, specified_column: str | None, run_column: str) -> str | None:
    """Return the name of the column of a table that the option --time or --user selects.

    This is the column that the user specified, or else the column of the run, or else `time` or `user`. The result is
    None, with a notice, if nothing names a column of times.

    Raises:
        UserError: The table has no column of that name.
    """
    from factorcell.data.tables.chunks import format_names
    from factorcell.data.tables.tables import open_table

    table = open_table(path)
    name = specified_column or run_column or option.removeprefix("--")
    if specified_column or name in table.columns:
        return name
    if run_column or option != "--time":
        columns = format_names(table.columns)
        raise UserError(f"{table.name}: no column {name!r}; choose one with {option} (columns: {columns})")
    terminal.notify(
        f"{table.name} has no column 'time', so the texts of a user are read in the order of the table; "
        "--time selects a column of times"
    )
    return None


def _check_user_in_context(run: "Run", context: Mapping[str, str]) -> None:
    """Raise a `UserError` if `context` names a user who is not a frequent user of training."""
    column = run.config.data.user
    if column and column in context and context[column] not in run.schema.variable(column).values:
        remedy = "for a new user, omit this option; --history sets the earlier texts of a new user"
        raise UserError(f"--context {column}: expected a frequent user of training, got another name; {remedy}")


def _new_user(run: "Run", context: Mapping[str, str], history: Sequence[str]) -> "User | None":
    """Return a new user who has entered the texts of `history`.

    Return None if the run does not distinguish users, or if `context` names a user.
    """
    from factorcell.completion.online import User, distinguishes_users, learn_one, user_variable

    user_column = run.config.data.user
    if history:
        user_variable(run)  # raises an error if the run does not distinguish users
        if user_column in context:
            names_user = f"--context {user_column} names a user of the training table"
            raise UserError(f"--history sets the earlier texts of a new user, but {names_user}; remove one of the two")
    user = User.new(run) if distinguishes_users(run) and user_column not in context else None
    if user is None:
        return None
    texts = list(filter(None, map(str.strip, history)))
    for text in texts:
        user = learn_one(run, user, text)
    if private_count := len(texts) - user.text_count:
        terminal.notify(f"--history: {private_count:,} texts were not learned, as they seem to contain private content")
    return user


def _show(rows: Sequence[dict[str, Any]], gains: Sequence[tuple[str, float]], arguments: argparse.Namespace) -> None:
    """Print the suggestions, and the popular texts with the nats that the history added to their log probabilities."""
    from factorcell.completion.blend import INDICATORS

    if arguments.json:
        return terminal.show_json([*rows, *({"risen": text, "nats": nats} for text, nats in gains)])
    if not rows:
        return terminal.notify("no suggestion")
    # The scores of a blend, or with typing errors, are not the probabilities that the model gives to the texts.
    score_column = "share" if any(row["parts"] or row["typos"] for row in rows) else "probability"
    shown_rows = [_suggestion_cells(row, score_column, with_details=arguments.explain) for row in rows]
    columns = ("text", score_column, "source", "typos", "probability", *INDICATORS)
    terminal.show_table(shown_rows, tuple(dict.fromkeys(columns)))  # "probability" may occur twice in `columns`
    if gains:
        terminal.show("", "popular texts whose log probability the history raised most")
        terminal.show_table([{"text": text, "nats": f"{nats:+.2f}"} for text, nats in gains], ("text", "nats"))
    return None


def _suggestion_cells(row: Mapping[str, Any], score_column: str, *, with_details: bool) -> dict[str, str | None]:
    """Return the cells of a suggestion by column name; `score_column` is the column that orders the list.

    With details, the cells include the probability under the model and the part of the score from each source.
    """
    cells: dict[str, str | None] = {"text": row["text"]}
    if with_details:
        probability = row["probability"]
        cells["probability"] = None if probability is None else terminal.format_probability(probability)
        cells |= {source: f"{part:+z.2f}" for source, part in row["parts"].items()}
    cells[score_column] = terminal.format_probability(math.exp(row["log_probability"]))
    # `show_table` leaves out a column if all its cells are None.
    cells["source"] = row["source"] if row["parts"] else None
    cells["typos"] = str(row["typos"]) if row["typos"] else None
    return cells


def _complete_lines(
    run: "Run", suggester: "Completer", user: "User | None", context: dict[str, str], arguments: argparse.Namespace
) -> None:
    """Complete each line of standard input, and print its suggestions as a row of JSON before reading the next line."""
    if arguments.prefix is not None or arguments.explain:
        raise UserError("--stdin reads prefixes from standard input; remove PREFIX and --explain")
    typed_text = suggester.begin(user, context)
    failure_count = line_number = 0
    for line_number, line in enumerate(sys.stdin.buffer, 1):
        where, prefix = f"{terminal.STANDARD_INPUT} line {line_number}", None
        row: dict[str, Any]
        try:
            prefix = terminal.decode_input(line, where).rstrip("\r\n")
            typed_text = suggester.type_text(typed_text, prefix)
            result = suggester.suggest(typed_text, arguments.count)
            suggestions = list(map(dataclasses.asdict, result.written(run.tokenizer)))
            row = {"prefix": prefix, "suggestions": suggestions, "cut": result.is_cut}
        except UserError as error:
            failure_count += 1
            message = f"{where}: {error.as_command().removeprefix(f'{where}: ')}"  # some messages begin with `where`
            terminal.notify(message)
            row = {"prefix": prefix, "error": message}
        terminal.show_json([row])
        sys.stdout.flush()
    if failure_count:
        raise UserError(f"{terminal.STANDARD_INPUT}: {failure_count:,} of {line_number:,} lines could not be completed")


def _complete_interactively(
    run: "Run", suggester: "Completer", user: "User | None", context: dict[str, str], count: int
) -> None:
    if not sys.stdin.isatty():
        raise UserError("missing PREFIX: standard input is not a terminal; use --stdin to complete each line of it")
    try:
        from factorcell.commands.interactive import InteractiveCompleter, read_lines
    except ModuleNotFoundError as error:
        if error.name != "prompt_toolkit":
            raise
        from factorcell.io.extras import missing_package_error

        raise missing_package_error("interactive completion", "prompt-toolkit", "complete") from None
    terminal.notify("Type a text. Tab and arrow keys: choose a suggestion; Enter: accept and learn; Ctrl-D: end.")
    read_lines(InteractiveCompleter(run, suggester, user, context, count))
