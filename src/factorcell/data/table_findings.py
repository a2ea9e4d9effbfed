"""Findings about a table: values that training did not see, cut texts, and empty columns and texts."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from factorcell.config import DataConfig
from factorcell.data.columns.schema import EXPECTED_READING, MISSING, ContextSchema
from factorcell.data.corpus import Corpus, is_empty_text
from factorcell.io.arrays import mapped
from factorcell.io.findings import Finding

CONTEXTS = "contexts"  # the name of a table of values that no file has; its rows are not counted in findings
MAX_OUTSIDE_SHARE = 0.01  # a finding reports a larger share of numbers outside the range of training


def table_findings(
    corpus: Corpus, table_name: str, config: DataConfig, unknown: str | None, optional: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield a finding about unseen values, cut texts, empty context columns and empty texts of a table.

    `unknown` is the policy for unseen and rare values, None in training; variables in `optional` are not counted. A
    column of texts is not an empty context column, because an empty text is a text without words.
    """

    def format_counts(is_affected: Mapping[str, NDArray[np.bool_]]) -> str:
        """Return the number of affected texts, of all, and of affected by name; empty if there are none.

        For example "12 of 1,000 texts (city 10, user 3)". Texts of `CONTEXTS` may be read several times, so they are
        not counted.
        """
        counts = {name: int(mask.sum()) for name, mask in is_affected.items() if mask.any()}
        if table_name == CONTEXTS or not counts:
            return ", ".join(name or "texts" for name in counts)
        total = int(mapped(lambda *masks: np.logical_or.reduce(masks), *is_affected.values()).sum())
        by_name = ", ".join(f"{name} {count:,}" for name, count in counts.items() if name)
        return f"{total:,} of {len(corpus):,} texts" + (f" ({by_name})" if by_name else "")

    schema, is_anonymous = corpus.schema, config.anonymous and unknown is not None  # then no user is known
    categories = [
        (variable, corpus.categories[:, index])
        for index, variable in enumerate(schema.categories)
        if not (is_anonymous and variable.source_column == config.user)
    ]
    is_unseen = {variable.name: mapped(lambda ids: ids == 0, ids) for variable, ids in categories}
    if unknown == "group" and (counts := format_counts(is_unseen)):
        text = f"unseen or rare values in {counts}, read as the unknown value (--unknown group)"
        yield Finding("unseen values", f"{table_name}: {text}")
    if counts := format_counts({"": corpus.truncated}):
        remedy = "a model trained with a larger --max-tokens reads more"
        yield Finding("cut texts", f"{table_name}: {counts} cut after {config.max_tokens:,} tokens; {remedy}")
    if table_name == CONTEXTS:
        return
    masks = [(variable, mapped(lambda ids: ids == MISSING, ids)) for variable, ids in categories]
    if unknown != "expected":
        numbers = [*corpus.numbers.T, *(vectors[:, 0] for vectors in corpus.vectors)]
        variables = (*schema.numbers, *schema.vectors)
        masks += [(variable, mapped(np.isnan, column)) for variable, column in zip(variables, numbers, strict=True)]
    is_missing = {variable.source_column: mask for variable, mask in masks if variable.name not in optional}
    if counts := format_counts(is_missing):
        problem = "missing, unseen or rare values" if unknown == "expected" else "an empty context column"
        text = f"{problem} in {counts}, {EXPECTED_READING}"
        yield Finding("missing values", f"{table_name}: {text}")
    if counts := format_counts({"": is_empty_text(corpus)}):
        yield Finding("empty texts", f"{table_name}: {counts} empty; the end of an empty text is its only target")


def number_findings(schema: ContextSchema, numbers: NDArray[np.float32], table_name: str) -> Iterator[Finding]:
    """Yield a finding for each numeric variable with values outside the range of its values in training.

    `numbers` are the values of the numeric variables of the schema (rows, variables). Values near the range are not
    reported if they are few, because random samples of the same numbers have such values. A value is far outside if
    its distance from the range is larger than the width of the range.
    """
    for variable, column in zip(schema.numbers, numbers.T, strict=True):
        middle, width = (variable.low + variable.high) / 2, variable.high - variable.low
        distances = np.abs(column - middle) - width / 2
        is_outside, is_far = distances > 1e-6 * max(abs(variable.low), abs(variable.high)), distances > width
        if width and not variable.period and (is_far.any() or is_outside.mean() > MAX_OUTSIDE_SHARE):
            training_range = f"the range of training ({variable.low:.6g} to {variable.high:.6g})"
            rows = "" if table_name == CONTEXTS else f" in {is_outside.sum():,} of {len(column):,} rows"
            text = f"{table_name}: {variable.name} is outside {training_range}{rows}; predictions are extrapolated"
            yield Finding("outside range", text)
