"""What options choose among, beside those of the config, and what some are if not given; the library takes them here.

The command line shows all of it in its help, before anything of the library is imported.
"""

from typing import Any

UNKNOWN_POLICIES = ("error", "group", "expected")  # never seen: refused, a rare value, a missing one
PRIORS = ("uniform", "training")
PROPOSALS = ("rank", "unigram")  # of the tokens that classification samples
SAMPLERS = ("random", "tpe")
PRUNERS = ("median", "none")
PRESETS = ("quick", "good", "best")  # how much work a training is worth
MODEL_PARTS = ("embedding", "context", "backbone", "output_bias", "projection")  # of a model, which a fine-tuning moves
GENERATION_METHODS = ("sample", "greedy", "beam", "stochastic")  # of generation
ONLINE_OPTIMIZERS = ("adagrad", "adadelta", "sgd")
EMBEDDING_MEASURES = ("cosine", "distance")  # between embeddings
KEY_SCOPES = ("complete", "learn", "users", "admin")  # of a key of the server
STORE_VARIABLE = "FACTORCELL_STORE"  # of the environment; all on a machine can read a command line
STORE_URLS = "sqlite:///FILE, postgresql://USER@HOST/DATABASE or redis://HOST:PORT/NUMBER"

# Options that follow from the table unless they are said, by section of the config (`training.rules`).
AUTOMATIC_OPTIONS: dict[str, tuple[str, ...]] = {
    "model": ("embedding_size", "context_size", "variable_size", "rank", "dropout_context"),
    "backbone": ("hidden_size", "layer_norm", "dropout_recurrent", "dropout_input", "dropout_output"),
    "training": (
        *("epochs", "batch_tokens", "learning_rate", "token_rate", "weight_decay", "loss", "samples"),
        *("evaluations", "patience"),
    ),
}

ADVICE_ROWS = 100_000  # of a table that advice reads, drawn at random
ALTERNATIVES = 1000  # random texts that an audit ranks a canary among
REPLAY_WINDOW = 9  # places that a point of the curve takes together, as in the thesis (figure 5.2)
DEFAULT_VALUE_COUNT = 10  # values, the most frequent, that stand for all where none is named

# What few texts want other than many, unless it is said otherwise: an exact loss, small steps, a stop in time.
SMALL_DATA_DEFAULTS: dict[str, Any] = {
    "epochs": 10.0,
    "learning_rate": 1e-3,
    "token_rate": 1.0,
    "weight_decay": 0.0,
    "loss": "full",
    "evaluations": 20,
    "patience": 3,
}
