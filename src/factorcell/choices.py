"""Choices and defaults of options that are not fields of a `Config`.

This module imports nothing, so that the help of the command line can show them without loading PyTorch.
"""

from typing import Any

# How a value that training never saw is read: refused, as a rare value, or as a missing value.
UNKNOWN_POLICIES = ("error", "group", "expected")
PRIORS = ("uniform", "training")  # of the classes in a classification
PROPOSALS = ("rank", "unigram")  # distributions from which a classification samples tokens
SAMPLERS = ("random", "tpe")
PRUNERS = ("median", "none")
PRESETS = ("quick", "good", "best")  # amounts of training
MODEL_PARTS = ("embedding", "context", "backbone", "output_bias", "projection")  # that fine-tuning can train
GENERATION_METHODS = ("sample", "greedy", "beam", "stochastic")
ONLINE_OPTIMIZERS = ("adagrad", "adadelta", "sgd")
EMBEDDING_MEASURES = ("cosine", "distance")
KEY_SCOPES = ("complete", "learn", "users", "admin")  # permissions of an API key of the service
# Environment variable for the URL of the store with its password; all users of a machine can read command lines.
STORE_VARIABLE = "FACTORCELL_STORE"
STORE_URLS = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or redis://HOST:PORT/NUMBER"

# Options that `training.rules` chooses from the training table unless the user sets them, by section of the config.
AUTOMATIC_OPTIONS: dict[str, tuple[str, ...]] = {
    "model": ("embedding_size", "context_size", "variable_size", "rank", "dropout_context"),
    "backbone": ("hidden_size", "layer_norm", "dropout_recurrent", "dropout_input", "dropout_output"),
    "training": (
        *("epochs", "batch_tokens", "learning_rate", "token_rate", "weight_decay", "loss", "samples"),
        *("evaluations", "patience"),
    ),
}

ADVICE_ROWS = 100_000  # rows of a table that `advise` reads, drawn at random
ALTERNATIVES = 1000  # random texts among which an audit ranks a canary
REPLAY_WINDOW = 9  # positions averaged in one point of the replay curve, as in the thesis (figure 5.2)
DEFAULT_VALUE_COUNT = 10  # most frequent values that are shown if the user names none

# Defaults of training on few texts: the exact loss, small steps and early stopping.
SMALL_DATA_DEFAULTS: dict[str, Any] = {
    "epochs": 10.0,
    "learning_rate": 1e-3,
    "token_rate": 1.0,
    "weight_decay": 0.0,
    "loss": "full",
    "evaluations": 20,
    "patience": 3,
}
