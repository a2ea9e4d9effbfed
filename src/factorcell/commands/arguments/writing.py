"""Arguments of the command that writes texts."""

from factorcell.choices import GENERATION_METHODS
from factorcell.commands import options
from factorcell.commands.parser import Parser


def generate(verb: Parser) -> None:
    """`factorcell generate`."""
    options.add_run(verb, "the run folder")
    options.add_context(verb)
    text = "every value of a context column (repeatable)"
    verb.add_argument("--each", action="append", default=[], metavar="NAME", help=text)
    verb.add_argument("--number", type=int, default=1, help="texts of each context")
    verb.add_argument("--prompt", default="", metavar="TEXT", help="what every text begins with")
    verb.add_argument("--case", action="store_true", help="sentences begin with capitals (for lower-case English)")
    verb.add_argument("--stream", action="store_true", help="show one text token by token, as it is drawn")
    options.add_output(verb, "--out", "write the rows there (JSON lines) as they are done")
    verb.add_argument("--resume", action="store_true", help="go on with a file that was begun with the same options")
    group, rare = verb.section("writing"), verb.rare
    group.add_argument("--method", choices=GENERATION_METHODS, default="sample", help="how texts are found")
    text = "below 1: likelier, duller texts"
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help=text)
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="draw among the K likeliest tokens; 0: all")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw among the fewest that hold P")
    group.add_argument("--max-tokens", type=int, default=100, help="at most N tokens")
    group.add_argument("--min-tokens", type=int, default=0, help="at least N tokens")
    options.add_seed(group, "what is drawn")
    text = "time after which what is written will do"
    group.add_argument("--seconds", type=float, metavar="S", help=text)
    group.add_argument("--ban", action="append", default=[], metavar="WORD", help="a word never written (repeatable)")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="what ends a text (repeatable)")
    text = "write no N tokens in a row twice; 0: may"
    rare.add_argument("--no-repeat-ngram", type=int, default=0, help=text)
    text = "of a beam (default: 8; stochastic: 120)"
    rare.add_argument("--width", type=int, metavar="K", help=text)
    text = "tokens drawn for each of a stochastic beam"
    rare.add_argument("--grow", type=int, default=8, metavar="L", help=text)
    text = "beams compare log p / tokens ** A"
    rare.add_argument("--length-penalty", type=float, default=1.0, metavar="A", help=text)
    options.add_computing(verb, "float32")
    verb.optional.set_defaults(again="; with --out, the same command with --resume goes on")
