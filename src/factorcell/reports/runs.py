"""The page about runs side by side: figures, curves, gains, confusions, options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.model.run import Run
from factorcell.reports import charts
from factorcell.reports.elements import Row, chart, document, escaped, formatted, number_in, table


def report_page(folders: Sequence[str | Path]) -> str:
    """The HTML page about run folders: their last results, logs and options."""
    runs = []
    for folder in map(Path, folders):
        run = Run.open(folder)
        results = files.read_rows(folder / "results.jsonl")
        last = {row["kind"]: row for row in results}
        evaluated = last.get("evaluate", {})
        classified = last.get("classify")
        runs.append(
            {
                "folder": str(folder),
                "title": folder.name,
                "config": run.config.to_dict(),
                "schema": [v.describe() for v in run.schema.variables],
                "evaluation": evaluated.get("evaluation") or last.get("compare") or run.best(),
                "log": run.log(),
                "by": {name: rows for row in results if row["kind"] == "evaluate" for name, rows in row["by"].items()},
                "classification": classified and {**classified, **classified["confusion"]},
            }
        )
    return run_report(runs)


def run_report(runs: Sequence[Row]) -> str:
    """Runs side by side: numbers, options, learning curves, gains by value, confusion matrices."""
    titles = [str(run.get("title") or run["folder"]) for run in runs]
    alone = len(runs) == 1
    sections = [("Figures" if alone else "Side by side", _run_table(runs, titles))]
    curves = [
        {**row, "model": title}
        for run, title in zip(runs, titles, strict=True)
        for row in run.get("log") or []
        if row.get("split") == "dev"
    ]
    if curves:
        figures = [
            chart(charts.learning_curves(curves, x), f"curves-{x}", f"Learning curves over {x}")
            for x in ("minutes", "tokens")
        ]
        sections.append(("Learning curves", '<div class="grid">' + "\n".join(figures) + "</div>"))
    for index, (run, title) in enumerate(zip(runs, titles, strict=True)):
        sections += _run_details(run, "Context" if alone else title, index)
    if any(run["config"] for run in runs):
        sections.append(("Options", _options(runs, titles)))
    name = titles[0] if alone else f"{len(runs)} runs side by side"
    return document(name, sections, kicker="factorcell report")


# A column of the table of runs: its title, where its number is, how it reads, whether higher is better.
COLUMNS: tuple[tuple[str, str, str, bool | None], ...] = (
    ("perplexity", "perplexity", ".2f", False),
    ("without unknown tokens", "perplexity_known", ".2f", False),
    ("targets", "targets", ",.0f", None),
    ("accuracy", "accuracy", ".1%", True),
    ("macro F1", "macro_f1", ".3f", True),
    ("AUC", "auc", ".3f", True),
    ("minutes", "minutes", ".1f", None),
)


def _run_table(runs: Sequence[Row], titles: Sequence[str]) -> str:
    """The numbers that there are, one row a run."""
    numbers = []
    for run in runs:
        seconds = max((row["seconds"] for row in run.get("log") or [] if "seconds" in row), default=None)
        minutes = None if seconds is None else seconds / 60
        numbers.append({**(run.get("classification") or {}), **(run.get("evaluation") or {}), "minutes": minutes})
    kept = [column for column in COLUMNS if any(number_in(row.get(column[1])) is not None for row in numbers)]
    rows = [
        (title, str(run["folder"]), *(formatted(row.get(key), form) for _, key, form, _ in kept))
        for run, title, row in zip(runs, titles, numbers, strict=True)
    ]
    best = {j: high for j, (*_, high) in enumerate(kept, start=2) if high is not None}
    return table(("run", "folder", *(column[0] for column in kept)), rows, best)


def _run_details(run: Row, title: str, index: int) -> list[tuple[str, str]]:
    """The sections of one run: what its context is, gains by value, the confusion matrix."""
    content = ""
    if run.get("schema"):
        content += "<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in run["schema"]) + "</ul>"
    figures: list[str] = []
    for variable, rows in (run.get("by") or {}).items():
        gains = [row for row in rows if number_in(row.get("gain")) is not None]
        if gains:
            figure = charts.gains_by_value(gains)
            alt = f"Gain over the unadapted model by {variable}"
            figures.append(chart(figure, f"gains-{index}-{len(figures)}", alt, f"by {escaped(variable)}"))
        content += _folded(f"Perplexity by {variable}", rows, ("value", "count", "targets", "perplexity", "gain"))
    classes = run.get("classification") or {}
    confusion = classes.get("confusion") or classes
    target = str(classes.get("target") or "the context")
    if confusion.get("labels") and confusion.get("counts") is not None:
        figure = charts.confusion_matrix(confusion["labels"], confusion["counts"])
        figures.append(chart(figure, f"confusion-{index}", f"Confusion matrix of {target}", escaped(target)))
    names = ("value", "count", "precision", "recall", "f1", "auc")
    content += _folded(f"Classification of {target} by value", classes.get("values") or [], names)
    if figures:
        content += '<div class="grid">' + "\n".join(figures) + "</div>"
    return [(title, content)] if content else []


def _folded(title: str, rows: Sequence[Row], names: Sequence[str]) -> str:
    """A table of those of the columns `names` that the rows have, folded away."""
    if not rows:
        return ""
    forms = {"count": ",.0f", "targets": ",.0f", "perplexity": ".2f", "gain": "+.1%"}
    kept = [name for name in names if any(row.get(name) is not None for row in rows)]
    cells = [
        [str(row[name]) if name == "value" else formatted(row.get(name), forms.get(name, ".3f")) for name in kept]
        for row in rows
    ]
    return f"<details><summary>{escaped(title)}</summary>{table(kept, cells)}</details>"


def _options(runs: Sequence[Row], titles: Sequence[str]) -> str:
    """The options that differ between the runs, and all of them folded away."""
    flat = [
        {f"{section}.{key}": value for section, options in run["config"].items() for key, value in options.items()}
        for run in runs
    ]
    keys = list(dict.fromkeys(key for options in flat for key in options))
    rows = [(key, *(_plain(options.get(key)) for options in flat)) for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    content = table(("option", *titles), differing) if differing else ""
    return content + f"<details><summary>All options</summary>{table(('option', *titles), rows)}</details>"


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)
