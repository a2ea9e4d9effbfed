"""The verb that measures what a run memorised."""

import argparse

from factorcell.commands import options, terminal
from factorcell.evaluation.exposure import READERS, SIGNIFICANCE_LEVEL, SOURCES, audit
from factorcell.model.run import Run


def run_audit(given: argparse.Namespace) -> None:
    """`factorcell audit`."""
    found = audit(
        options.open_on_device(Run.open, given.run, given),
        given.table,
        alternatives=given.alternatives,
        unknown=given.unknown,
        seed=given.seed,
        progress=True,
    )
    if given.json:
        return terminal.show_json([found["texts"], *found["exposure"], *found["canaries"]])
    texts = found["texts"]
    terminal.show(f"{texts['table']}: perplexity {texts['perplexity']:.2f}", "")
    for row in found["exposure"]:
        for reader in READERS:
            if f"{reader}_p" in row:
                row[f"p_{reader}"] = f"{row[f'{reader}_p']:.3f}"
    columns = [name for reader in READERS for name in (reader, f"p_{reader}")]
    terminal.show_table(found["exposure"], ("times", "canaries", *columns, *SOURCES))
    terminal.show(
        "",
        f"exposure in bits: {found['chance']:.2f} by chance, {found['most']:.2f} at most; "
        f"p < {SIGNIFICANCE_LEVEL:g}: not by chance",
        f"{', '.join(SOURCES)}: canaries suggested to a stranger who typed their first half",
    )
    return None
