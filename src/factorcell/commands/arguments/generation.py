"""Arguments of the command that generates texts."""

from pathlib import Path

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.options.limits import GENERATION_METHODS


def add_generate_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell generate`."""
    options.add_run(parser, "run folder")
    options.add_context(parser, "repeatable, or joined by ';'; several values of a column generate for each of them")
    help_text = "generate for every value of this context column (repeatable)"
    parser.add_argument("--each", action="append", default=[], metavar="NAME", help=help_text)
    help_text = "generate for the context in each row of this table"
    parser.add_argument("--rows", type=Path, metavar="TABLE", help=help_text)
    parser.add_argument("--number", type=int, default=1, help="number of texts for each context")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="beginning of every text")
    help_text = "capitalize sentences (for models of lower-case English)"
    parser.add_argument("--case", action="store_true", help=help_text)
    parser.add_argument("--stream", action="store_true", help="print one text token by token while it is generated")
    options.add_output(parser, "--out", "write each finished text to this file immediately (JSON lines)")
    help_text = "continue a file that was started with the same options"
    parser.add_argument("--resume", action="store_true", help=help_text)
    generation, rare = parser.section("generation"), parser.section("generation", is_rare=True)
    help_text = "how to choose tokens: by sampling, or by a search for the most probable texts"
    generation.add_argument("--method", choices=GENERATION_METHODS, default="sample", help=help_text)
    help_text = "number by which the logits are divided; below 1, texts are more probable and less varied"
    generation.add_argument("--temperature", type=float, default=1.0, metavar="T", help=help_text)
    help_text = "sample from the K most probable tokens; 0: all"
    generation.add_argument("--top-k", type=int, default=0, metavar="K", help=help_text)
    help_text = "sample from the most probable tokens whose probabilities sum to P"
    generation.add_argument("--top-p", type=float, default=1.0, metavar="P", help=help_text)
    generation.add_argument("--max-tokens", type=int, default=100, help="maximum number of tokens")
    rare.add_argument("--min-tokens", type=int, default=0, help="minimum number of tokens")
    options.add_seed(generation, "the random numbers")
    help_text = "time limit; only texts that are finished in time are returned"
    generation.add_argument("--seconds", type=float, metavar="S", help=help_text)
    help_text = "word that is never generated (repeatable)"
    rare.add_argument("--ban", action="append", default=[], metavar="WORD", help=help_text)
    help_text = "end a generated text where TEXT occurs in it (repeatable)"
    rare.add_argument("--stop", action="append", default=[], metavar="TEXT", help=help_text)
    help_text = "never generate the same N tokens in a row twice; 0: no restriction"
    rare.add_argument("--no-repeat-ngram", type=int, default=0, help=help_text)
    help_text = "beam width (default: 8; stochastic: 120)"
    rare.add_argument("--width", type=int, metavar="K", help=help_text)
    help_text = "number of tokens that a stochastic beam samples for each hypothesis"
    rare.add_argument("--branching", type=int, default=8, metavar="L", help=help_text)
    help_text = "exponent A: a beam search compares texts by log probability / (number of tokens) ** A"
    rare.add_argument("--length-penalty", type=float, default=1.0, metavar="A", help=help_text)
    options.add_no_ngram_mixture(rare)
    options.add_computing(parser, unknown="error")
    parser.optional.set_defaults(resume_hint="; with --out, repeat the command with --resume to continue")
