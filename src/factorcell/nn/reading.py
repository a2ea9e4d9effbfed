"""Models read texts and their contexts with the tokenizer and the context schema of their training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.columns.rows import to_contexts, to_rows, to_texts
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus
from factorcell.data.table_findings import CONTEXTS
from factorcell.data.tables.chunks import UnknownKindError
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError, check_choice


class TextModel:
    """Base of the models that read texts: runs and n-gram models.

    Attributes:
        config: The options for reading texts and columns.
        tokenizer: The tokenizer.
        schema: The context variables.
    """

    config: Config
    tokenizer: Tokenizer
    schema: ContextSchema

    @property
    def reads_context(self) -> bool:
        """Whether predictions depend on the context; otherwise, tables may lack the context columns."""
        return bool(self.schema.variables)

    def prepare(
        self,
        source: Any,
        *,
        context: Any = None,
        unknown: str = "group",
        optional: tuple[str, ...] = (),
        truncate: bool = True,
    ) -> Corpus:
        """Read texts with the tokenizer and the schema of this model.

        Args:
            source: Rows, a table, or the path of a file; or texts without a context: a list of texts, or a column of a
                data frame.
            context: Only for texts without a context: one context for all texts, or a list or table with a context for
                each. Columns without a value get their expected values.
            unknown: The policy for values that training never saw: "group", "expected" or "error".
            optional: Names of context variables whose columns may be missing. If the model does not read its context
                variables, all of them may be missing.
            truncate: Whether to cut texts after `max_tokens` tokens.

        Returns:
            The corpus, with one text per row.

        Raises:
            UserError: The source cannot be read.
        """
        if (texts := to_texts(source)) is not None:
            vectors = [variable.source_column for variable in self.schema.vectors]
            contexts = to_contexts(context, len(texts), vectors)
            return self.read(texts, contexts, unknown=unknown, truncate=truncate)
        if context is not None:
            raise UserError("context: expected a list of texts as the source, got a table; add columns to the table")
        try:
            table = open_table(source)
            if not self.reads_context:
                absent = [variable for variable in self.schema.variables if variable.source_column not in table.columns]
                optional += tuple(variable.name for variable in absent)
            return prepare(
                table,
                self.config,
                tokenizer=self.tokenizer,
                schema=self.schema,
                unknown=unknown,
                optional=optional,
                truncate=truncate,
            )
        except UnknownKindError as error:
            if not isinstance(source, str):
                raise
            raise error.with_remedy_for_texts() from None

    def read(
        self,
        texts: Sequence[str],
        contexts: Any,
        *,
        unknown: str = "error",
        truncate: bool = True,
    ) -> Corpus:
        """Read texts with a context for each; no text is dropped.

        Args:
            texts: The texts.
            contexts: For each text a row that maps columns to values, or a table of such rows. Columns that a row does
                not have get their expected values.
            unknown: The policy for values that training never saw: "group", "expected" or "error".
            truncate: Whether to cut texts after `max_tokens` tokens; `Corpus.truncated` marks cut texts.

        Raises:
            UserError: A column or value is unknown, or the number of contexts is not that of the texts.
        """
        contexts = to_rows(contexts)
        if len(texts) != len(contexts):
            raise UserError(f"contexts: expected one for each of {len(texts):,} texts, got {len(contexts):,}")
        columns = {name for context in contexts for name in context}
        for name in sorted(columns, key=str):
            check_choice("context column", name, self.schema.columns())
        absent = tuple(variable.name for variable in self.schema.variables if variable.source_column not in columns)
        empty = dict.fromkeys(columns)
        rows = [
            {**empty, **context, self.config.data.text: text} for text, context in zip(texts, contexts, strict=True)
        ]
        try:
            return prepare(
                replace(open_table(rows), name=CONTEXTS),
                self.config,
                tokenizer=self.tokenizer,
                schema=self.schema,
                unknown=unknown,
                optional=absent,
                truncate=truncate,
            )
        except UserError as error:
            row_name = "contexts row 1" if len(rows) == 1 else "contexts row"
            raise error.with_message(error.message.replace(row_name, "context", 1)) from None
