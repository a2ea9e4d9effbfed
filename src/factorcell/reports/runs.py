"""The page about runs side by side: figures, curves, gains, confusion matrices, options."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.evaluation import ngram
from factorcell.evaluation.comparison import ComparedModel, compare_models, format_difference
from factorcell.evaluation.results import find_models, saved_text_figures
from factorcell.evaluation.run_warnings import find_warnings
from factorcell.finite import is_number
from factorcell.model import saved_results
from factorcell.model.run import Run, training_facts
from factorcell.reports import charts
from factorcell.reports.elements import chart, collapsible, document, escape, grid, note, table

Row = Mapping[str, Any]

BY_VALUE = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f", "gain": ""}
CLASSES = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
OWN = {
    **Interval(0.0).to_row("gain"),
    **Interval(0.0).to_row("bits_per_byte_difference"),
}  # of a run over its own baseline


def report_page(folders: Sequence[str | Path]) -> str:
    """Return the HTML page about run folders, and all in folders of them: their last results, logs and options."""
    return run_report([_read(folder) for folder in find_models(list(map(Path, folders)), ngram.FILE)])


def _read(folder: Path) -> Row:
    """Read what the page shows of a run or of an n-gram model."""
    results = saved_results.read(folder)
    last = {row["kind"]: row for row in results}
    shown = saved_results.latest_evaluation(results) or last.get("compare") or {}
    if (folder / ngram.FILE).is_file():
        texts = saved_text_figures(folder, shown.get("texts_key"))
        return {"folder": str(folder), "title": folder.name, "config": {}, "evaluation": shown, "texts": texts}
    run = Run.open(folder)
    trained = training_facts(folder)
    if not shown and (best := run.best_evaluation()):
        shown = {"table": "development texts", **best}
    classified = last.get("classify")
    key = shown.get("texts_key", trained.get("development_key"))
    return {
        "folder": str(folder),
        "title": folder.name,
        "config": run.config.to_dict(),
        "schema": [v.describe() for v in run.schema.variables],
        "evaluation": shown,
        "log": run.log(),
        "by": saved_results.latest_gains(results),
        "classification": classified and {**classified, **classified["confusion"]},
        "texts": saved_text_figures(folder, key),
        "trained": [key, *(trained.get(name) for name in ("texts", "source", "finetuned"))],
        "cautions": find_warnings([run]),
    }


def run_report(runs: Sequence[Row]) -> str:
    """Return the page of runs as `_read` returns them.

    Trainings of one model that differ in their seed share a row, and the first of them has the curves and charts.
    """
    models = _by_model(runs)
    firsts = [trainings[0] for trainings in models]
    titles = [str(run["title"]) for run in firsts]
    if len(set(titles)) < len(titles):
        titles = [str(run["folder"]) for run in firsts]
    alone = len(models) == 1
    sections = [("Figures" if alone else "Side by side", _run_table(models, titles))]
    named = list(zip(firsts, titles, strict=True))
    curves = [{**row, "model": title} for run, title in named for row in run.get("log") or [] if row["split"] == "dev"]
    if curves:
        figures = [
            chart(charts.learning_curves(curves, x), f"curves-{x}", f"Learning curves over {x}")
            for x in charts.PROGRESS
        ]
        sections.append(("Learning curves", grid(*figures)))
    learned = [
        (run, title) for run, title in named if "schema" in run
    ]  # n-gram models have neither options nor context
    shared = not alone and len({tuple(run["schema"]) for run, _ in learned}) == 1
    if shared and learned[0][0]["schema"]:
        sections.append(("Context", _context(learned[0][0])))
    for index, (run, title) in enumerate(named):
        content = ("" if shared else _context(run)) + _judged(run, index)
        sections += [("Context" if alone else title, content)] if content else []
    if any(run["config"] for run in firsts):
        sections.append(("Options", _options(learned)))
    name = titles[0] if alone else f"{len(runs)} runs side by side"
    lines = [line for run in runs for line in run.get("cautions") or ()]
    return document(name, sections, kicker="factorcell report", cautions=lines)


def _by_model(runs: Sequence[Row]) -> list[list[Row]]:
    """Group trainings of the same model: runs with the same options except for the seed, on the same texts.

    Unadapted models come first, since the others are compared with the first, and n-gram models last; trainings are
    ordered by seed.
    """
    models: dict[str, list[Row]] = {}
    for place, run in enumerate(runs):
        config = {part: dict(values) for part, values in run["config"].items()}
        for name in ("seed", "threads", "device"):
            config.get("training", {}).pop(name, None)
        key = json.dumps([config, run["trained"]], sort_keys=True) if run.get("trained") else str(place)
        models.setdefault(key, []).append(run)
    for trainings in models.values():
        trainings.sort(key=lambda run: run["config"].get("training", {}).get("seed", 0))
    return sorted(models.values(), key=lambda trainings: _place(trainings[0]))


def _place(run: Row) -> tuple[bool, bool]:
    model = run["config"].get("model", {})
    return "schema" not in run, bool(model.get("adapt") or model.get("output_bias"))


def _run_table(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> str:
    """Return the figures, a row per model, with the texts that they are of and the significant differences."""
    comparison = compare_models(
        [
            ComparedModel(title, [_figures(run) for run in trainings], [run.get("texts") or {} for run in trainings])
            for trainings, title in zip(models, titles, strict=True)
        ]
    )
    lines, columns = comparison.table()
    more = {"targets": ",", "macro_f1": ".3f", "auc": ".3f"}
    for line, row, trainings in zip(lines, comparison, models, strict=True):
        line |= {name: format(row[name], form) for name, form in more.items() if is_number(row.get(name))}
        line["folder"] = ", ".join(str(run["folder"]) for run in trainings)
        sources = [_sources(run) for run in trainings]
        for title in sources[0]:
            line[title] = ", ".join(dict.fromkeys(filter(None, (each[title] for each in sources))))
    notes = "".join(map(note, comparison.notes()))
    return table(lines, ("model", "folder", *_sources({}), *columns[1:], *more)) + notes


def _figures(run: Row) -> Row:
    """Return all figures of a run; its gain over its own baseline, which is not another row, is not among them."""
    seconds = max((row["seconds"] for row in run.get("log") or [] if "seconds" in row), default=None)
    minutes = None if seconds is None else seconds / 60
    figures = {**(run.get("classification") or {}), **(run.get("evaluation") or {}), "minutes": minutes}
    return {name: value for name, value in figures.items() if name not in OWN}


def _sources(run: Row) -> dict[str, str | None]:
    """Return which texts the figures of a run are of, and its differences to a baseline that is not a row."""
    evaluation: Row = run.get("evaluation") or {}
    gain, bits = (format_difference(name, evaluation) for name in ("gain", "bits_per_byte_difference"))
    return {
        "perplexity of": evaluation.get("table"),
        "accuracy of": _classified(run),
        "gain": gain and f"{gain} over {_over(evaluation.get('over'))}",
        "bits per byte above another model": bits and f"{bits} above {evaluation.get('bits_per_byte_over')}",
    }


def _classified(run: Row) -> str | None:
    classes = run.get("classification")
    return classes and ", ".join(filter(None, [classes.get("target") or "the context", classes.get("table")]))


def _over(name: str | None) -> str:
    return name or "itself without context"


def _context(run: Row) -> str:
    """Return the list of the context variables of a run."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in run.get("schema") or ())
    return f"<ul>{lines}</ul>" if lines else ""


def _judged(run: Row, index: int) -> str:
    """Return gains by value and the confusion matrix of one run."""
    content, figures = "", list[str]()
    for name, variable, over, rows in run.get("by") or ():
        title = f"Perplexity of {name} by {variable}"
        if gains := [row for row in rows if is_number(row.get("gain"))]:
            alt = f"Gain over {_over(over)} by {variable}, {name}"
            caption = f"{name} by {variable}; grey: no significant difference, or too few texts"
            figures.append(chart(charts.gains_by_value(gains, over), f"gains-{index}-{len(figures)}", alt, caption))
            title += f", gain over {_over(over)}"
        content += collapsible(
            title, table([{**row, "gain": format_difference("gain", row)} for row in rows], BY_VALUE)
        )
    if classes := run.get("classification"):
        target = _classified(run) or ""
        figure = charts.confusion_matrix(classes["labels"], classes["counts"])
        figures.append(chart(figure, f"confusion-{index}", f"Confusion matrix of {target}", target))
        content += collapsible(f"Classification of {target} by value", table(classes["values"], CLASSES))
    return content + (grid(*figures) if figures else "")


def _options(runs: Sequence[tuple[Row, str]]) -> str:
    """Return the options that differ between the runs, and all of them folded away."""
    rows: dict[str, dict[str, str]] = {}
    for run, title in runs:
        for section, options in run["config"].items():
            for key, value in options.items():
                name = f"{section}.{key}"
                rows.setdefault(name, {"option": name})[title] = _plain(value)
    titles = ["option", *(title for _, title in runs)]
    differing = [row for row in rows.values() if len({row.get(title) for title in titles[1:]}) > 1]
    content = table(differing, titles) if differing else ""
    return content + collapsible("All options", table(list(rows.values()), titles))


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)
