"""The trials of `factorcell tune` as a table for the terminal and as a page.

Each row is a trial: it has number, state, model, params (the sampled options) and perplexity, and if available
perplexity_known, accuracy, parameters and minutes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from factorcell.evaluation import statistics
from factorcell.evaluation.comparison import BEST_MARK
from factorcell.io.finite import format_option, is_number
from factorcell.reports.charts import INK, WIDTH, add_legend, colours, display_name, round_ticks, styled
from factorcell.reports.page import Chart, Page, Table, make_table
from factorcell.runs.saved_results import format_difference

Row = Mapping[str, Any]

METRICS = {"perplexity": ".2f", "perplexity_known": ".2f", "accuracy": ".1%", "parameters": ",.0f", "minutes": ".1f"}
DIFFERENCE_TITLE = "from best"  # header of the relative differences in perplexity to the best trial
MIN_TRIALS = 5  # number of complete trials from which the rank correlation of an option with the perplexity is reported
MAX_RATIO = 2.5  # perplexities above this multiple of the best one are not shown in charts
# Shapes of the marks by model, in the notation of matplotlib.
MARKERS = {"unadapted": "D", "softmaxbias": "^", "concatcell": "s", "factorcell": "o"}

SHOWN_TRIALS = 10  # trials that the page shows without a fold
REMARKS = (
    "the best trial has a ring, pruned trials are hollow; trials with a perplexity of more than "
    f"{MAX_RATIO:g} times the lowest are not shown",
    "brackets contain the 95 % interval of the difference to the best trial over development texts, without the "
    "variation between trainings with the same options",
    f"{BEST_MARK} marks a trial that is significantly better than all others",
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
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    page = Page(f"Search {name}", "factorcell tune", f"{len(rows)} trials: {counts}.", _key_figures(complete, target))
    charted = [row for row in rows if row["state"] in ("complete", "pruned") and is_number(row["perplexity"])]
    page.add("Perplexity by option", list(_option_charts(charted, complete, log_options)))
    folded = _trial_table(rows[SHOWN_TRIALS:], f"The other {len(rows[SHOWN_TRIALS:])} trials")
    page.add("Trials, the best first", tables=[_trial_table(rows[:SHOWN_TRIALS]), folded])
    page.remarks += REMARKS if charted else []
    return page.render()


def _key_figures(complete: Sequence[Row], target: str | None) -> list[tuple[str, str]]:
    """Return the number, perplexity, accuracy and size of the best trial; `complete` has the best trial first."""
    titles = {"perplexity": "lowest perplexity", "accuracy": f"accuracy of {target}", "parameters": "parameters"}
    return [
        figure
        for row in complete[:1]
        for figure in (
            (display_name(row["model"]), f"model of the best trial, number {row['number']}"),
            *((format(row[name], METRICS[name]), title) for name, title in titles.items() if is_number(row.get(name))),
        )
    ]


def _trial_table(rows: Sequence[Row], title: str = "") -> Table | None:
    """Return a table of trials with their metrics, and all options in one cell; a table with a title is folded."""
    lines, _columns = search_table(rows)
    for line, row in zip(lines, rows, strict=True):
        line["model"] = display_name(row["model"])
        line["options"] = ", ".join(f"{name} {format_option(value)}" for name, value in row["params"].items())
        for name in row.get("ahead", ()):
            line[name] = format(row[name], METRICS[name]) + BEST_MARK
    columns = ("number", "state", "model", *METRICS, DIFFERENCE_TITLE, "options")
    return make_table(lines, {name: METRICS.get(name, "") for name in columns}, title, is_folded=bool(title))


def _option_charts(charted: Sequence[Row], complete: Sequence[Row], log_options: Collection[str]) -> Iterator[Chart]:
    """Yield a chart for each option, those with the strongest correlations first."""
    correlations = {name: rank_correlation(complete, name) for name in option_names(charted)}
    for name in sorted(correlations, key=lambda name: -abs(correlations[name] or 0.0)):
        figure = perplexity_by_option(charted, name, is_log=name in log_options)
        correlation = correlations[name]
        caption = "" if correlation is None else f"Rank correlation {correlation:+.2f}".replace("-", "−")
        yield Chart(figure, name.replace("_", " ").capitalize(), caption)


@styled()
def perplexity_by_option(rows: Sequence[Row], name: str, *, is_log: bool = False) -> Figure:
    """Draw the perplexity of trials by the option `name`; the best trial has a ring, pruned trials are hollow.

    Trials without the option, and those with a perplexity above `MAX_RATIO` times the best one, are not shown.
    """
    figure = Figure(figsize=(WIDTH, 2.4))
    axes = figure.subplots()
    best = min(float(row["perplexity"]) for row in rows)
    top = min(max(float(row["perplexity"]) for row in rows), MAX_RATIO * best)
    shown = [row for row in rows if name in row["params"] and row["perplexity"] <= top]
    values = [row["params"][name] for row in shown]
    is_text = any(isinstance(value, str) for value in values)
    if is_text:
        choices = sorted(set(map(str, values)))
        values = [choices.index(str(value)) for value in values]
        axes.set_xticks(range(len(choices)), choices)
        axes.margins(x=0.3)
    for model, colour in colours(sorted({str(row["model"]) for row in shown})).items():
        marks = [(value, row) for value, row in zip(values, shown, strict=True) if row["model"] == model]
        fills = [to_rgba(colour, 0.0 if row["state"] == "pruned" else 0.75) for _, row in marks]
        style: Any = {"marker": MARKERS.get(model, "P"), "label": display_name(model)}
        perplexities = [row["perplexity"] for _, row in marks]
        axes.scatter([value for value, _ in marks], perplexities, 22, fills, edgecolors=colour, lw=0.8, **style)
    for value, row in zip(values, shown, strict=True):
        if row["perplexity"] == best:
            axes.plot(value, best, "o", ms=9, mfc="none", mec=INK, mew=0.9)
    if not is_text:
        axes.set_xscale("log" if is_log else "linear")
        round_ticks(axes.xaxis, 4, is_log=is_log)
    margin = 0.07 * (top - best) or 0.05 * best
    axes.set_ylim(best - margin, top + margin)
    round_ticks(axes.yaxis, 4)
    axes.grid(axis="y")
    add_legend(figure)
    return figure
