"""Nats of texts and their gradients in the vectors of users, in one compiled call.

The equations are those of `Learning` in native/kernels.h. PyTorch computes only what the other variables of a context
determine. Models that the compiled code does not support, such as Transformers, learn with PyTorch's autograd.

Shapes: B texts, V vocabulary, E embedding, H hidden, K context, U user.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.adapters.adapters import Concat, Factor
from factorcell.adapters.encoder import ContextEncoder
from factorcell.data.columns.context import Context, IdLists, Ragged
from factorcell.data.columns.schema import Variable
from factorcell.data.corpus import Corpus
from factorcell.nn.backbones.recurrent import RecurrentBackbone
from factorcell.nn.kernels import library
from factorcell.nn.kernels.drawing import PackedTable
from factorcell.nn.kernels.recurrence import PackedWeight
from factorcell.nn.kernels.signatures import LEARNING
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import SoftmaxHead
from factorcell.nn.packing import sample_shift

# The activations of the context layer in the order of their numbers in the compiled code
ACTIVATIONS = ("none", "linear", "tanh", "relu")


@dataclass(frozen=True)
class UserModel:
    """The weights of a model as the compiled code reads them, with the embedding of one variable as its input.

    The weights are copies of those at the time of `from_model`. Threads can share a `UserModel`.
    """

    model: LanguageModel
    variable: str
    numbers: Mapping[str, int]  # sizes and activation, as in `LEARNING`
    arrays: Mapping[str, Tensor]  # by their names in `LEARNING`
    packed: tuple[Tensor, Tensor, Tensor]  # the weight for both directions, and the embedding
    instruction_set: int

    @classmethod
    def from_model(cls, model: LanguageModel, variable: Variable) -> "UserModel | None":
        """Copy the weights of `model`; None if the compiled code does not support the model."""
        shift, encoder = sample_shift(model), model.encoder
        if shift is None or encoder is None or model.prefix is not None:
            return None
        cell = cast(RecurrentBackbone, model.backbone).layers[0]
        adapters, bias = cell.linear.adapters, cell.linear.bias
        if bias is None or any(type(adapter) not in (Concat, Factor) for adapter in adapters.values()):
            return None
        arrays: dict[str, Tensor] = {"embedding": model.embedding, "weight": cell.linear.weight, "bias": bias}
        if cell.gain is not None and cell.offset is not None:
            arrays["norm"] = torch.cat([cell.gain, cell.offset]).view(8, -1)
        for adapter in adapters.values():
            names = {"left": "left", "right": "right"} if isinstance(adapter, Factor) else {"concat": "weight"}
            arrays |= {name: adapter.get_parameter(parameter) for name, parameter in names.items()}
        arrays |= _user_arrays(model, encoder, variable)
        copies = {name: array.detach().clone().contiguous() for name, array in arrays.items()}
        with torch.autocast("cpu", enabled=False):
            weight, table = PackedWeight.of(copies["weight"][cell.input_size :]), PackedTable.of(copies["embedding"])
        numbers = {
            "size": model.vocabulary_size,
            "width": cell.input_size,
            "inputs_and_hidden": cell.input_size + cell.hidden_size,
            "hidden": cell.hidden_size,
            "rank": 0 if shift.left is None else shift.left.shape[2],
            "context": model.config.context_size,
            "user": model.config.variable_size,
            "activation": ACTIVATIONS.index(model.config.context_layer),
        }
        packed = weight.forward, weight.backward, table.packed
        return cls(model, variable.name, numbers, copies, packed, library.instruction_set())

    def gradients(self, vectors: Tensor, corpus: Corpus) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return the nats (B,) of the texts of `corpus`, and the gradients in the user `vectors` (B, U)."""
        count, context = len(corpus), corpus.context(np.arange(len(corpus)))
        tokens, prompts = IdLists.of(Ragged(corpus.tokens, corpus.offsets)), self.model.prompt_tokens(context)
        lengths = torch.zeros(count, dtype=torch.int64) if prompts is None else prompts.sizes
        tokens = tokens if prompts is None else prompts.join(tokens)
        nats, gradients = torch.empty(count, dtype=torch.double), torch.empty(count, vectors.shape[1])
        numbers = {**self.numbers, "texts": count, "count": len(tokens.ids), "threads": library.thread_count(count)}
        arrays = {**self.arrays, **self.context_biases(context), "vectors": vectors}
        arrays |= {"tokens": tokens.ids, "ends": tokens.offsets[1:], "prompts": lengths}
        arrays |= {"nats": nats, "gradients": gradients}
        arguments = LEARNING.checked_arguments(numbers, arrays)
        for name, array in zip(("packed_forward", "packed_backward", "packed_table"), self.packed, strict=True):
            setattr(arguments, name, array.data_ptr())
        library.call("learning", arguments, self.instruction_set)
        return nats.numpy(), gradients.numpy()

    def context_biases(self, context: Context) -> dict[str, Tensor]:
        """Return what the other variables of B contexts add: `joint_bias` (B, K), and `output_bias` (B, V)."""
        model, encoder = self.model, cast(ContextEncoder, self.model.encoder)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            zeros = torch.zeros(len(context), self.numbers["user"])
            parts = encoder.variable_embeddings(context, {self.variable: zeros})
            vector = torch.zeros(len(context), self.numbers["context"])
            bias = cast(SoftmaxHead, model.head).fold(model.head.condition(vector, parts, context)).bias
            biases = {"output_bias": cast(Tensor, bias).contiguous()}
            return biases if encoder.joint is None else {**biases, "joint_bias": encoder.joint(torch.cat(parts, dim=1))}


def _user_arrays(model: LanguageModel, encoder: ContextEncoder, variable: Variable) -> dict[str, Tensor]:
    """Return the arrays that multiply the embedding of `variable` or the context vector, and the projection."""
    head, size = cast(SoftmaxHead, model.head), model.config.variable_size
    first = encoder.schema.categories.index(variable) * size  # categories are the first of the embeddings
    arrays = {"projection": cast(Tensor, head.projection)}
    if encoder.joint is not None:
        arrays["joint"] = encoder.joint.weight[:, first : first + size].T
    for name, adapter in head.adapters.items():
        weight = cast(Tensor, adapter.weight)
        if name == "low_rank":
            arrays["context_bias"] = weight.T
        elif name == "low_rank_each":
            arrays["user_bias"] = weight[:, first : first + size].T
    return arrays
