"""Names of category values as text that the language model reads before each text.

    s city: Oslo stars: 5 s text        s is the start token; after each value there is a line feed

A pretrained model knows what the names mean, before it has read a training text. The names are read and not predicted,
like prompts. Rare, unknown and missing values have no name.

Shapes: B texts, C categories with names.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import Config, UserError
from factorcell.data.context import Context, IdLists
from factorcell.data.schema import ContextSchema, Variable
from factorcell.data.tokenizer import Tokenizer
from factorcell.option_fields import NAMES

EMPTY, START = 0, 1  # the first rows of the table of lines: no tokens, and the start token alone


class ValueNames(nn.Module):
    """The tokens of the names of all category values."""

    ids: Tensor
    offsets: Tensor
    first_rows: Tensor

    def __init__(
        self, schema: ContextSchema, tokenizer: Tokenizer, columns: Sequence[Variable], max_tokens: int
    ) -> None:
        """Tokenize the names.

        Args:
            schema: The context variables.
            tokenizer: The tokenizer of the texts.
            columns: The categories of `schema` whose names are read.
            max_tokens: The maximum number of tokens of a name with its column; the others are omitted.
        """
        super().__init__()
        lines: list[Sequence[int]] = [(), (tokenizer.specials.start,)]
        first_rows = []  # for each category, the row of its value 0, which has no name
        for variable in columns:
            first_rows.append(len(lines) - 1)
            split_lines = tokenizer.split_all([f"{variable.source_column}: {value}\n" for value in variable.values[1:]])
            lines += [tokenizer.encode(tokens)[:max_tokens] for tokens in split_lines]
        sizes = torch.tensor(list(map(len, lines)))
        # The table follows from the schema and the tokenizer, so run folders do not store it.
        self.register_buffer("ids", torch.tensor([token for line in lines for token in line]), persistent=False)
        self.register_buffer("offsets", F.pad(sizes.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("first_rows", torch.tensor(first_rows), persistent=False)
        self.columns = [schema.categories.index(variable) for variable in columns]
        bounds = itertools.pairwise([*first_rows, len(lines) - 1])
        self.max_length = 1 + sum(int(sizes[first + 1 : last + 1].max()) for first, last in bounds)

    def forward(self, context: Context) -> IdLists:
        """Return the tokens of the names of B texts, after a start token; an empty list for a text without names."""
        categories = context.categories[:, self.columns]
        rows = torch.where(categories > 0, categories + self.first_rows, EMPTY)
        starts = torch.where((rows != EMPTY).any(1), START, EMPTY)
        rows = torch.cat([starts[:, None], rows], dim=1)
        lists = IdLists(self.ids, self.offsets).select(rows.flatten())
        return IdLists(lists.ids, lists.offsets[:: rows.shape[1]])


def find_names(config: Config, schema: ContextSchema, tokenizer: Tokenizer) -> ValueNames | None:
    """Return the names that a model with this config and schema reads; None if it reads none.

    Names of users are not read, because a new user has none.

    Raises:
        UserError: The config requires names, and no context column is a category with frequent values.
    """
    if NAMES not in config.model.adapt or not schema.embedded.variables:
        return None
    columns = [
        variable
        for variable in schema.categories
        if variable.source_column != config.data.user and not variable.is_all_rare
    ]
    if not columns:
        raise UserError(f"adapt {NAMES}: expected a category with frequent values, got {', '.join(schema.columns())}")
    return ValueNames(schema, tokenizer, columns, config.data.max_prompt_tokens)
