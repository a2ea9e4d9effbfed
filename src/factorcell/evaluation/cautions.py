"""What to hold against the words, neighbours and texts of a run: it stopped early, or gains nothing from its context.

What a run gains is measured at the end of its training, against the same run with the context taken away (read as
expected), on some of the development texts; and by `evaluate`, where it does so anyway. Of what its folder keeps, the
figure of the most texts counts; one of users whom the run does not know says nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from factorcell.config import UserError
from factorcell.data.corpus import Corpus
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.comparison import told_difference
from factorcell.model import kept_results
from factorcell.model.run import Run, facts
from factorcell.model.scoring import Scorer

LOOKED_AT = 1000  # development texts, at most

Row = dict[str, Any]


def context_gain(run: Run, held: Corpus) -> Row | None:
    """By what share context lowers the perplexity of some texts of `held`, with its interval; None if not adapted.

    `strangers` says that the run tells users apart, and knows none of theirs.
    """
    if not run.model.adapted:
        return None
    rows = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held))[:LOOKED_AT])
    some = held.select(rows)
    kept = text_figures.read(run.folder, text_figures.key_of(held)).get("perplexity")
    ours = text_figures.of_nats(run.nats(some), some)["perplexity"] if kept is None else kept.select(rows)
    plain = perplexity.without_context(run, some)["perplexity"]
    found = {"texts": len(some), **perplexity.gain(ours._replace(key=plain.key), plain).row("gain")}
    return {**found, "strangers": True} if perplexity.strangers(run, held) else found


def told_gain(run: Run) -> str:
    """What the training of a run measured of its context, to stand behind other figures; empty if nothing.

    Users that it does not know have only the other columns to gain from.
    """
    row = facts(run.folder).get("context") or {}
    gain = told_difference("gain", row)
    if gain is None:
        return ""
    told = f"; {gain} over itself without its context"
    if not row.get("strangers"):
        return f"{told} (over an unadapted run it is less)" if row["gain"] > 0 else told
    others = told if run.schema.columns(without=run.config.data.user) else ""
    return f"{others}; {unknown_users(run, 'development text')}"


def unknown_users(run: Scorer, text: str) -> str:
    """That no `text` is by a user that the run knows, and how to see what it would gain from users."""
    command = f"factorcell tune-online {run.folder} TABLE"
    return f"no {text} is by a user that it knows: `{command}` shows what learning them brings"


def cautions(runs: Iterable[Run]) -> list[str]:
    """A line for each run whose words and texts may mislead, which says why."""
    found = ((run, _why(run, _stopped, _gains_nothing)) for run in runs)
    return [
        f"{run.folder}: {' and '.join(why)}; read what it says of contexts with caution" for run, why in found if why
    ]


def unfinished(runs: Iterable[Run]) -> list[str]:
    """A line for each run whose figures are not those of a whole training."""
    found = ((run, _why(run, _stopped)) for run in runs)
    return [f"{run.folder}: {' and '.join(why)}; read its figures with caution" for run, why in found if why]


def _why(run: Run, *asked: Callable[[Run], Iterable[str]]) -> list[str]:
    try:
        return [reason for ask in asked for reason in ask(run)]
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
    known = [row for row in _measured(run) if row.get("gain_low") is not None and not row.get("strangers")]
    most = max(reversed(known), key=lambda row: float(row["texts"]), default=None)  # the last of several
    if most and most["gain_low"] <= 0:
        yield f"its context gains nothing ({told_difference('gain', most)}, {most['texts']:,} texts)"


def _measured(run: Run) -> Iterable[Row]:
    """What is kept of its gain over itself without context."""
    yield facts(run.folder).get("context") or {}
    for row in kept_results.read(run.folder):
        if row.get("kind") == "evaluate" and row["evaluation"].get("over") is None:
            yield row["evaluation"]
