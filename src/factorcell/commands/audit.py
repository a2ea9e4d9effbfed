"""The command `audit`, which measures how well a run has memorized the random texts planted in its training table."""

import argparse

from factorcell.commands import options, terminal
from factorcell.evaluation.diagnostics import report_run
from factorcell.evaluation.exposure import COMPLETION_SOURCES, READERS, SIGNIFICANCE_LEVEL, audit
from factorcell.model.run import Run


def run_audit(arguments: argparse.Namespace) -> None:
    """Run `factorcell audit`."""
    run = options.open_on_device(Run.open, arguments.run, arguments)
    report_run(run)
    result = audit(
        run,
        arguments.table,
        alternatives=arguments.alternatives,
        unknown=arguments.unknown,
        seed=arguments.seed,
    )
    if arguments.json:
        return terminal.show_json([result["texts"], *result["exposure"], *result["canaries"]])
    held_out_row = result["texts"]
    terminal.show(f"{held_out_row['table']}: perplexity {held_out_row['perplexity']:.2f}", "")
    # `show_table` prints floats with only two decimals, therefore the p-values are added as texts.
    for row in result["exposure"]:
        for reader in READERS:
            if f"{reader}_p" in row:
                row[f"p_{reader}"] = f"{row[f'{reader}_p']:.3f}"
    columns = [name for reader in READERS for name in (reader, f"p_{reader}")]
    terminal.show_table(result["exposure"], ("times", "canaries", *columns, *COMPLETION_SOURCES))
    terminal.show(
        "",
        f"exposure in bits: chance level {result['chance']:.2f}, maximum {result['most']:.2f}; "
        f"the exposure is statistically significant if p < {SIGNIFICANCE_LEVEL:g}",
        f"{', '.join(COMPLETION_SOURCES)}: number of canaries suggested to a new user who typed their first half",
    )
    return None
