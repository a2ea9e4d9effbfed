"""Arguments of the commands that evaluate or explain texts, models and columns."""

import math
from pathlib import Path

from factorcell.commands.cli import options
from factorcell.commands.cli.parser import Parser
from factorcell.options.limits import ADVICE_ROWS, DEFAULT_VALUE_COUNT, PRIORS, PROPOSALS


def add_evaluate_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell evaluate`."""
    _add_run_and_table(parser)
    _add_by(parser)
    help_text = "run or n-gram model to compute gains over; if its vocabulary differs, bits per byte are compared, and "
    help_text += "--by is refused"
    parser.add_argument("--baseline", type=Path, metavar="RUN", help=help_text)
    options.add_no_ngram_mixture(parser)
    _add_save(parser)
    options.add_computing(parser)


def add_classify_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell classify`."""
    _add_run_and_table(parser)
    parser.add_argument("--target", metavar="COLUMN", help="categorical context column to predict")
    parser.add_argument("--values", nargs="+", default=[], metavar="VALUE", help="candidate values (default: all)")
    help_text = "values that are not predicted, but whose texts count as negatives in the AUC"
    parser.add_argument("--distractors", nargs="+", default=[], metavar="VALUE", help=help_text)
    help_text = "prior probabilities of the values; without other columns, conditional means training (frequencies)"
    parser.add_argument("--priors", default="conditional", choices=PRIORS, help=help_text)
    help_text = "development table to fit a temperature on, or the weights of --combine"
    parser.add_argument("--calibrate", type=Path, metavar="DEV", help=help_text)
    help_text = "combine the model with the linear baseline of the run, with weights fitted on the table of --calibrate"
    parser.add_argument("--combine", action="store_true", help=help_text)
    help_text = "table of the points to choose from, with a column `name` and the numeric context columns"
    parser.add_argument("--points", type=Path, metavar="TABLE", help=help_text)
    help_text = "leave out texts that are farther than KM from every point"
    parser.add_argument("--within", type=float, default=math.inf, metavar="KM", help=help_text)
    options.add_no_ngram_mixture(parser)
    help_text = "compute the softmax over N sampled tokens, e.g. a tenth of the vocabulary; 0: all tokens"
    parser.rare.add_argument("--samples", type=int, default=0, help=help_text)
    help_text = "distribution of --samples: by rank in the vocabulary, or by training frequency as in the papers"
    parser.rare.add_argument("--proposal", choices=PROPOSALS, default="rank", help=help_text)
    options.add_output(parser, "--out", "write the probabilities of all values for each text (JSON lines)")
    _add_save(parser)
    options.add_computing(parser)


def add_score_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell score`."""
    _add_run_and_table(parser)
    parser.add_argument("--tokens", action="store_true", help="also score each token")
    options.add_computing(parser)


def _add_save(parser: Parser) -> None:
    parser.add_argument("--save", action="store_true", help="save the result in the run folder, for report")


def _add_by(parser: Parser) -> None:
    help_text = "also report each value of this column (repeatable)"
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help=help_text)


def _add_run_and_table(parser: Parser) -> None:
    options.add_run(parser)
    options.add_table(parser)


def add_baseline_ngram_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell baseline ngram`."""
    options.add_table(parser, "train")
    options.add_output(parser, "--out", "folder of the model", folder=True, required=True, metavar="FOLDER")
    help_text = "maximum n of the n-grams, in tokens (default: 4 for words, 9 for characters)"
    parser.add_argument("--order", type=int, help=help_text)
    _add_reading_options(parser)


def add_baseline_linear_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell baseline linear`."""
    options.add_table(parser, "train")
    parser.add_argument("--test", required=True, type=Path, metavar="TABLE", help="table of texts to classify")
    parser.add_argument("--target", required=True, metavar="COLUMN", help="categorical column to predict")
    help_text = "other column that the classifier reads: NAME or NAME:KIND (repeatable)"
    parser.add_argument("--context", action="append", default=[], metavar="COLUMN", help=help_text)
    _add_reading_options(parser)
    options.add_json(parser)


def _add_reading_options(parser: Parser) -> None:
    help_text = "use the vocabulary of this run and its options for reading texts"
    parser.add_argument("--like", type=Path, metavar="RUN", help=help_text)
    help_text = "TOML or JSON file with options for reading texts in its section [data]"
    parser.add_argument("--config", type=Path, help=help_text)
    help_text = "column with the texts (default: as in RUN or the file, else text)"
    parser.add_argument("--text", metavar="COLUMN", help=help_text)


def add_advise_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell advise`."""
    options.add_table(parser)
    help_text = "TOML or JSON file of options; options on the command line take precedence"
    parser.add_argument("--config", type=Path, help=help_text)
    parser.add_argument("--rows", type=int, default=ADVICE_ROWS, help="number of rows to read, sampled at random")
    options.add_seed(parser, "the random samples")
    options.add_json(parser)
    options.add_threads(parser)
    options.add_config_options(parser, "data", "tokenizer")


def add_rescore_arguments(parser: Parser) -> None:
    """Add the arguments of `factorcell rescore`."""
    options.add_run(parser, "run folder, or the folder of an n-gram model")
    help_text = "n-best lists: JSON lines, or the formats of Kaldi, NeMo or SRILM"
    parser.add_argument("lists", type=Path, metavar="NBEST", help=help_text)
    parser.add_argument("--tune", type=Path, metavar="DEV", help="n-best lists to fit the weights on")
    help_text = "JSON file of weights; --tune writes it, otherwise the command reads it"
    parser.add_argument("--weights", type=Path, help=help_text)
    help_text = "without --tune and --weights: weight of RUN, 0 to 1; the first-pass language model has 1 - X"
    parser.add_argument("--share", type=float, default=0.5, help=help_text)
    for prefix, lists in (("", "the lists"), ("tune-", "the lists of --tune")):
        help_text = f"reference transcripts of {lists}: lines ID WORD ..."
        parser.add_argument(f"--{prefix}reference", type=Path, help=help_text)
        help_text = f"table of context columns for {lists}; its first column has the ids of the utterances"
        parser.add_argument(f"--{prefix}utt2context", type=Path, metavar="TABLE", help=help_text)
    options.add_context(parser)
    _add_by(parser)
    options.add_output(parser, "--out", "write a row for each utterance (JSON lines)")
    options.add_computing(parser)


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
