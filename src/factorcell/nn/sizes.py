"""Estimates of the memory of a model from its config, before memory is allocated or weights are read.

    bytes of a model = 4 P + filter        bytes of a step = 4 (7 P + tokens per batch * values per token)

P is the number of parameters, and `filter` is the size of the Bloom filter of a hashed softmax bias. Training stores
seven values per parameter: the parameter, its gradient, two moments of Adam, and three values while it writes a
checkpoint. The estimate is at most three times too high.
"""

from functools import lru_cache

import torch

from factorcell.config import Config
from factorcell.data.columns.schema import ContextSchema
from factorcell.errors import UserError
from factorcell.io import memory
from factorcell.nn.language_model import LanguageModel, max_prompt_length

FLOAT_BYTES = 4
TRAINING_VALUES = 7  # values stored per parameter in training


@lru_cache(maxsize=1)  # several checks of one training need it
def meta_model(config: Config, vocabulary_size: int, schema: ContextSchema) -> LanguageModel:
    """Return the model of a config on PyTorch's meta device, where tensors have a shape but no storage."""
    try:
        with torch.device("meta"):
            return LanguageModel(config, vocabulary_size, schema)
    except RuntimeError as error:
        if "overflow" in str(error):
            raise UserError("a tensor of this model would have more than 2^63 bytes; reduce its sizes") from None
        raise


def check_memory(config: Config, vocabulary_size: int, schema: ContextSchema, *, for_training: bool = False) -> None:
    """Raise `UserError` if a model does not fit into memory, or if `for_training`, if training it does not fit."""
    model = meta_model(config, vocabulary_size, schema)
    filter_bytes = sum(values.numel() for name, values in model.saved_tensors().items() if name.endswith(".bits"))
    description = f"{'training ' if for_training else ''}a model of {model.parameter_count():,} parameters"
    memory.check(FLOAT_BYTES * _stored_values(model, for_training) + filter_bytes, description)


def _stored_values(model: LanguageModel, for_training: bool) -> int:
    """Return the number of values that are stored for the parameters of a model."""
    return model.parameter_count() + model.trained_count() * (TRAINING_VALUES - 1 if for_training else 0)


def step_bytes(config: Config, vocabulary_size: int, schema: ContextSchema, tokens: int, texts: int) -> int:
    """Estimate the bytes of a training step, for a table of `texts` texts with `tokens` tokens and prompts in all."""
    training, model = config.training, meta_model(config, vocabulary_size, schema)
    longest_text = config.data.max_tokens + max_prompt_length(config, schema)
    batch_tokens = min(tokens, training.batch_tokens + longest_text)
    batch_texts = -(-texts * batch_tokens // max(1, tokens))  # a share of all texts, rounded up
    backbone = model.backbone.footprint()
    token_values = batch_tokens * (4 * model.embedding.shape[1] + backbone.token)
    parameter_values = _stored_values(model, for_training=True)
    return FLOAT_BYTES * (
        parameter_values + token_values + batch_texts * 2 * backbone.conditions + 6 * training.samples
    )


def beam_bytes(model: LanguageModel, contexts: int, width: int, continuations: int, tokens: int) -> int:
    """Estimate the bytes of a beam search with `width` hypotheses of `tokens` tokens per context."""
    backbone = model.backbone.footprint()
    score_values = 8 * min(continuations, model.vocabulary_size)
    hypothesis_values = 4 * backbone.state + 4 * tokens + score_values + backbone.conditions
    return FLOAT_BYTES * contexts * width * hypothesis_values
