"""The commands `train`, `compare`, `tune`, `check` and `report`."""

import argparse

from factorcell.commands.cli import options, terminal
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.training.check import check
from factorcell.training.compare import NGRAM, compare, training_plans
from factorcell.training.fit import summary, train_run
from factorcell.training.plan import Plan, config_with_defaults
from factorcell.training.tuning import search, search_space

MAX_SHOWN_TRIALS = 10  # maximum number of trials that `tune` prints


def run_train(arguments: argparse.Namespace) -> None:
    """Run `factorcell train`."""
    specified, budget = options.prepare_training(arguments)
    run = train_run(
        arguments.train,
        arguments.dev,
        specified,
        arguments.out,
        budget=budget,
        resume=arguments.resume,
        compare_ngram=True,
    )
    terminal.notify(f"{run.folder}: {summary(run)}")


def run_compare(arguments: argparse.Namespace) -> None:
    """Run `factorcell compare`."""
    from factorcell.reports.runs import report_page

    specified, _ = options.prepare_training(arguments)
    names = ("out", "dev", "test", "models", "target", "seeds", "ngram", "minutes", "preset", "resume")
    settings = {name: getattr(arguments, name) for name in names}
    comparison = compare(arguments.train, **settings, **options.option_values(arguments))
    terminal.show(*str(comparison).splitlines())
    plan = Plan(config_with_defaults(specified))
    model_folders = [
        folder
        for model in arguments.models
        for folder, _ in training_plans(arguments.out, plan, model, arguments.seeds)
    ]
    if arguments.ngram:
        model_folders.append(arguments.out / NGRAM)
    page_path = arguments.out / "report.html"
    files.write(page_path, report_page(model_folders))
    terminal.notify(f"report: {page_path}")


def run_tune(arguments: argparse.Namespace) -> None:
    """Run `factorcell tune`."""
    from factorcell.reports.search import search_page, search_table

    specified, budget = options.prepare_training(arguments)
    if arguments.models and (hasattr(arguments, "adapt") or hasattr(arguments, "output_bias")):
        raise UserError("specify either --models, or --adapt and --output-bias")
    # `arguments` has only those options of the config that the command line specifies; the search does not vary these.
    fixed_options = {name for name in vars(arguments) if name in search_space.SECTIONS}
    trial_rows = search.search(
        arguments.train,
        arguments.dev,
        specified,
        arguments.out,
        search.SearchOptions(
            trials=arguments.trials,
            models=arguments.models,
            ranges=search_space.load_space(arguments.space, fixed_options),
            target=arguments.target,
            sampler=arguments.sampler,
            pruner=arguments.pruner,
            budget=budget,
        ),
        page=search_page,
    )
    terminal.show_table(*search_table(trial_rows[:MAX_SHOWN_TRIALS]))
    terminal.notify(f"report: {arguments.out / 'study.html'}; best options: {arguments.out / 'best.toml'}")


def run_check(arguments: argparse.Namespace) -> None:
    """Run `factorcell check`."""
    results = check(arguments.run)
    if arguments.json:
        terminal.show_json(
            [{"path": str(result.path), "right": result.is_valid, "text": result.text} for result in results]
        )
    else:
        for result in results:
            terminal.show(f"ok     {result.path}: {result.text}" if result.is_valid else f"WRONG  {result.text}")
    if failure_count := sum(not result.is_valid for result in results):
        raise UserError(f"{arguments.run}: {failure_count} of {len(results)} checks failed")


def run_report(arguments: argparse.Namespace) -> None:
    """Run `factorcell report`."""
    from factorcell.reports.runs import report_page

    files.write(arguments.out, report_page(arguments.runs))
    terminal.notify(f"report: {arguments.out}")
