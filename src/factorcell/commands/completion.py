"""The commands `complete`, which suggests texts, and `tune-online`, which chooses how a run learns new users."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.choices import ONLINE_OPTIMIZERS
from factorcell.commands import options, streams, terminal
from factorcell.completion import online
from factorcell.completion.blend import SOURCES, Blend, BlendWeights, new_suggester
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, LearningRule, User, distinguishes_users, learn_one
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay import streams as replay_streams
from factorcell.completion.replay import tuning
from factorcell.completion.replay.streams import PrefixDraw, Stream
from factorcell.config import UserError
from factorcell.data.chunks import format_names
from factorcell.data.counts import POPULARITY
from factorcell.data.tables import open_table
from factorcell.model.run import Run

# Number of popular texts whose probabilities with and without the history are compared (thesis 2018, section 5.4.2).
HISTORY_TEXTS = 1500


def run_complete(arguments: argparse.Namespace) -> None:
    """Run `factorcell complete`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    suggester = new_suggester(run, unknown=arguments.unknown, seconds=arguments.seconds, typos=arguments.typos)
    context = options.parse_context(arguments.context)
    options.notify_rare_values(run.schema, context)
    user = _new_user(run, context, arguments.history)
    if arguments.stdin:
        return _complete_lines(suggester, user, context, arguments)
    if arguments.prefix is None:
        return _complete_interactively(run, suggester, user, context, arguments.count)
    if not suggester.fits(arguments.prefix):
        longest = run.config.data.max_tokens - 1
        terminal.notify(
            f"PREFIX is longer than the texts that the run completes, which have at most {longest:,} tokens"
        )
    result = suggester.suggest(suggester.type_text(suggester.begin(user, context), arguments.prefix), arguments.count)
    texts = [suggestion.text for suggestion in result.suggestions]
    log_probs = suggester.log_probabilities(arguments.prefix, texts, user, context)
    rows = [
        {**dataclasses.asdict(suggestion), "probability": None if math.isnan(log_prob) else math.exp(log_prob)}
        for suggestion, log_prob in zip(result.suggestions, log_probs, strict=True)
    ]
    gains = []
    if (
        arguments.explain
        and isinstance(suggester, Blend)
        and suggester.popularity
        and user is not None
        and user.text_count
    ):
        gains = Learner(run).largest_gains(user, suggester.popularity.most_popular(HISTORY_TEXTS), arguments.count)
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
    user_column = online.user_variable(run).source_column
    user_streams = replay_streams.read_streams(
        arguments.dev,
        run.config,
        user_column=user_column,
        time_column=choose_column(arguments.dev, "--time", arguments.time, run.config.data.time),
        context_columns=run.schema.columns(without=user_column),
        max_rows_per_user=arguments.rows_per_user,
        draw=PrefixDraw(arguments.every),
    )
    rate_rows, optimizers = [], arguments.optimizer or ONLINE_OPTIMIZERS
    for row in tuning.try_rates(run, user_streams, optimizers, True, arguments.max_norm, arguments.unknown):
        rate_rows.append(row)
        terminal.notify(f"{row['optimizer']} {row['rate']:g}: perplexity {row['perplexity']:.4f}")
    best = min(rate_rows[1:], key=lambda row: float(row["perplexity"]))  # the first rule does not learn
    rule = LearningRule(best["optimizer"], best["rate"], arguments.max_norm)
    rule.save(run)
    blend_rows = _fit_blend(run, rule, user_streams, arguments)
    if arguments.json:
        return terminal.show_json([*rate_rows, *blend_rows])
    cells = [{**row, "rate": f"{row['rate']:g}", "perplexity": f"{row['perplexity']:.4f}"} for row in rate_rows]
    terminal.show_table(cells, ("optimizer", "rate", "perplexity"))
    terminal.show(f"{run.folder}: learning rule set to {rule} (online.json)")
    for row in blend_rows:
        terminal.show(f"mean reciprocal rank of the blend on {row['queries']:,} texts: {row['mrr']:.4f} (blend.json)")
        terminal.show_table(
            [{"feature": key, "weight": f"{value:+z.3f}"} for key, value in row["weights"].items()],
            ("feature", "weight"),
        )
    return None


def choose_column(path: Path, option: str, value: str | None, run_column: str) -> str:
    """Return the name of a column: the `value` of an option, or else `run_column`, or else the name of the option.

    Raises:
        UserError: The option has no value and the table has no column of that name.
    """
    name = value or run_column or option.removeprefix("--")
    table = open_table(path)
    if not value and name not in table.columns:
        columns = format_names(table.columns)
        raise UserError(f"{table.name}: no column {name!r}; choose one with {option} (columns: {columns})")
    return name


def _fit_blend(
    run: Run, rule: LearningRule, user_streams: Sequence[Stream], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Fit and save the weights of the blend, and return a row about them; no row if the run has no popular texts."""
    if not (run.folder / POPULARITY).exists():
        return []
    completer, popularity = (
        Completer(run, unknown=arguments.unknown, seconds=arguments.seconds),
        Popularity.from_run(run),
    )
    lists_of_candidates = list(
        tuning.candidate_lists(
            completer, Learner(run, rule, arguments.unknown), popularity, user_streams, progress=True
        )
    )
    weights = BlendWeights.fit(lists_of_candidates)
    weights.save(run)
    mrr = tuning.mean_reciprocal_rank(Blend(completer, popularity, weights), lists_of_candidates)
    return [{"queries": len(lists_of_candidates), "mrr": mrr, "weights": dict(weights.values)}]


def _new_user(run: Run, context: Mapping[str, str], history: str | None) -> User | None:
    """Return a new user who wrote `history`; None if the run does not distinguish users or `context` names a user."""
    user = User.new(run) if distinguishes_users(run) and run.config.data.user not in context else None
    if history is None:
        return user
    if user is None:
        raise UserError("--history requires a run trained with --user, and no user in --context")
    for text in filter(None, map(str.strip, history.split(";"))):
        user = learn_one(run, user, text)
    return user


def _reason_without_blend(run: Run, suggester: Completer | Blend) -> str:
    """Return the reason why suggestions are from the model alone."""
    if not distinguishes_users(run):
        return "the run does not distinguish users"
    if not isinstance(suggester, Blend):
        return "the run has no popular texts"
    return "--context names a user; only suggestions for a new user are blended"


def _show(rows: Sequence[dict[str, Any]], gains: Sequence[tuple[str, float]], arguments: argparse.Namespace) -> None:
    if arguments.json:
        return terminal.show_json([*rows, *({"risen": text, "nats": nats} for text, nats in gains)])
    if not rows:
        return terminal.notify("no suggestion")
    score = "share" if any(row["parts"] or row["typos"] for row in rows) else "probability"
    cells = [_suggestion_cells(row, score, arguments.explain) for row in rows]
    terminal.show_table(cells, tuple(dict.fromkeys(("text", score, "source", "typos", "probability", *SOURCES))))
    if gains:
        terminal.show("", "popular texts whose log probability the history raised most")
        terminal.show_table([{"text": text, "nats": f"{nats:+.2f}"} for text, nats in gains], ("text", "nats"))
    return None


def _suggestion_cells(row: Mapping[str, Any], score: str, explain: bool) -> dict[str, str | None]:
    """Return the cells of a suggestion by column name; `score` is the name of the column that orders the list.

    With `explain`, the cells include the probability under the model and the parts of the score.
    """
    probability = row["probability"]
    return {
        "text": row["text"],
        **(
            {"probability": None if probability is None else terminal.format_probability(probability)}
            if explain
            else {}
        ),
        score: terminal.format_probability(math.exp(row["log_probability"])),
        "source": row["source"] if row["parts"] else None,  # the table has no column without values
        "typos": str(row["typos"]) if row["typos"] else None,
        **({name: f"{part:+z.2f}" for name, part in row["parts"].items()} if explain else {}),
    }


def _complete_lines(
    suggester: Completer | Blend, user: User | None, context: dict[str, str], arguments: argparse.Namespace
) -> None:
    """Complete each line of standard input; print the suggestions as a row of JSON before the next line is read."""
    if arguments.prefix is not None or arguments.explain:
        raise UserError("--stdin reads prefixes from standard input; remove PREFIX and --explain")
    typed = suggester.begin(user, context)
    failures = count = 0
    for count, line in enumerate(sys.stdin.buffer, 1):
        where, prefix = f"{streams.STANDARD_INPUT} line {count}", None
        row: dict[str, Any]
        try:
            prefix = streams.decode(line, where).rstrip("\r\n")
            typed = suggester.type_text(typed, prefix)
            result = suggester.suggest(typed, arguments.count)
            suggestions = [dataclasses.asdict(suggestion) for suggestion in result.suggestions]
            row = {"prefix": prefix, "suggestions": suggestions, "cut": result.is_cut}
        except UserError as error:
            failures += 1
            message = f"{where}: {error.as_command().removeprefix(f'{where}: ')}"
            terminal.notify(message)
            row = {"prefix": prefix, "error": message}
        terminal.show_json([row])
        sys.stdout.flush()
    if failures:
        raise UserError(f"{streams.STANDARD_INPUT}: {failures:,} of {count:,} lines could not be completed")


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
        raise UserError("interactive completion requires prompt-toolkit: pip install 'factorcell[complete]'") from None
    terminal.notify("Type a text. Tab and arrow keys: choose a suggestion; Enter: accept and learn; Ctrl-D: end.")
    read_lines(InteractiveCompleter(run, suggester, user, context, count))
