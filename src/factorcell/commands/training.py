"""The verbs that train, compare, search and report."""

import argparse

from factorcell import files
from factorcell.commands import options, terminal
from factorcell.config import UserError
from factorcell.training import search, search_space
from factorcell.training.check import check
from factorcell.training.compare import NGRAM, compare, training_plans
from factorcell.training.fit import fit, summary
from factorcell.training.plan import Plan, config_with_defaults


def run_train(given: argparse.Namespace) -> None:
    """`factorcell train`."""
    said, budget = options.training_request(given)
    run = fit(given.train, given.dev, said, given.out, budget=budget, resume=given.resume, notify=terminal.notify)
    terminal.notify(f"{run.folder}: {summary(run)}")


def run_compare(given: argparse.Namespace) -> None:
    """`factorcell compare`."""
    from factorcell.reports.runs import report_page

    said, budget = options.training_request(given)
    found = compare(
        given.train,
        given.dev,
        given.test,
        said,
        given.out,
        budget=budget,
        models=given.models,
        target=given.target,
        seeds=given.seeds,
        ngram=given.ngram,
        resume=given.resume,
        notify=terminal.notify,
    )
    terminal.show_table(*found.table())
    terminal.notify(*found.notes())
    page = given.out / "report.html"
    made = Plan(config_with_defaults(said))
    folders = [path for model in given.models for path, _ in training_plans(given.out, made, model, given.seeds)]
    folders += [given.out / NGRAM] if given.ngram else []
    files.write(page, report_page(folders))
    terminal.notify(f"the page: {page}")


def run_tune(given: argparse.Namespace) -> None:
    """`factorcell tune`."""
    from factorcell.reports import search as trials

    said, budget = options.training_request(given)
    if given.models and (hasattr(given, "adapt") or hasattr(given, "output_bias")):
        raise UserError("give either --models or --adapt and --output-bias")
    asked = {name for name in vars(given) if name in search_space.SECTIONS}
    rows = search.search(
        given.train,
        given.dev,
        said,
        given.out,
        search.SearchOptions(
            trials=given.trials,
            models=given.models,
            ranges=search_space.load_space(given.space, asked),
            target=given.target,
            sampler=given.sampler,
            pruner=given.pruner,
            budget=budget,
        ),
        notify=terminal.notify,
        page=trials.search_page,
    )
    terminal.show_table(*trials.search_table(rows[:10]))
    terminal.notify(f"the page: {given.out / 'study.html'}; the best options: {given.out / 'best.toml'}")


def run_check(given: argparse.Namespace) -> None:
    """`factorcell check`."""
    found = check(given.run)
    if given.json:
        terminal.show_json([{"path": str(one.path), "right": one.is_valid, "text": one.text} for one in found])
    else:
        for one in found:
            terminal.show(f"ok     {one.path}: {one.text}" if one.is_valid else f"WRONG  {one.text}")
    if wrong := sum(not one.is_valid for one in found):
        raise UserError(f"{given.run}: {wrong} of {len(found)} findings {'is' if wrong == 1 else 'are'} wrong")


def run_report(given: argparse.Namespace) -> None:
    """`factorcell report`."""
    from factorcell.reports.runs import report_page

    files.write(given.out, report_page(given.runs))
    terminal.notify(f"the page: {given.out}")
