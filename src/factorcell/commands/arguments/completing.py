"""What the verbs take that complete what somebody types."""

from pathlib import Path

from factorcell.choices import ONLINE_OPTIMIZERS, REPLAY_WINDOW
from factorcell.commands import options
from factorcell.commands.parser import Parser


def complete(verb: Parser) -> None:
    """`factorcell complete`."""
    options.add_run(verb, "the run folder, with tokenizer char or grapheme")
    text = "what is typed so far (default: in the terminal)"
    verb.add_argument("prefix", metavar="PREFIX", nargs="?", help=text)
    verb.add_argument("--stdin", action="store_true", help="complete each line of standard input: a row of JSON each")
    options.add_context(verb)
    verb.add_argument("--history", metavar="TEXT;TEXT", help="what the person wrote before, learned in order")
    text = "what each source of a blend adds, and what the history has changed"
    verb.add_argument("--explain", action="store_true", help=text)
    text = "texts to suggest, each with the model's probability of what follows PREFIX"
    verb.add_argument("--count", type=int, default=10, help=text)
    verb.add_argument("--seconds", type=float, help="time after which the best so far will do")
    verb.add_argument("--typos", type=int, default=0, help="typing errors to forgive, 0 to 2")
    options.add_computing(verb)


def tune_online(verb: Parser) -> None:
    """`factorcell tune-online`."""
    options.add_run(verb, "the run folder, trained with --user")
    verb.add_argument("dev", type=Path, metavar="DEV", help="table of texts of people who were not in training")
    _streams(verb, "complete about one of N texts for the blend")
    text = "what to try (repeatable; default: all)"
    verb.add_argument("--optimiser", action="append", choices=ONLINE_OPTIMIZERS, help=text)
    text = "longest vector of a person, in lengths of training's longest; 0: any"
    verb.rare.add_argument("--reach", type=float, default=2.0, metavar="X", help=text)
    options.add_computing(verb)


def replay(verb: Parser) -> None:
    """`factorcell replay`."""
    options.add_run(verb, "a run folder, or a folder of runs as compare makes it")
    verb.add_argument("heldout", type=Path, metavar="HELDOUT", help="table of texts with columns for user and time")
    text = "mpc, history, plain, online, blend, or runs in RUN (default: all that RUN has what they need for)"
    verb.add_argument("--compare", metavar="NAME[,NAME...]", help=text)
    text = "folder of rows and page; one that exists is gone on with"
    options.add_output(verb, "--out", text, folder=True, required=True, metavar="FOLDER")
    verb.add_argument("--base", metavar="NAME", help="the system that others are compared to (default: the first)")
    text = "table of training texts, to tell seen prefixes from unseen ones"
    verb.add_argument("--train", type=Path, metavar="TABLE", help=text)
    text = "column that names the user (default: the run's own; if it has none, user)"
    verb.add_argument("--user", metavar="COLUMN", help=text)
    _streams(verb, "judge about one of N texts; all are learned")
    options.add_seed(verb, "the prefixes and the intervals")
    text = "places that a point of the curve joins"
    verb.rare.add_argument("--window", type=int, default=REPLAY_WINDOW, help=text)
    options.add_computing(verb)
    verb.optional.set_defaults(again="; the same command goes on with the streams that are not done")


def _streams(verb: Parser, every: str) -> None:
    text = "column of times or numbers that orders texts (default: the run's own; if it has none, time)"
    verb.add_argument("--time", metavar="COLUMN", help=text)
    verb.add_argument("--rows-per-user", type=int, help="the first N texts of each user (default: all)")
    verb.add_argument("--every", type=int, default=1, help=every)
    verb.add_argument("--seconds", type=float, help="time after which the best completions so far will do")
