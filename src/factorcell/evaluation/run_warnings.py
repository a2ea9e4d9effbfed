"""Warnings about runs whose texts, words or figures may mislead: training stopped early, or context gains nothing.

The gain is that of a run over itself in the expected context: measured at the end of training on some development
texts, and by `evaluate`. The result with the most texts counts, except for texts of users whom the run does not know.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from factorcell.config import UserError
from factorcell.data.corpus import Corpus
from factorcell.evaluation import perplexity, text_figures
from factorcell.evaluation.comparison import format_difference
from factorcell.model import saved_results
from factorcell.model.run import Run, training_facts
from factorcell.model.scoring import Scorer

MAX_TEXTS = 1000  # development texts that the gain is measured on

Row = dict[str, Any]


def measure_context_gain(run: Run, held: Corpus) -> Row | None:
    """Return the relative reduction of perplexity by context on texts of `held`, with its interval; None if unadapted.

    `strangers` says that the run distinguishes users but knows none of theirs.
    """
    if not run.model.adapted:
        return None
    rows = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held))[:MAX_TEXTS])
    some = held.select(rows)
    kept = text_figures.load(run.folder, text_figures.texts_digest(held)).get("perplexity")
    ours = text_figures.figures_from_nats(run.nats(some), some)["perplexity"] if kept is None else kept.select(rows)
    plain = perplexity.without_context(run, some)["perplexity"]
    row = {"texts": len(some), **perplexity.gain(ours._replace(key=plain.key), plain).to_row("gain")}
    return {**row, "strangers": True} if perplexity.only_unknown_users(run, held) else row


def format_context_gain(run: Run) -> str:
    """Return the gain that training measured, as text to append to other figures; empty if there is none."""
    row = training_facts(run.folder).get("context") or {}
    gain = format_difference("gain", row)
    if gain is None:
        return ""
    text = f"; {gain} over itself without its context"
    if not row.get("strangers"):
        return f"{text} (over an unadapted run it is less)" if row["gain"] > 0 else text
    others = text if run.schema.columns(without=run.config.data.user) else ""
    return f"{others}; {unknown_users_notice(run, 'development text')}"


def unknown_users_notice(run: Scorer, text: str) -> str:
    """Say that no `text` is by a known user, and which command measures the gain from users."""
    command = f"factorcell tune-online {run.folder} TABLE"
    return f"no {text} is by a user that it knows: `{command}` shows what learning them brings"


def find_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a line for each run whose words and texts may mislead."""
    return _lines(runs, True, "read what it says of contexts with caution")


def training_warnings(runs: Iterable[Run]) -> list[str]:
    return _lines(runs, False, "read its figures with caution")


def _lines(runs: Iterable[Run], also_gain: bool, advice: str) -> list[str]:
    lines = []
    for run in runs:
        try:
            reasons = [*_stopped(run), *(_gains_nothing(run) if also_gain else ())]
        except UserError as error:
            reasons = [f"its records cannot be read ({error.message})"]
        if reasons:
            lines.append(f"{run.folder}: {' and '.join(reasons)}; {advice}")
    return lines


def _stopped(run: Run) -> Iterator[str]:
    log = run.log()
    if not log or log[-1]["step"] >= log[-1]["steps"]:
        return
    best = [row["perplexity"] == row["best"] for row in log if row["split"] == "dev"]
    worse = best[::-1].index(True) if any(best) else len(best)
    if not 0 < run.config.training.patience <= worse:
        yield f"its training stopped after {log[-1]['step']:,} of {log[-1]['steps']:,} steps"


def _gains_nothing(run: Run) -> Iterator[str]:
    measured = [training_facts(run.folder).get("context") or {}]
    measured += [row["evaluation"] for row in saved_results.read(run.folder) if row.get("kind") == "evaluate"]
    known = [
        row
        for row in measured
        if row.get("over") is None and row.get("gain_low") is not None and not row.get("strangers")
    ]
    most = max(reversed(known), key=lambda row: float(row["texts"]), default=None)  # the last of several
    if most and most["gain_low"] <= 0:
        yield f"its context gains nothing ({format_difference('gain', most)}, {most['texts']:,} texts)"
