"""The page of `factorcell report` about runs: metrics, learning curves, gains, confusion matrices, options."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell.evaluation.comparison import (
    COMPARED_FIGURES,
    FIGURE_FORMATS,
    ComparedModel,
    Comparison,
    compare_models,
    format_difference,
    format_figure,
)
from factorcell.evaluation.diagnostics import differ
from factorcell.evaluation.results import find_models
from factorcell.finite import is_number
from factorcell.model import ngram
from factorcell.model.saved_results import describe_gain, gain_title, measure_name
from factorcell.reports import charts
from factorcell.reports.elements import chart, collapsible, document, escape, grid, note, table
from factorcell.reports.run_results import (
    TableId,
    accuracy_key,
    compared_accuracies,
    compared_table,
    evaluation_on,
    figures_on,
    main_accuracies,
    read_mixtures,
    read_model,
)

Row = Mapping[str, Any]

VALUE_FORMATS = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f"}
CLASS_FORMATS = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
SIZES = ("parameters", "minutes")
OUTDATED = "omitted, because a model has changed since; evaluate again with --by"
NO_MIXTURE = (
    "the page has no mixture of a model and the n-gram model, whose perplexity is often lower than theirs; "
    "`factorcell compare` prints it, and `factorcell mix` creates it"
)
KEY_FIGURES_BY_TEXT = ("bits_per_byte", "accuracy")  # of models that read different tokens


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
    compared = _Compared.of(models, titles)
    sections = [] if is_single else [("Comparison", _comparison_tables(compared, models))]
    sections.append(("Results", _result_tables(models, titles)))
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
    key_figures = _figures_of_model(compared, models[0]) if is_single else _compared_figures(compared)
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


@dataclass(frozen=True)
class _Compared:
    """A comparison of models on one table, with the id of the table and the key of the accuracies."""

    comparison: Comparison
    table_id: TableId | None
    accuracy: tuple[Any, ...] | None

    @classmethod
    def of(cls, models: Sequence[Sequence[Row]], titles: Sequence[str]) -> "_Compared":
        """Compare models on the table on which most of them were evaluated."""
        table_id, accuracy = compared_table(models), compared_accuracies(models)
        compared_models = []
        for trainings, title in zip(models, titles, strict=True):
            rows, texts = zip(*(figures_on(run, table_id, accuracy) for run in trainings), strict=True)
            compared_models.append(ComparedModel(title, rows, texts))
        return cls(compare_models(compared_models), table_id, accuracy)

    @property
    def table(self) -> str:
        """The name of the table of the perplexities; empty without any."""
        return self.table_id[1] if self.table_id else ""

    @property
    def has_one_vocabulary(self) -> bool:
        """Whether all models with a perplexity read the texts as the same tokens."""
        keys = {row.get("texts_key") for row in self.comparison if is_number(row.get("perplexity"))}
        return len(keys) <= 1

    def name(self, figure: str, row: Row) -> str:
        """Return the name of a figure in a row, with its unit, target, predictor and table."""
        if figure == "accuracy":
            return _accuracy_name({**row, "target": self.accuracy and self.accuracy[0]}, self.accuracy_table)
        return ", ".join(filter(None, [measure_name(figure, row.get("unit")), self.table]))

    @property
    def accuracy_table(self) -> str:
        """The name of the table of the accuracies."""
        return str((self.accuracy and self.accuracy[1]) or "")


def _accuracy_name(scores: Row, table_name: str | None) -> str:
    target = f"accuracy of {scores['target']}" if scores.get("target") else "accuracy"
    place = ", ".join(filter(None, [target, table_name]))
    name = f"{place}: {scores['classifier']}" if scores.get("classifier") else place
    majority = f"majority class {scores['majority']:.4f}" if is_number(scores.get("majority")) else ""
    return "; ".join(filter(None, [name, majority, scores.get("accuracy_remark")]))


def _compared_figures(compared: _Compared) -> list[tuple[str, str]]:
    """Return the results of several models to show first: those of the best model if the models are comparable.

    If they are not, because a figure is only a bound, the figure of each model is shown. Perplexities are left out if
    the models read different tokens.
    """
    comparison, figures = compared.comparison, list[tuple[str, str]]()
    for name in ("perplexity", "accuracy", "bits_per_byte") if compared.has_one_vocabulary else KEY_FIGURES_BY_TEXT:
        difference, higher_is_better = COMPARED_FIGURES[name]
        rows = [row for row in comparison if is_number(row.get(name))]
        is_comparable = all(row.get(difference) is not None and not row.get(f"{difference}_bound") for row in rows[1:])
        if len(rows) > 1 and is_comparable:
            best = (max if higher_is_better else min)(rows, key=lambda row: float(row[name]))
            rank = f"the {'highest' if higher_is_better else 'lowest'} of {len(rows)} models"
            label = f"{best['model']}, {rank}: {compared.name(name, best)}"
            figures.append((format_figure(best, name, FIGURE_FORMATS[name]), label))
            if text := format_difference(difference, best):
                figures.append((text, f"{best['model']}: {comparison.titles()[difference]}"))
        else:
            figures += [
                (format_figure(row, name, FIGURE_FORMATS[name]), f"{row['model']}: {compared.name(name, row)}")
                for row in rows
            ]
    return figures


def _figures_of_model(compared: _Compared, trainings: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the results of a single model to show first: perplexity, gain, accuracy and bits per byte."""
    (row,), run = compared.comparison, trainings[0]
    figures = {
        name: (format_figure(row, name, FIGURE_FORMATS[name]), compared.name(name, row))
        for name in ("perplexity", "accuracy", "bits_per_byte")
        if is_number(row.get(name))
    }
    gains: Sequence[Row] = evaluation_on(run, compared.table_id).get("gains", ())
    gains = [gain for gain in gains if gain.get("over")] or gains
    shown = [figures.pop("perplexity")] if "perplexity" in figures else []
    for label, text in describe_gain(gains[-1])[:1] if gains else ():
        remark = gains[-1].get("training_difference")
        shown.append((text, "; ".join(filter(None, [f"{label}, {compared.table}", remark]))))
    if len(trainings) == 1:
        figures.pop("accuracy", None)
        shown += [
            (_format_accuracy(scores), _accuracy_name(scores, scores.get("table"))) for scores in main_accuracies(run)
        ]
    return [*shown, *figures.values()]


def _format_accuracy(scores: Row) -> str:
    return format_figure({**scores, "ahead": ()}, "accuracy", FIGURE_FORMATS["accuracy"])


def _comparison_tables(compared: _Compared, models: Sequence[Sequence[Row]]) -> str:
    """Return a table of the metrics of all models on one table, its notes, and a table of the sizes of the models."""
    comparison = compared.comparison
    lines, columns = comparison.table()
    accuracy = ", ".join(filter(None, ["accuracy", compared.accuracy_table]))
    notes = [f"perplexities and bits per byte are those of {compared.table}"] if compared.table else []
    if not compared.has_one_vocabulary:
        notes.append("perplexities of models with different tokens are not comparable; compare bits per byte")
    classifiers = {str(row["model"]): row["classifier"] for row in comparison if row.get("classifier")}
    if classifiers:
        target = f" of {compared.accuracy[0]}" if compared.accuracy and compared.accuracy[0] else ""
        used = "; ".join(f"{title}: {classifier}" for title, classifier in classifiers.items())
        notes.append(f"the accuracies{target} are those of {used}")
    missing = [str(row["model"]) for row in comparison if not is_number(row.get("perplexity"))]
    if missing and compared.table:
        notes.append(f"not evaluated on {compared.table}, so not compared: {', '.join(missing)}")
    lines = [{accuracy if name == "accuracy" else name: text for name, text in line.items()} for line in lines]
    metrics = [accuracy if name == "accuracy" else name for name in columns if name not in SIZES]
    sizes = [
        {**row, "folder": ", ".join(str(run["folder"]) for run in trainings)}
        for row, trainings in zip(comparison, models, strict=True)
    ]
    formats = {"model": "", "folder": "", "parameters": ",.0f", "minutes": ".2f"}
    notes_html = "".join(map(note, [*notes, *comparison.notes(), *_training_notes(models, comparison)]))
    return table(lines, metrics) + notes_html + table(sizes, formats)


def _training_notes(models: Sequence[Sequence[Row]], comparison: Comparison) -> list[str]:
    """Return notes about what a gain includes: amounts of training, and n-gram mixtures."""
    runs = {str(row["model"]): run for (run, *_), row in zip(models, comparison, strict=True)}
    texts = {name: run["training_texts"] for name, run in runs.items() if run.get("training_texts")}
    notes = []
    if texts and differ(list(texts.values())):
        counts = ", ".join(f"{name} {count:,}" for name, count in texts.items())
        notes.append(f"the trainings read different numbers of texts ({counts}), which also changes their figures")
    if names := [name for name, run in runs.items() if run.get("predictor")]:
        notes.append(
            f"{', '.join(names)}: predictions of the mixture of the neural model and n-gram counts, which a gain over "
            "other models includes; any learning curves show the neural model alone"
        )
    return notes


def _result_tables(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> str:
    """Return tables of all latest results of each training: perplexities, differences to baselines, and accuracies."""
    perplexities: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    accuracies: list[dict[str, Any]] = []
    is_single = len(models) == len(models[0]) == 1
    for trainings, title in zip(models, titles, strict=True):
        for run in trainings:
            name = {} if is_single else {"model": title if len(trainings) == 1 else run["folder"]}
            for row in run.get("evaluations") or ():
                place = {**name, "table": row.get("table")}
                perplexities.append({**place, **_evaluation_cells(row)})
                differences += [
                    {**place, "difference": measure, "value": text, "remark": gain.get("training_difference")}
                    for gain in row["gains"]
                    for measure, text in describe_gain(gain)
                ]
            accuracies += [
                {**name, **scores, "accuracy": _format_accuracy(scores), "majority class": scores.get("majority")}
                for scores in run.get("accuracies") or ()
            ]
    first = [] if is_single else ["model"]
    measures = dict.fromkeys(key for cells in perplexities for key in cells if key not in ("model", "table", "texts"))
    content = table(perplexities, {**dict.fromkeys((*first, "table"), ""), "texts": ",", **dict.fromkeys(measures, "")})
    content = content if perplexities else ""
    if differences:
        content += table(differences, [*first, "table", "difference", "value", "remark"])
    if accuracies:
        columns = dict.fromkeys((*first, "table", "target", "classifier", "accuracy"), "")
        columns |= {"majority class": ".4f", "macro_f1": ".3f", "auc": ".3f", "remark": ""}
        content += table([{**scores, "remark": scores.get("accuracy_remark")} for scores in accuracies], columns)
    return content + "".join(_single_notes(models[0][0]) if is_single else ())


def _single_notes(run: Row) -> list[str]:
    """Return paragraphs about the folder, the size and the predictor of a run."""
    minutes = max((row["seconds"] for row in run.get("log") or () if "seconds" in row), default=None)
    facts = [str(run["folder"])]
    facts += [f"{run['parameters']:,} parameters"] if run.get("parameters") else []
    facts += [f"{minutes / 60:.2f} minutes of training"] if minutes is not None else []
    paragraphs = [note("; ".join(facts))]
    if run.get("predictor"):
        mixture = "predictions of the mixture of the neural model and n-gram counts"
        paragraphs.append(note(f"{mixture}; any learning curves show the neural model alone"))
    return paragraphs


def _evaluation_cells(row: Row) -> dict[str, Any]:
    """Return the cells of an evaluation: the number of texts, and each figure by its name with its unit."""
    cells: dict[str, Any] = {"texts": row.get("texts")}
    for name in ("perplexity", "perplexity_known", "bits_per_byte"):
        if is_number(row.get(name)):
            text = format_figure({**row, "ahead": ()}, name, FIGURE_FORMATS[name])
            cells[measure_name(name, row.get("unit"))] = text
    return cells


def _context(run: Row) -> str:
    """Return a list of the context variables of a run."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in run.get("schema") or ())
    return f"<ul>{lines}</ul>" if lines else ""


def _gains_and_confusion(run: Row, index: int) -> str:
    """Return the gains of one run by value, and its confusion matrix, as charts and collapsible tables."""
    tables, figures = "", list[str]()
    for table_name, variable, baseline, rows, is_outdated in run.get("by") or ():
        title = f"Perplexity on {table_name} by {variable}"
        if is_outdated:
            tables += note(f"{title}, {gain_title(baseline)}: {OUTDATED}")
            continue
        if rows_with_gain := [row for row in rows if is_number(row.get("gain"))]:
            figure = charts.gains_by_value(rows_with_gain, baseline)
            name = gain_title(baseline)
            alt = f"{name[:1].upper()}{name[1:]} by {variable}, {table_name}"
            caption = f"{table_name} by {variable}. Grey bars: not significant, or too few texts."
            figures.append(chart(figure, f"gains-{index}-{len(figures)}", alt, caption))
            title += f", {name}"
        column = "gain" if baseline else "effect"
        rows_with_texts = [{**row, column: format_difference("gain", row)} for row in rows]
        tables += collapsible(title, table(rows_with_texts, {**VALUE_FORMATS, column: ""}))
    latest = {accuracy_key(scores)[:-1]: scores for scores in run.get("accuracies") or () if "confusion" in scores}
    for scores in latest.values():
        title = ", ".join(filter(None, [scores.get("target") or "the context", scores.get("table")]))
        title = f"{title}: {scores['classifier']}"
        figure = charts.confusion_matrix(scores["confusion"]["labels"], scores["confusion"]["counts"])
        figures.append(chart(figure, f"confusion-{index}-{len(figures)}", f"Confusion matrix of {title}", title))
        tables += collapsible(f"Classification by value, {title}", table(scores["values"], CLASS_FORMATS))
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
