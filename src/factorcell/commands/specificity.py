"""The command `factorcell specificity`: do the texts that models write fit their context?"""

import argparse
import hashlib
import json
from typing import Any

import numpy as np

from factorcell import files, inputs
from factorcell.commands import generation, options, terminal
from factorcell.config import UserError
from factorcell.data.columns import must_have
from factorcell.evaluation import specificity
from factorcell.evaluation.bayes_rule import judged_texts
from factorcell.evaluation.cautions import cautions
from factorcell.evaluation.classification import classify
from factorcell.evaluation.comparison import Candidate, compared, told_difference
from factorcell.evaluation.perplexity import evaluated
from factorcell.evaluation.results import find_models
from factorcell.evaluation.specificity import Judge, JudgeOptions
from factorcell.evaluation.text_figures import Figures, of_right
from factorcell.model.run import Run

COLUMNS = {
    "specificity": ("fit their context", ".1%"),
    "deviation": ("mean absolute deviation", ".2f"),
    "perplexity": ("perplexity of real texts", ".2f"),
    "accuracy": ("accuracy on real texts", ".1%"),
    "distinct_2": ("distinct bigrams", ".1%"),
    "repeated": ("repeated trigrams", ".1%"),
    "copied_5": ("5-grams copied", ".1%"),
    "tokens": ("tokens per text", ".1f"),
}

Row = dict[str, Any]


def run_specificity(given: argparse.Namespace) -> None:
    """`factorcell specificity`."""
    how, folders = generation.writing_options(given), find_models(given.runs)
    context = options.context(given.context)
    if inputs.visible(given.out) and not given.resume:
        raise UserError(f"{given.out}: exists already; choose another folder, or --resume to go on with it")
    first = Run.open(folders[0])
    first.schema.variable(given.target)
    judge = Judge.train_on(
        given.train,
        given.dev,
        first.config,
        JudgeOptions(given.target, given.judge, tuple(given.order), given.seed),
        tokenizer=first.tokenizer,
        progress=True,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    candidates = []
    for folder in folders:
        run = Run.open(folder)
        must_have(given.dev, run.config.data)
        wanted = specificity.contexts(run, given.target, given.number, context, given.draw, how.seed)
        file = given.out / ("-".join(folder.resolve().parts[-2:]) + ".jsonl")  # two runs may have the same name
        row, texts = _measured(run, judge, specificity.write(run, wanted, how, file, progress=True), given.dev)
        candidates.append(Candidate(row["name"], [row], [texts]))
        terminal.say(*cautions([run]), f"{row['name']}: {row['specificity']:.3f} of {row['texts']:,} texts fit")
    real = {"name": "real texts", **judge.real, "specificity": judge.real["accuracy"]}
    del real["accuracy"]  # in the rows of models it is that of the model as a classifier
    rows = [*compared(candidates), real]
    files.write_rows(given.out / "results.jsonl", rows)
    if given.json:
        return terminal.lines(rows)
    return _show(rows)


def _measured(run: Run, judge: Judge, texts: list[Row], dev: Any) -> tuple[Row, Figures]:
    """Return the figures of the `texts` of a run and of the run on the real texts `dev`, and what each text adds."""
    target = judge.target
    judged, fits = judge.judge([{"text": row["text"], target: row["context"][target]} for row in texts])
    real = evaluated(run, dev, unknown="group")
    key = hashlib.sha256(json.dumps([target, *(row["context"] for row in texts)]).encode()).hexdigest()
    figures = {**real.texts, "specificity": of_right(key, fits, np.ones_like(fits))}
    row = {"name": run.folder.name, "perplexity": real.row["perplexity"], "specificity": judged.pop("accuracy")}
    if run.model.adapted:
        classified = classify(run, dev, target, unknown="group")
        row["accuracy"], figures["accuracy"] = classified.metrics()["accuracy"], judged_texts(classified)
    return {**row, **judged}, figures


def _show(rows: list[Row]) -> None:
    first = rows[0]["name"]
    differences = {"specificity_difference": f"fit above {first}", "gain": f"perplexity below {first}"}
    shown = [
        {
            "model": row["name"],
            **{title: format(row[name], form) for name, (title, form) in COLUMNS.items() if row.get(name) is not None},
            **{title: told_difference(name, row) for name, title in differences.items()},
        }
        for row in rows
    ]
    terminal.table(shown, ("model", *(title for title, _ in COLUMNS.values()), *differences.values()))
