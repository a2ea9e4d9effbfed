"""Estimate the size of a model from its config alone, before memory is allocated or a file of weights is read.

    bytes of a model = 4 P + filter        bytes of a step = 4 (7 P + tokens per batch * values per token)

P is the number of parameters. A step keeps the gradient and two moments of each, and writes three values of it into a
checkpoint. The estimate is at most three times too high.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError

from factorcell import files, memory
from factorcell.config import Config, UserError
from factorcell.data.schema import ContextSchema
from factorcell.model.language_model import LanguageModel

Shapes = dict[str, tuple[int, ...]]  # of parameters, by their names

FLOAT = 4  # bytes
KEPT = 7  # values of each parameter in training


def without_memory(config: Config, vocabulary: int, schema: ContextSchema) -> LanguageModel:
    """Return the model of a config on PyTorch's meta device, where tensors have a shape but no storage.

    Raises:
        UserError: No model has this config and schema.
    """
    try:
        with torch.device("meta"):
            return LanguageModel(config, vocabulary, schema)
    except RuntimeError as error:
        if "overflow" in str(error):
            raise UserError("a tensor of this model would have more than 2^63 bytes; reduce its sizes") from None
        raise


def tensor_shapes(config: Config, vocabulary: int, schema: ContextSchema) -> Shapes:
    """Return the shape of everything that a run keeps, by its name in the run folder (`LanguageModel.kept`)."""
    return {
        name: tuple(tensor.shape) for name, tensor in without_memory(config, vocabulary, schema).saved_tensors().items()
    }


def parameter_count(kept: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of learned values among what is `kept`."""
    return sum(math.prod(shape) for name, shape in kept.items() if not name.endswith(".bits"))


def check_memory(config: Config, vocabulary: int, schema: ContextSchema, *, trained: bool = False) -> None:
    """Raise `UserError` if a model, and what training keeps of it if `trained`, does not fit into memory."""
    kept = tensor_shapes(config, vocabulary, schema)
    count = parameter_count(kept)
    filters = sum(math.prod(shape) for name, shape in kept.items() if name.endswith(".bits"))
    what = f"{'training ' if trained else ''}a model of {count:,} parameters"
    memory.check(FLOAT * count * (KEPT if trained else 1) + filters, what)


def step_bytes(config: Config, vocabulary: int, schema: ContextSchema, tokens: int, texts: int) -> int:
    """Estimate the bytes of a training on so many `tokens` in so many `texts`, or on batches of them."""
    training, model = config.training, without_memory(config, vocabulary, schema)
    batch = min(tokens, training.batch_tokens + config.data.max_tokens)
    texts, tokens = -(-texts * batch // max(1, tokens)), batch
    backbone = model.backbone.footprint()
    of_token = 4 * config.model.embedding_size + backbone.token
    drawn = training.samples if training.loss != "full" else 0
    return FLOAT * (KEPT * model.parameter_count() + tokens * of_token + texts * backbone.text + 6 * drawn)


def beam_bytes(model: LanguageModel, contexts: int, width: int, across: int, tokens: int) -> int:
    """Estimate the bytes of a beam: `width` beginnings of `tokens`, each grown by `across` tokens, in each context."""
    backbone = model.backbone.footprint()
    of_beginning = 4 * backbone.state + 4 * tokens + 8 * min(across, model.vocabulary_size) + backbone.conditions
    return FLOAT * contexts * width * of_beginning


def check_header(path: Path, expected: Shapes) -> None:
    """Raise `UserError` unless the tensors in the file of weights `path` have the `expected` shapes; read no tensor."""
    if not path.is_file():
        return  # the reader reports it
    try:
        with files.open_tensors(path) as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path}: truncated or not a safetensors file ({error})") from None
    if found != expected:
        name = next(name for name in {**expected, **found} if found.get(name) != expected.get(name))
        has, wanted = (str(shape) if shape else "nothing" for shape in (found.get(name), expected.get(name)))
        raise UserError(
            f"{path}: does not belong to this config, schema and vocabulary (its {name} is {has}, they make {wanted})"
        )
