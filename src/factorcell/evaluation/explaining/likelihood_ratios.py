"""Log likelihood ratios: the evidence of each token for context a against context b (TACL 2018, figure 2).

    r_t = log p(w_t | w_<t, a) - log p(w_t | w_<t, b)

Shapes: K contexts, T targets of a text, of which the last is its end.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from factorcell.data.columns.rows import ResultRows, to_row, to_values
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import differing_columns, report_run
from factorcell.evaluation.explaining.token_evidence import count_tokens, read_training_texts
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.evaluation.text_figures import texts_digest
from factorcell.io.findings import Finding, report
from factorcell.nn.scoring import check_lengths
from factorcell.runs.run import Run

STRENGTHS = (0.5, 1.0, 2.0)  # minimum absolute log ratios, in nats, of weak, clear and strong evidence

Row = dict[str, Any]
ContextValues = Mapping[str, Any]  # column -> value
Floats = NDArray[np.float64]


def explain(
    runs: Run | Sequence[Run],
    texts: Sequence[str],
    contexts: Mapping[str, ContextValues],
    *,
    unknown: str = "error",
    train: Any = None,
    text_contexts: Sequence[ContextValues] | None = None,
) -> ResultRows:
    """Compute the nats of texts given each of several named contexts, averaged over runs.

    The posterior after a token assumes that all contexts are equally probable before the text. A column that a context
    lacks has the expected value.

    Args:
        runs: A run, or several runs with the same tokenizer and vocabulary.
        texts: A list or a column of texts; they are not truncated.
        contexts: The values of columns for each named context.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        train: The training table, in which to count the tokens; None counts no tokens.
        text_contexts: For each text, the values of further columns; the values of `contexts` have precedence.

    Returns:
        A row per text with `text`, `tokenizer` (the kind of tokenizer), `nats` and `posterior` by context, and
        `tokens`, which has a row per token. The row of a token has `token`, `known` (whether the token is in the
        vocabulary), the `nats` of the token, and the `posterior` after it. For two contexts, rows of texts and of
        tokens also have the `ratio` (the log likelihood ratio in nats); it is positive if the first context is more
        likely. With `train`, the rows of tokens also have `counts`, how often the token occurs in the training texts
        with each context, unless the contexts differ in columns that are not categories. The counts of an
        out-of-vocabulary token are None, because training did not count it. The ratio of a token that does not occur is
        not evidence.

    Raises:
        UserError: There are no texts or fewer than two contexts; contexts are equal or invalid; none of the runs is
            adapted; or the runs read the texts differently.
    """
    runs, texts = [runs] if isinstance(runs, Run) else runs, to_values(texts, "texts")
    contexts = {name: to_row(context) for name, context in contexts.items()}
    _check_arguments(runs, texts, list(contexts.values()))
    text_contexts = [{}] * len(texts) if text_contexts is None else text_contexts
    for run in runs:
        report_run(run, differing_columns([*contexts.values()]))
    nats, corpus = _mean_nats(runs, texts, text_contexts, list(contexts.values()), unknown)
    starts, rows, counts = target_offsets(corpus), ResultRows(), None
    tokenizer, names = runs[0].tokenizer, list(contexts)
    if train is not None:
        training_texts = read_training_texts(runs[0], train)
        assert training_texts is not None
        counts = count_tokens(runs[0], training_texts, list(contexts.values()), unknown=unknown)
    for index, text in enumerate(texts):
        text_nats = nats[:, starts[index] : starts[index + 1]]
        ids = corpus.tokens[corpus.offsets[index] + 1 : corpus.offsets[index + 1]].tolist()  # without the start token
        posterior, tokens = softmax(-text_nats.cumsum(1), axis=0), []
        for position, token in enumerate([*tokenizer.split(text), *tokenizer.decode([tokenizer.specials.end])]):
            is_known = ids[position] != tokenizer.specials.unknown
            row: Row = {"token": tokenizer.readable(token), "known": is_known}
            row |= _figures(names, text_nats[:, position], posterior[:, position])
            if counts is not None:
                token_counts = counts[:, ids[position]].tolist() if is_known else [None] * len(names)
                row["counts"] = dict(zip(names, token_counts, strict=True))
            tokens.append(row)
        totals = _figures(names, text_nats.sum(1), posterior[:, -1])
        rows.append({"text": text, "tokenizer": runs[0].config.tokenizer.kind, **totals, "tokens": tokens})
    report(*evidence_findings(rows))
    return rows


def _figures(names: Sequence[str], nats: Floats, posterior: Floats) -> Row:
    row: Row = {
        "nats": dict(zip(names, nats.tolist(), strict=True)),
        "posterior": dict(zip(names, posterior.tolist(), strict=True)),
    }
    return {**row, "ratio": float(nats[1] - nats[0])} if len(names) == 2 else row


def _mean_nats(
    runs: Sequence[Run],
    texts: Sequence[str],
    text_contexts: Sequence[ContextValues],
    contexts: Sequence[ContextValues],
    unknown: str,
) -> tuple[Floats, Corpus]:
    """Return the nats of all targets given each context (K, targets), averaged over `runs`, and the texts as read."""
    all_nats, digest, corpora = [], "", list[Corpus]()
    for run in runs:
        columns = run.schema.columns()
        readable = [{name: value for name, value in row.items() if name in columns} for row in text_contexts]
        corpora = [
            run.read(texts, [{**row, **context} for row in readable], unknown=unknown, truncate=False)
            for context in contexts
        ]
        check_lengths(corpora[0], run.model.max_tokens, lambda row: f"text {row + 1:,}")
        digest = digest or texts_digest(corpora[0])  # equal for all contexts
        if texts_digest(corpora[0]) != digest:
            folders = f"{run.folder} and {runs[0].folder}"
            raise UserError(f"{folders}: the runs read the texts differently, so they cannot be averaged")
        all_nats.append(np.stack([run.nats(corpus).astype(np.float64) for corpus in corpora]))
    mean_nats: Floats = sum(all_nats[1:], all_nats[0]) / len(runs)
    return mean_nats, corpora[0]


def _check_arguments(runs: Sequence[Run], texts: Sequence[str], contexts: Sequence[ContextValues]) -> None:
    if not texts:
        raise UserError("texts: expected at least one, got none")
    if len(contexts) < 2:
        raise UserError(f"contexts: expected at least two, got {len(contexts)}")
    if not any(run.model.is_adapted for run in runs):
        check_adapted(runs[0])
    for first, second in combinations(contexts, 2):
        if first == second:
            raise UserError(f"contexts: expected different contexts, got {context_text(first)} twice")


def read_texts(source: Any, column: str, context_columns: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """Read the texts in a column of a table, and their values of those `context_columns` that the table has.

    Rows with equal texts and values are returned once.
    """
    table = open_table(source)
    columns = [name for name in context_columns if name in table.columns]
    rows = {
        repr(row): row
        for chunk in table.chunks([column, *columns])
        for row in zip(chunk[column], *(chunk[name] for name in columns), strict=True)
    }
    if not rows:
        raise UserError(f"{table.name}: the table contains no text")
    return [text for text, *_ in rows.values()], [dict(zip(columns, row[1:], strict=True)) for row in rows.values()]


def context_text(context: ContextValues) -> str:
    """Format a context as `rating=5; city=Oslo`, or as `the expected context` if it has no values."""
    return "; ".join(f"{name}={value}" for name, value in context.items()) or "the expected context"


def has_evidence(token: Mapping[str, Any]) -> bool:
    """Return whether a token of `explain` occurs in a training text of any of the contexts, or was not counted."""
    return any(count is None or count > 0 for count in token.get("counts", {"": None}).values())


def with_evidence(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ratio of a text without the tokens that have no evidence, and the probability of the first context."""
    ratio = sum(token["ratio"] for token in row["tokens"] if has_evidence(token))
    return ratio, 1 / (1 + math.exp(min(-ratio, 700)))


def evidence_findings(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding for each row of `explain` whose text has no token with evidence."""
    for row in rows:
        *words, _end = row["tokens"]
        if words and not any(token["known"] and has_evidence(token) for token in words):
            problem = "training saw none of its words in these contexts"
            yield Finding("no evidence", f"{row['text']!r:.80}: {problem}; the result is a guess")


def strength(ratio: float) -> int:
    """Return how many of `STRENGTHS` a log ratio reaches, with the sign of the ratio (-3 to 3)."""
    return int(np.sign(ratio)) * sum(abs(ratio) >= level for level in STRENGTHS)
