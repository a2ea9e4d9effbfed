"""The command `factorcell advise`: what each context column could save."""

import argparse

from factorcell.commands import options, terminal
from factorcell.config import Config
from factorcell.evaluation.advice.advise import advise
from factorcell.reports import wording


def run_advise(given: argparse.Namespace) -> None:
    """`factorcell advise`."""
    found = advise(
        given.table, Config.from_dict(options.specified_options(given)), rows=given.rows, seed=given.seed, progress=True
    )
    if given.json:
        return terminal.show_json([*found["columns"], found["all"]])
    for line in wording.advice_lead(found):
        terminal.show(line)
    terminal.show_table(*wording.advice_table(found))
    terminal.show(wording.ACCURACY_EXPLANATION)
    for row in found["columns"]:
        terminal.show(f"{row['column']}: {wording.advice_text(row)}: {row['why']}")
    return terminal.notify(wording.ADVICE_LIMITATIONS)
