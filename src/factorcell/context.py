"""Metadata to a context vector.

    c = tanh(sum_i M_i F_i f_i + b0)        (thesis 2018, equation 2.4)

F_i is the embedding table of a categorical variable f_i; all numbers, standardised, pass one small network together.

Shapes: B texts, C categorical variables, N numeric ones, K context, k the embedding of one variable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from factorcell.config import ModelConfig, UserError, choose

RARE = "<unknown>"  # row 0 of every category: all rare values, and values never seen where the caller allows them
MISSING = -1


@dataclass(frozen=True)
class Variable:
    """One context column: `values` and `counts` of a category (row 0 is `RARE`), or moments and range of a number."""

    name: str
    kind: str
    values: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    rare: int = 0
    mean: float = 0.0
    deviation: float = 1.0
    low: float = 0.0
    high: float = 0.0

    def frequencies(self) -> list[float]:
        """The share of training texts of every value; uniform where nothing was counted."""
        total = sum(self.counts)
        return [count / total if total else 1 / len(self.counts) for count in self.counts]

    def describe(self, min_count: int) -> str:
        """One line that says how the column is read."""
        if self.kind == "number":
            return f"{self.name}: number, mean {self.mean:.4g}, from {self.low:.4g} to {self.high:.4g}"
        rare = f", and {self.rare} rare ones (under {min_count} texts) grouped" if self.rare else ", none rare"
        return f"{self.name}: category, {len(self.values) - 1} values{rare}"


@dataclass(frozen=True)
class ContextSchema:
    """The context variables of a model, in the order of their columns."""

    variables: tuple[Variable, ...] = ()

    @property
    def categories(self) -> tuple[Variable, ...]:
        """The categorical variables; their order is that of the columns of `Context.categories`."""
        return tuple(variable for variable in self.variables if variable.kind == "category")

    @property
    def numbers(self) -> tuple[Variable, ...]:
        """The numeric variables; their order is that of the columns of `Context.numbers`."""
        return tuple(variable for variable in self.variables if variable.kind == "number")

    def variable(self, name: str) -> Variable:
        """The variable of that name, or a `UserError` that lists the names there are."""
        choose("context variable", name, [variable.name for variable in self.variables])
        return next(variable for variable in self.variables if variable.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"variables": [asdict(variable) for variable in self.variables]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "ContextSchema":
        """The schema that `to_dict` wrote."""
        names = {field.name for field in fields(Variable)}
        variables = []
        try:
            for entry in content["variables"]:
                plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
                if set(plain) - names:
                    raise UserError(f"not a context schema (unknown {', '.join(set(plain) - names)})")
                variables.append(Variable(**plain))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a context schema ({error})") from None
        return cls(tuple(variables))


@dataclass(frozen=True)
class Context:
    """The metadata of B texts: `categories` (B, C) long, -1 where missing; `numbers` (B, N), raw, NaN where missing."""

    categories: Tensor
    numbers: Tensor

    def __len__(self) -> int:
        return self.categories.shape[0]

    def select(self, rows: Tensor) -> "Context":
        """The contexts of `rows` (B',)."""
        return Context(self.categories[rows], self.numbers[rows])

    def to(self, device: torch.device) -> "Context":
        """The same contexts on `device`."""
        return Context(self.categories.to(device), self.numbers.to(device))

    def distinct(self) -> tuple["Context", Tensor]:
        """The distinct contexts and, for each text, which of them it has (B,)."""
        joined = torch.cat([self.categories.double(), self.numbers.double().nan_to_num(torch.inf)], dim=1)
        if joined.shape[1] == 0:
            which = torch.zeros(len(self), dtype=torch.long, device=joined.device)
            return self.select(which[:1]), which
        unique, which = torch.unique(joined, dim=0, return_inverse=True)
        rows = torch.arange(len(self), device=joined.device)
        first = which.new_full((len(unique),), len(self)).scatter_reduce(0, which, rows, "amin")
        return self.select(first), which


class ContextEncoder(nn.Module):
    """Contexts to context vectors: one table a categorical variable, one network over the numbers, joined by tanh."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig, schema: ContextSchema) -> None:
        super().__init__()
        self.schema = schema
        self.tables = nn.ParameterList()
        for variable in schema.categories:
            table = torch.randn(len(variable.values), config.variable_size)
            table[0] = 0.0  # where no value was rare, the unknown value stays neutral
            self.tables.append(table)
        numbers = schema.numbers
        self.register_buffer("mean", torch.tensor([v.mean for v in numbers]), persistent=False)
        self.register_buffer("deviation", torch.tensor([v.deviation for v in numbers]), persistent=False)
        width = config.number_size
        self.network = (
            nn.Sequential(nn.Linear(len(numbers), width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            if numbers
            else None
        )
        self.sizes = [config.variable_size] * len(self.tables) + ([width] if numbers else [])
        self.joint = nn.Linear(sum(self.sizes), config.context_size)
        if self.network is not None:
            # Wide first weights: neighbouring coordinates start apart, as with random features.
            first = self.network[0]
            assert isinstance(first, nn.Linear)
            nn.init.normal_(first.weight, std=2.0)
            nn.init.normal_(first.bias, std=1.0)

    def forward(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Tensor:
        """`context` of B texts -> (B, K). `override` gives the embeddings (B, k) of categorical variables by name."""
        return self.join(self.parts(context, override))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The context vector (B, K) of the embeddings `parts` of its variables."""
        joined: Tensor = self.joint(torch.cat(list(parts), dim=1))
        return torch.tanh(joined)

    def parts(self, context: Context, override: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """The embeddings of the categorical variables, (B, k) each, and of all numbers together; `sizes` wide."""
        override = override or {}
        for name in override:
            choose("context variable", name, [variable.name for variable in self.schema.categories])
        parts = [
            override[variable.name] if variable.name in override else self.embed(column, context.categories[:, column])
            for column, variable in enumerate(self.schema.categories)
        ]
        if self.network is not None:
            numbers = ((context.numbers - self.mean) / self.deviation).nan_to_num(0.0)
            parts.append(self.network(numbers))
        return parts

    def embed(self, column: int, rows: Tensor) -> Tensor:
        """Rows (B,) of one variable's table (B, k); a missing value has the frequency-weighted mean of all."""
        return embedded(self.tables[column], self.schema.categories[column], rows)


def embedded(table: Tensor, variable: Variable, rows: Tensor) -> Tensor:
    """`rows` (B,) of the `table` of a category (B, k); a missing value has the frequency-weighted mean of all."""
    known = table[rows.clamp(min=0)]
    if not bool((rows == MISSING).any()):
        return known
    expected = table.new_tensor(variable.frequencies()) @ table
    return torch.where(rows[:, None] == MISSING, expected, known)
