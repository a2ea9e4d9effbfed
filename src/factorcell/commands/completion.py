"""The commands `complete`, which suggests texts, `tune-online`, which fits how, and `replay`, which evaluates it."""

import argparse
import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import COMPUTING, OUTPUT_FOLDER, Parser
from factorcell.errors import UserError
from factorcell.io import findings
from factorcell.options.limits import ONLINE_OPTIMIZERS

if TYPE_CHECKING:
    from factorcell.completion.online import User
    from factorcell.completion.replay import Stream
    from factorcell.runs.run import Run

ESTIMATED_QUERIES = 5  # completed texts after which a replay estimates its duration
# Groups of texts whose mean reciprocal rank `replay` shows -> their title
REPLAY_GROUPS = {"prefix_length": "prefix length", "position": "earlier texts", "user": "user"}


def add_complete_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder of a model with tokenizer char, grapheme, bpe or pretrained")
    parser.add("prefix", metavar="PREFIX", help="text typed so far")
    parser.add("--context")
    help_text = "earlier text of the user (repeatable; the texts are learned in this order)"
    parser.add("--history", repeatable=True, metavar="TEXT", help=help_text)
    help_text = "show what the model, the popular texts and the history add to each score"
    parser.add("--explain", action="store_true", help=help_text)
    parser.add("--count", default=10, help="number of suggestions")
    parser.add("--seconds", help="time limit, after which the search returns its best suggestions")
    parser.add("--typos", default=0, help="typing errors to tolerate, 0 to 2")
    parser.add("--no-ngram-mixture")
    parser.add("--unknown", default="error")
    parser.add_all(*COMPUTING)


def run_complete(arguments: argparse.Namespace) -> None:
    from factorcell.completion.blend import new_suggester
    from factorcell.evaluation.diagnostics import report_use

    run = options.open_run(arguments)
    suggester = new_suggester(run, unknown=arguments.unknown, seconds=arguments.seconds, typos=arguments.typos)
    context = options.parse_context(run, arguments.context)
    report_use(run, context)
    findings.show()
    column, name = run.config.data.user, context.get(run.config.data.user)
    if arguments.unknown == "error" and column in context and name not in run.schema.variable(column).values:
        remedy = "for a new user, omit this option; --history sets the earlier texts of a new user"
        raise UserError(f"--context {column}: expected a frequent user of training, got another name; {remedy}")
    user = _new_user(run, context, arguments.history)
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
    return _show(rows, arguments)


def add_tune_online_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder of a model trained with --user")
    parser.add("dev", type=Path, metavar="DEV", help="table of texts of users who were not in training")
    _add_stream_options(parser, "complete about one in N texts to fit the weights of the blend")
    help_text = "optimizer to try (repeatable; default: all)"
    parser.add("--optimizer", repeatable=True, choices=ONLINE_OPTIMIZERS, help=help_text)
    help_text = "time limit; at most 2,000 texts are read per minute, and the command may end earlier"
    parser.add("--minutes", default=5.0, help=help_text)
    help_text = "maximum norm of a user vector, relative to the largest norm in training; 0: no limit"
    parser.add("--max-norm", default=2.0, rare=True, help=help_text)
    parser.add_all("--unknown", *COMPUTING)


def run_tune_online(arguments: argparse.Namespace) -> None:
    from factorcell.completion import online, tuning
    from factorcell.completion.blend import Blend, BlendWeights, save_settings
    from factorcell.completion.popularity import Popularity
    from factorcell.data.counts import POPULARITY
    from factorcell.evaluation.diagnostics import report_use

    run = options.open_run(arguments)
    report_use(run)
    user_column = online.user_variable(run).source_column
    start, seconds = time.monotonic(), 60 * arguments.minutes
    max_texts = max(tuning.MIN_TEXTS, round(arguments.minutes * tuning.TEXTS_PER_MINUTE))
    streams = _read_streams(run, arguments.dev, user_column, arguments)
    user_streams = tuning.first_texts(streams, max_texts)
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
        weights, ranks = tuning.fit_blend(blend, learner, user_streams, tuning.blend_deadline(start, seconds))
        blend_rows = [{**ranks, "weights": dict(weights.values), "threshold": weights.threshold}]
    save_settings(run, rule, weights)
    if arguments.json:
        return terminal.show_json([*rule_rows, *blend_rows])
    shown_rows = [{**row, "rate": f"{row['rate']:g}", "perplexity": f"{row['perplexity']:.4f}"} for row in rule_rows]
    for row in shown_rows[1:]:
        row["change"] = f"{row['change']:+.1%}"
    terminal.show_table(shown_rows, ("optimizer", "rate", "perplexity", "change"))
    texts, total = (sum(len(stream.rows) for stream in part) for part in (user_streams, streams))
    shown = f"all {total:,} texts" if texts == total else f"{texts:,} of {total:,} texts"
    terminal.show(f"{run.folder}: learning rule set to {rule} ({online.SETTINGS})")
    terminal.show(f"perplexities of {shown} of {len(user_streams):,} users; they also chose the rate")
    for row in blend_rows:
        _show_blend(row)
    return terminal.notify(
        f"`factorcell replay {run.folder} TABLE --out FOLDER` measures learning and blend on texts of other users"
    )


def _show_blend(row: Mapping[str, Any]) -> None:
    """Print the mean reciprocal ranks of the blend and of its baselines."""
    count = f"{row['queries']:,} of these texts, by {row['users']:,} users"
    terminal.show(f"mean reciprocal rank on {count} (blend: with weights fitted to other users):")
    terminal.show(f"  {'blend':<14} {terminal.format_interval(row, 'mrr')} (weights fitted to all users)")
    terminal.show(f"  {'model alone':<14} {terminal.format_interval(row, 'mrr_model')}")
    terminal.show(f"  {'known texts':<14} {terminal.format_interval(row, 'mrr_known')} (of the user, then popular)")
    terminal.show(f"  gain over known {terminal.format_difference(row, 'gain_over_known')}")


def add_replay_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder of a model with tokenizer char, grapheme, bpe or pretrained")
    parser.add("heldout", type=Path, metavar="HELDOUT", help="table of held-out texts with columns for user and time")
    help_text = "systems to compare: plain (the run without online learning, for the unknown user), "
    help_text += "mpc (popular texts), history (texts of the user), known (history, then mpc: no model), online "
    help_text += "(the run with online learning), blend (default: all systems that RUN supports)"
    parser.add("--compare", metavar="NAME[,NAME...]", help=help_text)
    help_text = "new folder for rows and summary"
    parser.add("--out", type=OUTPUT_FOLDER, required=True, metavar="FOLDER", help=help_text)
    help_text = "column that identifies the user (default: the run's user column, else user)"
    parser.add("--user", metavar="COLUMN", help=help_text)
    _add_stream_options(parser, "evaluate about one in N texts; the systems learn all texts")
    parser.add("--no-ngram-mixture")
    parser.add_all("--unknown", *COMPUTING)


def run_replay(arguments: argparse.Namespace) -> None:
    from factorcell.completion.online import Learner, distinguishes_users
    from factorcell.completion.replay import open_systems, replay, summarise
    from factorcell.evaluation.diagnostics import report_use
    from factorcell.io import files

    files.check_new(arguments.out)
    run = options.open_run(arguments)
    report_use(run)
    data = run.config.data
    names = None if arguments.compare is None else arguments.compare.split(",")
    user_column = arguments.user or data.user or "user"
    user_streams = _read_streams(run, arguments.heldout, user_column, arguments)
    systems = open_systems(run, names, user_column=user_column, unknown=arguments.unknown, seconds=arguments.seconds)
    learner = Learner(run, unknown=arguments.unknown) if distinguishes_users(run) else None
    rows = list[dict[str, Any]]()
    for row in replay(systems, user_streams, data.text, learner):
        rows.append(row)
        if len(rows) == ESTIMATED_QUERIES * len(systems):
            _notify_duration(rows, sum(prefix is not None for stream in user_streams for prefix in stream.prefixes))
    seen_users = None
    if data.user == user_column and not data.anonymous:
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


def _notify_duration(rows: Sequence[Mapping[str, Any]], queries: int) -> None:
    """Say how long each system will take for all `queries`, from the `rows` of the first ones, if it is minutes."""
    minutes: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        minutes[row["system"]] += row["seconds"] / ESTIMATED_QUERIES * queries / 60
    if sum(minutes.values()) >= 1:
        shown = ", ".join(f"{name} {value:.1f}" for name, value in minutes.items())
        terminal.notify(f"estimated minutes of each system: {shown} (--every and --compare take less)")


def _add_stream_options(parser: Parser, every_help: str) -> None:
    """Add the options that select and order the texts of each user; `every_help` is the help of --every."""
    help_text = "column of times or numbers by which texts are ordered (default: the run's time column, else time)"
    parser.add("--time", metavar="COLUMN", help=help_text)
    parser.add("--rows-per-user", help="use the first N texts of each user (default: all)")
    parser.add("--every", default=1, help=every_help)
    parser.add("--seconds", help="time limit per completion, as for `complete`")


def _read_streams(run: "Run", path: Path, user_column: str, arguments: argparse.Namespace) -> "list[Stream]":
    """Read the texts of each user with the options of `_add_stream_options`."""
    from factorcell.completion.replay import context_columns, read_streams
    from factorcell.data.tables.tables import open_table

    time_column = arguments.time or run.config.data.time
    if not time_column and "time" in open_table(path).columns:
        time_column = "time"
    if not time_column:
        order = "so the texts of a user are read in the order of the table; --time selects a column of times"
        terminal.notify(f"{path.name} has no column 'time', {order}")
    return read_streams(
        path,
        run.config,
        user_column=user_column,
        time_column=time_column or None,
        context_columns=context_columns(run, user_column),
        max_rows_per_user=arguments.rows_per_user,
        every=arguments.every,
    )


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


def _new_user(run: "Run", context: Mapping[str, str], history: Sequence[str]) -> "User | None":
    """Return a new user with a `history`; None if the run does not distinguish users, or `context` names a user."""
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


def _show(rows: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print the suggestions."""
    from factorcell.completion.blend import INDICATORS

    if arguments.json:
        return terminal.show_json(rows)
    if not rows:
        return terminal.notify("no suggestion")
    # The scores of a blend, or with typing errors, are not the probabilities that the model gives to the texts.
    score_column = "share" if any(row["parts"] or row["typos"] for row in rows) else "probability"
    shown_rows = list[dict[str, str | None]]()
    for row in rows:
        cells: dict[str, str | None] = {"text": row["text"], "source": row["source"] if row["parts"] else None}
        cells["typos"] = str(row["typos"]) if row["typos"] else None
        if arguments.explain and row["probability"] is not None:
            cells["probability"] = terminal.format_probability(row["probability"])
        if arguments.explain:
            cells |= {source: f"{part:+z.2f}" for source, part in row["parts"].items()}
        cells[score_column] = terminal.format_probability(math.exp(row["log_probability"]))
        shown_rows.append(cells)
    # `show_table` leaves out empty columns; "probability" may occur twice in `columns`.
    columns = ("text", score_column, "source", "typos", "probability", *INDICATORS)
    return terminal.show_table(shown_rows, tuple(dict.fromkeys(columns)))
