"""The page of `factorcell report` about runs: metrics, learning curves, gains, confusion matrices, options."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.evaluation.comparison import COMPARED_FIGURES, ComparedModel, Comparison, compare_models, format_figure
from factorcell.evaluation.diagnostics import differ
from factorcell.evaluation.results import find_models
from factorcell.io.finite import is_number
from factorcell.ngram import ngram
from factorcell.reports import charts
from factorcell.reports.elements import chart, collapsible, document, escape, grid, note, table
from factorcell.reports.run_results import figures_on, most_frequent_ids, read_mixtures, read_model, result_id
from factorcell.runs.saved_results import (
    BASELINE_GAIN,
    REFERENCES,
    UNKNOWN_CONTEXT_GAIN,
    format_difference,
    gain_title,
    measurements,
)

Row = Mapping[str, Any]

VALUE_FORMATS = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f"}
CLASS_FORMATS = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
MIXED = (
    "predictions of the mixture of the neural model and n-gram counts, which a gain over other models includes; any "
    "learning curves show the neural model alone"
)
NO_MIXTURE = (
    "the page has no mixture of a model and the n-gram model, whose perplexity is often lower than theirs; "
    "`factorcell compare` prints it, and `factorcell mix` creates it"
)


def report_page(folders: Sequence[str | Path]) -> str:
    """Return an HTML page about runs with their latest results, logs and options.

    Args:
        folders: Run folders, folders of n-gram models, or folders that contain them.

    Returns:
        A self-contained HTML page.

    Raises:
        UserError: A folder contains no run, or a file in it is not valid.
    """
    model_folders = find_models(list(map(Path, folders)), ngram.FILE)
    ngram_folders = [folder for folder in model_folders if (folder / ngram.FILE).is_file()]
    mixtures = [mixture for folder in ngram_folders for mixture in read_mixtures(folder)]
    return run_report([*map(read_model, model_folders), *mixtures])


def run_report(runs: Sequence[Row]) -> str:
    """Return the HTML page about `runs`, the rows that `read_model` returns.

    Trainings of a model with different seeds share one row of the table; learning curves and charts show only the first
    of these trainings.
    """
    models = _group_by_model(runs)
    first_trainings = [first_training for first_training, *_ in models]
    titles = [str(run["title"]) for run in first_trainings]
    if len(set(titles)) < len(titles):
        titles = [str(run["folder"]) for run in first_trainings]
    is_single = len(models) == 1
    evaluation, accuracy = most_frequent_ids(models)
    compared_models = []
    for trainings, title in zip(models, titles, strict=True):
        rows, texts = zip(*(figures_on(run, evaluation, accuracy) for run in trainings), strict=True)
        compared_models.append(ComparedModel(title, rows, texts, is_deterministic="schema" not in trainings[0]))
    comparison = compare_models(compared_models)
    places = [f"perplexities and bits per byte are those of {evaluation[0]}"] if evaluation else []
    places += [f"accuracies of {accuracy[1]} are those of {accuracy[0]}"] if accuracy else []
    sections = [] if is_single else [("Comparison", _comparison_table(comparison, models, places))]
    sections.append(("Results", _result_table(models, titles)))
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
    if 0 < len(neural_runs) < len(first_trainings) and not any(run.get("predictor") for run in runs):
        cautions.append(NO_MIXTURE)
    key_figures = _figures_of_model(models[0][0], evaluation, accuracy) if is_single else _best_figures(comparison)
    return document(name, sections, kicker="factorcell report", figures=key_figures, cautions=cautions)


def _group_by_model(runs: Sequence[Row]) -> list[list[Row]]:
    """Group the trainings of the same model: those on the same texts with the same options except for the seed.

    Trainings with the same seed are not repetitions, because something else distinguishes them, such as the schedule of
    a training with a time limit; each of them is a model of its own.
    Unadapted models come first, because the other models are compared with the first one; n-gram models come last. The
    trainings of a model are in the order of their seeds.
    """
    models: dict[str, list[Row]] = {}
    seeds_of_models: set[tuple[str, Any]] = set()
    for index, run in enumerate(runs):
        config = {section: dict(options) for section, options in run["config"].items()}
        seed, *_ = [config.get("training", {}).pop(name, None) for name in ("seed", "threads", "device")]
        # A run whose training is unknown is a model of its own.
        model_key = json.dumps([config, run["trained"]], sort_keys=True) if run.get("trained") else str(index)
        if (model_key, seed) in seeds_of_models:
            model_key = str(index)
        seeds_of_models.add((model_key, seed))
        models.setdefault(model_key, []).append(run)
    for trainings in models.values():
        trainings.sort(key=lambda run: run["config"].get("training", {}).get("seed", 0))
    return sorted(models.values(), key=lambda trainings: _sort_key(trainings[0]))


def _sort_key(run: Row) -> tuple[bool, bool]:
    """Return whether a run is an n-gram model, and whether the run is adapted."""
    return "schema" not in run, bool(run.get("is_adapted"))


def _best_figures(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the best perplexity, accuracy and bits per byte of several models, if all these can be compared."""
    figures = list[tuple[str, str]]()
    for name in ("perplexity", "accuracy", "bits_per_byte"):
        difference, higher_is_better = COMPARED_FIGURES[name]
        rows = [row for row in comparison if is_number(row.get(name))]
        if len(rows) > 1 and all(row.get(difference) is not None for row in rows[1:]):
            best = (max if higher_is_better else min)(rows, key=lambda row: float(row[name]))
            rank = f"the {'highest' if higher_is_better else 'lowest'} of {len(rows)} models"
            references = "".join(
                f"; {title} {best[key]:.4f}"
                for key, title in REFERENCES
                if name == "accuracy" and is_number(best.get(key))
            )
            figures.append(
                (format_figure(best, name), f"{best['model']}, {rank}: {name.replace('_', ' ')}{references}")
            )
            if text := format_difference(best, difference):
                figures.append((text, f"{best['model']}: {gain_title(difference, best['baseline'][difference])}"))
    return figures


def _figures_of_model(run: Row, evaluation: Any, accuracy: Any) -> list[tuple[str, str]]:
    """Return the results of a single model to show first: perplexity, gains, accuracy and bits per byte."""
    ids = (evaluation, accuracy)
    measured = measurements([row for row in run["results"] if result_id(row) in ids])
    order = ("perplexity", BASELINE_GAIN, UNKNOWN_CONTEXT_GAIN, "accuracy", "bits_per_byte")
    shown = {row.figure: (row.value, f"{row.measure}, {row.table}") for row in measured if row.figure in order}
    return [shown[name] for name in order if name in shown]


def _comparison_table(comparison: Comparison, models: Sequence[Sequence[Row]], places: Sequence[str]) -> str:
    """Return a table of the metrics of all models, its notes, and a table of the folders of the models."""
    lines, columns = comparison.table()
    keys = {row.get("unit") for row in comparison if is_number(row.get("perplexity"))}
    notes = [*places]
    if len(keys) > 1:
        notes.append("perplexities of models with different tokens are not comparable; compare bits per byte")
    missing = [str(row["model"]) for row in comparison if not is_number(row.get("perplexity"))]
    notes += [f"not evaluated on this table, so not compared: {', '.join(missing)}"] if missing else []
    folders = [
        {"model": row["model"], "folder": ", ".join(str(run["folder"]) for run in trainings)}
        for row, trainings in zip(comparison, models, strict=True)
    ]
    notes_html = "".join(map(note, [*notes, *comparison.notes(), *_training_notes(models, comparison)]))
    return table(lines, columns) + notes_html + table(folders, ("model", "folder"))


def _training_notes(models: Sequence[Sequence[Row]], comparison: Comparison) -> list[str]:
    """Return notes about what a gain includes: amounts of training, and n-gram mixtures."""
    runs = {str(row["model"]): run for (run, *_), row in zip(models, comparison, strict=True)}
    texts = {name: run["training_texts"] for name, run in runs.items() if run.get("training_texts")}
    notes = []
    if texts and differ(list(texts.values())):
        counts = ", ".join(f"{name} {count:,}" for name, count in texts.items())
        notes.append(f"the trainings read different numbers of texts ({counts}), which also changes their figures")
    if names := [name for name, run in runs.items() if run.get("predictor")]:
        notes.append(f"{', '.join(names)}: {MIXED}")
    return notes


def _result_table(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> str:
    """Return a table of all latest results of each training, and notes about a single run."""
    is_single = len(models) == len(models[0]) == 1
    rows = []
    for trainings, title in zip(models, titles, strict=True):
        for run in trainings:
            name = title if len(trainings) == 1 else run["folder"]
            for result in run["results"]:
                remark = result.get("training_difference")
                rows += [
                    {"model": name, **measured._asdict(), "remark": remark if "baseline" in measured.figure else None}
                    for measured in measurements([result])
                ]
    columns = ("table", "measure", "value", "remark")
    content = table(rows, columns if is_single else ("model", *columns)) if rows else ""
    if not is_single:
        return content
    run = models[0][0]
    minutes = max((row["seconds"] for row in run.get("log") or () if "seconds" in row), default=None)
    facts = [str(run["folder"])]
    facts += [f"{run['parameters']:,} parameters"] if run.get("parameters") else []
    facts += [f"{minutes / 60:.2f} minutes of training"] if minutes is not None else []
    return content + note("; ".join(facts)) + (note(MIXED) if run.get("predictor") else "")


def _context(run: Row) -> str:
    """Return a list of the context variables of a run."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in run.get("schema") or ())
    return f"<ul>{lines}</ul>" if lines else ""


def _gains_and_confusion(run: Row, index: int) -> str:
    """Return the gains of one run by value, and its confusion matrix, as charts and collapsible tables."""
    tables, figures = "", list[str]()
    for result in run["results"]:
        key = BASELINE_GAIN if result.get("baseline") else UNKNOWN_CONTEXT_GAIN
        name = gain_title(key, result.get("baseline"))
        for column, rows in result.get("by", {}).items():
            title = f"Perplexity on {result['table']} by {column}"
            if rows_with_gain := [row for row in rows if is_number(row.get(key))]:
                figure = charts.gains_by_value(rows_with_gain, key, name)
                alt = f"{name[:1].upper()}{name[1:]} by {column}, {result['table']}"
                caption = f"{result['table']} by {column}. Grey bars: not significant, or too few texts."
                figures.append(chart(figure, f"gains-{index}-{len(figures)}", alt, caption))
                title += f", {name}"
            lines = [{**row, name: format_difference(row, key)} for row in rows]
            tables += collapsible(title, table(lines, {**VALUE_FORMATS, name: ""}))
        if "confusion" in result:
            title = f"{result.get('target') or 'the context'}, {result['table']}: {result['classifier']}"
            figure = charts.confusion_matrix(result["confusion"]["labels"], result["confusion"]["counts"])
            figures.append(chart(figure, f"confusion-{index}-{len(figures)}", f"Confusion matrix of {title}", title))
            tables += collapsible(f"Classification by value, {title}", table(result["values"], CLASS_FORMATS))
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
