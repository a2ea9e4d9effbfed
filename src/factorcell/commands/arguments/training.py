"""Arguments of the commands that train, compare and check models."""

from argparse import BooleanOptionalAction
from pathlib import Path

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.config import MODELS, PAPER_MODELS
from factorcell.options.choices import MODEL_PARTS, SMALL_DATA_DEFAULTS

RESUME_CHECKPOINT_HELP = "resume from the last checkpoint in --out"
RESUME_FOLDER_HELP = "resume the command that wrote --out"
RUN_FOLDERS_HELP = "folder for the run folders"


def add_train_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell train`."""
    options.add_training_files(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    help_text = "a model of the papers; sets --adapt and --output-bias (default without a pretrained base: factorcell)"
    parser.add_argument("--model", choices=list(MODELS), help=help_text)
    parser.add_argument("--resume", action="store_true", help=RESUME_CHECKPOINT_HELP)
    options.add_config_options(parser)


def add_compare_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell compare`."""
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


def add_tune_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell tune`."""
    options.add_training_files(parser)
    help_text = "folder of the search; an existing search is continued"
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=help_text)
    help_text = "total number of trials, including those of earlier commands"
    parser.add_argument("--trials", type=int, default=50, help=help_text)
    help_text = "TOML file of ranges and choices of options, which replace or extend the default ranges"
    parser.add_argument("--space", type=Path, help=help_text)
    options.add_config_options(parser)
    parser.optional.set_defaults(resume_hint="; repeat the command to continue the search")


def add_finetune_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell finetune`."""
    options.add_run(parser, "run folder to start from")
    options.add_table(parser)
    help_text = "development table (default: 5 %% of the rows are held out)"
    parser.add_argument("--dev", type=Path, help=help_text)
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="new run folder to write")
    help_text = "part of the model to train (repeatable; default: all parts)"
    parser.add_argument("--train", action="append", metavar=f"{{all,{','.join(MODEL_PARTS)}}}", help=help_text)
    help_text = "penalty in nats per unit of absolute change of each weight"
    parser.add_argument("--l1", type=float, default=0.0, help=help_text)
    options.add_unknown(parser)
    parser.add_argument("--resume", action="store_true", help=RESUME_CHECKPOINT_HELP)
    options.add_config_options(parser, "training", run_defaults=SMALL_DATA_DEFAULTS)


def add_mix_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell mix`."""
    help_text = "folders of runs, or folders written by `baseline ngram` or mix"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=help_text)
    parser.add_argument("--dev", required=True, type=Path, help="table of texts to fit the weights on")
    parser.add_argument("--by", metavar="COLUMN", help="fit separate weights for each value of this column")
    options.add_output(parser, "--out", "folder of the mixture", folder=True, required=True, metavar="FOLDER")
    options.add_computing(parser)


def add_report_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell report`."""
    help_text = "run folders, or folders that contain run folders"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=help_text)
    options.add_output(parser, "--out", "HTML file to write", required=True, metavar="HTML")


def add_demo_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell demo`."""
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER", help=RUN_FOLDERS_HELP)
    options.add_output(parser, "--page", "HTML file to write", default="demo.html", metavar="HTML")
    help_text = "number of passes of each training over the names (default: as many as possible within a minute)"
    parser.add_argument("--epochs", type=float, help=help_text)
    options.add_threads(parser)
    parser.optional.set_defaults(resume_hint="; repeat the command to continue")
