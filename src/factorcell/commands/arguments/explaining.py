"""Arguments of the commands that explain texts and models."""

from pathlib import Path

from factorcell.choices import DEFAULT_VALUE_COUNT, EMBEDDING_MEASURES
from factorcell.commands import options
from factorcell.commands.parser import Parser


def explain(verb: Parser) -> None:
    """`factorcell explain`."""
    options.add_run(verb)
    verb.add_argument("file", metavar="FILE", nargs="?", help="texts, one a line, or a table; -: standard input")
    verb.add_argument("--text", action="append", default=[], help="a text (repeatable), instead of FILE")
    text = "two contexts, or more: rating=5 rating=1; several columns of one as 'rating=5; city=Oslo'"
    verb.add_argument("--between", nargs="+", required=True, metavar="NAME=VALUE", help=text)
    options.add_context(verb)
    verb.add_argument("--ensemble", nargs="+", type=Path, default=[], metavar="RUN", help="more runs, to be averaged")
    verb.add_argument("--beside", nargs="+", type=Path, default=[], metavar="RUN", help="other runs to show next to it")
    options.add_output(verb, "--page", "write a page", metavar="HTML")
    options.add_computing(verb, "float32")


def contexts(verb: Parser) -> None:
    """`factorcell contexts`."""
    options.add_run(verb)
    text = f"values (default: the {DEFAULT_VALUE_COUNT} most frequent)"
    verb.add_argument("--near", nargs="+", default=[], metavar="VALUE", help=text)
    verb.add_argument("--variable", default="", metavar="NAME", help="whose values (default: what knows them, or most)")
    verb.add_argument("--measure", default="cosine", choices=EMBEDDING_MEASURES, help="what is near")
    verb.add_argument("--count", type=int, default=10, help="neighbours, and words to each side")
    verb.add_argument("--words", action="store_true", help="words that the values raise and lower in the softmax bias")
    options.add_context(verb)
    text = "words that the first of two contexts raises over the second"
    verb.add_argument("--between", nargs=2, metavar="NAME=VALUE[;NAME=VALUE]", help=text)
    verb.add_argument("--frequent", type=int, help="only words among the N most frequent")
    verb.add_argument("--map", type=Path, metavar="TABLE", help="map of the embeddings, coloured by columns of TABLE")
    verb.add_argument("--predict", type=Path, metavar="TABLE", help="how well the embeddings tell columns of TABLE")
    text = "column to colour or predict by (repeatable)"
    verb.add_argument("--by", action="append", default=[], metavar="COLUMN", help=text)
    options.add_output(verb, "--page", "write all that is shown as a page", metavar="HTML")
    options.add_computing(verb, "float32")
    verb.rare.add_argument("--groups", type=int, default=8, help="the largest groups of a map")
    verb.rare.add_argument("--points", action="store_true", help="also the points of a map of groups")
    options.add_seed(verb.rare, "the folds of a prediction")
