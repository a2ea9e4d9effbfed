"""Notices about contexts that specify only some columns of a run.

If column b predicts column a, the model may attribute to b much of what distinguishes the values of a. A context with a
value of a, but none of b, then lacks this part, because b has its expected value. Another notice names a column that
has no significant effect without the other columns.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from factorcell.config import Notice, UserError
from factorcell.data.corpus import Corpus
from factorcell.data.schema import MISSING, ContextSchema, Variable
from factorcell.evaluation.conditional_prior import load_dependences, load_priors
from factorcell.evaluation.dependence import Dependence
from factorcell.model.run import Run, training_facts
from factorcell.model.saved_results import UNKNOWN_CONTEXT_GAIN, format_difference

MAX_EXAMPLE_VALUES = 1000  # number of frequent values from which an example is chosen


def context_notices(run: Run, columns: Collection[str], specified: Collection[str] = ()) -> list[str]:
    """Return a notice for each of the `columns` that other columns predict, or that has no effect alone.

    Args:
        run: The run that reads the contexts.
        columns: The columns that the contexts specify, or in which they differ.
        specified: Further columns that all contexts specify.
    """
    if not run.model.is_adapted:
        return []
    try:
        return [*_dependence_notices(run, columns, specified), *effect_notices(run, columns)]
    except UserError as error:
        problem = f"its records cannot be read ({error.message})"
        return [f"{run.folder}: {problem}; interpret its use of contexts with caution"]


def report_context(run: Run, columns: Collection[str], specified: Collection[str] = ()) -> None:
    """Emit the notices of `context_notices`."""
    for line in context_notices(run, columns, specified):
        warnings.warn(Notice(line), stacklevel=3)


def report_columns_with_values(run: Run, corpus: Corpus) -> None:
    """Emit the notices about the columns of which a text of `corpus` has a value."""
    for line in context_notices(run, columns_with_values(corpus)):
        warnings.warn(Notice(line), stacklevel=3)


def columns_with_values(corpus: Corpus) -> list[str]:
    """Return the context columns, without prompts, that are not empty in all texts."""
    schema = corpus.schema
    masks: list[tuple[Variable, Any]] = [
        *zip(schema.categories, np.equal(corpus.categories, MISSING).T, strict=True),
        *zip(schema.numbers, np.isnan(corpus.numbers).T, strict=True),
        *zip(schema.vectors, map(np.isnan, corpus.vectors), strict=True),
        *zip(schema.texts, (np.diff(words.offsets) == 0 for words in corpus.words), strict=True),
    ]
    return list(dict.fromkeys(variable.source_column for variable, is_missing in masks if not is_missing.all()))


def differing_columns(contexts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns in which contexts differ."""
    names = dict.fromkeys(name for context in contexts for name in context)
    return [name for name in names if any(context.get(name) != contexts[0].get(name) for context in contexts)]


def common_columns(contexts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the columns of which all contexts have a value."""
    return set.intersection(*map(set, contexts))


def effect_notices(run: Run, columns: Collection[str]) -> Iterator[str]:
    """Yield a notice for each of the `columns` whose effect, without the other columns, is not above zero.

    There are none if the whole context has no such effect, because `find_warnings` then reports it.
    """
    total = training_facts(run.folder).get("context") or {}
    if (total.get(f"{UNKNOWN_CONTEXT_GAIN}_low") or 0) <= 0:
        return
    for column, row in total.get("columns", {}).items():
        low = row.get(f"{UNKNOWN_CONTEXT_GAIN}_low")
        if column in columns and low is not None and low <= 0:
            effect = (
                f"gain over an unknown value: {format_difference(row, UNKNOWN_CONTEXT_GAIN)}, {row['texts']:,} texts"
            )
            problem = f"without the other columns, {column} does not significantly lower the perplexity ({effect})"
            yield f"{run.folder}: {problem}; interpret its use of {column} with caution"


def _dependence_notices(run: Run, columns: Collection[str], specified: Collection[str]) -> Iterator[str]:
    """Yield a notice for each of the `columns` that a column without a value predicts."""
    for dependence in load_dependences(run.folder):
        if not dependence.is_strong or run.schema.variable(dependence.target).source_column not in columns:
            continue
        others = [name for name in _predicting_columns(run.schema, dependence) if name not in {*columns, *specified}]
        if others:
            names, example = ", ".join(others), _example(run, dependence)
            problem = f"{dependence.describe()}, but the contexts do not specify {names}"
            consequence = f"the result lacks what the model learned from {names}"
            yield f"{problem}: {consequence}; specify it too{example}, or train a run without {names}"


def _predicting_columns(schema: ContextSchema, dependence: Dependence) -> list[str]:
    """Return the columns of the variables that predict the target best."""
    variables = [variable for variable in schema.embedded.variables if variable.name in dependence.variables]
    return list(dict.fromkeys(variable.source_column for variable in variables))


def _example(run: Run, dependence: Dependence) -> str:
    """Return an example of a probable pair of values of the target and of the category that predicts it.

    The text is empty if the predicting variable is another kind of column, or that of users, who are never named.
    """
    schema = run.schema
    variable = next((variable for variable in schema.categories if (variable.name,) == dependence.variables), None)
    prior = load_priors(run.folder, schema).get(dependence.target)
    if variable is None or prior is None or run.config.data.user in (variable.name, dependence.target):
        return ""
    counts = np.array(variable.counts[1 : MAX_EXAMPLE_VALUES + 1])
    values = variable.values[1 : MAX_EXAMPLE_VALUES + 1]
    corpus = run.read([""] * len(values), [{variable.source_column: value} for value in values])
    log_joint = prior.log_probs(corpus)[:, prior.most_frequent] + np.log(np.maximum(counts, 1))
    value = values[int(log_joint.argmax())]
    target_column = schema.variable(dependence.target).source_column
    return f", as in {target_column}={prior.values[prior.most_frequent]} with {variable.source_column}={value}"
