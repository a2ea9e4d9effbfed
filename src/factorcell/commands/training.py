"""The commands `train`, `compare`, `tune`, `finetune`, `mix`, `report` and `demo`.

The functions import what they compute with, so that the help appears quickly.
"""

import argparse
from argparse import BooleanOptionalAction
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import Parser
from factorcell.config import MODELS, PAPER_MODELS, Config
from factorcell.errors import UserError
from factorcell.options.limits import MODEL_PARTS, SMALL_DATA_DEFAULTS

RESUME_CHECKPOINT_HELP = "resume from the last checkpoint in --out"
RESUME_FOLDER_HELP = "resume the command that wrote --out"
RUN_FOLDERS_HELP = "folder for the run folders"
MAX_SHOWN_TRIALS = 10  # maximum number of trials that `tune` prints

Row = dict[str, Any]


def add_train_arguments(parser: Parser) -> None:
    options.add_training_files(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    help_text = "a model of the papers; sets --adapt and --output-bias (default without a pretrained base: factorcell)"
    parser.add_argument("--model", choices=list(MODELS), help=help_text)
    parser.add_argument("--resume", action="store_true", help=RESUME_CHECKPOINT_HELP)
    options.add_config_options(parser)


def run_train(arguments: argparse.Namespace) -> None:
    from factorcell.training.fit import train_run

    train_run(
        arguments.train,
        arguments.dev,
        options.prepare_training(arguments),
        arguments.out,
        minutes=arguments.minutes,
        preset=arguments.preset,
        resume=arguments.resume,
        compare_ngram=True,
    )


def add_compare_arguments(parser: Parser) -> None:
    options.add_training_files(parser)
    parser.add_argument("--test", type=Path, help="table to report results on (default: the development table)")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=RUN_FOLDERS_HELP)
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(PAPER_MODELS), help="models to compare"
    )
    parser.add_argument("--target", metavar="COLUMN", help="context column to classify texts by, with Bayes' rule")
    help_text = "number of trainings of each model, with consecutive seeds from --seed on, to measure their variation"
    parser.add_argument("--seeds", type=int, default=1, help=help_text)
    help_text = "also train an n-gram model on the same tokens as a baseline"
    parser.rare.add_argument("--ngram", action=BooleanOptionalAction, default=True, help=help_text)
    parser.add_argument("--resume", action="store_true", help=RESUME_FOLDER_HELP)
    options.add_config_options(parser)


def run_compare(arguments: argparse.Namespace) -> None:
    from factorcell.io import files
    from factorcell.reports.runs import report_page
    from factorcell.training.compare import compare

    options.prepare_training(arguments)
    names = ("out", "dev", "test", "models", "target", "seeds", "ngram", "minutes", "preset", "resume")
    settings = {name: getattr(arguments, name) for name in names}
    comparison = compare(arguments.train, **settings, **options.option_values(arguments))
    terminal.show(*str(comparison).splitlines())
    page_path = arguments.out / "report.html"
    files.write(page_path, report_page([arguments.out]))
    terminal.notify(f"report: {page_path}")


def add_tune_arguments(parser: Parser) -> None:
    options.add_training_files(parser)
    help_text = "folder of the search; an existing search is continued"
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=help_text)
    help_text = "total number of trials, including those of earlier commands"
    parser.add_argument("--trials", type=int, default=50, help=help_text)
    help_text = "TOML file of ranges and choices of options, which replace or extend the default ranges"
    parser.add_argument("--space", type=Path, help=help_text)
    options.add_config_options(parser)
    parser.optional.set_defaults(resume_hint="; repeat the command to continue the search")


def run_tune(arguments: argparse.Namespace) -> None:
    from factorcell.io import input_files
    from factorcell.training import tuning

    specified = options.prepare_training(arguments)
    # `arguments` has only those options of the config that the command line specifies; the search does not vary these.
    space = tuning.default_space(Config.from_dict(specified))
    if arguments.space is not None:
        searched = input_files.read_options_file(arguments.space)
        if name := next((name for name in searched if hasattr(arguments, name)), None):
            raise UserError(
                f"{arguments.space}: {name} is also set as an option; an option is either fixed or searched"
            )
        space |= searched
    space = {name: values for name, values in space.items() if not hasattr(arguments, name)}
    rows = tuning.tune(
        arguments.train,
        arguments.dev,
        specified,
        arguments.out,
        trials=arguments.trials,
        space=space,
        minutes=arguments.minutes,
        preset=arguments.preset,
    )
    terminal.show_table(rows[:MAX_SHOWN_TRIALS], list(dict.fromkeys(name for row in rows for name in row)))
    terminal.notify(f"best options: {arguments.out / 'best.toml'}")


def add_finetune_arguments(parser: Parser) -> None:
    options.add_run(parser, "run folder to start from")
    options.add_table(parser)
    parser.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="new run folder to write")
    help_text = "part of the model to train (repeatable; default: all parts)"
    parser.add_argument("--train", action="append", metavar=f"{{all,{','.join(MODEL_PARTS)}}}", help=help_text)
    help_text = "penalty in nats per unit of absolute change of each weight"
    parser.add_argument("--l1", type=float, default=0.0, help=help_text)
    options.add_unknown(parser)
    parser.add_argument("--resume", action="store_true", help=RESUME_CHECKPOINT_HELP)
    options.add_config_options(parser, "training", run_defaults=SMALL_DATA_DEFAULTS)


def run_finetune(arguments: argparse.Namespace) -> None:
    from factorcell.runs.run import Run, training_facts
    from factorcell.training.fit import finetune
    from factorcell.training.proximal import ALL

    base = Run.open(arguments.run)
    specified = options.option_values(arguments)
    options.set_threads(specified.get("threads", base.config.training.threads))
    run = finetune(
        base,
        arguments.table,
        out=arguments.out,
        dev=arguments.dev,
        parts=arguments.train or [ALL],
        l1=arguments.l1,
        unknown=arguments.unknown,
        resume=arguments.resume,
        **specified,
    )
    change_rows = training_facts(run.folder)["finetuned"]["moved"]
    terminal.show_table(change_rows, ("part", "values", "moved"))


def add_mix_arguments(parser: Parser) -> None:
    help_text = "folders of runs, or folders written by `baseline ngram` or mix"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=help_text)
    parser.add_argument("--dev", required=True, type=Path, help="table of texts to fit the weights on")
    parser.add_argument("--by", metavar="COLUMN", help="fit separate weights for each value of this context column")
    options.add_output(parser, "--out", "folder of the mixture", folder=True, required=True, metavar="FOLDER")
    options.add_computing(parser)


def run_mix(arguments: argparse.Namespace) -> None:
    from factorcell.training.mixture import mix

    _, rows = mix(
        arguments.runs,
        arguments.dev,
        arguments.out,
        by=arguments.by,
        unknown=arguments.unknown,
        device=arguments.device,
        precision=arguments.precision,
    )
    if arguments.json:
        return terminal.show_json(rows)
    model_columns = [str(number) for number in range(1, len(arguments.runs) + 1)]
    for column, path in zip(model_columns, arguments.runs, strict=True):
        terminal.show(f"{column}: {path}")
    terminal.show("", "weights")
    weight_rows = [_with_model_columns(row, "weights") for row in rows]
    terminal.show_table(weight_rows, ("value", "targets", *model_columns))
    terminal.show("", "perplexity of each model and of the mixture")
    perplexity_rows = [{**_with_model_columns(row, "alone"), "mixture": row["perplexity"]} for row in rows]
    terminal.show_table(perplexity_rows, ("value", *model_columns, "mixture"))
    return None


def add_report_arguments(parser: Parser) -> None:
    help_text = "run folders, or folders that contain run folders"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=help_text)
    options.add_output(parser, "--out", "HTML file to write", required=True, metavar="HTML")


def run_report(arguments: argparse.Namespace) -> None:
    from factorcell.io import files
    from factorcell.reports.runs import report_page

    files.write(arguments.out, report_page(arguments.runs))
    terminal.notify(f"report: {arguments.out}")


def _with_model_columns(row: Row, key: str) -> Row:
    """Return `row` with an additional column for each model, named 1, 2 and so on; `row[key]` lists their values."""
    return {**row, **{str(number): value for number, value in enumerate(row[key], 1)}}


def add_demo_arguments(parser: Parser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER", help=RUN_FOLDERS_HELP)
    options.add_output(parser, "--page", "HTML file to write", default="demo.html", metavar="HTML")
    help_text = "number of passes of each training over the names (default: as many as possible within a minute)"
    parser.add_argument("--epochs", type=float, help=help_text)
    options.add_threads(parser)
    parser.optional.set_defaults(resume_hint="; repeat the command to continue")


def run_demo(arguments: argparse.Namespace) -> None:
    from factorcell.commands.demo import train_and_evaluate
    from factorcell.io import files
    from factorcell.reports.demo import demo_page

    results = train_and_evaluate(arguments.out, epochs=arguments.epochs)
    terminal.show("")
    terminal.show(*str(results["models"]).splitlines())
    terminal.show("")
    for place in results["names"]:
        terminal.show(f"{place['place']:>14}  {', '.join(place['samples'])}")
    files.write(arguments.page, demo_page(results))
    terminal.notify("", f"total time: {results['minutes']:.1f} minutes. Open {arguments.page} in a browser.")
