"""The options of a training by name, for editors and type checkers; a test compares them with the fields."""

from collections.abc import Sequence
from typing import Any, TypedDict

from factorcell.options.columns import Column


class TrainingOptions(TypedDict, total=False):
    """Options of the section `training`, which a fine-tuning may change."""

    epochs: float
    steps: int
    min_users: int
    batch_tokens: int
    learning_rate: float
    token_rate: float
    weight_decay: float
    value_prior: float
    sparse_l1: Sequence[str]
    samples: int
    evaluations: int
    patience: int
    ngram_mixture: bool
    seed: int
    threads: int
    precision: str
    device: str


class Options(TrainingOptions, total=False):
    """Options of `fit` by name (docs/options.md); other packages may add options of their kinds."""

    config: Any
    model: str
    text: str
    context: Sequence[str | Column]
    user: str
    time: str
    prompt_history: int
    max_tokens: int
    min_context_count: int
    min_user_count: int
    anonymous: bool
    min_text_users: int
    tokenizer: str
    lowercase: bool
    min_count: int
    max_vocabulary: int
    adapt: Sequence[str]
    output_bias: Sequence[str]
    embedding_size: int
    variable_size: int
    context_size: int
    context_layer: str
    rank: int
    dropout_context: float
    backbone: str
    cell: str
    layers: int
    hidden_size: int
    layer_norm: bool
    variational: bool
    dropout_recurrent: float
    dropout_input: float
    dropout_output: float
    base: str
    architecture: str
    train_base: bool
    target_modules: Sequence[str]
    shared_rank: int
    prefix_vectors: int
    head: str
