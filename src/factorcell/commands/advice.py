"""The command `advise`, which estimates by how much each context column could lower the perplexity."""

import argparse

from factorcell.commands import options, terminal
from factorcell.config import Config
from factorcell.evaluation.advice.advise import advise
from factorcell.reports import wording


def run_advise(arguments: argparse.Namespace) -> None:
    """Run `factorcell advise`."""
    config = Config.from_dict(options.specified_options(arguments))
    result = advise(arguments.table, config, rows=arguments.rows, seed=arguments.seed, progress=True)
    if arguments.json:
        return terminal.show_json([*result["columns"], result["all"]])
    for line in wording.advice_lead(result):
        terminal.show(line)
    terminal.show_table(*wording.advice_table(result))
    terminal.show(wording.ACCURACY_EXPLANATION)
    for row in result["columns"]:
        terminal.show(f"{row['column']}: {wording.advice_text(row)}: {row['why']}")
    return terminal.notify(wording.ADVICE_LIMITATIONS)
