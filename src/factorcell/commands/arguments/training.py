"""Arguments of the commands that train, compare and check models."""

from argparse import BooleanOptionalAction
from pathlib import Path

from factorcell.choices import MODEL_PARTS, PRUNERS, SAMPLERS, SMALL_DATA_DEFAULTS
from factorcell.commands import options
from factorcell.commands.parser import Parser
from factorcell.config import MODELS, PAPER_MODELS

RESUME_CHECKPOINT = "resume from the last checkpoint in --out"
RESUME_FOLDER = "resume the command that wrote --out"
RUN_FOLDERS = "folder for the run folders"


def train(parser: Parser) -> None:
    """Add the arguments of `factorcell train`."""
    options.add_training_files(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="run folder to write")
    text = "a model of the papers, instead of --adapt and --output-bias"
    parser.add_argument("--model", choices=list(MODELS), help=text)
    parser.add_argument("--resume", action="store_true", help=RESUME_CHECKPOINT)
    options.add_config_options(parser)


def compare(parser: Parser) -> None:
    """Add the arguments of `factorcell compare`."""
    options.add_training_files(parser)
    parser.add_argument("--test", type=Path, help="table to report results on (default: the development table)")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=RUN_FOLDERS)
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(PAPER_MODELS), help="models to compare"
    )
    parser.add_argument("--target", metavar="COLUMN", help="context column to classify texts by, with Bayes' rule")
    text = "trainings per model, with consecutive seeds from --seed on, to measure their variation"
    parser.add_argument("--seeds", type=int, default=1, help=text)
    text = "also train an n-gram model on the same tokens as a baseline"
    parser.add_argument("--ngram", action=BooleanOptionalAction, default=True, help=text)
    parser.add_argument("--resume", action="store_true", help=RESUME_FOLDER)
    options.add_config_options(parser)


def tune(parser: Parser) -> None:
    """Add the arguments of `factorcell tune`."""
    options.add_training_files(parser)
    text = "folder of the search; an existing search is continued"
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=text)
    text = "total number of trials, including those of earlier commands"
    parser.add_argument("--trials", type=int, default=50, help=text)
    text = "models to choose from"
    parser.add_argument("--models", "--model", nargs="+", choices=list(MODELS), default=[], help=text)
    text = "context column to classify the development texts by"
    parser.add_argument("--target", metavar="COLUMN", help=text)
    text = "TOML file of ranges and choices of options, which replace or extend those of the papers"
    parser.add_argument("--space", type=Path, help=text)
    parser.rare.add_argument(
        "--sampler", choices=SAMPLERS, default="random", help="method of sampling the options of a trial"
    )
    parser.rare.add_argument(
        "--pruner", choices=PRUNERS, default="median", help="rule by which trials are stopped early"
    )
    options.add_config_options(parser)
    parser.optional.set_defaults(resume_hint="; repeat the command to continue the search")


def finetune(parser: Parser) -> None:
    """Add the arguments of `factorcell finetune`."""
    options.add_run(parser, "run folder to start from")
    options.add_table(parser)
    text = "development table (default: 5 %% of the rows are held out)"
    parser.add_argument("--dev", type=Path, help=text)
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="new run folder to write")
    text = "part of the model to train (repeatable; default: all)"
    parser.add_argument("--train", action="append", metavar=f"{{all,{','.join(MODEL_PARTS)}}}", help=text)
    text = "penalty in nats on the absolute change of each weight"
    parser.add_argument("--l1", type=float, default=0.0, help=text)
    options.add_unknown(parser)
    parser.add_argument("--resume", action="store_true", help=RESUME_CHECKPOINT)
    options.add_config_options(parser, "training", run_defaults=SMALL_DATA_DEFAULTS)


def separate(parser: Parser) -> None:
    """Add the arguments of `factorcell separate`."""
    options.add_training_files(parser)
    text = "train one model for each value of this column"
    parser.add_argument("--by", required=True, metavar="COLUMN", help=text)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=RUN_FOLDERS)
    parser.add_argument("--resume", action="store_true", help=RESUME_FOLDER)
    options.add_config_options(parser)


def mix(parser: Parser) -> None:
    """Add the arguments of `factorcell mix`."""
    text = "folders of runs, or folders written by separate or mix"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=text)
    parser.add_argument("--dev", required=True, type=Path, help="table of texts to fit the weights on")
    parser.add_argument("--by", metavar="COLUMN", help="fit separate weights for each value of this column")
    options.add_output(parser, "--out", "folder of the mixture", folder=True, required=True, metavar="FOLDER")
    options.add_computing(parser)


def report(parser: Parser) -> None:
    """Add the arguments of `factorcell report`."""
    text = "run folders, or folders that contain run folders"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=text)
    options.add_output(parser, "--out", "HTML file to write", required=True, metavar="HTML")


def check(parser: Parser) -> None:
    """Add the arguments of `factorcell check`."""
    options.add_run(parser, "folder of a run or an n-gram model, or a folder written by separate or mix")
    options.add_json(parser)


def demo(parser: Parser) -> None:
    """Add the arguments of `factorcell demo`."""
    folder = Path("runs/demo")
    parser.add_argument("--out", type=Path, default=folder, metavar="FOLDER", help=RUN_FOLDERS)
    options.add_output(parser, "--page", "HTML file to write", default="demo.html", metavar="HTML")
    text = "number of passes of each training over the names (default: as many as fit into a minute)"
    parser.add_argument("--epochs", type=float, help=text)
    options.add_threads(parser)
    parser.optional.set_defaults(resume_hint="; repeat the command to continue")
