"""How often tokens occur in the training texts of contexts, and which changes of probability these counts support.

A model also changes the probability of tokens that no training text has in any of the contexts that are compared. Such
changes come from other contexts or from the random initial weights, so they are not evidence. Let c_a(w) be the count
of token w in the training texts with context a, C_a the count of all tokens, and e_a(w) the count that is expected if w
is equally frequent in a and b. The texts support that w is more frequent in a than in b if

    c_a(w) > e_a(w)    and    2 (c_a(w) log(c_a(w) / e_a(w)) + c_b(w) log(c_b(w) / e_b(w))) >= MIN_RATIO,

the log-likelihood ratio of Dunning (1993), which also holds for small counts.

Shapes: K contexts, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.corpus import Corpus, target_ids
from factorcell.evaluation.diagnostics import common_columns, differing_columns, report_run
from factorcell.evaluation.explaining.embeddings import bias_shift
from factorcell.io.findings import Finding, report
from factorcell.options import limits
from factorcell.runs.run import Run, training_table

MIN_RATIO = 9.0  # equal frequencies exceed it for 0.3 % of tokens: the square of 3 standard deviations
# why no texts are counted
NOT_CATEGORIES = (
    "the contexts differ in columns that are not categories; a column of ranges, such as 1950-1989, would have counts"
)

Row = dict[str, Any]


@dataclass(frozen=True)
class TokenCounts:
    """Counts in the training texts of K contexts.

    Attributes:
        texts: The number of training texts with each context (K,).
        tokens: The count of each token in these texts (K, V), with end tokens and without start tokens.
    """

    texts: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @classmethod
    def of_contexts(
        cls, run: Run, train: Corpus, contexts: Sequence[Mapping[str, Any]], *, unknown: str = "error"
    ) -> "TokenCounts | None":
        """Count the tokens of training texts, as `read_training_texts` returns them, in each of several contexts.

        A text has a context if it has its values of the categories in which the contexts differ; a column that a
        context lacks may have any value. The result is None if the contexts differ in columns of other kinds.
        """
        corpora = [run.read([""], [context], unknown=unknown) for context in contexts]
        categories = np.concatenate([corpus.categories for corpus in corpora])
        others = [np.concatenate([corpus.numbers, *corpus.vectors], axis=1) for corpus in corpora]
        words = [[ids.values.tolist() for ids in (*corpus.words, *corpus.prompts)] for corpus in corpora]
        same_numbers = all(np.array_equal(other, others[0], equal_nan=True) for other in others)
        if not same_numbers or any(bags != words[0] for bags in words):
            return None
        columns = np.flatnonzero((categories != categories[0]).any(0))
        texts, tokens, lengths = [], [], train.lengths
        ids = target_ids(train)
        for values in categories[:, columns]:
            matches = (train.categories[:, columns] == values) | (values < 0)
            has_context = matches.all(1)
            texts.append(int(has_context.sum()))
            tokens.append(np.bincount(ids[np.repeat(has_context, lengths)], minlength=len(run.tokenizer)))
        return cls(np.array(texts), np.stack(tokens))

    def supports(self, first: int, second: int) -> NDArray[np.bool_]:
        """Return for each token whether the texts support that it is more frequent in context `first` (V,)."""
        counts = self.tokens[[first, second]].astype(np.float64)
        totals = counts.sum(1, keepdims=True)
        expected = np.maximum(counts.sum(0) * totals / max(1.0, totals.sum()), np.finfo(np.float64).tiny)
        ratios = 2 * (counts * np.log(np.maximum(counts, 1) / expected)).sum(0)
        result: NDArray[np.bool_] = (counts[0] > expected[0]) & (ratios >= MIN_RATIO)
        return result


def read_training_texts(run: Run, source: Any) -> Corpus:
    """Read the training table of a run, with the vocabulary and the values of the run."""
    optional = tuple(variable.name for variable in run.schema.variables)
    return run.prepare(source, unknown="group", optional=optional)


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

    Only tokens are returned whose change the training texts support (`TokenCounts.supports`). Without a training table,
    and for contexts that differ in columns that are not categories, all tokens are considered, and a finding says so.

    Args:
        run: An adapted run.
        context: The values of columns; a column without a value has its expected value.
        against: The context to compare with; by default the expected context.
        count: The maximum number of raised tokens, and of lowered tokens.
        frequent: The number of most frequent tokens that are considered; by default all.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        train: The training table, in which the tokens are counted; by default the table that the run recorded.

    Returns:
        A row per token with `token` and the change of its log probability in `nats`; the largest changes come first in
        both groups. If the tokens were counted, `count` and `count_against` are their counts in the training texts of
        the context and of the other context.

    Raises:
        UserError: The context is invalid, or does not change the softmax bias of the run.
    """
    contexts = [context, against or {}]
    report_run(run, differing_columns(contexts), common_columns(contexts))
    source, counts = training_table(run) if train is None else train, None
    if source is not None:
        counts = TokenCounts.of_contexts(
            run, read_training_texts(run, source), [context, against or {}], unknown=unknown
        )
    if counts is None:
        reason = "the run recorded no existing training table; pass train=TABLE" if source is None else NOT_CATEGORIES
        report(Finding("no evidence", f"words without evidence may be among the tokens, because {reason}"))
    return rank_shifted_tokens(run, context, against, counts, count=count, frequent=frequent, unknown=unknown)


def rank_shifted_tokens(
    run: Run,
    context: Mapping[str, Any],
    against: Mapping[str, Any] | None,
    counts: TokenCounts | None,
    *,
    count: int = 10,
    frequent: int | None = None,
    unknown: str = "error",
) -> list[Row]:
    """Return the rows of `most_shifted_tokens` from the `counts` of both contexts; None supports all tokens."""
    count, frequent = limits.check(count=count, frequent=frequent)
    nats = bias_shift(run, context, against, unknown=unknown)
    specials = run.tokenizer.specials
    nats[specials.unknown] = 0.0  # neither raised nor lowered, so it is not returned
    if counts is not None:
        nats[~np.where(nats > 0, counts.supports(0, 1), counts.supports(1, 0))] = 0.0
    considered = nats if frequent is None else nats[: frequent + len(specials)]  # tokens are sorted by frequency
    order = np.argsort(-considered, kind="stable").tolist()
    token_ids = [token_id for token_id in order if nats[token_id] > 0][:count]
    token_ids += [token_id for token_id in reversed(order) if nats[token_id] < 0][:count]
    rows: list[Row] = [
        {"token": run.tokenizer.readable(run.tokenizer.tokens[i]), "nats": float(nats[i])} for i in token_ids
    ]
    if counts is not None:
        for row, (first, second) in zip(rows, counts.tokens[:, token_ids].T.tolist(), strict=True):
            row |= {"count": first, "count_against": second}
    return rows
