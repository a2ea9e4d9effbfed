"""The page of `factorcell report`: gains of the context, typical words, learning curves, confusion matrices, results.

Perplexities and bits per byte of several models are compared on one table: the one on which most models were evaluated.
Accuracies are compared for one target and one table, in the same way; they are those of the models by Bayes' rule.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from factorcell.evaluation import text_figures
from factorcell.evaluation.comparison import ComparedModel, Comparison, compare_models
from factorcell.evaluation.diagnostics import differ, run_findings, training_texts
from factorcell.evaluation.explaining.token_evidence import TokenCounts, rank_shifted_tokens, read_training_texts
from factorcell.evaluation.results import find_models, prediction_fields
from factorcell.evaluation.text_figures import Figures
from factorcell.io.output import is_number
from factorcell.ngram import ngram
from factorcell.reports import charts
from factorcell.reports.page import Chart, Page, Table, make_table
from factorcell.runs import saved_results
from factorcell.runs.run import Run, training_facts, training_table
from factorcell.runs.saved_results import (
    BASELINE_ACCURACY,
    BASELINE_GAIN,
    UNKNOWN_CONTEXT_GAIN,
    format_difference,
    gain_title,
    measurements,
)
from factorcell.runs.summary import unused_options

Row = Mapping[str, Any]

VALUE_FORMATS = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f"}
CLASS_FORMATS = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
MAX_WORD_VALUES = 4  # values of a column whose typical words are shown, those with the most training texts
WORD_COUNT = 6  # raised words of each value, and lowered words
FREQUENT_WORDS = 2000  # typical words are among these; the model knows little about rarer ones
INTERVALS = "Lines: 95 % intervals. Grey: not significant."
MIXED = "predictions are those of a mixture of the neural model and n-gram counts; learning curves, of the neural model"


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
    has_words = len(model_folders) == 1
    return run_report([read_model(folder, has_words) for folder in model_folders])


def read_model(folder: Path, has_words: bool = False) -> Row:
    """Read the results, logs and options of a run, with `has_words` also its typical words; or the results of n-grams.

    Results of the neural model of a run alone are omitted if the run predicts with a mixture.
    """
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
        "unused": unused_options(run.config, run.schema),
        "schema": [(variable.name, variable.details) for variable in run.schema.variables],
        "log": run.log(),
        "parameters": run.model.parameter_count(),
        "training_texts": training_texts(run),
        "predictor": predictor,
        # Trainings on the same texts have equal lists:
        "trained": [facts.get(name) for name in ("development_key", "texts", "source", "finetuned")],
        "gains": facts.get("context") or {},
        "words": list(_typical_words(run)) if has_words else [],
        "cautions": [finding.text for finding in run_findings(run, columns)],
    }
    return {**model, **training}


def _typical_words(run: Run) -> Iterator[Row]:
    """Yield the words that the most frequent values of the first category raise and lower; users have none.

    If the training table still exists, only words whose change its texts support are shown.
    """
    categories = run.schema.named_categories(run.config.data.user)
    if not (categories and run.config.model.output_bias) or run.tokenizer.is_character_level:
        return
    variable = categories[0]
    source = training_table(run)
    texts = None if source is None else read_training_texts(run, source)
    counted = sorted(zip(variable.values[1:], variable.counts[1:], strict=True), key=lambda pair: -pair[1])
    for value, _ in counted[:MAX_WORD_VALUES]:
        context = {variable.source_column: value}
        counts = None if texts is None else TokenCounts.of_contexts(run, texts, [context, {}])
        rows = rank_shifted_tokens(run, context, None, counts, count=WORD_COUNT, frequent=FREQUENT_WORDS)
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
    curves = _learning_curves(titled_runs, list(charts.PROGRESS_UNITS)[: len(runs)])
    matrices = [chart for pair in named_runs for chart in _confusion_matrices(*pair)]
    page.add("Training and classification", [*curves, *matrices])
    folders = [", ".join(str(run["folder"]) for run in trainings) for trainings in models]
    compared = [{**row, "folder": folder} for row, folder in zip(cells, folders, strict=True)]
    value_tables = [table for pair in named_runs for table in _value_tables(*pair)]
    page.add(
        "Results", tables=[make_table(compared, [*columns, "folder"]), _result_table(models, titles), *value_tables]
    )
    variables = dict.fromkeys(row for run in first_trainings for row in run.get("schema", ()))
    rows = [{"variable": name, "content": details} for name, details in variables]
    page.add("Context", tables=[make_table(rows, ("variable", "content"))])
    page.add("Options", tables=_option_tables([pair for pair in titled_runs if "schema" in pair[0]]))
    return page.render()


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
    return sorted(models.values(), key=lambda runs: ("schema" not in runs[0], bool(runs[0].get("is_adapted"))))


def result_id(row: Row) -> tuple[Any, ...]:
    """Return the table, the target and the number of texts of a result; results with equal ids are comparable."""
    return row.get("table"), row.get("target"), row.get("texts")


def is_by_bayes_rule(row: Row) -> bool:
    """Return whether a result is the accuracy of a model by Bayes' rule, and not that of a combination."""
    return row["kind"] == "classify" and row.get("classifier") != "combined"


def most_frequent_ids(models: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Return the ids of the perplexities and of the accuracies that most models have; None without any."""
    all_ids: dict[str, list[Any]] = {"perplexity": [], "accuracy": []}
    for trainings in models:
        rows = [row for run in trainings for row in run["results"]]
        all_ids["perplexity"] += dict.fromkeys(result_id(row) for row in rows if row["kind"] != "classify")
        all_ids["accuracy"] += dict.fromkeys(result_id(row) for row in rows if is_by_bayes_rule(row))
    return {name: _most_frequent(ids) for name, ids in all_ids.items()}


def _most_frequent(ids: Sequence[Any]) -> Any:
    counts = Counter(ids)
    return max(reversed(counts), key=lambda key: (counts[key], key[-1] or 0), default=None)


def figures_on(run: Row, ids: Mapping[str, Any]) -> tuple[Row, Figures]:
    """Return the metrics of a run on the compared tables, and the contribution of each text to them."""
    results = run["results"]
    rows = [row for row in results if row["kind"] != "classify" and result_id(row) == ids["perplexity"]]
    scores = [row for row in results if is_by_bayes_rule(row) and result_id(row) == ids["accuracy"]]
    scores.sort(key=lambda row: row.get("classifier") == "model")  # the last counts; a calibrated model only if alone
    seconds = [row["seconds"] for row in run.get("log") or () if "seconds" in row]
    metrics: Row = {"parameters": run.get("parameters"), "minutes": max(seconds) / 60 if seconds else None}
    figures: Figures = {}
    for row in (*scores[-1:], *rows[-1:]):
        metrics = {**metrics, **{name: value for name, value in row.items() if name != "figures"}}
        figures |= row["figures"]
    return metrics, figures


def _compare(models: Sequence[Sequence[Row]], titles: Sequence[str], ids: Mapping[str, Any]) -> Comparison:
    compared_models = []
    for trainings, title in zip(models, titles, strict=True):
        rows, texts = zip(*(figures_on(run, ids) for run in trainings), strict=True)
        compared_models.append(ComparedModel(title, rows, texts, is_deterministic="schema" not in trainings[0]))
    return compare_models(compared_models)


def _remarks(models: Sequence[Sequence[Row]], comparison: Comparison) -> list[str]:
    """Return what a comparison leaves out, and what its gains include: amounts of training, and n-gram mixtures."""
    remarks = []
    if len({row.get("unit") for row in comparison if is_number(row.get("perplexity"))}) > 1:
        remarks.append("perplexities of models with different tokens are not comparable; compare bits per byte")
    missing = [str(row["model"]) for row in comparison if not is_number(row.get("perplexity"))]
    if len(models) > len(missing) > 0:
        remarks.append(f"not evaluated on this table, so not compared: {', '.join(missing)}")
    runs = {str(row["model"]): run for (run, *_), row in zip(models, comparison, strict=True)}
    texts = {name: run["training_texts"] for name, run in runs.items() if run.get("training_texts")}
    if texts and differ(list(texts.values())):
        counts = ", ".join(f"{name} {count:,}" for name, count in texts.items())
        remarks.append(f"the trainings read different numbers of texts ({counts}), which also changes their figures")
    if names := [name for name, run in runs.items() if run.get("predictor")]:
        remarks.append(f"{', '.join(names)}: {MIXED}")
    return remarks


def _difference_charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the differences of the models to the first one: of perplexities and of accuracies."""
    for key, unit in ((BASELINE_GAIN, "%"), (BASELINE_ACCURACY, "percentage points")):
        if rows := [{"value": row["model"], **row} for row in comparison if row.get(key) is not None]:
            title = _title("", f"{gain_title(key, rows[0]['baseline'][key])}, {unit}")
            yield Chart(charts.gain_bars(rows, key), title, INTERVALS)


def _gain_charts(run: Row, name: str) -> Iterator[Chart]:
    """Yield charts of the gains of a run by column and by value; their titles begin with its `name`."""
    total = run.get("gains") or {}
    columns = total.get("columns") or {}
    if columns and not total.get("only_unknown_users"):
        ranked = sorted(columns.items(), key=lambda item: -item[1][UNKNOWN_CONTEXT_GAIN])
        rows = [{"value": "all columns", **total}, *({"value": name, **row} for name, row in ranked)]
        title = _title(name, f"gain of each column alone, %, {saved_results.DEVELOPMENT}")
        yield Chart(charts.gain_bars(rows, UNKNOWN_CONTEXT_GAIN), title, INTERVALS)
    for result in run["results"]:
        key, gain_name = _gain_of(result)
        for column, rows in result.get("by", {}).items():
            if rows_with_gain := [row for row in rows if is_number(row.get(key))]:
                figure = charts.gain_bars(charts.shown_gains(rows_with_gain, key), key)
                title = _title(name, f"{gain_name} by {column}, %, {result['table']}")
                yield Chart(figure, title, f"{INTERVALS} In parentheses: texts.")


def _gain_of(result: Row) -> tuple[str, str]:
    """Return the key and the name of the gain that the rows of a result have by value."""
    key = BASELINE_GAIN if result.get("baseline") else UNKNOWN_CONTEXT_GAIN
    return key, gain_title(key, result.get("baseline"))


def _target(result: Row) -> str:
    """Return the target and the table of a classification."""
    return f"{result.get('target') or 'context'}, {result['table']}"


def _title(name: str, text: str) -> str:
    """Return the title of a chart or table of the model `name`; without a name, it begins with a capital letter."""
    return f"{name}: {text}" if name else text[:1].upper() + text[1:]


def _learning_curves(titled_runs: Sequence[tuple[Row, str]], units: Sequence[str]) -> Iterator[Chart]:
    """Yield the learning curves of runs over `units` of progress, if a run was evaluated more than once."""
    curves = [
        {**row, "model": f"{title} (neural model alone)" if run.get("predictor") else title}
        for run, title in titled_runs
        for row in run.get("log") or []
    ]
    for unit in units if charts.has_curve(curves) else ():
        yield Chart(charts.learning_curves(curves, unit), f"Perplexity on {saved_results.DEVELOPMENT} by {unit}")


def _confusion_matrices(run: Row, name: str) -> Iterator[Chart]:
    """Yield the confusion matrices of a run; their titles begin with its `name`."""
    for result in run["results"]:
        if confusion := result.get("confusion"):
            title = _title(name, f"predicted {_target(result)} ({result['classifier']})")
            figure = charts.confusion_matrix(confusion["labels"], confusion["counts"])
            yield Chart(figure, title, "Rows: true values. Columns: predicted values, in % of the row.")


def _result_table(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> Table | None:
    """Return a folded table of the latest results of each training."""
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
    return make_table(rows, ("model", "table", "measure", "value", "remark"), "All results", is_folded=True)


def _value_tables(run: Row, name: str) -> Iterator[Table | None]:
    """Yield folded tables of the results of a run by value; their titles begin with its `name`."""
    for result in run["results"]:
        key, gain_name = _gain_of(result)
        for column, rows in result.get("by", {}).items():
            lines = [{**row, gain_name: format_difference(row, key)} for row in rows]
            title = _title(name, f"perplexity by {column}, {result['table']}")
            yield make_table(lines, {**VALUE_FORMATS, gain_name: ""}, title, is_folded=True)
        if "confusion" in result:
            title = _title(name, f"classification by {_target(result)} ({result['classifier']})")
            yield make_table(result["values"], CLASS_FORMATS, title, is_folded=True)


def _option_tables(runs: Sequence[tuple[Row, str]]) -> list[Table | None]:
    """Return a table of the options that differ between the runs, and a folded table of all options."""
    rows: dict[str, dict[str, str]] = {}
    for run, title in runs:
        for section, options in run["config"].items():
            for key, value in options.items():
                name = f"{section}.{key}"
                is_unused = key in run.get("unused", ())
                rows.setdefault(name, {"option": name})[title] = "not used" if is_unused else _format_option(value)
    titles = [title for _, title in runs]
    differing = [row for row in rows.values() if len({row.get(title) for title in titles}) > 1]
    columns = ["option", *titles]
    return [make_table(differing, columns), make_table(list(rows.values()), columns, "All options", is_folded=True)]


def _format_option(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "–" if value is None else str(value)
