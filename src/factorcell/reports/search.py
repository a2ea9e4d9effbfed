"""The trials of `factorcell tune` as a table for the terminal and as a page.

Each row is a trial: it has number, state, model, params (the sampled options) and perplexity, and if available
perplexity_known, accuracy, parameters and minutes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from factorcell.evaluation import statistics
from factorcell.evaluation.comparison import BEST_MARK
from factorcell.io.finite import format_option, is_number
from factorcell.reports import elements
from factorcell.reports.charts import INK, WIDTH, add_legend, colours, display_name, round_ticks, styled
from factorcell.runs.saved_results import format_difference

Row = Mapping[str, Any]

METRICS = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".1%", "parameters": ",.0f", "minutes": ".1f"}
DIFFERENCE_TITLE = "from best"  # header of the relative differences in perplexity to the best trial
MIN_TRIALS = 5  # number of complete trials from which the rank correlation of an option with the perplexity is reported
MAX_RATIO = 2.5  # perplexities above this multiple of the best one are not shown in charts
# Shapes of the marks by model, in the notation of matplotlib.
MARKERS = {"unadapted": "D", "softmaxbias": "^", "concatcell": "s", "factorcell": "o"}

INTERVAL_NOTE = (
    "Brackets contain the 95 % interval of the difference to the best trial, over development texts. The interval does "
    "not include the variation between trainings with the same options. "
    f"{BEST_MARK}: significantly better than all others."
)


def option_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the options that were sampled in any of the trials."""
    return list(dict.fromkeys(name for row in rows for name in row["params"]))


def search_table(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a flat row for each trial with its metrics and sampled options, and the names of the columns."""
    lines = []
    for row in rows:
        sampled_options = {name: format_option(value) for name, value in row["params"].items()}
        difference = format_difference(row, "gain_over_best")
        lines.append({**row, "number": str(row["number"]), DIFFERENCE_TITLE: difference, **sampled_options})
    return lines, ["number", "state", "model", *METRICS, DIFFERENCE_TITLE, *option_names(rows)]


def rank_correlation(rows: Sequence[Row], name: str) -> float | None:
    """Return Spearman's correlation of an option with the perplexity; None for texts and for too few trials."""
    rows_with_option = [row for row in rows if name in row["params"]]
    values = [row["params"][name] for row in rows_with_option]
    perplexities = [row["perplexity"] for row in rows_with_option]
    if len(values) < MIN_TRIALS or any(isinstance(value, str) for value in values):
        return None
    correlation: float | None = statistics.rank_correlation(values, perplexities)["r"]
    return correlation


def search_page(name: str, rows: Sequence[Row], target: str | None, log_options: Collection[str]) -> str:
    """Return the page of the search in the folder `name`.

    Args:
        name: The name of the folder.
        rows: The trials, the best first.
        target: The column whose values were predicted to measure the accuracies, or None.
        log_options: The options whose charts have a logarithmic axis.
    """
    complete = [row for row in rows if row["state"] == "complete"]
    best = complete[:10]
    best_trials = _metrics_table(best, ("number", "model")) + elements.note(INTERVAL_NOTE) + _options_table(best)
    sections = [("Best trials", best_trials if complete else "<p>No trial is complete.</p>")]
    figures = []
    if any(row.get("accuracy") is not None for row in complete):
        caption = (
            f"Accuracy of predicting {target}, plotted over the perplexity. Each mark is a trial; trials with a higher "
            "rank have larger marks."
        )
        figure = accuracy_against_perplexity(complete)
        figures.append(elements.chart(figure, "accuracy", "Accuracy by perplexity", caption))
    charted = [row for row in rows if row["state"] in ("complete", "pruned") and is_number(row["perplexity"])]
    if charted and option_names(charted):
        figures.append(_option_charts(charted, complete, log_options))
    if figures:
        sections.append(("Effects of the options", elements.grid(*figures)))
    all_trials = _metrics_table(rows, ("number", "state", "model"), last_column="options")
    sections.append(("All trials", elements.collapsible(f"All {len(rows)}, the best first", all_trials)))
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lead = f"{len(rows)} trials: {counts}."
    key_figures = _key_figures(complete, target)
    return elements.document(f"Search {name}", sections, kicker="factorcell tune", lead=lead, figures=key_figures)


def _key_figures(complete: Sequence[Row], target: str | None) -> list[tuple[str, str]]:
    """Return the perplexity, the accuracy and the size of the best trial; `complete` has the best trial first."""
    titles = {
        "perplexity": "lowest perplexity",
        "accuracy": f"accuracy of predicting {target}",
        "parameters": "parameters",
    }
    return [
        (format(row[name], METRICS[name]), f"{title}: trial {row['number']}, {display_name(row['model'])}")
        for row in complete[:1]
        for name, title in titles.items()
        if is_number(row.get(name))
    ]


def _options_table(rows: Sequence[Row]) -> str:
    """Return an HTML table with a row for each sampled option and a column for each trial."""
    columns = [f"trial {row['number']}" for row in rows]
    lines = [
        {
            "option": name.replace("_", " "),
            **{
                column: format_option(row["params"][name])
                for column, row in zip(columns, rows, strict=True)
                if name in row["params"]
            },
        }
        for name in option_names(rows)
    ]
    return elements.table(lines, ("option", *columns)) if lines else ""


def _metrics_table(rows: Sequence[Row], first_columns: Sequence[str], last_column: str = "") -> str:
    """Return an HTML table of trials with `first_columns`, metrics, and all options in one cell of `last_column`."""
    other_columns = (*METRICS, DIFFERENCE_TITLE, *filter(None, [last_column]))
    lines, _columns = search_table(rows)
    for line, row in zip(lines, rows, strict=True):
        line["model"] = display_name(row["model"])
        line["options"] = ", ".join(f"{name} {format_option(value)}" for name, value in row["params"].items())
        for name in row.get("ahead", ()):
            line[name] = format(row[name], METRICS[name]) + BEST_MARK
    return elements.table(lines, {name: METRICS.get(name, "") for name in (*first_columns, *other_columns)})


def _option_charts(charted: Sequence[Row], complete: Sequence[Row], log_options: Collection[str]) -> str:
    """Return the charts of the options, with the strongest correlations first."""
    correlations = {option: rank_correlation(complete, option) for option in option_names(charted)}
    order = sorted(correlations, key=lambda option: -abs(correlations[option] or 0.0))
    notes = {
        name: "" if correlations[name] is None else f"{correlations[name]:+.2f}".replace("-", "−") for name in order
    }
    caption = (
        "Perplexity by each option. The number next to the name of an option is its rank correlation with the "
        "perplexity over complete trials. A ring marks the best trial. Hollow marks are pruned trials, at their lowest "
        f"perplexity. Trials with a perplexity of more than {MAX_RATIO:g} times the lowest are not shown."
    )
    figure = perplexity_by_option(charted, notes, log_options)
    return elements.chart(figure, "options", "Perplexity by each option", caption)


@styled()
def accuracy_against_perplexity(rows: Sequence[Row]) -> Figure:
    """Draw accuracy over perplexity of the complete trials, with the best trials at the top right.

    Trials with a higher rank have larger marks. Trials without an accuracy are left out.
    """
    figure = Figure(figsize=(WIDTH, 3.9))
    axes = figure.subplots()
    shown = [row for row in rows if row["state"] == "complete" and row.get("accuracy") is not None]
    sizes = [22 + 5 * min(row["params"].get("rank", 2), 40) for row in shown]
    perplexities = [row["perplexity"] for row in shown]
    _draw_marks(axes, shown, perplexities, [100 * row["accuracy"] for row in shown], sizes)
    is_log = max(perplexities) > 5 * min(perplexities)
    axes.set_xscale("log" if is_log else "linear")
    round_ticks(axes.xaxis, is_log=is_log)
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
    line_count = math.ceil(len(notes) / 2)
    figure = Figure(figsize=(WIDTH, 0.4 + 1.75 * line_count))
    panels = figure.subplots(line_count, 2, squeeze=False, sharey=True).flat
    perplexities = [float(row["perplexity"]) for row in rows]
    best = min(perplexities)
    for (name, note), axes in zip(notes.items(), panels, strict=False):
        shown = [row for row in rows if name in row["params"]]
        values = [row["params"][name] for row in shown]
        if any(isinstance(value, str) for value in values):
            choices = sorted(set(map(str, values)))
            values = [choices.index(str(value)) for value in values]
            axes.set_xticks(range(len(choices)), choices)
            axes.margins(x=0.3)
        else:
            axes.set_xscale("log" if name in log_options else "linear")
            axes.update_datalim([(value, best) for value in values])
            axes.autoscale_view()
            round_ticks(axes.xaxis, 4, is_log=name in log_options)
        _draw_marks(axes, shown, values, [row["perplexity"] for row in shown], [18] * len(shown))
        for value, row in zip(values, shown, strict=True):
            if row["perplexity"] == best:
                axes.plot(value, best, "o", ms=9, mfc="none", mec=INK, mew=0.9)
        axes.set_title(name.replace("_", " "), color=INK)
        axes.set_title(note, loc="right", fontsize=8)
    for axes in panels:  # the iterator has one chart left if the number of options is odd
        axes.set_axis_off()
    top = min(max(perplexities), MAX_RATIO * best)
    margin = 0.07 * (top - best) or 0.05 * best
    first_axes, *_ = figure.axes  # the other axes share its y axis
    first_axes.set_ylim(best - margin, top + margin)
    round_ticks(first_axes.yaxis, 4)
    add_legend(figure)
    return figure


def _draw_marks(
    axes: Axes, rows: Sequence[Row], x: Sequence[float], y: Sequence[float], sizes: Sequence[float]
) -> None:
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
