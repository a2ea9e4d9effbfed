"""The verbs of completion."""

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
from factorcell.completion.replay import streams as progressive
from factorcell.completion.replay import tuning
from factorcell.completion.replay.streams import PrefixDraw, Stream
from factorcell.config import UserError
from factorcell.data.chunks import format_names
from factorcell.data.counts import POPULARITY
from factorcell.data.tables import open_table
from factorcell.model.run import Run

RISEN = 1500  # popular texts that are compared before and after a history (thesis 2018, section 5.4.2)


def run_complete(given: argparse.Namespace) -> None:
    """`factorcell complete`."""
    run = options.open_on_device(Run.open, given.run, given)
    source = new_suggester(run, unknown=given.unknown, seconds=given.seconds, typos=given.typos)
    context = options.parse_context(given.context)
    options.notify_rare_values(run.schema, context)
    user = _user(run, context, given.history)
    if given.stdin:
        return _each_line(source, user, context, given)
    if given.prefix is None:
        return _talk(run, source, user, context, given.count)
    if not source.fits(given.prefix):
        longest = run.config.data.max_tokens - 1
        terminal.notify(
            f"the prefix is longer than the texts that the run completes, which have at most {longest:,} tokens"
        )
    found = source.suggest(source.type(source.begin(user, context), given.prefix), given.count)
    logs = source.log_probabilities(given.prefix, [one.text for one in found.suggestions], user, context)
    rows = [
        {**dataclasses.asdict(one), "probability": None if math.isnan(log) else math.exp(log)}
        for one, log in zip(found.suggestions, logs, strict=True)
    ]
    risen = []
    if given.explain and isinstance(source, Blend) and source.popularity and user is not None and user.text_count:
        risen = Learner(run).largest_gains(user, source.popularity.top(RISEN), given.count)
    if found.cut:
        terminal.notify(f"cut after {found.rows:,} hypotheses: there may be better ones")
    if given.explain and rows and not rows[0]["parts"]:
        terminal.notify(f"--explain: nothing is blended, the model alone suggests these: {_unblended(run, source)}")
    return _show(rows, risen, given)


def run_tune_online(given: argparse.Namespace) -> None:
    """`factorcell tune-online`."""
    run = options.open_on_device(Run.open, given.run, given)
    name = online.user_variable(run).source_column
    streams = progressive.read_streams(
        given.dev,
        run.config,
        user_column=name,
        time_column=choose_column(given.dev, "--time", given.time, run.config.data.time),
        context_columns=run.schema.columns(without=name),
        max_rows_per_user=given.rows_per_user,
        draw=PrefixDraw(given.every),
    )
    rows = []
    for row in tuning.try_rates(run, streams, given.optimiser or ONLINE_OPTIMIZERS, True, given.reach, given.unknown):
        rows.append(row)
        terminal.notify(f"{row['optimiser']} {row['rate']:g}: perplexity {row['perplexity']:.4f}")
    best = min(rows[1:], key=lambda row: float(row["perplexity"]))
    rule = LearningRule(best["optimiser"], best["rate"], given.reach)
    rule.save(run)
    rows += _blended(run, rule, streams, given)
    if given.json:
        return terminal.show_json(rows)
    shown = [
        {**row, "rate": f"{row['rate']:g}", "perplexity": f"{row['perplexity']:.4f}"} for row in rows if "rate" in row
    ]
    terminal.show_table(shown, ("optimiser", "rate", "perplexity"))
    terminal.show(f"{rule} is now the rule of {run.folder} (online.json)")
    for row in rows[len(shown) :]:
        terminal.show(f"mean reciprocal rank on {row['queries']:,} texts: blend {row['mrr']:.4f} (blend.json)")
        terminal.show_table(
            [{"feature": key, "weight": f"{value:+z.3f}"} for key, value in row["weights"].items()],
            ("feature", "weight"),
        )
    return None


def choose_column(source: Path, option: str, given: str | None, own: str) -> str:
    """Return the column that an `option` names, or the run's `own`, or the one with the option's name.

    Raises:
        UserError: The option is not `given` and the table has no such column.
    """
    name = given or own or option.removeprefix("--")
    table = open_table(source)
    if not given and name not in table.columns:
        raise UserError(
            f"{table.name}: no column {name!r}; {option} names another (it has {format_names(table.columns)})"
        )
    return name


def _blended(
    run: Run, rule: LearningRule, streams: Sequence[Stream], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Fit and save the weights of the blend if the run has popular texts."""
    if not (run.folder / POPULARITY).exists():
        return []
    completer, popularity = Completer(run, unknown=given.unknown, seconds=given.seconds), Popularity.from_run(run)
    lists = list(
        tuning.candidate_lists(completer, Learner(run, rule, given.unknown), popularity, streams, progress=True)
    )
    weights = BlendWeights.fit(lists)
    weights.save(run)
    mrr = tuning.mean_reciprocal_rank(Blend(completer, popularity, weights), lists)
    return [{"queries": len(lists), "mrr": mrr, "weights": dict(weights.values)}]


def _user(run: Run, context: Mapping[str, str], history: str | None) -> User | None:
    """Return a new user who wrote the texts of `history`; None if the run has no users or the context names one."""
    user = User.new(run) if distinguishes_users(run) and run.config.data.user not in context else None
    if history is None:
        return user
    if user is None:
        raise UserError("--history is for a new user: it takes a run with --user, and no --context that names one")
    for text in filter(None, map(str.strip, history.split(";"))):
        user = learn_one(run, user, text)
    return user


def _unblended(run: Run, source: Completer | Blend) -> str:
    """Why the model alone suggests."""
    if not distinguishes_users(run):
        return "the run does not tell users apart"
    if not isinstance(source, Blend):
        return "the run keeps no popular texts"
    return "--context names the user, and only a new one has texts to blend"


def _show(rows: Sequence[dict[str, Any]], risen: Sequence[tuple[str, float]], given: argparse.Namespace) -> None:
    if given.json:
        return terminal.show_json([*rows, *({"risen": text, "nats": nats} for text, nats in risen)])
    if not rows:
        return terminal.notify("no completion")
    ranked = "share" if any(row["parts"] or row["typos"] for row in rows) else "probability"
    shown = [_shown(row, ranked, given.explain) for row in rows]
    terminal.show_table(shown, tuple(dict.fromkeys(("text", ranked, "source", "typos", "probability", *SOURCES))))
    if risen:
        terminal.show("", "most risen among the popular texts, in nats")
        terminal.show_table([{"text": text, "nats": f"{nats:+.2f}"} for text, nats in risen], ("text", "nats"))
    return None


def _shown(row: Mapping[str, Any], ranked: str, explain: bool) -> dict[str, str | None]:
    """Return the cells of a suggestion: what orders the list under the name `ranked`; to `explain`, model and parts."""
    model = row["probability"]
    return {
        "text": row["text"],
        **({"probability": None if model is None else terminal.format_probability(model)} if explain else {}),
        ranked: terminal.format_probability(math.exp(row["log_probability"])),
        "source": row["source"] if row["parts"] else None,
        "typos": str(row["typos"]) if row["typos"] else None,
        **({name: f"{part:+z.2f}" for name, part in row["parts"].items()} if explain else {}),
    }


def _each_line(
    source: Completer | Blend, user: User | None, context: dict[str, str], given: argparse.Namespace
) -> None:
    """Complete each line of standard input and write a row of JSON for it at once."""
    if given.prefix is not None or given.explain:
        raise UserError("--stdin takes its prefixes from standard input: give neither PREFIX nor --explain")
    written = source.begin(user, context)
    failures = count = 0
    for count, line in enumerate(sys.stdin.buffer, 1):
        where, prefix = f"{streams.STANDARD_INPUT} line {count}", None
        row: dict[str, Any]
        try:
            prefix = streams.decode(line, where).rstrip("\r\n")
            written = source.type(written, prefix)
            found = source.suggest(written, given.count)
            suggestions = [dataclasses.asdict(suggestion) for suggestion in found.suggestions]
            row = {"prefix": prefix, "suggestions": suggestions, "cut": found.cut}
        except UserError as error:
            failures += 1
            message = f"{where}: {error.as_command().removeprefix(f'{where}: ')}"
            terminal.notify(message)
            row = {"prefix": prefix, "error": message}
        terminal.show_json([row])
        sys.stdout.flush()
    if failures:
        raise UserError(f"{streams.STANDARD_INPUT}: {failures:,} of {count:,} lines could not be completed")


def _talk(run: Run, source: Completer | Blend, user: User | None, context: dict[str, str], count: int) -> None:
    if not sys.stdin.isatty():
        raise UserError(
            "no PREFIX is given, and the input is no terminal to type in; --stdin completes each line of it"
        )
    try:
        from factorcell.commands.interactive import InteractiveCompleter, read_lines
    except ModuleNotFoundError as error:
        if error.name != "prompt_toolkit":
            raise
        raise UserError("typing in the terminal needs prompt-toolkit: pip install 'factorcell[complete]'") from None
    terminal.notify("Type; Tab and the arrows choose, Enter accepts and learns, Ctrl-D ends.")
    read_lines(InteractiveCompleter(run, source, user, context, count))
