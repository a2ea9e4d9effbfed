"""Names of category values as text that the language model reads before each text.

    s stars: 5 city: Oslo s text        s is the start token; a line feed follows each value

A pretrained model knows what the names mean, before it has read a training text. The names are read and not predicted,
like prompts. Rare, unknown and missing values have an empty name, so that all texts begin alike: a model that never
read a text without names would predict it badly.

Shapes: B texts.
"""

import itertools
import json
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import Config
from factorcell.data.columns.context import Context, IdLists
from factorcell.data.columns.schema import ContextSchema, Variable
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.options.option_fields import NAMES

START = 0  # row of the table of lines: the start token alone


class ValueNames(nn.Module):
    """The tokens of the names of all category values.

    Attributes:
        max_length: The largest number of tokens of all names of a text, with the start token.
    """

    ids: Tensor
    offsets: Tensor
    first_rows: Tensor

    def __init__(
        self, schema: ContextSchema, tokenizer: Tokenizer, variables: Sequence[Variable], max_tokens: int
    ) -> None:
        """Tokenize the names.

        Args:
            schema: The context variables.
            tokenizer: The tokenizer of the texts.
            variables: The categories of `schema` whose names are read.
            max_tokens: The maximum number of tokens of a name with its column; the others are omitted.
        """
        super().__init__()
        lines: list[Sequence[int]] = [(tokenizer.specials.start,)]
        first_rows = []  # for each category, the row of its unknown value
        for variable in variables:
            first_rows.append(len(lines))
            split_lines = tokenizer.split_all([name_line(variable, value) for value in range(len(variable.values))])
            lines += [tokenizer.encode(tokens)[:max_tokens] for tokens in split_lines]
        sizes = torch.tensor(list(map(len, lines)))
        # The table follows from the schema and the tokenizer, so run folders do not store it.
        self.register_buffer("ids", torch.tensor([token for line in lines for token in line]), persistent=False)
        self.register_buffer("offsets", F.pad(sizes.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("first_rows", torch.tensor(first_rows), persistent=False)
        self.variables, self.columns = variables, [schema.categories.index(variable) for variable in variables]
        bounds = itertools.pairwise([*first_rows, len(lines)])
        self.max_length = 1 + sum(int(sizes[begin:end].max()) for begin, end in bounds)

    def forward(self, context: Context) -> IdLists:
        """Return the tokens of the names of B texts, after a start token."""
        values = context.categories[:, self.columns].clamp(min=0)  # a missing value is read as the unknown one
        rows = F.pad(values + self.first_rows, (1, 0), value=START)
        lists = IdLists(self.ids, self.offsets)[rows.flatten()]
        return IdLists(lists.ids, lists.offsets[:: rows.shape[1]])

    def describe(self) -> str:
        """Return a one-line description with an example."""
        example = json.dumps("".join(name_line(variable, 1) for variable in self.variables), ensure_ascii=False)
        return f"names read before each text, such as {example}; rare and missing values have empty names"

    def texts(self, context: Context) -> list[str]:
        """Return the names of B texts as text."""
        rows = context.categories[:, self.columns].clamp(min=0).tolist()
        return ["".join(map(name_line, self.variables, values)) for values in rows]


def name_line(variable: Variable, value: int) -> str:
    """Return the line of the value at the index `value` of a category; its name is empty if it is unknown."""
    return f"{variable.source_column}: {variable.values[value]}\n" if value else f"{variable.source_column}:\n"


def find_names(config: Config, schema: ContextSchema, tokenizer: Tokenizer) -> ValueNames | None:
    """Return the names that a model with this config and schema reads; None if it reads none.

    Names of users are not read, because a new user has none.

    Raises:
        UserError: The config requires names, and no context column is a category with frequent values.
    """
    if NAMES not in config.model.adapt or not schema.embedded.variables:
        return None
    if variables := schema.named_categories(config.data.user):
        return ValueNames(schema, tokenizer, variables, config.data.max_prompt_tokens)
    if categories := [variable for variable in schema.categories if variable.source_column != config.data.user]:
        names, count = ", ".join(variable.name for variable in categories), f"{config.data.min_context_count:,}"
        raise UserError(f"adapt {NAMES}: each value of {names} has fewer than {count} texts; lower min_context_count")
    others = ", ".join(variable.describe() for variable in schema.variables)
    raise UserError(f"adapt {NAMES}: expected a category as context, apart from users, got {others}")
