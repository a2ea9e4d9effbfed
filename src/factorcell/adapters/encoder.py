"""The context encoder, which maps context variables to a context vector or to control codes.

    c = tanh(sum_i M_i F_i f_i + b0)        (thesis 2018, equation 2.4)

f_i is the value of variable i, and F_i f_i its embedding: a row of a table for a category, the scaled sum of word
embeddings for a text, or a linear map of a vector. All numeric variables are standardized and share one embedding, the
output of a small network; a periodic number enters this network as the sines and cosines of its first harmonics. M_i
and b0 belong to the layer that joins the embeddings. The papers also use a ReLU in place of tanh, and c = F_1 f_1 for a
single variable.

Shapes: B texts, N numeric variables, I inputs of the network over numbers, D numbers of a vector, K context,
k embedding of one variable, P control codes, E token embedding.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.adapters.adapters import normal
from factorcell.config import ModelConfig
from factorcell.data.columns.context import Context, IdLists
from factorcell.data.columns.schema import MISSING, ContextSchema, Variable, wave_parameters
from factorcell.errors import UserError, check_choice

NUMBER_SIZE = 64  # hidden size of the network over numbers
# Standard deviation of initial embeddings. It is small, because training hardly changes the embeddings of rare values:
# their random initial values remain as noise.
INITIAL_STD = 0.1
# Around a frozen base, a change that all contexts share competes with the changes of single contexts, and learns faster
# than these by the square of the embeddings. Larger embeddings gave 1 to 4 % fewer bits per byte
# (docs/results/backbones.md).
FROZEN_BASE_STD = 0.5

# Activations after the layer that joins the variables; None means that there is no such layer.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "linear": nn.Identity(),
    "none": None,
}


class NumberInputs(nn.Module):
    """The map of raw numbers (B, N) to the standardized inputs (B, I) of the network over numbers.

    A number has one input, (number - mean) / deviation; a periodic number has one for each of its sine waves.
    """

    column: Tensor  # the index of the number of each input (I,)
    constants: Tensor  # `float32_bits` of frequency, phase, mean and deviation (4, I); frequency 0: the number itself

    def __init__(self, numbers: tuple[Variable, ...]) -> None:
        super().__init__()
        columns: list[int] = []
        constants: list[tuple[float, ...]] = []
        self.inputs_of_number: list[int] = []  # for each input, how many inputs its number has
        for column, variable in enumerate(numbers):
            inputs = [(0.0, 0.0, variable.mean, variable.deviation)]
            if variable.period:
                waves = wave_parameters(variable.period, len(variable.means) // 2)
                inputs = list(zip(*waves, variable.means, variable.deviations, strict=True))
            constants += inputs
            columns += [column] * len(inputs)
            self.inputs_of_number += [len(inputs)] * len(inputs)
        self.register_buffer("column", torch.tensor(columns), persistent=False)
        self.register_buffer("constants", float32_bits(list(zip(*constants, strict=True))), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Map numbers (B, N) to inputs (B, I); the inputs of a missing number are zero, which is their mean."""
        frequency, phase, mean, deviation = float32_numbers(self.constants)
        values = numbers[:, self.column]
        values = torch.where(frequency > 0, torch.sin(values * frequency + phase), values)
        standardized: Tensor = (values - mean) / deviation
        return standardized.nan_to_num(0.0)


class WordBag(nn.Module):
    """The embedding of a text: the sum of the embeddings of its words, divided by the square root of their number.

    Because of the square root, the initial variance of the embedding does not depend on the number of words.
    """

    shares: Tensor

    def __init__(self, variable: Variable, size: int, initial_std: float) -> None:
        """Create the table; `initial_std` is the initial standard deviation of the values of a word's embedding."""
        super().__init__()
        self.table = nn.Parameter(normal((len(variable.values), size), initial_std))
        self.register_buffer("shares", torch.tensor(variable.shares), persistent=False)

    def forward(self, words: IdLists) -> Tensor:
        """Return the embeddings (B, k); a text without known words has the mean embedding of all training texts."""
        word_counts = words.sizes[:, None]
        has_words = word_counts > 0
        total = F.embedding_bag(words.ids, self.table, words.offsets, mode="sum", include_last_offset=True)
        embeddings = total / word_counts.clamp(min=1).to(total.dtype).sqrt()
        mean_embedding = self.shares @ self.table
        return torch.where(has_words, embeddings, mean_embedding)


class VectorMap(nn.Module):
    """The embedding of a vector: a linear map of its standardized numbers."""

    constants: Tensor  # `float32_bits` of mean and deviation (2, D)

    def __init__(self, variable: Variable, size: int, initial_std: float) -> None:
        """Create the map; `initial_std` is the initial standard deviation of its outputs."""
        super().__init__()
        width = len(variable.means)
        self.weight = nn.Parameter(normal((size, width), initial_std, width**-0.5))
        self.register_buffer("constants", float32_bits([variable.means, variable.deviations]), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (B, D) to embeddings (B, k); the embedding of a missing or mean vector is zero."""
        mean, deviation = float32_numbers(self.constants)
        standardized = ((vectors - mean) / deviation).nan_to_num(0.0)
        return F.linear(standardized.to(self.weight.dtype), self.weight)


def float32_bits(values: Sequence[Sequence[float]]) -> Tensor:
    """Return float32 numbers as integers of the same bits.

    As a floating-point buffer, a mean such as the year 2015 would be rounded if a module is converted to bfloat16.
    """
    return torch.tensor(values, dtype=torch.float32).view(torch.int32)


def float32_numbers(values: Tensor) -> Tensor:
    """Return the numbers that `float32_bits` stored; values that are numbers already are returned as they are."""
    return values if values.is_floating_point() else values.view(torch.float32)


class VariableEmbeddings(nn.Module):
    """Embeddings (B, k) of all variables except numbers.

    A category has a table, a text a `WordBag`, a vector a `VectorMap`. Subclasses embed the numbers; the attribute
    `inputs` standardizes the numbers for them.
    """

    def __init__(self, schema: ContextSchema, size: int, initial_std: float) -> None:
        super().__init__()
        self.schema = schema
        self.tables = nn.ParameterList(
            normal((len(variable.values), size), initial_std) for variable in schema.categories
        )
        self.inputs = NumberInputs(schema.numbers) if schema.numbers else None

    def add_texts_and_vectors(self, size: int, initial_std: float) -> None:
        """Create these embeddings separately: the order of parameters determines their random initial values."""
        self.texts = nn.ModuleList(WordBag(variable, size, initial_std) for variable in self.schema.texts)
        self.vectors = nn.ModuleList(VectorMap(variable, size, initial_std) for variable in self.schema.vectors)

    def embeddings(self, context: Context, override: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """Return the embeddings (B, k) of categories, texts and vectors; `override` has others by name."""
        override, schema = override or {}, self.schema
        variables = (*schema.categories, *schema.texts, *schema.vectors)
        for name in override:
            check_choice("context variable", name, [variable.name for variable in variables])
        embed_category = partial(self.embed_category, may_be_missing=context.may_lack_categories)
        encoders: list[Callable[[Any], Tensor]] = [
            *(partial(embed_category, column) for column in range(len(schema.categories))),
            *self.texts,
            *self.vectors,
        ]
        values = (*context.categories.unbind(1), *context.words, *context.vectors)
        return [
            override[variable.name] if variable.name in override else encode(value)
            for variable, encode, value in zip(variables, encoders, values, strict=True)
        ]

    def embed_category(self, column: int, value_ids: Tensor, *, may_be_missing: bool = True) -> Tensor:
        """Return the embeddings (B, k) of value ids (B,); a missing value has the frequency-weighted mean of all."""
        table: Tensor = self.tables[column]
        if not may_be_missing:
            return table[value_ids]
        mean_embedding = table.new_tensor(self.schema.categories[column].frequencies()) @ table
        return torch.where((value_ids == MISSING)[:, None], mean_embedding, table[value_ids.clamp(min=0)])


class Prefix(VariableEmbeddings):
    """Control codes that the model reads before the start token (CTRL, Keskar et al. 2019): one per variable.

    All numbers share one code, a linear map of their inputs.
    """

    def __init__(self, schema: ContextSchema, size: int) -> None:
        initial_std = size**-0.5  # the same standard deviation as for token embeddings
        super().__init__(schema, size, initial_std)
        for table in self.tables:
            # The unknown value, which training does not change if no value is rare. A code of zeros would stay zero in
            # all layers of a Transformer, whose normalization has large gradients there.
            table.data[0] = table.data[min(1, len(table) - 1) :].mean(0)
        self.add_texts_and_vectors(size, initial_std)
        self.linear = nn.Linear(len(self.inputs.column), size) if self.inputs is not None else None

    def forward(self, context: Context) -> Tensor:
        """Return the codes (B, P, E); the code of a missing value is the mean over the training texts."""
        codes = self.embeddings(context)
        if self.inputs is not None and self.linear is not None:
            codes.append(self.linear(self.inputs(context.numbers).to(self.linear.weight.dtype)))
        return torch.stack(codes, dim=1)


class ContextEncoder(VariableEmbeddings):
    """The map of contexts to context vectors: embeddings of variables, a network over numbers, and a joint layer."""

    def __init__(self, config: ModelConfig, schema: ContextSchema, initial_std: float = INITIAL_STD) -> None:
        super().__init__(schema, config.variable_size, initial_std)
        # The embedding of the unknown value, row 0, starts at zero: training does not change it if no value is rare.
        # Without a context layer, c is the embedding itself and could stay zero, because the gradient of L(c) R(c) is
        # zero at c = 0.
        if config.context_layer != "none":
            for table in self.tables:
                table.data[0] = 0.0
        embedded_count = len(schema.categories) + len(schema.texts) + len(schema.vectors)
        self.variable_sizes = [config.variable_size] * embedded_count
        self.network: nn.Sequential | None = None
        if self.inputs is not None:
            size = NUMBER_SIZE if config.context_layer != "none" else config.context_size
            self.variable_sizes.append(size)
            first_layer = nn.Linear(len(self.inputs.column), size)
            self.network = nn.Sequential(first_layer, nn.Tanh(), nn.Linear(size, size), nn.Tanh())
        self.activation = ACTIVATIONS[config.context_layer]
        self.joint = nn.Linear(sum(self.variable_sizes), config.context_size) if self.activation is not None else None
        if self.joint is None and self.variable_sizes != [config.context_size]:
            raise UserError(
                f"context_layer: none expects one variable whose embedding has context_size ({config.context_size}) "
                f"numbers, got {', '.join(map(str, self.variable_sizes))}"
            )
        if self.inputs is not None and not first_layer.weight.is_meta:
            # Large initial weights let the network distinguish nearby numbers, as random Fourier features do.
            nn.init.normal_(first_layer.weight, std=2.0)
            nn.init.normal_(first_layer.bias, std=1.0)
            with torch.no_grad():
                # All waves of a number together count as much as one input.
                first_layer.weight.mul_(torch.tensor(self.inputs.inputs_of_number) ** -0.5)
        self.add_texts_and_vectors(config.variable_size, initial_std)

    def forward(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Tensor:
        """Compute the context vectors (B, K); `override` has embeddings (B, k) of variables except numbers by name."""
        return self.join(self.variable_embeddings(context, override))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Compute the context vectors (B, K) from the embeddings `parts` of all variables."""
        if self.joint is None or self.activation is None:
            return parts[0]
        return self.activation(self.joint(torch.cat(list(parts), dim=1)))

    def variable_embeddings(self, context: Context, override: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """Return the embeddings (B, k) of categories, texts and vectors, then (B, width) of all numbers together."""
        parts = self.embeddings(context, override)
        if self.inputs is not None and self.network is not None:
            numbers = self.inputs(context.numbers)
            if self.joint is not None:
                numbers = numbers.to(self.joint.weight.dtype)
            parts.append(self.network(numbers))
        return parts
