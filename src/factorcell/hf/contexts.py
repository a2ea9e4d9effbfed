"""The options of context adapters (`context_model`), and the contexts of texts, read from tables and from mappings."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from factorcell.config import INPUT_ADAPTERS, MAX_SIZE, Config, DataConfig
from factorcell.data.columns.columns import ContextColumns
from factorcell.data.columns.context import Context
from factorcell.data.columns.declarations import parse_column
from factorcell.data.columns.rows import is_row, to_rows
from factorcell.data.columns.schema import NAMED_NUMBER_KINDS, ContextSchema
from factorcell.data.table_findings import CONTEXTS, number_findings
from factorcell.data.tables.chunks import Chunk, Table, class_name
from factorcell.data.tables.tables import feature_classes, open_table
from factorcell.errors import UserError, check_choice
from factorcell.io.findings import Finding, report
from factorcell.nn.language_model import name_lines
from factorcell.options.columns import Column, column_texts
from factorcell.options.limits import MAX_FLOAT, Limits, is_names, make_plain

ALL_LINEAR = "all-linear"
_ANY_COLUMN = "(any)"


@dataclass(frozen=True)
class ContextConfig:
    """The context columns, sizes and other options of context adapters.

        ContextConfig(["stars", Number("nights")], rank=8).fit(table)

    Attributes:
        columns: The context columns: names, whose values decide their kinds, or objects such as `Number("nights")`.
        min_count: Values of a category with fewer rows are rare and share one embedding.
        rank: The rank of the change of each weight matrix that depends on the context.
        shared_rank: The rank of the change that all contexts share, a LoRA; 0: none.
        alpha: Both changes are multiplied by alpha / rank, as in LoRA.
        use_rslora: Whether they are multiplied by alpha / sqrt(rank) instead.
        lora_dropout: The dropout rate of the inputs of both changes, in training.
        target_modules: The linear maps and embeddings to adapt: names at the end of their paths, such as `q_proj`, or a
            regular expression that matches whole paths; `all-linear` adapts all linear maps of the layers.
        layers_to_transform: The number or the numbers of the layers to adapt, from 0; None: all layers.
        modules_to_save: Names at the end of the paths of modules of the base that are trained and stored too.
        adapt: Names of the adapters of each map: factor, concat, scale, and those that `register_adapter` has added.
        context_size: The size of the context vector, K.
        variable_size: The size of the embedding of a context variable.
        schema: The context variables, which `fit` determines from the columns of a training table.
    """

    columns: Sequence[str | Column] = ()
    min_count: int = 50
    rank: int = 4
    shared_rank: int = 32
    alpha: float = 4.0
    use_rslora: bool = False
    lora_dropout: float = 0.0
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    layers_to_transform: int | tuple[int, ...] | None = None
    modules_to_save: tuple[str, ...] = ()
    adapt: tuple[str, ...] = ("factor",)
    context_size: int = 8
    variable_size: int = 8
    schema: ContextSchema = field(default_factory=ContextSchema)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_texts(self.columns))
        make_plain(self)
        for name in ("columns", "adapt", "modules_to_save"):
            if not is_names(value := getattr(self, name)):
                raise UserError(f"{name}: expected a list of names, got {value!r}")
        self._check_targets()
        if not isinstance(self.use_rslora, bool):
            raise UserError(f"use_rslora: expected True or False, got {self.use_rslora!r}")
        Limits(0, 1, whole=False, excluded="high").check("lora_dropout", self.lora_dropout)
        for name, low in {"min_count": 1, "rank": 1, "shared_rank": 0, "context_size": 1, "variable_size": 1}.items():
            Limits(low, MAX_SIZE).check(name, getattr(self, name))
        Limits(0, MAX_FLOAT, whole=False, excluded="low").check("alpha", self.alpha)
        if names := set(INPUT_ADAPTERS) & set(self.adapt):
            expected = "expected adapters that change weights, such as factor"
            remedy = "put what is read before a text into the input tokens"
            raise UserError(f"adapt: {expected}, got {min(names)}; {remedy}")

    def _check_targets(self) -> None:
        targets, layers = self.target_modules, self.layers_to_transform
        if not targets or not (is_names(targets) or isinstance(targets, str)):
            raise UserError(f"target_modules: expected {ALL_LINEAR}, an expression or a list of names, got {targets!r}")
        try:
            re.compile(targets if isinstance(targets, str) else "")
        except re.error as error:
            raise UserError(f"target_modules: expected a regular expression, got {targets!r} ({error})") from None
        if layers is None:
            return
        numbers = layers if isinstance(layers, tuple) else (layers,)
        if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
            raise UserError(f"layers_to_transform: expected numbers of layers from 0, got {layers!r}")
        object.__setattr__(self, "layers_to_transform", numbers)

    def fit(self, source: Any) -> Self:
        """Return these options with the context variables of a training table.

        Args:
            source: A table of any supported type, such as a path, a list of rows, a data frame or a `datasets.Dataset`.

        Raises:
            UserError: A column is missing or has an invalid value.
        """
        for declaration in map(parse_column, map(str, self.columns)):
            if declaration.kind == "prompt":
                raise UserError(f"{declaration.name}: expected no prompt; put its text into the input tokens")
        if not self.columns:
            return self
        data = Config.of(context=self.columns, min_context_count=self.min_count).data
        classes = feature_classes(source)
        columns = _read_columns(_with_class_names(open_table(source), classes), data)
        variables = [reader.build_variable(data) for reader in columns.readers]
        schema = ContextSchema(
            tuple(replace(variable, classes=classes.get(variable.source_column, ())) for variable in variables)
        )
        for variable in schema.categories:
            if variable.is_all_rare:
                problem = f"no value has {self.min_count:,} rows, so the column changes nothing"
                report(Finding("uninformative column", f"{variable.name}: {problem}; lower min_count"))
        return replace(self, schema=schema)


def read_names(source: Any, schema: ContextSchema) -> list[str]:
    """Return the categories and numbers of each row as text, with a line such as "city: Oslo" for each column.

    A pretrained model that reads them before a text knows what they mean. Rare, missing and new values have an empty
    name, "city:", which a model that was trained with names has therefore read.

    Args:
        source: A table of any supported type with all context columns.
        schema: The context variables.

    Returns:
        The text of each row, which ends with a line feed, or is empty if no column is a category or a number.

    Raises:
        UserError: A column is missing or has an invalid value.
    """
    variables = (*schema.categories, *schema.of_kinds(*NAMED_NUMBER_KINDS))
    return name_lines(schema, variables, ContextReader(schema).read_table(source))


class ContextReader:
    """Reads contexts with a schema."""

    def __init__(self, schema: ContextSchema) -> None:
        self.schema, self._columns = schema, schema.columns()
        self._vectors = [variable.source_column for variable in schema.vectors]
        self._classes = {variable.source_column: variable.classes for variable in schema.variables if variable.classes}

    def read_table(self, source: Any, unknown: str = "group") -> Context:
        """Return the contexts of a table with all context columns; other columns are ignored.

        `unknown` says how to read a value that the schema does not have: group, expected or error.
        """
        table = open_table(source)
        for name in self._columns:
            if name not in table.columns:
                raise table.missing_column_error(name)
        return self._read(table, unknown)

    def read_mappings(self, context: Any) -> Context:
        """Return the contexts of a mapping from columns to values, or of a table.

        Columns that are missing have their expected values; an unknown column or value raises `UserError`.
        """
        if isinstance(context, str):
            raise UserError(f"context: expected columns with their values or a table of them, got {context!r}")
        rows = [dict(context)] if is_row(context, self._vectors) else to_rows(context)
        columns = {name for row in rows for name in row}
        for name in sorted(columns, key=str):
            check_choice("context column", name, self._columns)
        absent = [variable.name for variable in self.schema.variables if variable.source_column not in columns]
        # A column that no context has: a table has at least one column.
        table = replace(open_table([{**row, _ANY_COLUMN: None} for row in rows]), name=CONTEXTS)
        try:
            return self._read(table, "error", absent)
        except UserError as error:  # its remedies are arguments of `read_contexts`
            row_name = "contexts row 1" if len(rows) == 1 else "contexts row"
            remedy = '; read_contexts(rows, unknown="group") reads unknown values' if error.remedies else ""
            raise UserError(f"{error.message.replace(row_name, 'context', 1)}{remedy}") from None

    def _read(self, table: Table, unknown: str, optional: Sequence[str] = ()) -> Context:
        """Return the contexts of a table; the columns of the variables `optional` may be missing."""
        table = _with_class_names(table, self._classes)
        fields = _read_columns(table, DataConfig(), self.schema, unknown, optional).corpus_fields()
        report(*number_findings(self.schema, fields["numbers"], table.name))
        return Context.of(fields["categories"], fields["numbers"], fields["vectors"], fields["words"])


class ContextCollator:
    """A collator for data loaders and for the `Trainer` of `transformers`, which adds the contexts to a batch.

    Args:
        collator: The collator for tokens, such as `DataCollatorForLanguageModeling`.
        schema: The context variables, whose columns the features have.
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], Any], schema: ContextSchema) -> None:
        self.collator, self._reader, self._columns = collator, ContextReader(schema), schema.columns()

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Return a batch of the features, with the contexts under the name `context`; other texts are omitted."""
        for name in self._columns:
            if not all(name in feature for feature in features):
                problem = f"expected the context column {name}, got {', '.join(features[0])}"
                raise UserError(f"features: {problem}; with the Trainer, set remove_unused_columns=False")
        rows = [{name: feature[name] for name in self._columns} for feature in features]
        inputs = [
            {key: value for key, value in row.items() if not (key in self._columns or isinstance(value, str | None))}
            for row in features
        ]
        batch = self.collator(inputs)
        if self._columns:
            count = len(next(iter(batch.values()), rows))
            repeats, rest = divmod(count, len(rows))  # 2 with preferences: chosen texts, and then rejected ones
            if rest or not repeats:
                problem = f"expected rows of tokens for {len(rows):,} contexts, got {count:,}"
                raise UserError(f"features: {problem}; do not pack texts")
            batch["context"] = self._reader.read_table(rows * repeats)
        return batch


def _read_columns(table: Table, *options: Any) -> ContextColumns:
    """Return the context columns of a table, which `ContextColumns` reads with these `options`."""
    columns = ContextColumns(table, *options)
    for chunk in table.chunks(columns.names or table.columns[:1]):
        columns.add(chunk, len(next(iter(chunk.values()))))
    return columns


def _with_class_names(table: Table, classes: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with the names of classes in place of their numbers, which the rows of a data set have.

    `classes` has the name of each class number of a column.
    """
    if not classes:
        return table

    def read(names: tuple[str, ...]) -> Iterator[Chunk]:
        for chunk in table.read(names):
            yield {
                name: [class_name(value, classes[name]) for value in values] if name in classes else values
                for name, values in chunk.items()
            }

    return replace(table, read=read)
