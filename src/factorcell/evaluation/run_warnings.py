"""Warnings about runs whose outputs may mislead: training stopped early, or the context has no significant gain.

The gain is the relative reduction of the perplexity against the same run with the expected context. Training measures
the gain at its end, on up to `MAX_TEXTS` development texts, and `evaluate` measures it on other tables. The measurement
with the most texts counts. A measurement is ignored if all of its texts were written by unknown users.
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

MAX_TEXTS = 1000  # development texts on which the gain is measured

Row = dict[str, Any]


def measure_context_gain(run: Run, held_out: Corpus) -> Row | None:
    """Measure the gain of the context on held-out texts, with its interval; None for an unadapted run.

    The row also has `only_unknown_users`, which is true, if the run distinguishes users but no known user wrote any of
    the texts.
    """
    if not run.model.is_adapted:
        return None
    rows = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held_out))[:MAX_TEXTS])
    sample = held_out.select(rows)
    saved = text_figures.load(run.folder, text_figures.texts_digest(held_out)).get("perplexity")
    if saved is None:
        adapted = text_figures.figures_from_nats(run.nats(sample), sample)["perplexity"]
    else:
        adapted = saved.select(rows)
    baseline = perplexity.without_context(run, sample)["perplexity"]
    gain = perplexity.gain(adapted._replace(key=baseline.key), baseline)
    row = {"texts": len(sample), **gain.to_row("gain")}
    return {**row, "only_unknown_users": True} if perplexity.only_unknown_users(run, held_out) else row


def format_context_gain(run: Run) -> str:
    """Format the gain that was measured at the end of training, as the end of a line; empty if it was not measured."""
    row = training_facts(run.folder).get("context") or {}
    gain = format_difference("gain", row)
    if gain is None:
        return ""
    text = f"; gain of {gain} over the same model without its context"
    if not row.get("only_unknown_users"):
        return f"{text} (the gain over an unadapted run is smaller)" if row["gain"] > 0 else text
    other_columns = text if run.schema.columns(without=run.config.data.user) else ""
    return f"{other_columns}; {unknown_users_notice(run, 'development text')}"


def unknown_users_notice(run: Scorer, kind_of_text: str) -> str:
    """Return a notice that no text is by a known user, with the command that measures the gain from learning users.

    `kind_of_text` names the texts, such as "development text".
    """
    command = f"factorcell tune-online {run.folder} TABLE"
    return f"no {kind_of_text} is by a known user; `{command}` measures the gain from learning users"


def find_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a warning for each run whose training stopped early or whose context has no significant gain."""
    return _warnings(runs, True, "interpret its use of contexts with caution")


def training_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a warning for each run whose training stopped early."""
    return _warnings(runs, False, "interpret its figures with caution")


def _warnings(runs: Iterable[Run], check_gain: bool, advice: str) -> list[str]:
    """Return a line for each run with a reason for a warning; the line ends with `advice`."""
    lines = []
    for run in runs:
        try:
            reasons = [*_early_stop(run), *(_insignificant_gain(run) if check_gain else ())]
        except UserError as error:
            reasons = [f"its records cannot be read ({error.message})"]
        if reasons:
            lines.append(f"{run.folder}: {' and '.join(reasons)}; {advice}")
    return lines


def _early_stop(run: Run) -> Iterator[str]:
    """Yield a reason if training stopped before its last step, except if it stopped because of `patience`."""
    log = run.log()
    if not log or log[-1]["step"] >= log[-1]["steps"]:
        return
    is_best = [row["perplexity"] == row["best"] for row in log if row["split"] == "dev"]
    evaluations_since_best = is_best[::-1].index(True) if any(is_best) else len(is_best)
    if not 0 < run.config.training.patience <= evaluations_since_best:
        yield f"its training stopped after {log[-1]['step']:,} of {log[-1]['steps']:,} steps"


def _insignificant_gain(run: Run) -> Iterator[str]:
    """Yield a reason if the interval of the measured gain contains zero or lies below it."""
    measurements = [training_facts(run.folder).get("context") or {}]
    measurements += [row["evaluation"] for row in saved_results.read(run.folder) if row.get("kind") == "evaluate"]
    valid = [
        row
        for row in measurements
        if row.get("over") is None and row.get("gain_low") is not None and not row.get("only_unknown_users")
    ]
    row = max(reversed(valid), key=lambda row: float(row["texts"]), default=None)  # the latest one in case of ties
    if row and row["gain_low"] <= 0:
        gain = f"{format_difference('gain', row)}, {row['texts']:,} texts"
        yield f"its context does not significantly lower the perplexity ({gain})"
