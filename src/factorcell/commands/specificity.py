"""The verb of context-specificity."""

import argparse
from typing import Any

from factorcell import files, inputs
from factorcell.commands import generation, options, terminal
from factorcell.config import UserError
from factorcell.evaluation import specificity
from factorcell.evaluation.judge import Judge, JudgeOptions, correlations
from factorcell.evaluation.results import find_models
from factorcell.model.run import Run
from factorcell.reports import specificity as specificity_report

Row = dict[str, Any]


def run_specificity(given: argparse.Namespace) -> None:
    """`factorcell specificity`."""
    how, folders = generation.writing_options(given), find_models(given.runs)
    design = specificity.Design(given.number, options.context(given.context), given.draw)
    if inputs.visible(given.out) and not given.resume:
        raise UserError(f"{given.out}: exists already; choose another folder, or --resume to go on with it")
    first = Run.open(folders[0])
    first.schema.variable(given.target)
    judged = Judge.train_on(
        given.train,
        first.config,
        JudgeOptions(given.target, given.judge, tuple(given.order), given.seed),
        held=given.dev,
        tokenizer=first.tokenizer,
        progress=True,
    )
    measured = []
    for row, texts in specificity.compare(
        folders, judged, given.dev, given.out, design=design, options=how, progress=True
    ):
        measured.append((row, texts))
        terminal.say(*row["cautions"])
        terminal.say(f"{row['name']}: {row['specificity']:.3f} of {row['texts']:,} texts judged to fit")
    rows = specificity.beside(measured)
    related = correlations(rows)
    real: Row = {"name": "real texts", **judged.real, "specificity": judged.real["accuracy"]}
    del real["accuracy"]  # that of a model is of Bayes' rule
    results = [*rows, real, {"correlations": related}]
    files.write_rows(given.out / "results.jsonl", results)
    examples = specificity.examples(given.out, folders, given.target)
    page = specificity_report.page(given.target, rows, real, related, examples)
    files.write(given.out / "specificity.html", page)
    if given.json:
        return terminal.lines(results)
    terminal.table(*specificity_report.table(rows, real))
    terminal.say(f"the page: {given.out / 'specificity.html'}")
    return None
