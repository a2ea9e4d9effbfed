"""The commands `train`, `compare`, `tune`, `finetune`, `mix`, `report` and `demo`; their help imports no model."""

import argparse
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.commands.cli.parser import COMPUTING, OUTPUT_FILE, OUTPUT_FOLDER, TRAINING, Parser
from factorcell.config import MODELS, PAPER_MODELS, Config
from factorcell.errors import UserError
from factorcell.options.limits import MODEL_PARTS, SMALL_DATA_DEFAULTS

MAX_SHOWN_TRIALS = 10  # maximum number of trials that `tune` prints

Row = dict[str, Any]


def add_train_arguments(parser: Parser) -> None:
    parser.add_all(*TRAINING)
    parser.add("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    help_text = "a model of the papers; sets --adapt and --output-bias (default without a pretrained base: factorcell)"
    parser.add("--model", choices=list(MODELS), help=help_text)
    parser.add("--resume")
    options.add_config_options(parser)


def run_train(arguments: argparse.Namespace) -> None:
    from factorcell.training.fit import train_run

    settings = options.selected(arguments, "minutes", "preset", "resume", "start")
    specified = options.prepare_training(arguments)
    train_run(arguments.train, arguments.dev, specified, arguments.out, compare_ngram=True, **settings)


def add_compare_arguments(parser: Parser) -> None:
    parser.add_all(*TRAINING)
    parser.add("--test", type=Path, help="table to report results on (default: that of --dev)")
    parser.add("--out", required=True, type=Path, metavar="FOLDER", help="folder for the run folders")
    parser.add("--models", nargs="+", choices=list(MODELS), default=list(PAPER_MODELS), help="models to compare")
    parser.add("--target", metavar="COLUMN", help="context column to classify texts by, with Bayes' rule")
    help_text = "number of trainings of each model, with consecutive seeds from --seed on, to measure their variation"
    parser.add("--seeds", default=1, help=help_text)
    parser.add("--resume")
    options.add_config_options(parser)


def run_compare(arguments: argparse.Namespace) -> None:
    from factorcell.io import files
    from factorcell.reports.runs import report_page
    from factorcell.training.compare import compare

    options.prepare_training(arguments)
    names = ("out", "dev", "test", "models", "target", "seeds", "minutes", "preset", "resume")
    settings = options.selected(arguments, *names) | options.option_values(arguments)
    comparison = compare(arguments.train, **settings)
    terminal.show(*str(comparison).splitlines())
    page_path = arguments.out / "report.html"
    files.write(page_path, report_page([arguments.out]))
    terminal.notify(f"report: {page_path}")


def add_tune_arguments(parser: Parser) -> None:
    parser.add_all(*TRAINING)
    help_text = "folder of the search; an existing search is continued"
    parser.add("--out", required=True, type=Path, metavar="FOLDER", help=help_text)
    parser.add("--trials", default=50, help="total number of trials, including those of earlier commands")
    help_text = "TOML file of ranges and choices of options, which replace or extend the default ranges"
    parser.add("--space", type=Path, help=help_text)
    help_text = "PostgreSQL database in which processes on several machines share the search (default: the folder)"
    parser.add("--storage", metavar="URL", help=help_text)
    options.add_config_options(parser)
    parser.resume_hint = "; repeat the command to continue the search"


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
    settings = options.selected(arguments, "trials", "storage", "minutes", "preset")
    rows = tuning.tune(arguments.train, arguments.dev, specified, arguments.out, space=space, **settings)
    shown = [
        {name: f"{value:.3g}" if isinstance(value, float) and name in space else value for name, value in row.items()}
        for row in rows[:MAX_SHOWN_TRIALS]
    ]
    terminal.show_table(shown, list(dict.fromkeys(name for row in rows for name in row)))
    if rows[0]["perplexity"] is None:
        raise UserError(f"{arguments.out}: no trial has a perplexity; trials.jsonl has the error of each")
    terminal.notify(f"best options: {arguments.out / 'best.toml'}")


def add_finetune_arguments(parser: Parser) -> None:
    parser.add("run", help="run folder to start from")
    parser.add_all("table", "--dev", "--unknown", "--resume")
    parser.add("--out", required=True, type=Path, metavar="RUN", help="new run folder to write")
    help_text = "part of the model to train (repeatable; default: all parts)"
    parser.add("--train", repeatable=True, metavar=f"{{all,{','.join(MODEL_PARTS)}}}", help=help_text)
    parser.add("--l1", default=0.0, help="penalty in nats per unit of absolute change of each weight")
    options.add_config_options(parser, "training", run_defaults=SMALL_DATA_DEFAULTS)


def run_finetune(arguments: argparse.Namespace) -> None:
    from factorcell.runs.run import Run, training_facts
    from factorcell.training.fit import finetune
    from factorcell.training.proximal import ALL

    base = Run.open(arguments.run)
    specified = options.option_values(arguments)
    options.set_threads(specified.get("threads", 0))
    settings = options.selected(arguments, "out", "dev", "l1", "unknown", "resume") | specified
    run = finetune(base, arguments.table, parts=arguments.train or [ALL], **settings)
    terminal.show_table(training_facts(run.folder)["finetuned"]["moved"], ("part", "values", "moved"))


def add_mix_arguments(parser: Parser) -> None:
    help_text = "folders of runs, or folders written by `baseline ngram` or mix"
    parser.add("runs", nargs="+", type=Path, metavar="RUN", help=help_text)
    parser.add("--dev", required=True, type=Path, help="table of texts to fit the weights on")
    parser.add("--by", repeatable=False, help="fit separate weights for each value of this context column")
    parser.add("--out", type=OUTPUT_FOLDER, required=True, metavar="FOLDER", help="folder of the mixture")
    parser.add_all("--unknown", *COMPUTING)


def run_mix(arguments: argparse.Namespace) -> None:
    from factorcell.training.mixture import mix

    settings = options.selected(arguments, "by", "unknown", "device", "precision")
    _, rows = mix(arguments.runs, arguments.dev, arguments.out, **settings)
    if arguments.json:
        return terminal.show_json(rows)
    # Each model has a column: 1, 2 and so on.
    columns = {str(number): path for number, path in enumerate(arguments.runs, 1)}
    terminal.show(*(f"{column}: {path}" for column, path in columns.items()), "", "weights")
    weights = [{**row, **dict(zip(columns, row["weights"], strict=True))} for row in rows]
    terminal.show_table(weights, ("value", "targets", *columns))
    terminal.show("", "perplexity of each model and of the mixture")
    perplexities = [{**row, **dict(zip(columns, row["alone"], strict=True))} for row in rows]
    terminal.show_table([{**row, "mixture": row["perplexity"]} for row in perplexities], ("value", *columns, "mixture"))
    return None


def add_report_arguments(parser: Parser) -> None:
    parser.add("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that contain run folders")
    parser.add("--out", type=OUTPUT_FILE, required=True, metavar="HTML", help="HTML file to write")


def run_report(arguments: argparse.Namespace) -> None:
    from factorcell.io import files
    from factorcell.reports.runs import report_page

    files.write(arguments.out, report_page(arguments.runs))
    terminal.notify(f"report: {arguments.out}")


def add_demo_arguments(parser: Parser) -> None:
    parser.add("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER", help="folder for the run folders")
    parser.add("--page", type=OUTPUT_FILE, default="demo.html", metavar="HTML", help="HTML file to write")
    help_text = "number of passes of each training over the names (default: as many as possible within a minute)"
    parser.add("--epochs", help=help_text)
    parser.add("--threads")
    parser.resume_hint = "; repeat the command to continue"


def run_demo(arguments: argparse.Namespace) -> None:
    from factorcell.commands.demo import demo_page, train_and_evaluate
    from factorcell.io import files

    results = train_and_evaluate(arguments.out, epochs=arguments.epochs)
    terminal.show("", *str(results["models"]).splitlines(), "")
    terminal.show(*(f"{place['place']:>14}  {', '.join(place['samples'])}" for place in results["names"]))
    files.write(arguments.page, demo_page(results))
    terminal.notify("", f"total time: {results['minutes']:.1f} minutes. Open {arguments.page} in a browser.")
