"""The verb of advice."""

import argparse

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import Config
from factorcell.data.tables import name_of
from factorcell.evaluation.advice import advise as advice
from factorcell.reports import wording


def run_advise(given: argparse.Namespace) -> None:
    """`factorcell advise`."""
    config = Config.from_dict(options.said(given))
    found = advice.advise(given.table, config, rows=given.rows, seed=given.seed, progress=True)
    runs = advice.measured(found, given.measured) if given.measured else []
    if given.page is not None:
        from factorcell.reports import advice as report

        files.write(given.page, report.page(name_of(given.table), found, runs))
    if given.json:
        return terminal.lines([*found["columns"], found["all"], *runs])
    for line in wording.advice_lead(found):
        terminal.show(line)
    terminal.table(*wording.advice_table(found))
    terminal.show(wording.GUESSED)
    for row in found["columns"]:
        terminal.show(f"{row['column']}: {wording.advised(row)}: {row['why']}")
    if runs:
        terminal.table(*wording.advice_beside(runs))
    if agreement := wording.advice_agreement(runs):
        terminal.show(agreement)
    return terminal.say(wording.CANNOT)
