"""Arguments of the command that generates texts."""

from factorcell.choices import GENERATION_METHODS
from factorcell.commands import options
from factorcell.commands.parser import Parser


def generate(parser: Parser) -> None:
    """Add the arguments of `factorcell generate`."""
    options.add_run(parser, "run folder")
    options.add_context(parser)
    text = "generate for every value of this context column (repeatable)"
    parser.add_argument("--each", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--number", type=int, default=1, help="number of texts for each context")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="beginning of every text")
    text = "capitalize sentences (for models of lower-case English)"
    parser.add_argument("--case", action="store_true", help=text)
    parser.add_argument("--stream", action="store_true", help="show one text token by token while it is sampled")
    options.add_output(parser, "--out", "write each text to this file as it is finished (JSON lines)")
    text = "continue a file that was started with the same options"
    parser.add_argument("--resume", action="store_true", help=text)
    group, rare = parser.section("generation"), parser.rare
    text = "sampling, or a search for the most probable texts"
    group.add_argument("--method", choices=GENERATION_METHODS, default="sample", help=text)
    text = "number by which the logits are divided; below 1, texts are more probable and less varied"
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help=text)
    text = "sample from the K most probable tokens; 0: all"
    group.add_argument("--top-k", type=int, default=0, metavar="K", help=text)
    text = "sample from the most probable tokens whose probabilities sum to P"
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help=text)
    group.add_argument("--max-tokens", type=int, default=100, help="maximum number of tokens")
    group.add_argument("--min-tokens", type=int, default=0, help="minimum number of tokens")
    options.add_seed(group, "the random numbers")
    text = "time limit; only texts that are finished by then are returned"
    group.add_argument("--seconds", type=float, metavar="S", help=text)
    text = "word that is never generated (repeatable)"
    group.add_argument("--ban", action="append", default=[], metavar="WORD", help=text)
    text = "end a text where it contains TEXT (repeatable)"
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help=text)
    text = "never generate the same N tokens in a row twice; 0: no restriction"
    rare.add_argument("--no-repeat-ngram", type=int, default=0, help=text)
    text = "beam width (default: 8; stochastic: 120)"
    rare.add_argument("--width", type=int, metavar="K", help=text)
    text = "number of tokens that a stochastic beam samples for each hypothesis"
    rare.add_argument("--branching", type=int, default=8, metavar="L", help=text)
    text = "beam search compares texts by their log probability / tokens ** A"
    rare.add_argument("--length-penalty", type=float, default=1.0, metavar="A", help=text)
    options.add_computing(parser, "float32")
    parser.optional.set_defaults(resume_hint="; with --out, repeat the command with --resume to continue")
