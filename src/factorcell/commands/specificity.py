"""The verb of context-specificity."""

import argparse
from pathlib import Path
from typing import Any

from factorcell import files
from factorcell.commands import generation, options, terminal
from factorcell.config import UserError
from factorcell.evaluation import specificity
from factorcell.evaluation.judge import KINDS, Judge, correlations
from factorcell.model.run import Run
from factorcell.reports import specificity as specificity_report

Row = dict[str, Any]


def add(verbs: Any) -> None:
    """Add the verb to those of the command line."""
    verb = options.verb(verbs, "specificity", judge, "does the text that models write fit its context?")
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders")
    verb.add_argument("--target", required=True, help="categorical context column whose values texts are written for")
    verb.add_argument("--train", required=True, type=Path, metavar="TABLE", help="real texts to learn to judge from")
    verb.add_argument("--dev", required=True, type=Path, metavar="TABLE", help="real texts that all are measured on")
    verb.add_argument("--out", required=True, type=Path, help="folder of the texts, the figures and the page")
    verb.add_argument("--judge", choices=tuple(KINDS), default="linear", help="the classifier (default: linear)")
    verb.add_argument("--order", nargs="+", default=[], metavar="VALUE", help="values from low to high, if no numbers")
    verb.add_argument("--number", type=int, default=200, metavar="N", help="texts of each value (default: 200)")
    options.add_context(verb)
    verb.add_argument(
        "--draw", action="append", default=[], metavar="NAME", help="a context column drawn for each text (repeatable)"
    )
    generation.add_writing(verb)
    verb.add_argument("--resume", action="store_true", help="go on with a folder begun with the same options")
    verb.add_argument("--json", action="store_true", help="print rows of JSON")
    verb.add_argument("--threads", type=int, default=0, help="threads; 0: all cores")
    verb.set_defaults(again="; the same command with --resume goes on")


def judge(given: argparse.Namespace) -> None:
    """`factorcell specificity`."""
    how, folders = generation.writing_options(given), specificity.find_runs(given.runs)
    if given.out.exists() and any(given.out.iterdir()) and not given.resume:
        raise UserError(f"{given.out}: exists already; choose another folder, or --resume to go on with it")
    first = Run.open(folders[0])
    first.schema.variable(given.target)
    judged = Judge.train_on(
        given.train,
        given.target,
        first.config.data,
        kind=given.judge,
        held=given.dev,
        vocabulary=first.vocabulary,
        order=given.order,
        seed=given.seed,
        progress=True,
    )
    rows = []
    for row in specificity.compare(
        folders,
        judged,
        given.dev,
        given.out,
        number=given.number,
        options=how,
        context=options.context(given.context),
        draw=given.draw,
        progress=True,
    ):
        rows.append(row)
        terminal.say(f"{row['name']}: {row['specificity']:.3f} of {row['texts']:,} texts judged to fit")
    related = correlations(rows)
    real: Row = {"name": "real texts", **judged.real, "specificity": judged.real["accuracy"]}
    del real["accuracy"]  # that of a model is of Bayes' rule
    results = [*rows, real, {"correlations": related}]
    files.write_rows(given.out / "results.jsonl", results)
    examples = specificity.examples(given.out, folders, given.target)
    page = specificity_report.page(given.target, rows, real, related, examples)
    (given.out / "specificity.html").write_text(page, encoding="utf-8")
    if given.json:
        return terminal.lines(results)
    terminal.table(*specificity_report.table(rows, real))
    terminal.say(f"the page: {given.out / 'specificity.html'}")
    return None
