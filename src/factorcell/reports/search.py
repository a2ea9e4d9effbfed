"""The trials of `factorcell tune` as a table for the terminal and as a page.

Each row is a trial with number, state, model, params (its sampled options) and perplexity, and if available with
perplexity_known, accuracy, parameters and minutes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from factorcell.evaluation import statistics
from factorcell.evaluation.comparison import BEST_MARK, format_difference
from factorcell.finite import format_option, is_number
from factorcell.reports import elements
from factorcell.reports.charts import INK, WIDTH, add_legend, colours, display_name, round_ticks, styled

Row = Mapping[str, Any]

METRICS = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".1%", "parameters": ",.0f", "minutes": ".1f"}
DIFFERENCE_TITLE = "from best"  # header of the relative differences in perplexity to the best trial
MIN_TRIALS = 5  # complete trials required to report an option's rank correlation with the perplexity
MAX_RATIO = 2.5  # perplexities above this multiple of the best one are not shown in charts
# Shapes of the marks by model, in the notation of matplotlib.
MARKERS = {"unadapted": "D", "softmaxbias": "^", "concatcell": "s", "factorcell": "o"}

INTERVAL_NOTE = (
    "Brackets contain the 95 % interval, over development texts, of the difference to the best trial. It does not "
    f"include the variation between trainings with the same options. {BEST_MARK}: significantly better than all others."
)


def options(rows: Sequence[Row]) -> list[str]:
    """Return the names of the options that were sampled in any of the trials."""
    return list(dict.fromkeys(name for row in rows for name in row["params"]))


def search_table(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a flat row for each trial with its metrics and sampled options, and the names of the columns."""
    flat = []
    for row in rows:
        sampled = {name: format_option(value) for name, value in row["params"].items()}
        flat.append({**row, "number": str(row["number"]), DIFFERENCE_TITLE: format_difference("gain", row), **sampled})
    return flat, ["number", "state", "model", *METRICS, DIFFERENCE_TITLE, *options(rows)]


def rank_correlation(rows: Sequence[Row], name: str) -> float | None:
    """Return Spearman's correlation of a numeric option with the perplexity; None if there are too few trials."""
    pairs = [(row["params"][name], row["perplexity"]) for row in rows if name in row["params"]]
    if len(pairs) < MIN_TRIALS or any(isinstance(value, str) for value, _ in pairs):
        return None
    correlation: float | None = statistics.rank_correlation(*zip(*pairs, strict=True))["r"]
    return correlation


def search_page(name: str, rows: Sequence[Row], target: str | None, log_options: Collection[str]) -> str:
    """Return the page of the search in the folder `name`.

    Args:
        name: The name of the folder.
        rows: The trials, the best first.
        target: The column that the accuracies are for, if any.
        log_options: The options whose charts have a logarithmic axis.
    """
    complete = [row for row in rows if row["state"] == "complete"]
    best = _trial_table(complete[:10], ("number", "model")) + elements.note(INTERVAL_NOTE)
    sections = [("Best trials", best if complete else "<p>No trial is complete.</p>")]
    figures = []
    if any(row.get("accuracy") is not None for row in complete):
        caption = (
            f"Accuracy of predicting {target} by perplexity. Each mark is a trial; larger marks have a higher rank."
        )
        figure = accuracy_against_perplexity(complete)
        figures.append(elements.chart(figure, "accuracy", "Accuracy by perplexity", caption))
    charted = [row for row in rows if row["state"] in ("complete", "pruned") and is_number(row["perplexity"])]
    if charted and options(charted):
        figures.append(_by_option(charted, complete, log_options))
    if figures:
        sections.append(("Effects of the options", elements.grid(*figures)))
    every = elements.collapsible(f"All {len(rows)}, the best first", _trial_table(rows, ("number", "state", "model")))
    sections.append(("All trials", every))
    states = [row["state"] for row in rows]
    lead = f"{len(rows)} trials: {', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(states))}."
    return elements.document(f"Search {name}", sections, kicker="factorcell tune", lead=lead)


def _trial_table(rows: Sequence[Row], first_columns: Sequence[str]) -> str:
    """Return an HTML table of trials with `first_columns`, metrics and options."""
    flat, columns = search_table(rows)
    for line, row in zip(flat, rows, strict=True):
        line["model"] = display_name(row["model"])
        for name in row.get("ahead", ()):
            line[name] = format(row[name], METRICS[name]) + BEST_MARK
    return elements.table(flat, {name: METRICS.get(name, "") for name in (*first_columns, *columns[3:])})


def _by_option(charted: Sequence[Row], complete: Sequence[Row], log_options: Collection[str]) -> str:
    """Return the charts of the options, with the strongest correlations first."""
    correlations = {option: rank_correlation(complete, option) for option in options(charted)}
    order = sorted(correlations, key=lambda option: -abs(correlations[option] or 0.0))
    notes = {
        name: "" if correlations[name] is None else f"{correlations[name]:+.2f}".replace("-", "−") for name in order
    }
    caption = (
        "Perplexity by each option. The number next to the name of an option is its rank correlation with the "
        "perplexity over complete trials. A ring marks the "
        "best trial. Hollow marks are pruned trials, at their lowest perplexity. Trials with a perplexity of more than "
        f"{MAX_RATIO:g} times the lowest are not shown."
    )
    return elements.chart(
        perplexity_by_option(charted, notes, log_options), "options", "Perplexity by each option", caption
    )


@styled()
def accuracy_against_perplexity(rows: Sequence[Row]) -> Figure:
    """Draw accuracy by perplexity of the complete trials, the best ones at the top right.

    Models with a higher rank have larger marks. Trials without an accuracy are left out.
    """
    figure = Figure(figsize=(WIDTH, 3.9))
    axes = figure.subplots()
    shown = [row for row in rows if row["state"] == "complete" and row.get("accuracy") is not None]
    sizes = [22 + 5 * min(row["params"].get("rank", 2), 40) for row in shown]
    _scatter(axes, shown, [row["perplexity"] for row in shown], [100 * row["accuracy"] for row in shown], sizes)
    perplexities = [row["perplexity"] for row in shown]
    log = max(perplexities) > 5 * min(perplexities)
    axes.set_xscale("log" if log else "linear")
    round_ticks(axes.xaxis, log=log)
    round_ticks(axes.yaxis)
    axes.invert_xaxis()
    axes.set_xlabel("perplexity (decreasing to the right)")
    axes.set_title("accuracy in %")
    add_legend(figure)
    return figure


@styled()
def perplexity_by_option(rows: Sequence[Row], notes: Mapping[str, str], log_options: Collection[str] = ()) -> Figure:
    """Draw the perplexity by each option in one small chart per option; the marks of pruned trials are hollow.

    Args:
        rows: The trials, each with a perplexity.
        notes: The options, each with a text that is shown next to its name.
        log_options: The options whose charts have a logarithmic axis.
    """
    lines = math.ceil(len(notes) / 2)
    figure = Figure(figsize=(WIDTH, 0.4 + 1.75 * lines))
    panels = figure.subplots(lines, 2, squeeze=False, sharey=True).flat
    perplexities = [float(row["perplexity"]) for row in rows]
    best = min(perplexities)
    for (name, text), axes in zip(notes.items(), panels, strict=False):
        shown = [row for row in rows if name in row["params"]]
        values = [row["params"][name] for row in shown]
        if any(isinstance(value, str) for value in values):
            names = sorted(set(map(str, values)))
            values = [names.index(str(value)) for value in values]
            axes.set_xticks(range(len(names)), names)
            axes.margins(x=0.3)
        else:
            axes.set_xscale("log" if name in log_options else "linear")
            axes.update_datalim([(value, best) for value in values])
            axes.autoscale_view()
            round_ticks(axes.xaxis, 4, log=name in log_options)
        _scatter(axes, shown, values, [row["perplexity"] for row in shown], [18] * len(shown))
        for value, row in zip(values, shown, strict=True):
            if row["perplexity"] == best:
                axes.plot(value, best, "o", ms=9, mfc="none", mec=INK, mew=0.9)
        axes.set_title(name.replace("_", " "), color=INK)
        axes.set_title(text, loc="right", fontsize=8)
    for axes in panels:  # the last line may have only one chart
        axes.set_axis_off()
    top = min(max(perplexities), MAX_RATIO * best)
    room = 0.07 * (top - best) or 0.05 * best
    figure.axes[0].set_ylim(best - room, top + room)
    round_ticks(figure.axes[0].yaxis, 4)
    add_legend(figure)
    return figure


def _scatter(axes: Axes, rows: Sequence[Row], x: Sequence[float], y: Sequence[float], sizes: Sequence[float]) -> None:
    """Draw a mark for each trial in the colour and shape of its model, hollow if the trial was pruned."""
    names = {str(row["model"]) for row in rows}
    models = [model for model in MARKERS if model in names] + sorted(names - MARKERS.keys())
    for model, colour in colours(models).items():
        indices = [index for index, row in enumerate(rows) if row["model"] == model]
        axes.scatter(
            [x[index] for index in indices],
            [y[index] for index in indices],
            [sizes[index] for index in indices],
            [to_rgba(colour, 0.0 if rows[index]["state"] == "pruned" else 0.75) for index in indices],
            marker=MARKERS.get(model, "P"),
            edgecolors=colour,
            lw=0.8,
        )
        axes.plot([], [], MARKERS.get(model, "P"), color=colour, label=display_name(model))
    axes.grid(axis="y")
