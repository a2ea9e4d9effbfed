"""The commands `train`, `compare`, `tune` and `report`."""

import argparse

from factorcell.commands.cli import options, terminal
from factorcell.io import files
from factorcell.training import tuning
from factorcell.training.compare import NGRAM, compare, training_plans
from factorcell.training.fit import train_run
from factorcell.training.plan import Plan, config_with_defaults

MAX_SHOWN_TRIALS = 10  # maximum number of trials that `tune` prints


def run_train(arguments: argparse.Namespace) -> None:
    """Run `factorcell train`."""
    specified, budget = options.prepare_training(arguments)
    train_run(
        arguments.train,
        arguments.dev,
        specified,
        arguments.out,
        budget=budget,
        resume=arguments.resume,
        compare_ngram=True,
    )


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
    specified, budget = options.prepare_training(arguments)
    # `arguments` has only those options of the config that the command line specifies; the search does not vary these.
    space = tuning.default_space(config_with_defaults(specified))
    if arguments.space is not None:
        space |= tuning.read_space(arguments.space, fixed=vars(arguments))
    space = {name: values for name, values in space.items() if not hasattr(arguments, name)}
    rows = tuning.tune(
        arguments.train,
        arguments.dev,
        specified,
        arguments.out,
        trials=arguments.trials,
        space=space,
        budget=budget,
    )
    terminal.show_table(rows[:MAX_SHOWN_TRIALS], list(dict.fromkeys(name for row in rows for name in row)))
    terminal.notify(f"best options: {arguments.out / 'best.toml'}; figures: {arguments.out}")


def run_report(arguments: argparse.Namespace) -> None:
    """Run `factorcell report`."""
    from factorcell.reports.runs import report_page

    files.write(arguments.out, report_page(arguments.runs))
    terminal.notify(f"report: {arguments.out}")
