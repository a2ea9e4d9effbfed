"""Metadata to a context vector.

    c = tanh(sum_i M_i F_i f_i + b0)        (thesis 2018, equation 2.4)

F_i f_i is the embedding of one variable: a row of a category's table, the words of a text summed, a vector mapped. All
numbers, standardised, pass one small network together; a periodic one enters it as the first waves of its circle.

Shapes: B texts, C categorical variables, N numeric ones (some periodic), I inputs of the network over them, W words in
the bags of B texts, D numbers of a vector, K context, k the embedding of one variable.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import ModelConfig, UserError, choose

RARE = "<unknown>"  # row 0 of every category: all rare values, and values never seen where the caller allows them
MISSING = -1
# Embeddings start near each other: what a rare value, of which training says little, starts with is noise for good.
SPREAD = 0.1
TIMES = ("hour", "weekday", "yearday")  # what of a time is read: several may be read of one column
PERIODS = {"hour": 24.0, "weekday": 7.0, "yearday": 365.25, "longitude": 360.0}
KINDS = ("category", "number", *PERIODS, "cyclic", "text", "vector")
HARMONICS = 3  # waves of a periodic number: with three, any function of the seven days of a week is linear in them


@dataclass(frozen=True)
class Variable:
    """One context variable: its name, its kind, and what training found in its column.

    `values` and `counts` of a category (row 0 is `RARE`); moments and range of a number, and its `period` (0: none);
    `means` and `deviations` of a vector (D) or of the waves of a periodic number; of a text, its words as `values` and
    their `shares` of the mean embedding of all texts. `column` is where it is read, if not in the column of its name.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    rare: int = 0
    mean: float = 0.0
    deviation: float = 1.0
    low: float = 0.0
    high: float = 0.0
    column: str = ""
    period: float = 0.0
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    least: int = 0

    @property
    def source(self) -> str:
        """The column that it is read from."""
        return self.column or self.name

    def frequencies(self) -> list[float]:
        """The share of training texts of every value; uniform where nothing was counted."""
        total = sum(self.counts)
        return [count / total if total else 1 / len(self.counts) for count in self.counts]

    def describe(self) -> str:
        """One line that says how the column is read."""
        if self.kind == "number":
            return f"{self.name}: number, mean {self.mean:.4g}, from {self.low:.4g} to {self.high:.4g}"
        if self.period:
            return f"{self.name}: {self.kind}, period {self.period:g}, mean {self.mean:.4g}"
        if self.kind == "text":
            return f"{self.name}: text, {len(self.values):,} words"
        if self.kind == "vector":
            return f"{self.name}: vector of {len(self.means):,} numbers"
        rare = f", and {self.rare} rare ones (under {self.least} texts) grouped" if self.rare else ", none rare"
        return f"{self.name}: category, {len(self.values) - 1} values{rare}"


@dataclass(frozen=True)
class ContextSchema:
    """The context variables of a model, in the order of their columns."""

    variables: tuple[Variable, ...] = ()

    @property
    def categories(self) -> tuple[Variable, ...]:
        """The categorical variables; their order is that of the columns of `Context.categories`."""
        return tuple(variable for variable in self.variables if variable.kind == "category")

    def columns(self, without: str = "") -> list[str]:
        """The columns that the variables are read from, each once, but for `without`."""
        return [name for name in dict.fromkeys(variable.source for variable in self.variables) if name != without]

    @property
    def numbers(self) -> tuple[Variable, ...]:
        """The numeric variables, periodic or not; their order is that of the columns of `Context.numbers`."""
        return tuple(variable for variable in self.variables if variable.kind == "number" or variable.period)

    @property
    def vectors(self) -> tuple[Variable, ...]:
        """The vectors; their order is that of `Context.vectors`."""
        return tuple(variable for variable in self.variables if variable.kind == "vector")

    @property
    def texts(self) -> tuple[Variable, ...]:
        """The texts; their order is that of `Context.bags`."""
        return tuple(variable for variable in self.variables if variable.kind == "text")

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
                choose("kind of context variable", variables[-1].kind, KINDS)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not a context schema ({error})") from None
        return cls(tuple(variables))


@dataclass(frozen=True)
class Bags:
    """The known words of a text variable in B texts: `words` (W,), text after text; `offsets` (B + 1)."""

    words: Tensor
    offsets: Tensor

    @property
    def sizes(self) -> Tensor:
        """The number of words of each text (B,)."""
        return self.offsets.diff()

    def select(self, rows: Tensor) -> "Bags":
        """The bags of `rows` (B',)."""
        sizes = self.sizes[rows]
        offsets = F.pad(sizes.cumsum(0), (1, 0))
        moved = (self.offsets[rows] - offsets[:-1]).repeat_interleave(sizes)
        return Bags(self.words[moved + torch.arange(len(moved), device=rows.device)], offsets)

    def padded(self) -> Tensor:
        """The words (B, longest), -1 after the last."""
        sizes = self.sizes
        steps = torch.arange(int(sizes.max()) if len(sizes) else 0, device=sizes.device)
        padded = self.words.new_full((len(sizes), len(steps)), -1)
        padded[steps < sizes[:, None]] = self.words
        return padded

    def to(self, device: torch.device) -> "Bags":
        """The same bags on `device`."""
        return Bags(self.words.to(device), self.offsets.to(device))


@dataclass(frozen=True)
class Context:
    """The metadata of B texts: `categories` (B, C) long, -1 where missing; `numbers` (B, N), raw, NaN where missing.

    `vectors` holds (B, D) of each vector variable, raw, NaN where missing; `bags` the words of each text variable, none
    where missing.
    """

    categories: Tensor
    numbers: Tensor
    vectors: tuple[Tensor, ...] = ()
    bags: tuple[Bags, ...] = ()

    def __len__(self) -> int:
        return self.categories.shape[0]

    def select(self, rows: Tensor) -> "Context":
        """The contexts of `rows` (B',)."""
        return Context(
            self.categories[rows],
            self.numbers[rows],
            tuple(vector[rows] for vector in self.vectors),
            tuple(bags.select(rows) for bags in self.bags),
        )

    def forgetting(self, rate: float, key: Sequence[int]) -> "Context":
        """The same contexts, each category the unknown value with probability `rate`; drawn by `key`."""
        kept = np.random.default_rng(key).random(tuple(self.categories.shape)) >= rate
        return replace(self, categories=self.categories * torch.from_numpy(kept).to(self.categories.device))

    def to(self, device: torch.device) -> "Context":
        """The same contexts on `device`."""
        return Context(
            self.categories.to(device),
            self.numbers.to(device),
            tuple(vector.to(device) for vector in self.vectors),
            tuple(bags.to(device) for bags in self.bags),
        )

    def distinct(self) -> tuple["Context", Tensor]:
        """The distinct contexts and, for each text, which of them it has (B,)."""
        parts = [self.categories, self.numbers, *self.vectors, *(bags.padded() for bags in self.bags)]
        joined = torch.cat([part.double().nan_to_num(torch.inf) for part in parts], dim=1)
        if joined.shape[1] == 0:
            which = torch.zeros(len(self), dtype=torch.long, device=joined.device)
            return self.select(which[:1]), which
        unique, which = torch.unique(joined, dim=0, return_inverse=True)
        rows = torch.arange(len(self), device=joined.device)
        first = which.new_full((len(unique),), len(self)).scatter_reduce(0, which, rows, "amin")
        return self.select(first), which


def waves(period: float, harmonics: int = HARMONICS) -> tuple[list[float], list[float]]:
    """Turns and phases of the waves sin(turn x + phase) of a number x: the sine and cosine of each harmonic."""
    turns = [2 * math.pi * harmonic / period for harmonic in range(1, harmonics + 1) for _ in range(2)]
    return turns, [0.0, math.pi / 2] * harmonics


class NumberInputs(nn.Module):
    """Raw numbers (B, N) to inputs (B, I) of a network: numbers and waves, standardised over the training texts."""

    column: Tensor
    turn: Tensor
    phase: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, numbers: tuple[Variable, ...]) -> None:
        super().__init__()
        inputs: list[tuple[int, float, float, float, float]] = []
        for column, v in enumerate(numbers):
            if v.period:
                turns = waves(v.period, len(v.means) // 2)
                inputs += zip([column] * len(v.means), *turns, v.means, v.deviations, strict=True)
            else:
                inputs.append((column, 0.0, 0.0, v.mean, v.deviation))
        for index, name in enumerate(("column", "turn", "phase", "mean", "deviation")):
            self.register_buffer(name, torch.tensor([values[index] for values in inputs]), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """(B, N) -> (B, I); a missing number has zeros, the means of its inputs."""
        values = numbers[:, self.column]
        values = torch.where(self.turn > 0, torch.sin(values * self.turn + self.phase), values)
        return ((values - self.mean) / self.deviation).nan_to_num(0.0)

    def widths(self) -> Tensor:
        """Factors (I,) by which the waves of one number together weigh as much as a plain one at first."""
        return torch.bincount(self.column)[self.column] ** -0.5


class WordBag(nn.Module):
    """The embedding of a text's words: their sum over the square root of their number.

    So it starts as wide as a category's embedding however many words there are, and the evidence of many adds up.
    """

    shares: Tensor

    def __init__(self, variable: Variable, size: int, spread: float) -> None:
        """`spread` is the deviation of a word's embedding at the start."""
        super().__init__()
        self.table = nn.Parameter(torch.randn(len(variable.values), size) * spread)
        self.register_buffer("shares", torch.tensor(variable.shares), persistent=False)

    def forward(self, bags: Bags) -> Tensor:
        """(B, k); a text without a known word has the mean embedding of all training texts."""
        sizes = bags.sizes[:, None]
        total = F.embedding_bag(bags.words, self.table, bags.offsets, mode="sum", include_last_offset=True)
        known = total / sizes.clamp(min=1).to(total.dtype).sqrt()
        if bool((sizes > 0).all()):
            return known
        return torch.where(sizes > 0, known, self.shares @ self.table)


class VectorMap(nn.Module):
    """A vector of numbers, each standardised, mapped to an embedding."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, variable: Variable, size: int, spread: float) -> None:
        """`spread` is the deviation of what it makes of standardised numbers at the start."""
        super().__init__()
        width = len(variable.means)
        self.weight = nn.Parameter(torch.randn(size, width) * spread * width**-0.5)
        self.register_buffer("mean", torch.tensor(variable.means), persistent=False)
        self.register_buffer("deviation", torch.tensor(variable.deviations), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) -> (B, k); a missing vector has zeros, the embedding of the mean vector."""
        return F.linear(((vectors - self.mean) / self.deviation).nan_to_num(0.0), self.weight)


class ContextEncoder(nn.Module):
    """Contexts to context vectors: an embedding a variable, one network over the numbers, joined by tanh."""

    def __init__(self, config: ModelConfig, schema: ContextSchema) -> None:
        super().__init__()
        self.schema = schema
        self.tables = nn.ParameterList()
        for variable in schema.categories:
            table = torch.randn(len(variable.values), config.variable_size) * SPREAD
            table[0] = 0.0  # where no value was rare, the unknown value stays neutral
            self.tables.append(table)
        numbers, width = schema.numbers, config.number_size
        self.inputs = NumberInputs(numbers) if numbers else None
        self.network = (
            nn.Sequential(nn.Linear(len(self.inputs.column), width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            if self.inputs is not None
            else None
        )
        embedded = len(schema.categories) + len(schema.texts) + len(schema.vectors)
        self.sizes = [config.variable_size] * embedded + ([width] if numbers else [])  # of `parts`
        self.joint = nn.Linear(sum(self.sizes), config.context_size)
        if self.inputs is not None and self.network is not None:
            # Wide first weights: neighbouring coordinates start apart, as with random features.
            first = self.network[0]
            assert isinstance(first, nn.Linear)
            nn.init.normal_(first.weight, std=2.0)
            nn.init.normal_(first.bias, std=1.0)
            with torch.no_grad():
                first.weight.mul_(self.inputs.widths())
        self.texts = nn.ModuleList(WordBag(variable, config.variable_size, SPREAD) for variable in schema.texts)
        self.vectors = nn.ModuleList(VectorMap(variable, config.variable_size, SPREAD) for variable in schema.vectors)

    def forward(self, context: Context, override: Mapping[str, Tensor] | None = None) -> Tensor:
        """`context` of B texts -> (B, K). `override` gives embeddings (B, k) by name, of any variables but numbers."""
        return self.join(self.parts(context, override))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The context vector (B, K) of the embeddings `parts` of its variables."""
        joined: Tensor = self.joint(torch.cat(list(parts), dim=1))
        return torch.tanh(joined)

    def parts(self, context: Context, override: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """What is joined: the embeddings (B, k) of categories, texts and vectors, then (B, width) of all numbers."""
        override, schema = override or {}, self.schema
        embedded = (*schema.categories, *schema.texts, *schema.vectors)
        for name in override:
            choose("context variable", name, [variable.name for variable in embedded])
        makers: list[Callable[[], Tensor]] = [
            *(partial(self.embed, column, rows) for column, rows in enumerate(context.categories.unbind(1))),
            *(partial(bag, words) for bag, words in zip(self.texts, context.bags, strict=True)),
            *(partial(chart, vector) for chart, vector in zip(self.vectors, context.vectors, strict=True)),
        ]
        parts = [
            override[variable.name] if variable.name in override else make()
            for variable, make in zip(embedded, makers, strict=True)
        ]
        if self.inputs is not None and self.network is not None:
            parts.append(self.network(self.inputs(context.numbers)))
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
