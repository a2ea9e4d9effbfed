"""The page about runs side by side: figures, curves, gains, confusions, options."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.evaluation import ngram
from factorcell.evaluation.cautions import cautions
from factorcell.evaluation.comparison import Candidate, compared, figure, told_difference
from factorcell.evaluation.results import find_models, kept_texts
from factorcell.model import kept_results
from factorcell.model.run import Run, facts
from factorcell.reports import charts
from factorcell.reports.elements import Row, ahead, chart, document, escaped, formatted, number_in, table


def report_page(folders: Sequence[str | Path]) -> str:
    """The HTML page about run folders, and all in folders of them: their last results, logs and options."""
    return run_report([_read(folder) for folder in find_models(list(map(Path, folders)), ngram.FILE)])


def _read(folder: Path) -> Row:
    """What the folder of a run, or of an n-gram model, holds for the page."""
    results = kept_results.read(folder)
    last = {row["kind"]: row for row in results}
    shown = kept_results.evaluated(results) or last.get("compare") or {}
    if (folder / ngram.FILE).is_file():
        texts = kept_texts(folder, shown.get("texts_key"))
        return {"folder": str(folder), "title": folder.name, "config": {}, "evaluation": shown or None, "texts": texts}
    run = Run.open(folder)
    trained = facts(folder)
    if not shown and (best := run.best()):
        shown = {"table": "development texts", **best}
    classified = last.get("classify")
    key = shown.get("texts_key", trained.get("development_key"))
    return {
        "folder": str(folder),
        "title": folder.name,
        "config": run.config.to_dict(),
        "schema": [v.describe() for v in run.schema.variables],
        "evaluation": shown or None,
        "log": run.log(),
        "by": kept_results.gains(results),
        "classification": classified and {**classified, **classified["confusion"]},
        "texts": kept_texts(folder, key),
        "trained": [key, *(trained.get(name) for name in ("texts", "source", "finetuned"))],
        "cautions": cautions([run]),
    }


def run_report(runs: Sequence[Row]) -> str:
    """Runs side by side: numbers, options, learning curves, gains by value, confusion matrices.

    Trainings of one model that differ in their seed share a row, and the first of them has the curves and charts.
    """
    models = _by_model(runs)
    firsts = [trainings[0] for trainings in models]
    titles = [str(run.get("title") or run["folder"]) for run in firsts]
    alone = len(models) == 1
    sections = [("Figures" if alone else "Side by side", _run_table(models, titles))]
    curves = [
        {**row, "model": title}
        for run, title in zip(firsts, titles, strict=True)
        for row in run.get("log") or []
        if row.get("split") == "dev"
    ]
    if curves:
        figures = [
            chart(charts.learning_curves(curves, x), f"curves-{x}", f"Learning curves over {x}")
            for x in ("minutes", "tokens")
        ]
        sections.append(("Learning curves", '<div class="grid">' + "\n".join(figures) + "</div>"))
    learned = [run for run in firsts if "schema" in run]  # an n-gram model has neither options nor context
    shared = not alone and all(run.get("schema") == learned[0].get("schema") for run in learned)
    if shared and learned and learned[0].get("schema"):
        sections.append(("Context", _context(learned[0])))
    for index, (run, title) in enumerate(zip(firsts, titles, strict=True)):
        content = ("" if shared else _context(run)) + _judged(run, index)
        sections += [("Context" if alone else title, content)] if content else []
    if any(run["config"] for run in firsts):
        named = [title for run, title in zip(firsts, titles, strict=True) if "schema" in run]
        sections.append(("Options", _options(learned, named)))
    name = titles[0] if alone else f"{len(runs)} runs side by side"
    lines = [line for run in runs for line in run.get("cautions") or ()]
    return document(name, sections, kicker="factorcell report", cautions=lines)


def _by_model(runs: Sequence[Row]) -> list[list[Row]]:
    """The trainings of each model: runs with the same options but for the seed, of the same texts.

    Models that are not adapted come first, since the others are measured from the first, and n-gram models last;
    trainings by their seed.
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
    """Where a model stands: whether it is an n-gram model, and whether it is adapted."""
    model = run["config"].get("model", {})
    return "schema" not in run, bool(model.get("adapt") or model.get("output_bias"))


# A column of the table of runs: its title, where its number is, how it reads.
COLUMNS = (
    ("perplexity", "perplexity", ".2f"),
    ("without unknown tokens", "perplexity_known", ".2f"),
    ("bits per byte", "bits_per_byte", ".3f"),
    ("targets", "targets", ",.0f"),
    ("accuracy", "accuracy", ".1%"),
    ("macro F1", "macro_f1", ".3f"),
    ("AUC", "auc", ".3f"),
    ("minutes", "minutes", ".1f"),
)


def _run_table(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> str:
    """The numbers that there are, one row a model, and which differences are more than chance."""
    candidates = [
        Candidate(title, [_numbers(run) for run in trainings], [run.get("texts") or {} for run in trainings])
        for trainings, title in zip(models, titles, strict=True)
    ]
    found = compared(candidates)
    kept = [column for column in COLUMNS if any(number_in(row.get(column[1])) is not None for row in found)]
    differences = found.titles()
    every = [run for trainings in models for run in trainings]
    texts = {title: told for title, told in TEXTS.items() if any(told(run) for run in every)}
    rows = [
        (
            row["model"],
            ", ".join(str(run["folder"]) for run in trainings),
            *(", ".join(dict.fromkeys(filter(None, map(told, trainings)))) or None for told in texts.values()),
            *(_figure(row, key, form) for _, key, form in kept),
            *(told_difference(name, row) for name in differences),
        )
        for row, trainings in zip(found, models, strict=True)
    ]
    best = ahead(found.rows, [key for _, key, _ in kept], start=2 + len(texts))
    notes = "".join(f'<p class="muted">{escaped(line)}</p>' for line in found.notes("bold"))
    header = ("run", "folder", *texts, *(column[0] for column in kept), *differences.values())
    return table(header, rows, best) + notes


def _evaluated(run: Row) -> str | None:
    """Of which table the perplexities are."""
    found: str | None = (run.get("evaluation") or {}).get("table")
    return found


def _classified(run: Row) -> str | None:
    """What was told apart, and in which table."""
    classes = run.get("classification") or {}
    named = [classes.get("target") or "the context", *filter(None, [classes.get("table")])]
    return ", ".join(named) if classes else None


def _gain(run: Row) -> str | None:
    """The gain of a whole table, and what it is over."""
    evaluation = run.get("evaluation") or {}
    told = told_difference("gain", evaluation)
    return told and f"{told} over {_over(evaluation.get('over'))}"


def _bits_difference(run: Row) -> str | None:
    """Return the difference in bits per byte of a whole table over the baseline that it was evaluated with."""
    evaluation = run.get("evaluation") or {}
    difference = told_difference("bits_per_byte_difference", evaluation)
    return difference and f"{difference} above {evaluation.get('bits_per_byte_over')}"


def _over(name: str | None) -> str:
    """A baseline by its name; the same model without its context has none."""
    return name or "itself without context"


# Columns of the table of runs that say of which texts its numbers are, and over what a gain is.
TEXTS: dict[str, Callable[[Row], str | None]] = {
    "perplexity of": _evaluated,
    "accuracy of": _classified,
    "gain": _gain,
    "bits per byte above another model": _bits_difference,
}


def _numbers(run: Row) -> Row:
    """All figures of a run, without its gain and difference over a baseline of its own, which is not another row."""
    seconds = max((row["seconds"] for row in run.get("log") or [] if "seconds" in row), default=None)
    minutes = None if seconds is None else seconds / 60
    figures = {**(run.get("classification") or {}), **(run.get("evaluation") or {}), "minutes": minutes}
    own = {**Interval(0.0).row("gain"), **Interval(0.0).row("bits_per_byte_difference")}
    return {name: value for name, value in figures.items() if name not in own}


def _figure(row: Row, key: str, form: str) -> tuple[float, str] | None:
    """A cell: a number with how it reads, and the spread of its trainings."""
    number = number_in(row.get(key))
    return None if number is None else (number, figure(row, key, form, mark=""))


def _context(run: Row) -> str:
    """What the context of a run is."""
    lines = "".join(f"<li>{escaped(line)}</li>" for line in run.get("schema") or ())
    return f"<ul>{lines}</ul>" if lines else ""


def _judged(run: Row, index: int) -> str:
    """Gains by value and the confusion matrix of one run."""
    content, figures = "", list[str]()
    for name, variable, over, rows in run.get("by") or ():
        gains = [row for row in rows if number_in(row.get("gain")) is not None]
        title = f"Perplexity of {name} by {variable}" + (f", gain over {_over(over)}" if gains else "")
        if gains:
            figure = charts.gains_by_value(gains, over=over)
            alt = f"Gain over {_over(over)} by {variable}, {name}"
            caption = f"{escaped(name)} by {escaped(variable)}; grey: no difference, or too few texts to tell"
            figures.append(chart(figure, f"gains-{index}-{len(figures)}", alt, caption))
        lines = [{**row, "gain": told_difference("gain", row)} for row in rows]
        content += _folded(title, lines, ("value", "count", "targets", "perplexity", "gain"))
    classes = run.get("classification") or {}
    confusion = classes.get("confusion") or classes
    target = _classified(run) or ""
    if confusion.get("labels") and confusion.get("counts") is not None:
        figure = charts.confusion_matrix(confusion["labels"], confusion["counts"])
        figures.append(chart(figure, f"confusion-{index}", f"Confusion matrix of {target}", escaped(target)))
    names = ("value", "count", "precision", "recall", "f1", "auc")
    content += _folded(f"Classification of {target} by value", classes.get("values") or [], names)
    if figures:
        content += '<div class="grid">' + "\n".join(figures) + "</div>"
    return content


def _folded(title: str, rows: Sequence[Row], names: Sequence[str]) -> str:
    """A table of those of the columns `names` that the rows have, folded away."""
    if not rows:
        return ""
    forms = {"count": ",.0f", "targets": ",.0f", "perplexity": ".2f"}
    kept = [name for name in names if any(row.get(name) is not None for row in rows)]
    cells = [
        [row[name] if isinstance(row[name], str) else formatted(row.get(name), forms.get(name, ".3f")) for name in kept]
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
