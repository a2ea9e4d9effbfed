"""The page of `factorcell report`: gains of the context, typical words, learning curves, confusion matrices, results.

Models are compared on the table on which most of them were evaluated, and for the target that most of them predict.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.evaluation import text_figures
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.diagnostics import run_findings
from factorcell.evaluation.explaining.token_evidence import most_shifted_tokens
from factorcell.evaluation.text_figures import Figures, prediction_fields
from factorcell.io import input_files
from factorcell.io.output import is_number
from factorcell.ngram import ngram
from factorcell.reports import charts
from factorcell.reports.page import Chart, Page, Table, make_table
from factorcell.runs import saved_results
from factorcell.runs.run import Run, training_facts
from factorcell.runs.saved_results import (
    BASELINE_ACCURACY,
    BASELINE_GAIN,
    UNKNOWN_CONTEXT_GAIN,
    format_difference,
    gain_title,
    measurements,
)

Row = Mapping[str, Any]

VALUE_FORMATS = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f"}
CLASS_FORMATS = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
MAX_WORD_VALUES = 4  # values of a column whose typical words are shown, those with the most training texts
WORD_COUNT = 6  # raised words of each value, and lowered words
INTERVALS = "Lines: 95 % intervals. Grey: not significant."
MIXED = "predictions are those of a mixture of the neural model and n-gram counts; learning curves, of the neural model"


def report_page(folders: Sequence[str | Path]) -> str:
    """Return a self-contained HTML page about runs, from their folders or folders that contain them."""
    model_folders = find_models(list(map(Path, folders)))
    has_words = len(model_folders) == 1
    return run_report([read_model(folder, has_words) for folder in model_folders])


def find_models(folders: Sequence[Path]) -> list[Path]:
    """Return the folders that contain a run or an n-gram model, and those in these folders."""
    models: list[Path] = []
    for folder in folders:
        paths, names = (folder, *input_files.list_visible(folder)), ("weights.safetensors", ngram.FILE)
        model_paths = [path for path in paths if any((path / name).is_file() for name in names)]
        if not model_paths:
            raise input_files.not_a_run_error(folder, "a trained run or a folder of trained runs")
        models += model_paths[:1] if model_paths[0] == folder else model_paths
    return list(dict.fromkeys(models))


def read_model(folder: Path, has_words: bool = False) -> Row:
    """Read the results, logs and options of a run, with `has_words` also its typical words; or those of n-grams."""
    run = None if (folder / ngram.FILE).is_file() else Run.open(folder)
    predictor = None if run is None else prediction_fields(run).get("predictor")
    rows = [row for row in saved_results.read(folder) if row.get("predictor") == predictor]
    results = [{**row, "figures": text_figures.load(folder, row)} for row in rows]
    model: Row = {"folder": str(folder), "title": folder.name, "config": {}, "results": results}
    if run is None:
        return model
    facts = training_facts(folder)
    columns = run.schema.columns() if run.model.is_adapted else ()
    training = {
        "config": run.config.to_dict(),
        "is_adapted": run.model.is_adapted,
        "log": run.log(),
        "parameters": run.model.parameter_count(),
        "predictor": predictor,
        # Trainings on the same texts have equal lists:
        "trained": [facts.get(name) for name in ("development_key", "texts", "source", "finetuned")],
        "gains": facts.get("context") or {},
        "words": list(_typical_words(run)) if has_words else [],
        "cautions": [*filter(None, [facts.get("repeated_texts")]), *(f.text for f in run_findings(run, columns))],
    }
    return {**model, **training}


def _typical_words(run: Run) -> Iterator[Row]:
    """Yield the words that the most frequent values of the first category raise and lower; users have none."""
    variables = run.schema.named_variables(run.config.data.user)
    categories = [variable for variable in variables if variable.kind == "category"]
    if not (categories and run.config.model.output_bias) or run.tokenizer.is_character_level:
        return
    variable = categories[0]
    counted = sorted(zip(variable.values[1:], variable.counts[1:], strict=True), key=lambda pair: -pair[1])
    for value, _ in counted[:MAX_WORD_VALUES]:
        rows = most_shifted_tokens(run, {variable.source_column: value}, count=WORD_COUNT)
        if rows:
            yield {"context": f"{variable.source_column}={value}", "rows": rows}


def run_report(runs: Sequence[Row]) -> str:
    """Return the HTML page about `runs`, the rows that `read_model` returns."""
    models = _group_by_model(runs)
    first_trainings = [first_training for first_training, *_ in models]
    titles = [str(run["title"]) for run in first_trainings]
    if len(set(titles)) < len(titles):
        titles = [str(run["folder"]) for run in first_trainings]
    titled_runs = list(zip(first_trainings, titles, strict=True))
    ids = most_frequent_ids(models)
    comparison = _compare(models, titles, ids)
    cells, columns = comparison.table()
    page = Page(titles[0] if len(runs) == 1 else f"Comparison of {len(runs)} runs", "factorcell report")
    places = [f"{name}{f' of {key[1]}' if key[1] else ''} on {key[0]}" for name, key in ids.items() if key]
    page.lead = f"Measured: {', '.join(places)}." if places else ""
    page.add_findings([caution for run in runs for caution in run.get("cautions", ())])
    page.remarks += [*comparison.notes(), *_remarks(models, comparison)]
    if len(runs) == 1:
        page.figures = [(cells[0][name], name) for name in columns[1:]]
    page.add("Comparison", list(_difference_charts(comparison)))
    named_runs = list(zip(first_trainings, [""] if len(runs) == 1 else titles, strict=True))
    page.add("Gain of the context", [chart for pair in named_runs for chart in _gain_charts(*pair)])
    words = runs[0].get("words", ()) if len(runs) == 1 else ()
    page.add("Typical words", [Chart(charts.word_bars(row["rows"]), f"{row['context']}, nats") for row in words])
    matrices = [chart for pair in named_runs for chart in _confusion_matrices(*pair)]
    page.add("Training and classification", [_learning_curves(titled_runs), *matrices])
    folders = [", ".join(str(run["folder"]) for run in trainings) for trainings in models]
    compared = [{**row, "folder": folder} for row, folder in zip(cells, folders, strict=True)]
    value_tables = [table for pair in named_runs for table in _value_tables(*pair)]
    page.add(
        "Results", tables=[make_table(compared, [*columns, "folder"]), _result_table(models, titles), *value_tables]
    )
    page.add("Options", tables=[_differing_options([pair for pair in titled_runs if "is_adapted" in pair[0]])])
    return page.render()


def _group_by_model(runs: Sequence[Row]) -> list[list[Row]]:
    """Group the trainings of the same model: those on the same texts with the same options except for the seed.

    Trainings with the same seed are not repetitions, because something else distinguishes them, such as the schedule of
    a training with a time limit. Unadapted models come first, because the other models are compared with the first one.
    """
    models: dict[str, dict[Any, Row]] = {}
    for index, run in enumerate(runs):
        config = {section: dict(options) for section, options in run["config"].items()}
        seed, *_ = [config.get("training", {}).pop(name, None) for name in ("seed", "threads", "device")]
        # A run whose training is unknown is a model of its own.
        model_key = json.dumps([config, run["trained"]], sort_keys=True) if run.get("trained") else str(index)
        model_key = str(index) if seed in models.get(model_key, ()) else model_key
        models.setdefault(model_key, {})[seed] = run
    groups = [[group[seed] for seed in sorted(group, key=lambda seed: seed or 0)] for group in models.values()]
    return sorted(groups, key=lambda runs: ("is_adapted" not in runs[0], bool(runs[0].get("is_adapted"))))


def result_id(row: Row) -> tuple[Any, ...]:
    """Return the table, the target and the number of texts of a result; results with equal ids are comparable."""
    return row.get("table"), row.get("target"), row.get("texts")


def comparable_results(run: Row) -> dict[str, list[Row]]:
    """Return the results of a run by figure; an accuracy of a calibrated model only without one of the model alone."""
    scores = [row for row in run["results"] if row["kind"] == "classify" and row.get("classifier") != "combined"]
    scores.sort(key=lambda row: row.get("classifier") == "model")
    return {"accuracy": scores, "perplexity": [row for row in run["results"] if row["kind"] != "classify"]}


def most_frequent_ids(models: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Return the ids of the perplexities and of the accuracies that most models have; None without any."""
    ids = {}
    for name in ("perplexity", "accuracy"):
        counts: Counter[Any] = Counter()
        for trainings in models:
            rows = [row for run in trainings for row in comparable_results(run)[name]]
            counts.update(list(dict.fromkeys(map(result_id, rows))))
        ids[name] = max(reversed(counts), key=lambda key: (counts[key], key[-1] or 0), default=None)
    return ids


def figures_on(run: Row, ids: Mapping[str, Any]) -> tuple[Row, Figures]:
    """Return the metrics of a run on the compared tables, and the contribution of each text to them."""
    seconds = [row["seconds"] for row in run.get("log") or () if "seconds" in row]
    metrics: Row = {"parameters": run.get("parameters"), "minutes": max(seconds) / 60 if seconds else None}
    figures: Figures = {}
    for name, rows in comparable_results(run).items():
        for row in [row for row in rows if result_id(row) == ids[name]][-1:]:
            metrics = {**metrics, **{key: value for key, value in row.items() if key != "figures"}}
            figures |= row["figures"]
    return metrics, figures


def _compare(models: Sequence[Sequence[Row]], titles: Sequence[str], ids: Mapping[str, Any]) -> Comparison:
    compared_models = []
    for trainings, title in zip(models, titles, strict=True):
        rows, texts = zip(*(figures_on(run, ids) for run in trainings), strict=True)
        compared_models.append(ComparedModel(title, rows, texts, is_deterministic="is_adapted" not in trainings[0]))
    return compare_models(compared_models)


def _remarks(models: Sequence[Sequence[Row]], comparison: Comparison) -> list[str]:
    remarks = []
    if len({row.get("unit") for row in comparison if is_number(row.get("perplexity"))}) > 1:
        remarks.append("perplexities of models with different tokens are not comparable; compare bits per byte")
    missing = [str(row["model"]) for row in comparison if not is_number(row.get("perplexity"))]
    if len(models) > len(missing) > 0:
        remarks.append(f"not evaluated on this table, so not compared: {', '.join(missing)}")
    runs = {str(row["model"]): run for (run, *_), row in zip(models, comparison, strict=True)}
    if names := [name for name, run in runs.items() if run.get("predictor")]:
        remarks.append(f"{', '.join(names)}: {MIXED}")
    return remarks


def _difference_charts(comparison: Comparison) -> Iterator[Chart]:
    for key, unit in ((BASELINE_GAIN, "%"), (BASELINE_ACCURACY, "percentage points")):
        if rows := [{"value": row["model"], **row} for row in comparison if row.get(key) is not None]:
            title = _title("", f"{gain_title(key, rows[0]['baseline'][key])}, {unit}")
            yield Chart(charts.gain_bars(rows, key), title, INTERVALS)


def _gain_charts(run: Row, name: str) -> Iterator[Chart]:
    total = run.get("gains") or {}
    columns = total.get("columns") or {}
    if columns and not total.get("only_unknown_users"):
        ranked = sorted(columns.items(), key=lambda item: -item[1][UNKNOWN_CONTEXT_GAIN])
        rows = [{"value": "all columns", **total}, *({"value": name, **row} for name, row in ranked)]
        title = _title(name, f"gain of each column alone over an unknown context, %, {saved_results.DEVELOPMENT}")
        yield Chart(charts.gain_bars(rows, UNKNOWN_CONTEXT_GAIN), title, INTERVALS)
    for result in run["results"]:
        key, gain_name = _gain_of(result)
        for column, rows in result.get("by", {}).items():
            if rows_with_gain := [row for row in rows if is_number(row.get(key))]:
                figure = charts.gain_bars(charts.shown_gains(rows_with_gain, key), key)
                title = _title(name, f"{gain_name} by {column}, %, {result['table']}")
                yield Chart(figure, title, f"{INTERVALS} In parentheses: texts.")


def _gain_of(result: Row) -> tuple[str, str]:
    key = BASELINE_GAIN if result.get("baseline") else UNKNOWN_CONTEXT_GAIN
    return key, gain_title(key, result.get("baseline"))


def _target(result: Row) -> str:
    return f"{result.get('target') or 'context'}, {result['table']}"


def _title(name: str, text: str) -> str:
    """Return the title of a chart or table of the model `name`; without a name, it begins with a capital letter."""
    return f"{name}: {text}" if name else text[:1].upper() + text[1:]


def _learning_curves(titled_runs: Sequence[tuple[Row, str]]) -> Chart | None:
    curves = [{**row, "model": title} for run, title in titled_runs for row in run.get("log") or []]
    title = f"Perplexity on {saved_results.DEVELOPMENT} by minutes"
    return Chart(charts.learning_curves(curves), title) if charts.has_curve(curves) else None


def _confusion_matrices(run: Row, name: str) -> Iterator[Chart]:
    for result in run["results"]:
        if confusion := result.get("confusion"):
            title = _title(name, f"predicted {_target(result)} ({result['classifier']})")
            figure = charts.confusion_matrix(confusion["labels"], confusion["counts"])
            yield Chart(figure, title, "Rows: true values. Columns: predicted values, in % of the row.")


def _result_table(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> Table | None:
    rows = []
    for trainings, title in zip(models, titles, strict=True):
        for run in trainings:
            name = title if len(trainings) == 1 else run["folder"]
            for result in run["results"]:
                rows += [{"model": name, **measured._asdict()} for measured in measurements([result])]
    return make_table(rows, ("model", "table", "measure", "value"), "All results", is_folded=True)


def _value_tables(run: Row, name: str) -> Iterator[Table | None]:
    for result in run["results"]:
        key, gain_name = _gain_of(result)
        for column, rows in result.get("by", {}).items():
            lines = [{**row, gain_name: format_difference(row, key)} for row in rows]
            title = _title(name, f"perplexity by {column}, {result['table']}")
            yield make_table(lines, {**VALUE_FORMATS, gain_name: ""}, title, is_folded=True)
        if "confusion" in result:
            title = _title(name, f"classification by {_target(result)} ({result['classifier']})")
            yield make_table(result["values"], CLASS_FORMATS, title, is_folded=True)


def _differing_options(runs: Sequence[tuple[Row, str]]) -> Table | None:
    rows: dict[str, dict[str, str]] = {}
    for run, title in runs:
        for section, options in run["config"].items():
            for key, value in options.items():
                text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
                rows.setdefault(f"{section}.{key}", {"option": f"{section}.{key}"})[title] = text
    titles = [title for _, title in runs]
    differing = [row for row in rows.values() if len({row.get(title) for title in titles}) > 1]
    return make_table(differing, ["option", *titles])
