"""The commands `complete`, which suggests texts, and `tune-online`, which chooses how a run learns from new users."""

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.commands.cli import options, terminal
from factorcell.completion import online
from factorcell.completion.blend import INDICATORS, ORDERS, Blend, BlendWeights, new_suggester, save_settings
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, LearningRule, User, distinguishes_users, learn_one
from factorcell.completion.replay import streams as replay_streams
from factorcell.completion.replay import tuning
from factorcell.completion.replay.streams import PrefixDraw
from factorcell.data.columns.schema import may_contain
from factorcell.data.counts import POPULARITY
from factorcell.data.tables.chunks import format_names
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import report_run
from factorcell.io import findings
from factorcell.io.extras import missing_package_error
from factorcell.options.choices import ONLINE_OPTIMIZERS
from factorcell.runs.run import Run

# Number of popular texts whose probabilities with and without the history are compared (thesis 2018, section 5.4.2).
COMPARED_POPULAR_TEXTS = 1500


def run_complete(arguments: argparse.Namespace) -> None:
    """Run `factorcell complete`."""
    open_run = partial(Run.open, mixture=not arguments.no_ngram_mixture)
    run = options.open_on_device(open_run, arguments.run, arguments)
    suggester = new_suggester(run, unknown=arguments.unknown, seconds=arguments.seconds, typos=arguments.typos)
    context = options.parse_context(arguments.context)
    report_run(run, context)
    options.report_rare_values(run.schema, context)
    findings.show()
    if arguments.unknown == "error":
        _check_user_in_context(run, context)
    user = _new_user(run, context, arguments.history)
    if arguments.stdin:
        return _complete_lines(run, suggester, user, context, arguments)
    if arguments.prefix is None:
        return _complete_interactively(run, suggester, user, context, arguments.count)
    if not suggester.fits(arguments.prefix):
        max_text_tokens = run.config.data.max_tokens - 1
        terminal.notify(f"PREFIX is too long: the run completes texts of at most {max_text_tokens:,} tokens")
    typed_text = suggester.type_text(suggester.begin(user, context), arguments.prefix)
    result = suggester.suggest(typed_text, arguments.count)
    texts = [suggestion.text for suggestion in result.suggestions]
    log_probs = suggester.log_probabilities(arguments.prefix, texts, user, context)
    rows = [
        {**dataclasses.asdict(suggestion), "probability": None if math.isnan(log_prob) else math.exp(log_prob)}
        for suggestion, log_prob in zip(result.written(run.tokenizer), log_probs, strict=True)
    ]
    gains = []
    if (
        arguments.explain
        and isinstance(suggester, Blend)
        and suggester.popularity
        and user is not None
        and user.text_count
    ):
        popular_texts = suggester.popularity.most_popular(COMPARED_POPULAR_TEXTS)
        largest_gains = Learner(run).largest_gains(user, popular_texts, arguments.count)
        gains = [(text, nats) for text, nats in largest_gains if nats > 0]
    if result.is_cut:
        terminal.notify(f"the search stopped after {result.expanded_count:,} hypotheses; better suggestions may exist")
    if arguments.explain and rows and not rows[0]["parts"]:
        terminal.notify(
            f"--explain: all suggestions are from the model alone, since {_reason_without_blend(run, suggester)}"
        )
    return _show(rows, gains, arguments)


def run_tune_online(arguments: argparse.Namespace) -> None:
    """Run `factorcell tune-online`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    report_run(run)
    user_column = online.user_variable(run).source_column
    user_streams = replay_streams.read_streams(
        arguments.dev,
        run.config,
        user_column=user_column,
        time_column=choose_time_column(arguments.dev, arguments.time, run.config.data.time),
        context_columns=run.schema.columns(without=user_column),
        max_rows_per_user=arguments.rows_per_user,
        draw=PrefixDraw(arguments.every),
    )
    texts = sum(len(stream.rows) for stream in user_streams)
    start, seconds = time.monotonic(), 60 * arguments.minutes
    rule_rows = []
    for row in tuning.try_rates(
        run,
        user_streams,
        arguments.optimizer or ONLINE_OPTIMIZERS,
        max_norm=arguments.max_norm,
        unknown=arguments.unknown,
    ):
        rule_rows.append(row)
        terminal.notify(f"{row['optimizer']} {row['rate']:g}: perplexity {terminal.format_interval(row, 'perplexity')}")
        if len(rule_rows) > 1 and time.monotonic() > start + tuning.RULE_SHARE * seconds:
            break
    learning_rows = rule_rows[1:]  # the first row is for completion without learning
    best = min(learning_rows, key=lambda row: float(row["perplexity"]))
    rule = LearningRule(best["optimizer"], best["rate"], arguments.max_norm)
    weights, blend_rows = BlendWeights.load(run.folder), list[dict[str, Any]]()
    if (run.folder / POPULARITY).exists():
        completer = Completer(run, unknown=arguments.unknown, seconds=arguments.seconds)
        learner = Learner(run, rule, arguments.unknown)
        weights, ranks = tuning.fit_blend(completer, learner, user_streams, start + seconds)
        blend_rows = [{**ranks, "weights": dict(weights.values), "threshold": weights.threshold}]
    save_settings(run, rule, weights)
    if arguments.json:
        return terminal.show_json([*rule_rows, *blend_rows])
    _show_rules(rule_rows)
    terminal.show(f"{run.folder}: learning rule set to {rule} ({online.SETTINGS})")
    change = Interval.from_row(best, "change")
    assert change is not None  # all rows after the first have a change
    of_texts = f"all {texts:,} texts of {len(user_streams):,} users, also used to choose the rate"
    terminal.show(f"perplexity change by learning users: {change.to_text('.1f', 100, '%')} ({of_texts})")
    for row in blend_rows:
        _show_blend(row)
    return terminal.notify(
        f"`factorcell replay {run.folder} TABLE --out FOLDER` measures learning and blend on texts of other users"
    )


def _show_rules(rule_rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the perplexity of each learning rule, and its change from the perplexity without learning."""
    shown_rows = []
    for row in rule_rows:
        change = Interval.from_row(row, "change")
        cells = {"perplexity": terminal.format_interval(row, "perplexity")}
        cells["change"] = "" if change is None else change.to_text(".1f", 100, "%")
        shown_rows.append({**row, "rate": f"{row['rate']:g}", **cells})
    terminal.show_table(shown_rows, ("optimizer", "rate", "perplexity", "change"))


def _show_blend(row: Mapping[str, Any]) -> None:
    """Print the mean reciprocal ranks of the blend and of its sources alone, and the weights of the blend."""
    count = f"{row['queries']:,} of these texts, by {row['users']:,} users"
    terminal.show(f"mean reciprocal rank on {count} (blend: with weights fitted to other users):")
    terminal.show(f"  {'blend':<14} {terminal.format_interval(row, 'mrr')} (weights fitted to all users)")
    for source in ORDERS:
        terminal.show(f"  {f'{source} alone':<14} {terminal.format_interval(row, f'mrr_{source}')}")
    difference = Interval.from_row(row, "mrr_difference")
    assert difference is not None  # the row has figures of at least one text
    terminal.show(f"  blend - model  {difference.to_text('.4f')}")
    terminal.show_table(
        [{"feature": feature, "weight": f"{weight:+z.3f}"} for feature, weight in row["weights"].items()],
        ("feature", "weight"),
    )
    terminal.show(f"texts that only the model proposes need a probability of {row['threshold']:.3f}")


def choose_column(path: Path, option: str, specified_column: str | None, run_column: str) -> str:
    """Return the name of the column of a table that an option such as --time selects.

    This is the column that the user specified, or else the column of the run, or else the name of the option: time.

    Raises:
        UserError: The user specified no column, and the table has no column of that name.
    """
    name = specified_column or run_column or option.removeprefix("--")
    table = open_table(path)
    if not specified_column and name not in table.columns:
        columns = format_names(table.columns)
        raise UserError(f"{table.name}: no column {name!r}; choose one with {option} (columns: {columns})")
    return name


def choose_time_column(path: Path, specified_column: str | None, run_column: str) -> str | None:
    """Return the column of times; None, with a notice, if neither the command, nor the run, nor the table has one."""
    table = open_table(path)
    if specified_column or run_column or "time" in table.columns:
        return choose_column(path, "--time", specified_column, run_column)
    terminal.notify(
        f"{table.name} has no column 'time', so the texts of a user are read in the order of the table; "
        "--time selects a column of times"
    )
    return None


def _check_user_in_context(run: Run, context: Mapping[str, str]) -> None:
    """Raise a `UserError` if `context` names a user whom training never saw."""
    column = run.config.data.user
    if not column or column not in context:
        return
    variable = run.schema.variable(column)
    if context[column] not in variable.values and not may_contain(bytes.fromhex(variable.rare_filter), context[column]):
        remedy = "for a new user, omit this option; --history sets the earlier texts of a new user"
        raise UserError(f"--context {column}: expected a user of the training table, got another name; {remedy}")


def _new_user(run: Run, context: Mapping[str, str], history: Sequence[str]) -> User | None:
    """Return a new user who has entered the texts of `history`.

    Return None if the run does not distinguish users, or if `context` names a user.
    """
    user_column = run.config.data.user
    if history:
        online.user_variable(run)  # raises an error if the run does not distinguish users
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


def _reason_without_blend(run: Run, suggester: Completer | Blend) -> str:
    """Return the reason why all suggestions are from the model, without popular texts and history."""
    if not distinguishes_users(run):
        return "the run does not distinguish users"
    if not isinstance(suggester, Blend):
        return "the run has no popular texts"
    return "--context names a user; only suggestions for a new user are blended"


def _show(rows: Sequence[dict[str, Any]], gains: Sequence[tuple[str, float]], arguments: argparse.Namespace) -> None:
    """Print the suggestions, and the popular texts with the nats that the history added to their log probabilities."""
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
    run: Run, suggester: Completer | Blend, user: User | None, context: dict[str, str], arguments: argparse.Namespace
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
    run: Run, suggester: Completer | Blend, user: User | None, context: dict[str, str], count: int
) -> None:
    if not sys.stdin.isatty():
        raise UserError("missing PREFIX: standard input is not a terminal; use --stdin to complete each line of it")
    try:
        from factorcell.commands.interactive import InteractiveCompleter, read_lines
    except ModuleNotFoundError as error:
        if error.name != "prompt_toolkit":
            raise
        raise missing_package_error("interactive completion", "prompt-toolkit", "complete") from None
    terminal.notify("Type a text. Tab and arrow keys: choose a suggestion; Enter: accept and learn; Ctrl-D: end.")
    read_lines(InteractiveCompleter(run, suggester, user, context, count))
