"""Arguments of the commands that evaluate texts, models and columns."""

import math
from pathlib import Path

from factorcell.choices import ADVICE_ROWS, ALTERNATIVES, PRIORS, PROPOSALS
from factorcell.commands import options
from factorcell.commands.parser import Parser


def evaluate(parser: Parser) -> None:
    """Add the arguments of `factorcell evaluate`."""
    _add_run_and_table(parser)
    text = "also report each value of this column (repeatable)"
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help=text)
    text = "run or n-gram model to compute gains over; with another vocabulary, bits per byte are compared"
    parser.add_argument("--baseline", type=Path, metavar="RUN", help=text)
    options.add_computing(parser)


def classify(parser: Parser) -> None:
    """Add the arguments of `factorcell classify`."""
    _add_run_and_table(parser)
    parser.add_argument("--target", metavar="COLUMN", help="categorical context column to predict")
    parser.add_argument("--values", nargs="+", default=[], metavar="VALUE", help="candidate values (default: all)")
    text = "other values whose texts count as negatives in the AUC"
    parser.add_argument("--distractors", nargs="+", default=[], metavar="VALUE", help=text)
    parser.add_argument("--priors", default="uniform", choices=PRIORS, help="prior probabilities of the values")
    text = "development table; a temperature that divides the log-likelihoods is fitted on it"
    parser.add_argument("--calibrate", type=Path, metavar="DEV", help=text)
    text = "table of named points: a column `name`, and the numeric context columns"
    parser.add_argument("--points", type=Path, metavar="TABLE", help=text)
    text = "leave out texts farther than this from all points"
    parser.add_argument("--within", type=float, default=math.inf, metavar="KM", help=text)
    text = "compare values by a softmax over N sampled tokens, e.g. a tenth of the vocabulary; 0: all tokens"
    parser.rare.add_argument("--samples", type=int, default=0, help=text)
    text = "distribution of the sampled tokens: by rank in the vocabulary, or by training frequency as in the papers"
    parser.rare.add_argument("--proposal", choices=PROPOSALS, default="rank", help=text)
    options.add_output(parser, "--out", "write the probabilities for each text (JSON lines)")
    options.add_computing(parser)


def score(parser: Parser) -> None:
    """Add the arguments of `factorcell score`."""
    _add_run_and_table(parser)
    parser.add_argument("--tokens", action="store_true", help="also score each token")
    options.add_computing(parser)


def _add_run_and_table(parser: Parser) -> None:
    options.add_run(parser)
    options.add_table(parser)


def baseline_ngram(parser: Parser) -> None:
    """Add the arguments of `factorcell baseline ngram`."""
    options.add_table(parser, "train")
    options.add_output(parser, "--out", "folder of the model", folder=True, required=True, metavar="FOLDER")
    text = "maximum n of the n-grams, in tokens (default: 4 for words, 9 for characters)"
    parser.add_argument("--order", type=int, help=text)
    _add_preprocessing(parser)


def baseline_bayes(parser: Parser) -> None:
    """Add the arguments of `factorcell baseline bayes`."""
    _add_classifier_tables(parser)
    parser.add_argument("--priors", default="uniform", choices=PRIORS, help="prior probabilities of the values")
    _add_preprocessing(parser)
    options.add_json(parser)


def baseline_linear(parser: Parser) -> None:
    """Add the arguments of `factorcell baseline linear`."""
    _add_classifier_tables(parser)
    parser.add_argument("--order", type=int, default=2, help="maximum n of the n-grams, in tokens")
    options.add_seed(parser, "the order of the texts")
    _add_preprocessing(parser)
    options.add_json(parser)


baseline_fasttext = baseline_linear  # both commands have the same arguments


def _add_classifier_tables(parser: Parser) -> None:
    options.add_table(parser, "train")
    parser.add_argument("--test", required=True, type=Path, metavar="TABLE", help="table of texts to classify")
    parser.add_argument("--target", required=True, metavar="COLUMN", help="categorical column to predict")


def _add_preprocessing(parser: Parser) -> None:
    text = "use the vocabulary and the text options of this run"
    parser.add_argument("--like", type=Path, metavar="RUN", help=text)
    text = "TOML or JSON file with options for reading texts in its section [data]"
    parser.add_argument("--config", type=Path, help=text)
    text = "column with the texts (default: as in RUN or the file, else text)"
    parser.add_argument("--text", metavar="COLUMN", help=text)


def advise(parser: Parser) -> None:
    """Add the arguments of `factorcell advise`."""
    options.add_table(parser)
    text = "TOML or JSON file of options; options on the command line take precedence"
    parser.add_argument("--config", type=Path, help=text)
    parser.add_argument("--rows", type=int, default=ADVICE_ROWS, help="number of rows to read, sampled at random")
    options.add_seed(parser, "the random samples")
    options.add_json(parser)
    options.add_threads(parser)
    options.add_config_options(parser, "data", "tokenizer")


def audit(parser: Parser) -> None:
    """Add the arguments of `factorcell audit`."""
    options.add_run(parser, "run folder of a model trained with --canaries N")
    text = "table of held-out texts, which are not in the training table"
    parser.add_argument("table", type=Path, metavar="TABLE", help=text)
    text = "number of random texts among which each canary is ranked"
    parser.add_argument("--alternatives", type=int, default=ALTERNATIVES, help=text)
    options.add_seed(parser, "the random texts")
    options.add_computing(parser, unknown="group")  # held-out texts may be of users that training did not see


def rescore(parser: Parser) -> None:
    """Add the arguments of `factorcell rescore`."""
    options.add_run(parser, "run folder, or the folder of an n-gram model")
    text = "n-best lists: JSON lines, or the formats of Kaldi, NeMo or SRILM"
    parser.add_argument("lists", type=Path, metavar="NBEST", help=text)
    parser.add_argument("--tune", type=Path, metavar="DEV", help="n-best lists to fit the weights on")
    text = "JSON file of weights; --tune writes it, otherwise the command reads it"
    parser.add_argument("--weights", type=Path, help=text)
    text = "weight of RUN, 0 to 1; the first-pass language model has the rest (without --tune and --weights)"
    parser.add_argument("--share", type=float, default=0.5, help=text)
    parser.add_argument("--reference", type=Path, help="reference transcripts: lines UTTERANCE WORD ...")
    parser.add_argument("--tune-reference", type=Path, help="reference transcripts for the lists of --tune")
    text = "table of context columns; its first column is the utterance"
    parser.add_argument("--utt2context", type=Path, metavar="TABLE", help=text)
    text = "table of context columns for the lists of --tune"
    parser.add_argument("--tune-utt2context", type=Path, metavar="TABLE", help=text)
    options.add_context(parser)
    text = "also report each value of this column (repeatable)"
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help=text)
    options.add_output(parser, "--out", "write a row for each utterance (JSON lines)")
    options.add_computing(parser)
