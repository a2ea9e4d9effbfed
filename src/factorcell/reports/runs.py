"""The page of `factorcell report` about runs: metrics, learning curves, gains, confusion matrices, options."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.bootstrap import Interval
from factorcell.evaluation.comparison import (
    COMPARED_FIGURES,
    FIGURE_FORMATS,
    ComparedModel,
    Comparison,
    compare_models,
    format_difference,
    format_figure,
)
from factorcell.evaluation.results import find_models, prediction_fields, saved_text_figures
from factorcell.evaluation.run_warnings import EFFECT, find_warnings
from factorcell.finite import is_number
from factorcell.model import model_card, ngram, saved_results
from factorcell.model.run import Run, training_facts
from factorcell.model.used_options import unused_options
from factorcell.reports import charts
from factorcell.reports.elements import chart, collapsible, document, escape, grid, note, table

Row = Mapping[str, Any]

VALUE_FORMATS = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f"}
CLASS_FORMATS = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
SIZES = ("parameters", "minutes")
KEY_FIGURES = ("perplexity", "accuracy", "bits_per_byte")
# Keys of the differences between a run and the baseline with which `evaluate` compared it.
BASELINE_DIFFERENCES = {*Interval(0.0).to_row("gain"), *Interval(0.0).to_row("bits_per_byte_difference")}


def report_page(folders: Sequence[str | Path]) -> str:
    """Return an HTML page about runs with their latest results, logs and options.

    Args:
        folders: Run folders, folders of n-gram models, or folders that contain them.

    Returns:
        A self-contained HTML page.

    Raises:
        UserError: A folder contains no run, or a file in it is not valid.
    """
    return run_report([_read(folder) for folder in find_models(list(map(Path, folders)), ngram.FILE)])


def _read(folder: Path) -> Row:
    """Read the results, logs and options of a run or of an n-gram model."""
    results = saved_results.read(folder)
    run = None if (folder / ngram.FILE).is_file() else Run.open(folder)
    # A run with a mixture may also have results of its neural model alone, which the page does not mix with the others.
    predictor = None if run is None else prediction_fields(run).get("predictor")
    results = [row for row in results if row.get("evaluation", row).get("predictor") == predictor]
    latest = {row["kind"]: row for row in results}
    evaluation = saved_results.latest_evaluation(results) or latest.get("compare") or {}
    if run is None:
        texts = saved_text_figures(folder, evaluation.get("texts_key"))
        return {"folder": str(folder), "title": folder.name, "config": {}, "evaluation": evaluation, "texts": texts}
    facts = training_facts(folder)
    texts_key = evaluation.get("texts_key", None if predictor else facts.get("development_key"))
    if not evaluation and predictor:
        evaluation = {"table": "development texts", "perplexity": model_card.mixture_perplexity(run)}
    elif not evaluation and (best := run.best_evaluation()):
        evaluation = {"table": "development texts", **best}
    classification = latest.get("classify")
    if classification:
        classification = {**classification, **classification["confusion"]}
    return {
        "folder": str(folder),
        "title": folder.name,
        "config": run.config.to_dict(),
        "is_adapted": run.model.is_adapted,
        "unused": unused_options(run.config, run.schema),
        "schema": [variable.describe() for variable in run.schema.variables],
        "evaluation": evaluation,
        "log": run.log(),
        "predictor": predictor,
        "by": saved_results.latest_gains(results),
        "classification": classification,
        "texts": saved_text_figures(folder, texts_key),
        # Trainings on the same texts have equal lists:
        "trained": [texts_key, *(facts.get(name) for name in ("texts", "source", "finetuned"))],
        "cautions": find_warnings([run]),
    }


def run_report(runs: Sequence[Row]) -> str:
    """Return the HTML page about `runs`, the rows that `_read` returns.

    Trainings of a model with different seeds share one row of the table; learning curves and charts show only the first
    of these trainings.
    """
    models = _group_by_model(runs)
    first_trainings = [first_training for first_training, *_ in models]
    titles = [str(run["title"]) for run in first_trainings]
    if len(set(titles)) < len(titles):
        titles = [str(run["folder"]) for run in first_trainings]
    is_single = len(models) == 1
    comparison = _compare(models, titles)
    sections = [("Results" if is_single else "Comparison", _result_tables(comparison, models))]
    titled_runs = list(zip(first_trainings, titles, strict=True))
    curves = [
        {**row, "model": f"{title} (neural model alone)" if run.get("predictor") else title}
        for run, title in titled_runs
        for row in run.get("log") or []
    ]
    if charts.has_curve(curves):
        # The two curves of a single run differ only in the labels of the x axis.
        units = list(charts.PROGRESS_UNITS)[: 1 if is_single else None]
        figures = [chart(charts.learning_curves(curves, x), f"curves-{x}", f"Learning curves over {x}") for x in units]
        sections.append(("Learning curves", grid(*figures)))
    # N-gram models have no options and no context.
    neural_runs = [(run, title) for run, title in titled_runs if "schema" in run]
    schemas = {tuple(run["schema"]) for run, _ in neural_runs}
    has_shared_schema = not is_single and len(schemas) == 1
    if has_shared_schema and any(schemas):
        (first_run, _), *_ = neural_runs
        sections.append(("Context", _context(first_run)))
    for index, (run, title) in enumerate(titled_runs):
        content = ("" if has_shared_schema else _context(run)) + _gains_and_confusion(run, index)
        if content:
            sections.append(("Context" if is_single else title, content))
    if any(run["config"] for run in first_trainings):
        sections.append(("Options", _options_tables(neural_runs)))
    name = titles[0] if is_single else f"Comparison of {len(runs)} runs"
    cautions = [caution for run in runs for caution in run.get("cautions") or ()]
    key_figures = _key_figures(comparison, first_trainings)
    return document(name, sections, kicker="factorcell report", figures=key_figures, cautions=cautions)


def _group_by_model(runs: Sequence[Row]) -> list[list[Row]]:
    """Group the trainings of the same model: those on the same texts with the same options except for the seed.

    Unadapted models come first, because the other models are compared with the first one; n-gram models come last. The
    trainings of a model are in the order of their seeds.
    """
    models: dict[str, list[Row]] = {}
    for index, run in enumerate(runs):
        config = {section: dict(options) for section, options in run["config"].items()}
        for name in ("seed", "threads", "device"):
            config.get("training", {}).pop(name, None)
        # A run whose training is unknown is a model of its own.
        model_key = json.dumps([config, run["trained"]], sort_keys=True) if run.get("trained") else str(index)
        models.setdefault(model_key, []).append(run)
    for trainings in models.values():
        trainings.sort(key=lambda run: run["config"].get("training", {}).get("seed", 0))
    return sorted(models.values(), key=lambda trainings: _sort_key(trainings[0]))


def _sort_key(run: Row) -> tuple[bool, bool]:
    """Return whether a run is an n-gram model, and whether the run is adapted."""
    return "schema" not in run, bool(run.get("is_adapted"))


def _compare(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> Comparison:
    return compare_models(
        [
            ComparedModel(title, [_metrics(run) for run in trainings], [run.get("texts") or {} for run in trainings])
            for trainings, title in zip(models, titles, strict=True)
        ]
    )


def _key_figures(comparison: Comparison, runs: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the results to show first: those of the best model if the models are comparable, otherwise of each."""
    figures: list[tuple[str, str]] = []
    for name in KEY_FIGURES:
        difference, higher_is_better = COMPARED_FIGURES[name]
        rows = [row for row in comparison if is_number(row.get(name))]
        title = name.replace("_", " ")
        if len(comparison) == 1:
            figures += [(format_figure(row, name, FIGURE_FORMATS[name]), title) for row in rows]
        elif len(rows) > 1 and all(row.get(difference) is not None for row in rows[1:]):
            best = (max if higher_is_better else min)(rows, key=lambda row: float(row[name]))
            label = f"{title} of {best['model']}, the {'highest' if higher_is_better else 'lowest'} of {len(rows)}"
            figures.append((format_figure(best, name, FIGURE_FORMATS[name]), label))
            if text := format_difference(difference, best):
                figures.append((text, f"{comparison.titles()[difference]} of {best['model']}"))
        else:
            figures += [(format_figure(row, name, FIGURE_FORMATS[name]), f"{title} of {row['model']}") for row in rows]
    if len(comparison) == 1:
        evaluation = runs[0].get("evaluation") or {}
        if gain := format_difference("gain", evaluation):
            figures.insert(1, (gain, _difference_name(evaluation.get("over"))))
    return figures


def _result_tables(comparison: Comparison, models: Sequence[Sequence[Row]]) -> str:
    """Return a table of metrics and a table of sources and sizes, each with one row per model, and notes."""
    lines, columns = comparison.table()
    titles = [str(row["model"]) for row in comparison]
    formats = {"targets": ",", "macro_f1": ".3f", "auc": ".3f", "parameters": ",.0f", "minutes": ".2f"}
    source_columns = dict.fromkeys(("model", "folder", "perplexity on", "accuracy on"))
    source_lines = []
    for row, trainings in zip(comparison, models, strict=True):
        cells_per_training = [_source_cells(run) for run in trainings]
        line = {"model": row["model"], "folder": ", ".join(str(run["folder"]) for run in trainings)}
        for column in dict.fromkeys(name for cells in cells_per_training for name in cells):
            line[column] = ", ".join(dict.fromkeys(cells[column] for cells in cells_per_training if column in cells))
            source_columns[column] = None
        source_lines.append({**line, **{name: row.get(name) for name in formats}})
    notes = "".join(map(note, [*comparison.notes(), *_mixture_notes(models, titles)]))
    metrics = [name for name in columns if name not in SIZES]
    return table(lines, metrics) + notes + table(source_lines, {**dict.fromkeys(source_columns, ""), **formats})


def _mixture_notes(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> list[str]:
    """Return a note that names the runs that predict with a mixture, if any."""
    names = [title for (run, *_), title in zip(models, titles, strict=True) if run.get("predictor")]
    if not names:
        return []
    return [
        f"{', '.join(names)}: predictions of the mixture of the neural model and n-gram counts, which a gain over "
        "other models includes; learning curves show the neural model alone"
    ]


def _metrics(run: Row) -> Row:
    """Return the metrics of a run, without the differences to the baseline with which `evaluate` compared it.

    The differences in the table are to its first model instead, and this baseline need not be in the table.
    """
    seconds = max((row["seconds"] for row in run.get("log") or [] if "seconds" in row), default=None)
    minutes = None if seconds is None else seconds / 60
    figures = {**(run.get("classification") or {}), **(run.get("evaluation") or {}), "minutes": minutes}
    return {name: value for name, value in figures.items() if name not in BASELINE_DIFFERENCES}


def _source_cells(run: Row) -> dict[str, str]:
    """Return cells with the tables on which a run was evaluated, and with its differences to the baseline there.

    The title of a difference names its baseline.
    """
    evaluation: Row = run.get("evaluation") or {}
    gain, bits = (format_difference(name, evaluation) for name in ("gain", "bits_per_byte_difference"))
    cells = {
        "perplexity on": evaluation.get("table"),
        "accuracy on": _classification_title(run),
        _difference_name(evaluation.get("over")): gain,
        f"bits per byte above {evaluation.get('bits_per_byte_over')}": bits,
    }
    return {title: text for title, text in cells.items() if text}


def _classification_title(run: Row) -> str | None:
    classification = run.get("classification")
    if not classification:
        return None
    return ", ".join(filter(None, [classification.get("target") or "the context", classification.get("table")]))


def _difference_name(baseline: str | None) -> str:
    """Return the name of the difference to a baseline, or to the same run without context if `baseline` is None."""
    return f"gain over {baseline}" if baseline else EFFECT


def _context(run: Row) -> str:
    """Return a list of the context variables of a run."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in run.get("schema") or ())
    return f"<ul>{lines}</ul>" if lines else ""


def _gains_and_confusion(run: Row, index: int) -> str:
    """Return the gains of one run by value, and its confusion matrix, as charts and collapsible tables."""
    tables, figures = "", list[str]()
    for table_name, variable, baseline, rows in run.get("by") or ():
        title = f"Perplexity on {table_name} by {variable}"
        if rows_with_gain := [row for row in rows if is_number(row.get("gain"))]:
            figure = charts.gains_by_value(rows_with_gain, baseline)
            name = _difference_name(baseline)
            alt = f"{name[:1].upper()}{name[1:]} by {variable}, {table_name}"
            caption = f"{table_name} by {variable}. Grey bars: not significant, or too few texts."
            figures.append(chart(figure, f"gains-{index}-{len(figures)}", alt, caption))
            title += f", {name}"
        column = "gain" if baseline else "effect"
        rows_with_texts = [{**row, column: format_difference("gain", row)} for row in rows]
        tables += collapsible(title, table(rows_with_texts, {**VALUE_FORMATS, column: ""}))
    if classification := run.get("classification"):
        title = _classification_title(run) or ""
        figure = charts.confusion_matrix(classification["labels"], classification["counts"])
        figures.append(chart(figure, f"confusion-{index}", f"Confusion matrix of {title}", title))
        tables += collapsible(f"Classification of {title} by value", table(classification["values"], CLASS_FORMATS))
    return tables + (grid(*figures) if figures else "")


def _options_tables(runs: Sequence[tuple[Row, str]]) -> str:
    """Return a table of the options that differ between the runs, and a collapsible table of all options."""
    rows: dict[str, dict[str, str]] = {}
    for run, title in runs:
        for section, options in run["config"].items():
            for key, value in options.items():
                name = f"{section}.{key}"
                is_unused = key in run.get("unused", ())
                rows.setdefault(name, {"option": name})[title] = "not used" if is_unused else _format_option(value)
    titles = [title for _, title in runs]
    columns = ["option", *titles]
    differing = [row for row in rows.values() if len({row.get(title) for title in titles}) > 1]
    differing_table = table(differing, columns) if differing else ""
    return differing_table + collapsible("All options", table(list(rows.values()), columns))


def _format_option(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)
