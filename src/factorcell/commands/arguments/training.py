"""What the verbs take that train and compare."""

from argparse import BooleanOptionalAction
from pathlib import Path

from factorcell.choices import MODEL_PARTS, PRUNERS, SAMPLERS, SMALL_DATA_DEFAULTS
from factorcell.commands import options
from factorcell.commands.parser import Parser
from factorcell.config import MODELS, PAPER_MODELS


def train(verb: Parser) -> None:
    """`factorcell train`."""
    options.add_training_files(verb)
    verb.add_argument("--out", required=True, type=Path, metavar="RUN", help="the run folder")
    verb.add_argument("--model", choices=list(MODELS), help="a model by its name, instead of --adapt and --output-bias")
    verb.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    options.add_config_options(verb)


def compare(verb: Parser) -> None:
    """`factorcell compare`."""
    options.add_training_files(verb)
    verb.add_argument("--test", type=Path, help="table to report on (default: the development set)")
    verb.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder of the run folders")
    verb.add_argument("--models", nargs="+", choices=list(MODELS), default=list(PAPER_MODELS), help="which of them")
    verb.add_argument("--target", metavar="COLUMN", help="context column to classify by Bayes' rule")
    text = "trainings of each model, to measure how far they spread: --seed and those after it"
    verb.add_argument("--seeds", type=int, default=1, help=text)
    text = "also an n-gram model of the same tokens: what counting alone reaches"
    verb.add_argument("--ngram", action=BooleanOptionalAction, default=True, help=text)
    verb.add_argument("--resume", action="store_true", help="go on where --out was left")
    options.add_config_options(verb)


def tune(verb: Parser) -> None:
    """`factorcell tune`."""
    options.add_training_files(verb)
    text = "folder of the search; one that exists is gone on with"
    verb.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=text)
    verb.add_argument("--trials", type=int, default=50, help="trials in all, those of earlier commands counted")
    text = "model classes to choose from"
    verb.add_argument("--models", "--model", nargs="+", choices=list(MODELS), default=[], help=text)
    verb.add_argument("--target", metavar="COLUMN", help="context column to classify the development texts by")
    verb.add_argument("--space", type=Path, help="TOML file of ranges and choices; they replace or join the papers'")
    verb.rare.add_argument("--sampler", choices=SAMPLERS, default="random", help="how options are drawn")
    verb.rare.add_argument("--pruner", choices=PRUNERS, default="median", help="which trials are given up early")
    options.add_config_options(verb)
    verb.optional.set_defaults(again="; the same command goes on")


def finetune(verb: Parser) -> None:
    """`factorcell finetune`."""
    options.add_run(verb, "the run folder to begin from")
    options.add_table(verb)
    verb.add_argument("--dev", type=Path, help="development table (default: 5 %% of the rows are held out)")
    verb.add_argument("--out", required=True, type=Path, metavar="RUN", help="the new run folder")
    text = "part that moves (repeatable; default: all)"
    verb.add_argument("--train", action="append", metavar=f"{{all,{','.join(MODEL_PARTS)}}}", help=text)
    verb.add_argument("--l1", type=float, default=0.0, help="penalty, in nats, on how far each value moves")
    options.add_unknown(verb)
    verb.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    options.add_config_options(verb, "training", otherwise=SMALL_DATA_DEFAULTS)


def separate(verb: Parser) -> None:
    """`factorcell separate`."""
    options.add_training_files(verb)
    verb.add_argument("--by", required=True, metavar="COLUMN", help="the column")
    verb.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder of the run folders")
    verb.add_argument("--resume", action="store_true", help="go on where --out was left")
    options.add_config_options(verb)


def mix(verb: Parser) -> None:
    """`factorcell mix`."""
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, of `separate` or of `mix`")
    verb.add_argument("--dev", required=True, type=Path, help="table of texts that the weights are fitted to")
    verb.add_argument("--by", metavar="COLUMN", help="weights of their own for every value of a column")
    options.add_output(verb, "--out", "folder of the mixture", folder=True, required=True, metavar="FOLDER")
    options.add_computing(verb)


def report(verb: Parser) -> None:
    """`factorcell report`."""
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of them")
    options.add_output(verb, "--out", "the HTML file", required=True, metavar="HTML")


def check(verb: Parser) -> None:
    """`factorcell check`."""
    options.add_run(verb, "folder of a run, an n-gram model, of `separate` or of `mix`")
    options.add_json(verb)


def demo(verb: Parser) -> None:
    """`factorcell demo`."""
    folder = Path("runs/demo")
    verb.add_argument("--out", type=Path, default=folder, metavar="FOLDER", help="folder of the run folders")
    options.add_output(verb, "--page", "the HTML file", default="demo.html", metavar="HTML")
    verb.add_argument("--epochs", type=float, help="passes over the names, each model (default: within minutes)")
    options.add_threads(verb)
    verb.optional.set_defaults(again="; the same command goes on")
