"""The command `export`, which writes a Transformer in one context as files of other programs."""

import argparse

from factorcell.commands.cli import options
from factorcell.evaluation.diagnostics import report_run
from factorcell.runs.exporting import export
from factorcell.runs.run import Run


def run_export(arguments: argparse.Namespace) -> None:
    """Run `factorcell export`."""
    run = Run.open(arguments.run, mixture=False)
    context = options.parse_context(arguments.context)
    options.report_rare_values(run.schema, context)
    report_run(run, context)
    export(
        run,
        arguments.folder,
        to=arguments.to,
        context=context,
        approximate=arguments.approximate,
        unknown=arguments.unknown,
    )
