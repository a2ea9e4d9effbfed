"""How often tokens occur in the training texts of contexts, and which changes of probability these counts support.

A model also changes the probability of tokens that no training text has in any of the compared contexts; such changes
come from other contexts or from the random initial weights. Shapes: K contexts, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, target_ids
from factorcell.evaluation.diagnostics import differing_columns, report_run
from factorcell.evaluation.explaining.embeddings import bias_shift
from factorcell.io.findings import Finding, report
from factorcell.options import limits
from factorcell.runs.run import Run, training_table

MIN_RATIO = 9.0  # equal frequencies exceed it for 0.3 % of tokens: the square of 3 standard deviations

Row = dict[str, Any]
Counts = NDArray[np.int64]


def count_tokens(
    run: Run, train: Corpus, contexts: Sequence[Mapping[str, Any]], *, unknown: str = "error"
) -> Counts | None:
    """Count the tokens of training texts, as `read_training_texts` returns them, in each of several contexts (K, V).

    A text has a context if it has its values of the categories in which the contexts differ; a column that a context
    lacks may have any value. The result is None if the contexts differ in columns of other kinds.
    """
    compared = run.read([""] * len(contexts), contexts, unknown=unknown).context(np.arange(len(contexts)))
    distinct_others, _ = replace(compared, categories=torch.zeros_like(compared.categories)).distinct()
    if len(distinct_others) > 1:
        return None
    categories = compared.categories.numpy()
    columns = np.flatnonzero((categories != categories[0]).any(0))
    ids, tokens = target_ids(train), []
    for values in categories[:, columns]:
        has_context = ((train.categories[:, columns] == values) | (values < 0)).all(1)
        tokens.append(np.bincount(ids[np.repeat(has_context, train.lengths)], minlength=len(run.tokenizer)))
    return np.stack(tokens)


def is_more_frequent(first: Counts, second: Counts) -> NDArray[np.bool_]:
    """Return for each token whether its counts (V,) support that it is more frequent in the first context (V,).

    It has more than its expected count e_a, and Dunning's log-likelihood ratio (1993), which also holds for small
    counts, 2 (c_a log(c_a / e_a) + c_b log(c_b / e_b)), is at least `MIN_RATIO`.
    """
    counts = np.stack([first, second]).astype(np.float64)
    totals = counts.sum(1, keepdims=True)
    expected = np.maximum(counts.sum(0) * totals / max(1.0, totals.sum()), np.finfo(np.float64).tiny)
    ratios = 2 * (counts * np.log(np.maximum(counts, 1) / expected)).sum(0)
    result: NDArray[np.bool_] = (counts[0] > expected[0]) & (ratios >= MIN_RATIO)
    return result


def read_training_texts(run: Run, source: Any = None) -> Corpus | None:
    """Read a training table, by default the one that the run recorded, as the run reads it; None if there is none."""
    source = training_table(run) if source is None else source
    optional = tuple(variable.name for variable in run.schema.variables)
    return None if source is None else run.prepare(source, unknown="group", optional=optional)


def most_shifted_tokens(
    run: Run,
    context: Mapping[str, Any],
    against: Mapping[str, Any] | None = None,
    *,
    count: int = 10,
    frequent: int | None = None,
    unknown: str = "error",
    train: Any = None,
) -> list[Row]:
    """Return the tokens that the softmax bias of a context raises most, then those that it lowers most.

    Only tokens are returned whose change the training texts support (`is_more_frequent`). Without a training table,
    and for contexts that differ in columns that are not categories, all tokens are considered, and a finding says so.

    Args:
        run: An adapted run.
        context: The values of columns; a column without a value has its expected value.
        against: The context to compare with; by default the expected context.
        count: The maximum number of raised tokens, and of lowered tokens.
        frequent: The number of most frequent tokens that are considered; by default all.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        train: The training table, or the texts of `read_training_texts`; by default the table that the run recorded.

    Returns:
        A row per token with `token` and the change of its log probability in `nats`; the largest changes come first in
        both groups. If the tokens were counted, `count` and `count_against` are their counts in the training texts of
        the context and of the other context.

    Raises:
        UserError: The context is invalid, or does not change the softmax bias of the run.
    """
    count, frequent = limits.check(count=count, frequent=frequent)
    contexts = [context, against or {}]
    report_run(run, differing_columns(contexts))
    nats = bias_shift(run, context, against, unknown=unknown)
    nats[run.tokenizer.specials.unknown] = 0.0  # neither raised nor lowered, so it is not returned
    texts = train if isinstance(train, Corpus) else read_training_texts(run, train)
    counts = None if texts is None else count_tokens(run, texts, contexts, unknown=unknown)
    if counts is not None:
        nats[~np.where(nats > 0, is_more_frequent(*counts), is_more_frequent(*counts[::-1]))] = 0.0
    else:
        no_table = "the run records no existing training table; add --train TABLE (in Python: train)"
        reason = no_table if texts is None else "the contexts differ in columns that are not categories"
        report(Finding("no evidence", f"words without evidence may be among the tokens, because {reason}"))
    considered = nats if frequent is None else nats[: frequent + len(run.tokenizer.specials)]  # sorted by frequency
    order = np.argsort(-considered, kind="stable").tolist()
    token_ids = [token_id for token_id in order if nats[token_id] > 0][:count]
    token_ids += [token_id for token_id in reversed(order) if nats[token_id] < 0][:count]
    rows: list[Row] = [
        {"token": run.tokenizer.readable(run.tokenizer.tokens[i]), "nats": float(nats[i])} for i in token_ids
    ]
    if counts is not None:
        for row, (first, second) in zip(rows, counts[:, token_ids].T.tolist(), strict=True):
            row |= {"count": first, "count_against": second}
    return rows
