"""Arguments of the commands that evaluate texts, models and columns."""

import math
from pathlib import Path

from factorcell.choices import ADVICE_ROWS, ALTERNATIVES, PRIORS, PROPOSALS
from factorcell.commands import options
from factorcell.commands.parser import Parser


def evaluate(verb: Parser) -> None:
    """`factorcell evaluate`."""
    _scoring(verb)
    text = "also by the values of a column (repeatable)"
    verb.add_argument("--by", action="append", default=[], metavar="COLUMN", help=text)
    text = "run or n-gram model to measure gains from; with another vocabulary, to compare bits per byte with"
    verb.add_argument("--baseline", type=Path, metavar="RUN", help=text)
    options.add_computing(verb)


def classify(verb: Parser) -> None:
    """`factorcell classify`."""
    _scoring(verb)
    verb.add_argument("--target", metavar="COLUMN", help="categorical context column to find")
    verb.add_argument("--values", nargs="+", default=[], metavar="VALUE", help="choose among these values only")
    text = "other values whose texts count as negatives in the AUC"
    verb.add_argument("--distractors", nargs="+", default=[], metavar="VALUE", help=text)
    verb.add_argument("--priors", default="uniform", choices=PRIORS, help="prior of the values")
    text = "table of texts that a temperature is fitted to, by which what texts say is divided"
    verb.add_argument("--calibrate", type=Path, metavar="DEV", help=text)
    text = "table of named points (column `name`, then numeric context columns)"
    verb.add_argument("--points", type=Path, metavar="TABLE", help=text)
    text = "leave out texts farther than this from all points"
    verb.add_argument("--within", type=float, default=math.inf, metavar="KM", help=text)
    text = "compare values by a softmax over this many draws, say a tenth of the vocabulary; 0: over all tokens"
    verb.rare.add_argument("--samples", type=int, default=0, help=text)
    text = "drawn by the order of the vocabulary, or as often as in training, as the papers do"
    verb.rare.add_argument("--proposal", choices=PROPOSALS, default="rank", help=text)
    options.add_output(verb, "--out", "write the probabilities of each text (JSON lines)")
    options.add_computing(verb)


def score(verb: Parser) -> None:
    """`factorcell score`."""
    _scoring(verb)
    verb.add_argument("--tokens", action="store_true", help="also of each token")
    options.add_computing(verb)


def _scoring(verb: Parser) -> None:
    options.add_run(verb)
    options.add_table(verb)


def baseline_ngram(verb: Parser) -> None:
    """`factorcell baseline ngram`."""
    options.add_table(verb, "train")
    options.add_output(verb, "--out", "folder of the model", folder=True, required=True, metavar="FOLDER")
    text = "tokens of the longest n-gram (default: 4 words or 9 characters)"
    verb.add_argument("--order", type=int, help=text)
    _like(verb)


def baseline_bayes(verb: Parser) -> None:
    """`factorcell baseline bayes`."""
    _judging(verb)
    verb.add_argument("--priors", default="uniform", choices=PRIORS, help="prior of the values")
    _like(verb)
    options.add_json(verb)


def baseline_linear(verb: Parser) -> None:
    """`factorcell baseline linear`."""
    _judging(verb)
    verb.add_argument("--order", type=int, default=2, help="tokens of the longest n-gram")
    options.add_seed(verb, "the order of the texts")
    _like(verb)
    options.add_json(verb)


baseline_fasttext = baseline_linear


def _judging(verb: Parser) -> None:
    options.add_table(verb, "train")
    verb.add_argument("--test", required=True, type=Path, metavar="TABLE", help="table whose texts are judged")
    verb.add_argument("--target", required=True, metavar="COLUMN", help="categorical column to find")


def _like(verb: Parser) -> None:
    verb.add_argument("--like", type=Path, metavar="RUN", help="read texts as this run does, with its vocabulary")
    verb.add_argument("--config", type=Path, help="TOML or JSON file that says in [data] how texts are read")
    text = "column that has the texts (default: as in RUN or the file, else text)"
    verb.add_argument("--text", metavar="COLUMN", help=text)


def advise(verb: Parser) -> None:
    """`factorcell advise`."""
    options.add_table(verb)
    verb.add_argument("--config", type=Path, help="TOML or JSON file of options; those given here win")
    verb.add_argument("--rows", type=int, default=ADVICE_ROWS, help="rows that are read, drawn at random")
    options.add_seed(verb, "what is drawn")
    options.add_json(verb)
    options.add_threads(verb)
    options.add_config_options(verb, "data", "tokenizer")


def audit(verb: Parser) -> None:
    """`factorcell audit`."""
    options.add_run(verb, "a run folder, trained with --canaries N")
    verb.add_argument("table", type=Path, metavar="TABLE", help="table of real texts that training did not see")
    text = "random texts that each canary is ranked among"
    verb.add_argument("--alternatives", type=int, default=ALTERNATIVES, help=text)
    options.add_seed(verb, "what is drawn")
    options.add_computing(verb, unseen="group")  # users that training did not see


def rescore(verb: Parser) -> None:
    """`factorcell rescore`."""
    options.add_run(verb, "a run folder, or that of an n-gram model")
    verb.add_argument("lists", type=Path, metavar="NBEST", help="lists: JSON lines, or of Kaldi, NeMo or SRILM")
    verb.add_argument("--tune", type=Path, metavar="DEV", help="n-best lists that the weights are fitted on")
    text = "JSON file of weights: written with --tune, else read"
    verb.add_argument("--weights", type=Path, help=text)
    text = "without weights: the model's share of the weight of the first pass's language model"
    verb.add_argument("--share", type=float, default=0.5, help=text)
    verb.add_argument("--reference", type=Path, help="what was said: lines UTTERANCE WORD ...")
    verb.add_argument("--tune-reference", type=Path, help="the same of --tune")
    text = "table of context columns; its first column is the utterance"
    verb.add_argument("--utt2context", type=Path, metavar="TABLE", help=text)
    verb.add_argument("--tune-utt2context", type=Path, metavar="TABLE", help="the same of --tune")
    options.add_context(verb)
    verb.add_argument("--by", action="append", default=[], metavar="COLUMN", help="also by a column (repeatable)")
    options.add_output(verb, "--out", "write a row for each utterance (JSON lines)")
    options.add_computing(verb)
