"""The options of context adapters (`context_model`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from factorcell.config import Config
from factorcell.data.columns.columns import ContextColumns, parse_column
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.tables.tables import feature_classes, open_table
from factorcell.errors import UserError
from factorcell.hf.context_reading import add_rows, with_class_names
from factorcell.io.findings import Finding, report
from factorcell.options.columns import Column, column_texts
from factorcell.options.limits import MAX_FLOAT, Limits, is_names, make_plain
from factorcell.options.option_fields import INPUT_ADAPTERS, MAX_SIZE

ALL_LINEAR = "all-linear"


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
        target_modules: Names of the linear maps to adapt, such as `q_proj`; `all-linear` adapts all maps of the layers.
        adapt: Names of the adapters of each map: factor, concat, scale, and those that `register_adapter` has added.
        context_size: The size of the context vector, K.
        variable_size: The size of the embedding of a context variable.
        output_bias: Whether the context also changes the bias of the output layer.
        schema: The context variables, which `fit` determines from the columns of a training table.
    """

    columns: Sequence[str | Column] = ()
    min_count: int = 50
    rank: int = 4
    shared_rank: int = 32
    alpha: float = 4.0
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    adapt: tuple[str, ...] = ("factor",)
    context_size: int = 8
    variable_size: int = 8
    output_bias: bool = False
    schema: ContextSchema = field(default_factory=ContextSchema)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_texts(self.columns))
        make_plain(self)
        if not is_names(self.columns):
            raise UserError(f"columns: expected a list of names, got {self.columns!r}")
        if not is_names(self.adapt):
            raise UserError(f"adapt: expected a list of names, got {self.adapt!r}")
        if not is_names(self.target_modules) and self.target_modules != ALL_LINEAR:
            raise UserError(f"target_modules: expected {ALL_LINEAR} or a list of names, got {self.target_modules!r}")
        if not self.target_modules:
            raise UserError(f"target_modules: expected {ALL_LINEAR} or at least one name, got none")
        for name, low in {"min_count": 1, "rank": 1, "shared_rank": 0, "context_size": 1, "variable_size": 1}.items():
            Limits(low, MAX_SIZE).check(name, getattr(self, name))
        Limits(0, MAX_FLOAT, whole=False, above=True).check("alpha", self.alpha)
        if not isinstance(self.output_bias, bool):
            raise UserError(f"output_bias: expected True or False, got {self.output_bias!r}")
        for name in INPUT_ADAPTERS:
            if name in self.adapt:
                expected = "expected adapters that change weights, such as factor"
                raise UserError(f"adapt: {expected}, got {name}; put what is read before a text into the input tokens")

    def fit(self, source: Any) -> Self:
        """Return these options with the context variables of a training table.

        Args:
            source: A table of any supported type, such as a path, a list of rows, a data frame or a `datasets.Dataset`.

        Raises:
            UserError: A column is missing or has an invalid value.
        """
        for column, kind, _ in map(parse_column, map(str, self.columns)):
            if kind == "prompt":
                raise UserError(f"{column}: expected no prompt; put its text into the input tokens")
        if not self.columns:
            return self
        data = Config.of(context=self.columns, min_context_count=self.min_count).data
        classes = feature_classes(source)
        columns = ContextColumns(table := with_class_names(open_table(source), classes), data)
        add_rows(columns, table)
        variables = [reader.build_variable(data) for reader in columns.readers]
        schema = ContextSchema(
            tuple(replace(variable, classes=classes.get(variable.source_column, ())) for variable in variables)
        )
        for variable in schema.categories:
            if variable.is_all_rare:
                problem = f"no value has {self.min_count:,} rows, so the column changes nothing"
                report(Finding("uninformative column", f"{variable.name}: {problem}; lower min_count"))
        return replace(self, schema=schema)
