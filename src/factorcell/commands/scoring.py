"""The command `score`, which computes the nats of each text under a run."""

import argparse
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.runs.run import Run


def run_score(arguments: argparse.Namespace) -> None:
    """Run `factorcell score`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    rows: list[dict[str, Any]] = run.score_rows(arguments.table, tokens=arguments.tokens, unknown=arguments.unknown)
    rows = [{**row, "row": row["row"] + 1} for row in rows]  # users count rows from 1
    if arguments.json:
        return terminal.show_json(rows)
    token_header, empty_token = (["token"], [""]) if arguments.tokens else ([], [])
    terminal.show_fields("row", "nats", "targets", "perplexity", *token_header)
    for row in rows:
        number, nats, perplexity = f"{row['row']}", f"{row['nats']:z.4f}", f"{row['perplexity']:.4f}"
        terminal.show_fields(number, nats, f"{row['targets']}", perplexity, *empty_token)
        for token in row.get("tokens", ()):
            terminal.show_fields(number, f"{token['nats']:z.4f}", "", "", token["token"])
    return None
