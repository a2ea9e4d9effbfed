"""The verb of advice."""

import argparse
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.data.tables import name_of
from factorcell.evaluation.advice import advise as advice
from factorcell.evaluation.advice.sample import ROWS
from factorcell.reports import advice as advice_report


def add(verbs: Any) -> None:
    """Add the verb to those of the command line."""
    text = "what each context column could save, before any training: use it, or leave it out?"
    verb = options.verb(verbs, "advise", advise, text)
    verb.add_argument("table", type=Path, metavar="TABLE", help="table of texts: CSV, TSV, JSONL or Parquet")
    verb.add_argument("--config", type=Path, help="TOML or JSON file of options; those given here win")
    verb.add_argument("--rows", type=int, default=ROWS, help="rows that are read, drawn at random (default: 100000)")
    verb.add_argument("--seed", type=int, default=0, help="seed of what is drawn (default: 0)")
    verb.add_argument(
        "--measured", nargs="+", type=Path, default=[], metavar="RUN", help="trained runs to compare with"
    )
    verb.add_argument("--page", type=Path, metavar="FILE", help="an HTML page of it all")
    verb.add_argument("--json", action="store_true", help="print rows of JSON")
    verb.add_argument("--threads", type=int, default=0, help="threads; 0: all cores")
    options.add(verb, ("data",))


def advise(given: argparse.Namespace) -> None:
    """`factorcell advise`."""
    if given.rows < advice.LEAST:
        raise UserError(f"--rows is {given.rows}; it must be at least {advice.LEAST}")
    found = advice.advise(given.table, options.config(given).data, rows=given.rows, seed=given.seed, progress=True)
    runs = advice.measured(found, given.measured) if given.measured else []
    if given.page is not None:
        files.write(given.page, advice_report.page(name_of(given.table), found, runs).encode())
    if given.json:
        return terminal.lines([*found["columns"], found["all"], *runs])
    for line in advice_report.lead(found):
        terminal.show(line)
    terminal.table(*advice_report.table(found))
    for row in found["columns"]:
        terminal.show(f"{row['column']}: {row['advice']}: {row['why']}")
    if runs:
        terminal.table(*advice_report.beside(runs))
    if agreement := advice_report.agreement(runs):
        terminal.show(agreement)
    return terminal.say(advice_report.CANNOT)
