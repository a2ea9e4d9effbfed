"""Choices and defaults of options that are not fields of a `Config`.

This module does not import PyTorch, so that the command line can quickly show the choices in its help.
"""

from typing import Any

from factorcell.errors import check_choice

# Policies for values that are rare in training or unseen: `error` refuses a value, `group` reads it as rare, and
# `expected` as a missing value. Tables are read with `group`, as training reads the development table, and contexts
# that a user types with `error`, because an unknown value is then probably a typing mistake.
UNKNOWN_POLICIES = ("error", "group", "expected")
PRIORS = ("conditional", "uniform", "training")  # prior probabilities of the values in a classification
PROPOSALS = ("rank", "unigram")  # distributions from which a classification samples tokens
PRESETS = ("quick", "good", "best")  # presets of the training time
MODEL_PARTS = ("embedding", "context", "backbone", "output_bias", "projection")  # parts that fine-tuning can train
EXPORT_FORMATS = ("lora", "merged", "gguf-lora")
GENERATION_METHODS = ("sample", "greedy", "beam", "stochastic")
ONLINE_OPTIMIZERS = ("adagrad", "adadelta", "sgd")
KEY_SCOPES = ("complete", "learn", "users", "admin")  # what an API key of the service permits
# Environment variable for the URL of the store. The URL is not an option, because it can contain a password, and all
# users of a machine can read the command lines of its processes.
STORE_VARIABLE = "FACTORCELL_STORE"
STORE_URLS = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or redis://HOST:PORT/NUMBER"

# Options, by section of the config, that `training.rules` chooses from the training table unless the user sets them.
AUTOMATIC_OPTIONS: dict[str, tuple[str, ...]] = {
    "model": (
        *("adapt", "output_bias"),
        *("embedding_size", "context_size", "variable_size", "rank", "dropout_context"),
    ),
    "backbone": ("hidden_size", "layer_norm", "dropout_recurrent", "dropout_input", "dropout_output"),
    "training": (
        *("epochs", "batch_tokens", "learning_rate", "token_rate", "weight_decay", "samples"),
        *("evaluations", "patience", "ngram_mixture"),
    ),
}

ADVICE_ROWS = 100_000  # number of rows of a table that `advise` draws at random and reads
DEFAULT_VALUE_COUNT = 10  # number of most frequent values that are shown if the user does not name values


def check_unknown(unknown: str) -> str:
    """Return `unknown` if it is a policy for values that training never saw; raise `UserError` otherwise."""
    return check_choice("policy for unknown values", unknown, UNKNOWN_POLICIES)


# Defaults of training on few texts: the exact loss, small steps and early stopping.
SMALL_DATA_DEFAULTS: dict[str, Any] = {
    "epochs": 10.0,
    "learning_rate": 1e-3,
    "token_rate": 1.0,
    "weight_decay": 0.0,
    "samples": 0,
    "evaluations": 20,
    "patience": 3,
}
