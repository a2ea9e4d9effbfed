"""What to hold against the words, neighbours and texts of a run: it stopped early, or gains nothing from its context.

What a run gains is measured at the end of its training, against the same run with the context taken away (read as
expected), on some of the development texts; and by `evaluate`, where it does so anyway. Of what its folder keeps, the
figure of the most texts counts.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from factorcell.config import UserError
from factorcell.data.corpus import Corpus
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.comparison import told_difference
from factorcell.model import kept_results
from factorcell.model.run import Run, facts

LOOKED_AT = 1000  # development texts, at most

Row = dict[str, Any]


def context_gain(run: Run, held: Corpus) -> Row | None:
    """By what share context lowers the perplexity of some texts of `held`, with its interval; None if not adapted."""
    if not run.model.adapted:
        return None
    rows = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held))[:LOOKED_AT])
    some = held.select(rows)
    kept = text_figures.read(run.folder, text_figures.key_of(held)).get("perplexity")
    ours = text_figures.of_nats(run.nats(some), some)["perplexity"] if kept is None else kept.select(rows)
    plain = perplexity.without_context(run, some)["perplexity"]
    return {"texts": len(some), **perplexity.gain(ours._replace(key=plain.key), plain).row("gain")}


def cautions(runs: Iterable[Run]) -> list[str]:
    """A line for each run whose words and texts may mislead, which says why."""
    found = ((run, _why(run)) for run in runs)
    return [
        f"{run.folder}: {' and '.join(why)}; read what it says of contexts with caution" for run, why in found if why
    ]


def _why(run: Run) -> list[str]:
    try:
        return [*_stopped(run), *_gains_nothing(run)]
    except UserError as error:
        return [f"its records cannot be read ({error.message})"]


def _stopped(run: Run) -> Iterable[str]:
    """That training did not reach its planned steps, unless it had lost patience."""
    log = run.log()
    if not log or log[-1]["step"] >= log[-1]["steps"]:
        return
    best = [row["perplexity"] == row["best"] for row in log if row["split"] == "dev"]
    worse = best[::-1].index(True) if any(best) else len(best)
    if not 0 < run.config.training.patience <= worse:
        yield f"its training stopped after {log[-1]['step']:,} of {log[-1]['steps']:,} steps"


def _gains_nothing(run: Run) -> Iterable[str]:
    """That its perplexity is not lower than without its context."""
    known = [row for row in _measured(run) if row.get("gain_low") is not None]
    most = max(reversed(known), key=lambda row: float(row["texts"]), default=None)  # the last of several
    if most and most["gain_low"] <= 0:
        yield f"its context gains nothing ({told_difference('gain', most)}, {most['texts']:,} texts)"


def _measured(run: Run) -> Iterable[Row]:
    """What is kept of its gain over itself without context."""
    yield facts(run.folder).get("context") or {}
    for row in kept_results.read(run.folder):
        if row.get("kind") == "evaluate" and row["evaluation"].get("over") is None:
            yield row["evaluation"]
