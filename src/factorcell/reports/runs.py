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
from factorcell.evaluation.comparison import COMPARED_FIGURES, ComparedModel, Comparison, compare_models, format_figure
from factorcell.evaluation.diagnostics import differ, run_findings, training_texts
from factorcell.evaluation.explaining.token_evidence import rank_shifted_tokens
from factorcell.evaluation.results import find_models, prediction_fields
from factorcell.evaluation.text_figures import Figures
from factorcell.io.finite import is_number
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
    measure_name,
    measurements,
)
from factorcell.runs.used_options import unused_options

Row = Mapping[str, Any]

VALUE_FORMATS = {"value": "", "count": ",", "targets": ",", "perplexity": ".2f"}
CLASS_FORMATS = {"value": "", "count": ",", "precision": ".3f", "recall": ".3f", "f1": ".3f", "auc": ".3f"}
MAX_WORD_VALUES = 4  # values of a column whose typical words are shown, those with the most training texts
WORD_COUNT = 6  # raised words of each value, and lowered words
FREQUENT_WORDS = 2000  # typical words are among these; the model knows little about rarer ones
INTERVALS = "Lines: 95 % intervals. Grey: not significant."
MIXED = "predictions are those of a mixture of the neural model and n-gram counts; learning curves, of the neural model"
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
    return run_report([*(read_model(folder, len(model_folders) == 1) for folder in model_folders), *mixtures])


def read_model(folder: Path, has_words: bool = False) -> Row:
    """Read the results, logs and options of a run or of an n-gram model, and with `has_words` the typical words.

    A run with a mixture may also have results of its neural model alone, which are omitted.
    """
    run = None if (folder / ngram.FILE).is_file() else Run.open(folder)
    predictor = None if run is None else prediction_fields(run).get("predictor")
    results = [row for row in saved_results.read(folder) if row.get("predictor") == predictor]
    model: Row = {
        "folder": str(folder),
        "title": folder.name,
        "config": {},
        "results": [{**row, "figures": text_figures.load(folder, row)} for row in results],
    }
    if run is None:
        return model
    facts = training_facts(folder)
    return {
        **model,
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
        "cautions": [finding.text for finding in run_findings(run, run.schema.columns())],
    }


def read_mixtures(folder: Path) -> list[Row]:
    """Read the mixtures with the n-gram model in `folder` that `compare` has evaluated, each as in `read_model`."""
    results: dict[str, list[Row]] = {}
    for row in saved_results.read(folder):
        if row.get("predictor"):
            results.setdefault(row["predictor"], []).append({**row, "figures": text_figures.load(folder, row)})
    return [
        {
            "folder": str(folder),
            "title": rows[-1]["model"],
            "config": {"training": {"seed": rows[-1]["seed"]}},
            "trained": rows[-1]["model"],
            "predictor": predictor,
            "results": rows,
        }
        for predictor, rows in results.items()
    ]


def _typical_words(run: Run) -> Iterator[Row]:
    """Yield the words that the most frequent values of the first category raise and lower; users have none."""
    categories = run.schema.named_categories(run.config.data.user)
    if not (categories and run.config.model.output_bias) or run.tokenizer.is_character_level:
        return
    variable = categories[0]
    counted = sorted(zip(variable.values[1:], variable.counts[1:], strict=True), key=lambda pair: -pair[1])
    for value, _ in counted[:MAX_WORD_VALUES]:
        context = {variable.source_column: value}
        rows = rank_shifted_tokens(run, context, None, None, count=WORD_COUNT, frequent=FREQUENT_WORDS)
        yield {"context": f"{variable.source_column}={value}", "rows": rows}


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
    titled_runs = list(zip(first_trainings, titles, strict=True))
    neural_runs = [(run, title) for run, title in titled_runs if "schema" in run]  # n-gram models have no options
    evaluation, accuracy = most_frequent_ids(models)
    page = Page(titles[0] if len(runs) == 1 else f"Comparison of {len(runs)} runs", "factorcell report")
    places = [f"perplexity on {evaluation[0]}"] if evaluation else []
    places += [f"{_accuracy_title(accuracy)} on {accuracy[0]}"] if accuracy else []
    page.lead = f"Measured: {', '.join(places)}." if places else ""
    cautions = [caution for run in runs for caution in run.get("cautions") or ()]
    if 0 < len(neural_runs) < len(first_trainings) and not any(run.get("predictor") for run in runs):
        cautions.append(NO_MIXTURE)
    page.add_findings(cautions)
    result_tables: list[Table | None] = []
    if len(runs) == 1:
        page.figures = _figures_of_run(runs[0], evaluation, accuracy)
        page.remarks += [_describe_run(runs[0]), *([MIXED] if runs[0].get("predictor") else [])]
    else:
        result_tables = _add_comparison(page, models, titles, (evaluation, accuracy))
    names = [""] if len(runs) == 1 else titles
    named_runs = list(zip(first_trainings, names, strict=True))
    page.add("Gain of the context", [chart for run, name in named_runs for chart in _gain_charts(run, name)])
    words = runs[0].get("words", ()) if len(runs) == 1 else ()
    page.add("Typical words", [Chart(charts.word_bars(row["rows"]), f"{row['context']}, nats") for row in words])
    curves = _learning_curves(titled_runs, list(charts.PROGRESS_UNITS)[: len(runs)])
    matrices = [chart for run, name in named_runs for chart in _confusion_matrices(run, name)]
    page.add("Training and classification", [*curves, *matrices])
    result_tables.append(_result_table(models, titles))
    page.add("Results", tables=[*result_tables, *(table for pair in named_runs for table in _value_tables(*pair))])
    variables = dict.fromkeys(row for run, _ in neural_runs for row in run["schema"])
    rows = [{"variable": name, "content": details} for name, details in variables]
    page.add("Context", tables=[make_table(rows, ("variable", "content"))])
    page.add("Options", tables=_option_tables(neural_runs))
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
    return sorted(models.values(), key=lambda trainings: _sort_key(trainings[0]))


def _sort_key(run: Row) -> tuple[bool, bool]:
    """Return whether a run is an n-gram model, and whether the run is adapted."""
    return "schema" not in run, bool(run.get("is_adapted"))


def result_id(row: Row) -> tuple[Any, ...]:
    """Return the table, the target and the number of texts of a result; results with equal ids are comparable."""
    return row.get("table"), row.get("target"), row.get("texts")


def is_by_bayes_rule(row: Row) -> bool:
    """Return whether a result is the accuracy of a model by Bayes' rule, and not that of a combination."""
    return row["kind"] == "classify" and row.get("classifier") != "combined"


def most_frequent_ids(models: Sequence[Sequence[Row]]) -> tuple[Any, Any]:
    """Return the ids of the evaluations and of the accuracies that most models have; None without any.

    If several ids are equally frequent, the function returns the one with the most texts, then the one saved last.
    """
    evaluations, accuracies = Counter[Any](), Counter[Any]()
    for trainings in models:
        rows = [row for run in trainings for row in run["results"]]
        evaluations.update([*dict.fromkeys(result_id(row) for row in rows if row["kind"] != "classify")])
        accuracies.update([*dict.fromkeys(result_id(row) for row in rows if is_by_bayes_rule(row))])

    def most_frequent(counts: Counter[Any]) -> Any:
        return max(reversed(counts), key=lambda key: (counts[key], key[-1] or 0), default=None)

    return most_frequent(evaluations), most_frequent(accuracies)


def figures_on(run: Row, evaluation: Any, accuracy: Any) -> tuple[Row, Figures]:
    """Return the metrics of a run on the compared tables, and the contribution of each text to them."""
    rows = [row for row in run["results"] if row["kind"] != "classify" and result_id(row) == evaluation]
    scores = [row for row in run["results"] if is_by_bayes_rule(row) and result_id(row) == accuracy]
    scores.sort(key=lambda row: row.get("classifier") == "model")  # the last counts; a calibrated model only if alone
    metrics: Row = {"parameters": run.get("parameters"), "minutes": _minutes(run)}
    figures: Figures = {}
    for row in (*scores[-1:], *rows[-1:]):
        metrics = {**metrics, **{name: value for name, value in row.items() if name != "figures"}}
        figures |= row["figures"]
    return metrics, figures


def _accuracy_title(accuracy: tuple[Any, ...]) -> str:
    """Return the name of an accuracy from the id of its result, with the target if there is one."""
    _, target, _ = accuracy
    return f"accuracy of {target}" if target else "accuracy"


def _minutes(run: Row) -> float | None:
    """Return the duration of a training."""
    seconds = max((row["seconds"] for row in run.get("log") or () if "seconds" in row), default=None)
    return None if seconds is None else float(seconds) / 60


def _figures_of_run(run: Row, evaluation: Any, accuracy: Any) -> list[tuple[str, str]]:
    """Return the results of a run to show first: perplexity, gain, accuracy and bits per byte."""
    metrics, _ = figures_on(run, evaluation, accuracy)
    titles = {
        "perplexity": measure_name("perplexity", metrics.get("unit")),
        "accuracy": _accuracy_title(accuracy) if accuracy else "",
        "bits_per_byte": "bits per byte",
    }
    figures = [(format_figure(metrics, name), titles[name]) for name in titles if is_number(metrics.get(name))]
    gains = {
        key: (text, gain_title(key, row.get("baseline")))
        for row in run["results"]
        if result_id(row) == evaluation
        for key in (BASELINE_GAIN, UNKNOWN_CONTEXT_GAIN)
        if (text := format_difference(row, key))
    }
    return [*figures[:1], *gains.values(), *figures[1:]]


def _describe_run(run: Row) -> str:
    """Return the folder, the size and the duration of the training of a run."""
    minutes = _minutes(run)
    facts = [f"{run['parameters']:,} parameters"] if run.get("parameters") else []
    facts += [f"{minutes:.2f} minutes of training"] if minutes is not None else []
    return f"{run['folder']}: {', '.join(facts) or 'no log of a training'}"


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


def _add_comparison(
    page: Page, models: Sequence[Sequence[Row]], titles: Sequence[str], ids: tuple[Any, Any]
) -> list[Table | None]:
    """Add the key figures, the charts and the remarks that compare several models; return the tables."""
    compared_models = []
    for trainings, title in zip(models, titles, strict=True):
        rows, texts = zip(*(figures_on(run, *ids) for run in trainings), strict=True)
        compared_models.append(ComparedModel(title, rows, texts, is_deterministic="schema" not in trainings[0]))
    comparison = compare_models(compared_models)
    page.figures = _best_figures(comparison)
    page.add("Comparison", list(_difference_charts(comparison)))
    page.remarks += [*comparison.notes(), *_comparison_remarks(models, comparison)]
    folders = [
        {"model": row["model"], "folder": ", ".join(str(run["folder"]) for run in trainings)}
        for row, trainings in zip(comparison, models, strict=True)
    ]
    return [make_table(*comparison.table()), make_table(folders, ("model", "folder"))]


def _best_figures(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the best perplexity, accuracy and bits per byte of several models, if all these can be compared."""
    figures = list[tuple[str, str]]()
    for name, (difference, higher_is_better) in COMPARED_FIGURES.items():
        rows = [row for row in comparison if is_number(row.get(name))]
        if len(comparison) > 1 and (len(rows) < 2 or any(row.get(difference) is None for row in rows[1:])):
            continue
        best = (max if higher_is_better else min)(rows, key=lambda row: float(row[name]), default=None)
        if best is not None:
            figures.append((format_figure(best, name), f"{name.replace('_', ' ')} of {best['model']}"))
            if text := format_difference(best, difference):
                figures.append((text, gain_title(difference, best["baseline"][difference])))
    return figures


def _difference_charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the differences of the models to the first one: of perplexities and of accuracies."""
    for key, unit in ((BASELINE_GAIN, "%"), (BASELINE_ACCURACY, "percentage points")):
        if rows := [{"value": row["model"], **row} for row in comparison if row.get(key) is not None]:
            title = _title("", f"{gain_title(key, rows[0]['baseline'][key])}, {unit}")
            yield Chart(charts.gain_bars(rows, key), title, INTERVALS)


def _comparison_remarks(models: Sequence[Sequence[Row]], comparison: Comparison) -> list[str]:
    """Return what a comparison leaves out, and what its gains include: amounts of training, and n-gram mixtures."""
    remarks = []
    if len({row.get("unit") for row in comparison if is_number(row.get("perplexity"))}) > 1:
        remarks.append("perplexities of models with different tokens are not comparable; compare bits per byte")
    if missing := [str(row["model"]) for row in comparison if not is_number(row.get("perplexity"))]:
        remarks.append(f"not evaluated on this table, so not compared: {', '.join(missing)}")
    runs = {str(row["model"]): run for (run, *_), row in zip(models, comparison, strict=True)}
    texts = {name: run["training_texts"] for name, run in runs.items() if run.get("training_texts")}
    if texts and differ(list(texts.values())):
        counts = ", ".join(f"{name} {count:,}" for name, count in texts.items())
        remarks.append(f"the trainings read different numbers of texts ({counts}), which also changes their figures")
    if names := [name for name, run in runs.items() if run.get("predictor")]:
        remarks.append(f"{', '.join(names)}: {MIXED}")
    return remarks


def _result_table(models: Sequence[Sequence[Row]], titles: Sequence[str]) -> Table | None:
    """Return a table of all latest results of each training; it is folded if there are several trainings."""
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
    if len(models) == len(models[0]) == 1:
        return make_table(rows, columns)
    return make_table(rows, ("model", *columns), "All results", is_folded=True)


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
