"""Arguments of the commands that complete what a user types."""

from pathlib import Path

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.options.limits import ONLINE_OPTIMIZERS


def add_complete_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell complete`."""
    options.add_run(parser, "run folder of a model with tokenizer char, grapheme, bpe or pretrained")
    help_text = "text typed so far (default: complete interactively in the terminal)"
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", help=help_text)
    help_text = "complete each line of standard input and print a row of JSON for it"
    parser.add_argument("--stdin", action="store_true", help=help_text)
    options.add_context(parser)
    help_text = "earlier text of the user (repeatable; the texts are learned in this order)"
    parser.add_argument("--history", action="append", default=[], metavar="TEXT", help=help_text)
    help_text = "show what the model, the popular texts and the history add to each score"
    parser.add_argument("--explain", action="store_true", help=help_text)
    help_text = "number of suggestions"
    parser.add_argument("--count", type=int, default=10, help=help_text)
    parser.add_argument("--seconds", type=float, help="time limit, after which the search returns its best suggestions")
    parser.add_argument("--typos", type=int, default=0, help="typing errors to tolerate, 0 to 2")
    options.add_no_ngram_mixture(parser)
    options.add_computing(parser, unknown="error")


def add_tune_online_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell tune-online`."""
    options.add_run(parser, "run folder of a model trained with --user")
    parser.add_argument("dev", type=Path, metavar="DEV", help="table of texts of users who were not in training")
    _add_stream_options(parser, "complete about one in N texts to fit the weights of the blend")
    help_text = "optimizer to try (repeatable; default: all)"
    parser.add_argument("--optimizer", action="append", choices=ONLINE_OPTIMIZERS, help=help_text)
    help_text = "time limit; the command ends earlier if no other settings are better"
    parser.add_argument("--minutes", type=float, default=5.0, help=help_text)
    help_text = "maximum norm of a user vector, relative to the largest norm in training; 0: no limit"
    parser.rare.add_argument("--max-norm", type=float, default=2.0, metavar="X", help=help_text)
    options.add_computing(parser)


def add_replay_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell replay`."""
    options.add_run(parser, "run folder of a model with tokenizer char, grapheme, bpe or pretrained")
    help_text = "table of held-out texts with columns for user and time"
    parser.add_argument("heldout", type=Path, metavar="HELDOUT", help=help_text)
    help_text = "systems to compare: plain (the run without online learning, for the unknown user), "
    help_text += "mpc (popular texts), history (texts of the user), online (the run with online learning), blend "
    help_text += "(default: all systems that RUN supports)"
    parser.add_argument("--compare", metavar="NAME[,NAME...]", help=help_text)
    help_text = "new folder for rows and summary"
    options.add_output(parser, "--out", help_text, folder=True, required=True, metavar="FOLDER")
    help_text = "column that identifies the user (default: the run's user column, else user)"
    parser.add_argument("--user", metavar="COLUMN", help=help_text)
    _add_stream_options(parser, "evaluate about one in N texts; the systems learn all texts")
    options.add_no_ngram_mixture(parser)
    options.add_computing(parser)


def _add_stream_options(parser: Parser, every_help: str) -> None:
    """Add the options that select and order the texts of each user; `every_help` is the help of --every."""
    help_text = "column of times or numbers by which texts are ordered (default: the run's time column, else time)"
    parser.add_argument("--time", metavar="COLUMN", help=help_text)
    parser.add_argument("--rows-per-user", type=int, help="use the first N texts of each user (default: all)")
    parser.add_argument("--every", type=int, default=1, help=every_help)
    parser.add_argument("--seconds", type=float, help="time limit per completion, as for `complete`")
