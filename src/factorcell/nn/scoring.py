"""Models read texts and their contexts with the tokenizer and schema of their training, and score the texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.columns.rows import to_contexts, to_rows, to_texts
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Batch, Corpus, is_known_target, target_offsets
from factorcell.data.preparation import prepare
from factorcell.data.table_findings import CONTEXTS
from factorcell.data.tables.chunks import Table, UnknownKindError
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError, check_choice


class TextModel:
    """Base of the models that read texts: runs and n-gram models."""

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
        is_empty = context is not None and isinstance(source, (list, tuple)) and not source
        if (texts := [] if is_empty else to_texts(source)) is not None:
            vectors = [variable.source_column for variable in self.schema.vectors]
            contexts = to_contexts(context, len(texts), vectors)
            return self.read(texts, contexts, unknown=unknown, truncate=truncate)
        if context is not None:
            raise UserError("context: expected a list of texts as the source, got a table; add columns to the table")
        try:
            table = open_table(source)
        except UnknownKindError as error:
            if not isinstance(source, str):
                raise
            raise error.with_remedy_for_texts() from None
        if not self.reads_context:
            absent = [variable for variable in self.schema.variables if variable.source_column not in table.columns]
            optional += tuple(variable.name for variable in absent)
        return self._prepare(table, unknown=unknown, optional=optional, truncate=truncate)

    def read(self, texts: Sequence[str], contexts: Any, *, unknown: str = "error", truncate: bool = True) -> Corpus:
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
        columns = dict.fromkeys(name for context in contexts for name in context)
        for name in sorted(columns, key=str):
            check_choice("context column", name, self.schema.columns())
        absent = tuple(variable.name for variable in self.schema.variables if variable.source_column not in columns)
        text_column = self.config.data.text
        rows = [{**columns, **context, text_column: text} for text, context in zip(texts, contexts, strict=True)]
        try:
            table = replace(open_table(rows), name=CONTEXTS)
            return self._prepare(table, unknown=unknown, optional=absent, truncate=truncate)
        except UserError as error:
            row_name = "contexts row 1" if len(rows) == 1 else "contexts row"
            raise error.with_message(error.message.replace(row_name, "context", 1)) from None

    def _prepare(self, table: Table, **options: Any) -> Corpus:
        return prepare(table, self.config, tokenizer=self.tokenizer, schema=self.schema, **options)


class Scorer(Protocol):
    """A model of the probability of texts: a `Run`, an n-gram model, or several models that act as one model."""

    folder: Path
    tokenizer: Tokenizer
    schema: ContextSchema

    @property
    def reads_context(self) -> bool:
        """Whether predictions depend on the context."""

    def prepare(self, source: Any, *, unknown: str = "group") -> Corpus:
        """Read texts from rows, a table or a file into the form that `nats` takes."""

    def nats(self, corpus: Corpus) -> NDArray[Any]:
        """Return the nats of all targets of `corpus` (`corpus.target_count` values), one text after the other."""


def mixed_nats(nats: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nats of a mixture from those of its M models (..., M) and their weights, of the same shape or (M,)."""
    lowest = nats.min(axis=-1, keepdims=True)
    mixed: NDArray[np.float64] = lowest[..., 0] - np.log((np.exp(lowest - nats) * weights).sum(axis=-1))
    return mixed


def put_batch(values: NDArray[Any], batch_values: NDArray[Any], batch: Batch, starts: NDArray[np.int64]) -> None:
    """Copy the values of the targets of a batch (B, T, ...) to their places in a corpus with these `target_offsets`."""
    for text_values, row, length in zip(batch_values, batch.rows.tolist(), batch.lengths.tolist(), strict=True):
        values[starts[row] : starts[row] + length] = text_values[:length]


def check_lengths(corpus: Corpus, limit: int | None, describe: Callable[[int], str]) -> None:
    """Raise a `UserError`, with the description of a text, if it has more tokens than the `limit`, if any."""
    if limit is None:
        return
    lengths = corpus.read_lengths
    too_long = np.flatnonzero(lengths > limit)
    if len(too_long):
        first = too_long[0]
        count = f"; {len(too_long):,} texts are too long" if len(too_long) > 1 else ""
        raise UserError(
            f"{describe(int(first))}: the text has more tokens than the base can read: expected at "
            f"most {limit:,} with the start token and prompts, got {lengths[first]:,}; shorten it{count}"
        )


def score_rows(nats: NDArray[Any], corpus: Corpus, *, with_tokens: bool) -> list[dict[str, Any]]:
    """Return the rows of `Run.score` from the nats of all targets of `corpus`; `with_tokens` adds each target."""
    starts, is_known, rows = target_offsets(corpus), is_known_target(corpus), []
    for index in range(len(corpus)):
        text_nats = nats[starts[index] : starts[index + 1]].astype(np.float64)
        total = float(text_nats.sum())
        row: dict[str, Any] = {"row": index, "nats": total, "targets": len(text_nats)}
        row["perplexity"] = float(np.exp(total / max(1, len(text_nats))))
        row["unknown_targets"] = int((~is_known[starts[index] : starts[index + 1]]).sum())
        if with_tokens:
            # The first token of a text is its start token, which is not a target.
            target_ids = corpus.tokens[corpus.offsets[index] + 1 : corpus.offsets[index + 1]].tolist()
            targets = zip(corpus.tokenizer.decode(target_ids), text_nats, strict=True)
            readable = corpus.tokenizer.readable
            row["tokens"] = [{"token": readable(token), "nats": float(value)} for token, value in targets]
        rows.append(row)
    return rows
