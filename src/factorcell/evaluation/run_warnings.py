"""Warnings about runs whose outputs may mislead, because training stopped early or the context has no significant gain.

The gain is the relative reduction of the perplexity against the same run with the expected context. The gain is
measured at the end of training, on up to `MAX_TEXTS` development texts, and by `evaluate`, on other tables. The
measurement with the most texts counts. A measurement is ignored if unknown users wrote all of its texts.
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

    The row also has `only_unknown_users` (true) if the run distinguishes users but no known user wrote any of the
    texts.
    """
    if not run.model.is_adapted:
        return None
    indices = np.sort(np.random.default_rng(run.config.training.seed).permutation(len(held_out))[:MAX_TEXTS])
    sample = held_out.select(indices)
    saved_sums = text_figures.load(run.folder, text_figures.texts_digest(held_out)).get("perplexity")
    if saved_sums is None or run.mixture is not None:  # training saved the figures of the neural model
        adapted_sums = text_figures.figures_from_nats(run.nats(sample), sample)["perplexity"]
    else:
        adapted_sums = saved_sums.select(indices)
    baseline_sums = perplexity.without_context(run, sample)["perplexity"]
    # Both figures have the same texts, but the key of selected texts differs from that of the sample.
    gain = perplexity.gain(adapted_sums._replace(key=baseline_sums.key), baseline_sums)
    row = {"texts": len(sample), **gain.to_row("gain")}
    return {**row, "only_unknown_users": True} if perplexity.has_only_unknown_users(run, held_out) else row


def format_context_gain(run: Run) -> str:
    """Return text with the gain at the end of training, to be appended to a line; empty without a measurement."""
    row = training_facts(run.folder).get("context") or {}
    gain = format_difference("gain", row)
    if gain is None:
        return ""
    text = f"; gain of {gain} over the same model without its context"
    if not row.get("only_unknown_users"):
        return f"{text} (the gain over an unadapted run is smaller)" if row["gain"] > 0 else text
    gain_of_other_columns = text if run.schema.columns(without=run.config.data.user) else ""
    return f"{gain_of_other_columns}; {unknown_users_notice(run, 'development text')}"


def unknown_users_notice(run: Scorer, kind_of_text: str) -> str:
    """Return a notice that no text is by a known user, with the command that measures the gain from learning users.

    `kind_of_text` names the texts, such as "development text".
    """
    command = f"factorcell tune-online {run.folder} TABLE"
    return f"no {kind_of_text} is by a known user; `{command}` measures the gain from learning users"


def find_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a warning for each run whose training stopped early or whose context has no significant gain."""
    return _warnings(runs, checks_gain=True, advice="interpret its use of contexts with caution")


def training_warnings(runs: Iterable[Run]) -> list[str]:
    """Return a warning for each run whose training stopped early."""
    return _warnings(runs, checks_gain=False, advice="interpret its figures with caution")


def _warnings(runs: Iterable[Run], checks_gain: bool, advice: str) -> list[str]:
    """Return a line for each run with a reason for a warning; the line ends with `advice`."""
    lines = []
    for run in runs:
        try:
            reasons = [*_early_stop_reasons(run), *(_insignificant_gain_reasons(run) if checks_gain else ())]
        except UserError as error:
            reasons = [f"its records cannot be read ({error.message})"]
        if reasons:
            lines.append(f"{run.folder}: {' and '.join(reasons)}; {advice}")
    return lines


def _early_stop_reasons(run: Run) -> Iterator[str]:
    """Yield a reason if training stopped before its last step for another cause than the option `patience`."""
    log = run.log()
    last_row = log[-1] if log else None
    if last_row is None or last_row["step"] >= last_row["steps"]:
        return
    is_best = [row["perplexity"] == row["best"] for row in log if row["split"] == "dev"]
    evaluations_since_best = is_best[::-1].index(True) if any(is_best) else len(is_best)
    if not 0 < run.config.training.patience <= evaluations_since_best:
        yield f"its training stopped after {last_row['step']:,} of {last_row['steps']:,} steps"


def _insignificant_gain_reasons(run: Run) -> Iterator[str]:
    """Yield a reason if the lower end of the interval of the measured gain is not above zero."""
    measurements = [training_facts(run.folder).get("context") or {}]
    results = saved_results.read(run.folder)
    measurements += [result["evaluation"] for result in results if result.get("kind") == "evaluate"]
    valid_measurements = [
        row
        for row in measurements
        if row.get("over") is None and row.get("gain_low") is not None and not row.get("only_unknown_users")
    ]
    latest_first = reversed(valid_measurements)  # in case of ties, `max` returns the first one
    measurement = max(latest_first, key=lambda row: float(row["texts"]), default=None)
    if measurement and measurement["gain_low"] <= 0:
        description = f"{format_difference('gain', measurement)}, {measurement['texts']:,} texts"
        yield f"its context does not significantly lower the perplexity ({description})"
