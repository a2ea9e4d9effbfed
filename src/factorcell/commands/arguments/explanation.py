"""Arguments of the commands that explain texts and models."""

from pathlib import Path

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.options.choices import DEFAULT_VALUE_COUNT


def add_explain_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell explain`."""
    options.add_run(parser)
    help_text = "file with one text per line, or a table; -: standard input"
    parser.add_argument("file", metavar="FILE", nargs="?", help=help_text)
    parser.add_argument("--text", action="append", default=[], help="a text, instead of FILE (repeatable)")
    help_text = "two or more contexts: rating=5 rating=1; join several columns with ';': 'rating=5; city=Oslo'"
    parser.add_argument("--between", nargs="+", required=True, metavar="NAME=VALUE", help=help_text)
    options.add_context(parser)
    help_text = "further runs whose log-likelihoods are averaged with those of RUN"
    parser.add_argument("--ensemble", nargs="+", type=Path, default=[], metavar="RUN", help=help_text)
    help_text = "other runs whose ratios are shown separately, for comparison"
    parser.add_argument("--compare-with", nargs="+", type=Path, default=[], metavar="RUN", help=help_text)
    options.add_no_ngram_mixture(parser)
    _add_train(parser)
    options.add_output(parser, "--page", "write an HTML page", metavar="HTML")
    options.add_computing(parser, unknown="error")


def _add_train(parser: Parser) -> None:
    help_text = "training table, to count words in texts of each context (default: the table the run was trained on)"
    parser.add_argument("--train", type=Path, metavar="TABLE", help=help_text)


def add_contexts_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell contexts`."""
    options.add_run(parser)
    help_text = f"values whose neighbours are shown (default: the {DEFAULT_VALUE_COUNT} most frequent)"
    parser.add_argument("--near", nargs="+", default=[], metavar="VALUE", help=help_text)
    help_text = "context variable (default: the variable with the values of --near, else the one with most values)"
    parser.add_argument("--variable", default="", metavar="NAME", help=help_text)
    help_text = "number of neighbours, of raised words and of lowered words"
    parser.add_argument("--count", type=int, default=10, help=help_text)
    help_text = "show words whose softmax bias the values raise or lower most"
    parser.add_argument("--words", action="store_true", help=help_text)
    options.add_context(parser)
    help_text = "show words whose softmax bias differs most between the first context and the second"
    parser.add_argument("--between", nargs=2, metavar="NAME=VALUE[;NAME=VALUE]", help=help_text)
    parser.add_argument("--frequent", type=int, help="show only words among the N most frequent")
    _add_train(parser)
    help_text = "draw a map of the embeddings for each column of --by"
    parser.add_argument("--map", type=Path, metavar="TABLE", help=help_text)
    help_text = "column of TABLE that colours the map (repeatable)"
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help=help_text)
    options.add_output(parser, "--page", "write all results as an HTML page", metavar="HTML")
    options.add_computing(parser, unknown="error")
