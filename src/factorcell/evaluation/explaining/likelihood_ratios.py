"""Log likelihood ratios: the evidence of each token for context a against context b (TACL 2018, figure 2).

    r_t = log p(w_t | w_<t, a) - log p(w_t | w_<t, b)

w_t is token t of the text, and w_<t are the tokens before it. The end of the text counts as a token; therefore the r_t
of a text sum to the difference of its log likelihoods. To reduce noise, log likelihoods can be averaged over several
runs. The posterior p(context | w_<=t) after token t assumes a uniform prior over the contexts, of which there may be
more than two. A column that a context lacks has the expected value.

Shapes: K contexts, T targets of a text.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.data.columns.rows import ResultRows, to_row, to_values
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.tables.tables import open_table
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import common_columns, differing_columns, report_run
from factorcell.evaluation.explaining.token_evidence import TokenCounts, read_training_texts
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.evaluation.text_figures import texts_digest
from factorcell.io.findings import Finding, report
from factorcell.io.lazy import LazyMethod
from factorcell.nn.scoring import check_lengths
from factorcell.runs.run import Run

STRENGTHS = (0.5, 1.0, 2.0)  # minimum absolute log ratios, in nats, of weak, clear and strong evidence

Row = dict[str, Any]
ContextValues = Mapping[str, Any]  # column -> value
Floats = NDArray[np.float64]


class Explanation(ResultRows):
    """The rows of `explain`, one per text, which a notebook displays with shaded tokens."""

    _repr_html_ = LazyMethod("explanation_html", "factorcell.reports.notebook")


def explain(
    runs: Run | Sequence[Run],
    texts: Sequence[str],
    contexts: Mapping[str, ContextValues],
    *,
    unknown: str = "error",
    train: Any = None,
    text_contexts: Sequence[ContextValues] | None = None,
) -> Explanation:
    """Compute the nats of texts given each of several named contexts, averaged over runs.

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
        report_run(run, *compared_columns([*contexts.values()], text_contexts))
    nats, corpus = _mean_nats(runs, texts, text_contexts, list(contexts.values()), unknown)
    starts, rows, counts = target_offsets(corpus), Explanation(), None
    tokenizer, names = runs[0].tokenizer, list(contexts)
    if train is not None:
        training_texts = read_training_texts(runs[0], train)
        counts = TokenCounts.of_contexts(runs[0], training_texts, list(contexts.values()), unknown=unknown)
    for index, text in enumerate(texts):
        text_nats = nats[:, starts[index] : starts[index + 1]]
        ids = corpus.tokens[corpus.offsets[index] + 1 : corpus.offsets[index + 1]].tolist()  # without the start token
        posterior, tokens = _posterior(text_nats), []
        for position, token in enumerate([*tokenizer.split(text), *tokenizer.decode([tokenizer.specials.end])]):
            is_known = ids[position] != tokenizer.specials.unknown
            row: Row = {"token": tokenizer.readable(token), "known": is_known}
            row |= _figures(names, text_nats[:, position], posterior[:, position])
            if counts is not None:
                token_counts = counts.tokens[:, ids[position]].tolist() if is_known else [None] * len(names)
                row["counts"] = dict(zip(names, token_counts, strict=True))
            tokens.append(row)
        totals = _figures(names, text_nats.sum(1), posterior[:, -1])
        rows.append({"text": text, "tokenizer": runs[0].config.tokenizer.kind, **totals, "tokens": tokens})
    report(*evidence_findings(rows))
    return rows


def _figures(names: Sequence[str], nats: Floats, posterior: Floats) -> Row:
    """Return the nats (K,) and the posterior (K,) of a text or token by context; for two contexts, also their ratio."""
    row: Row = {
        "nats": dict(zip(names, nats.tolist(), strict=True)),
        "posterior": dict(zip(names, posterior.tolist(), strict=True)),
    }
    return {**row, "ratio": float(nats[1] - nats[0])} if len(names) == 2 else row


def _posterior(nats: Floats) -> Floats:
    """Return the posterior of the contexts after each token (K, T) from the nats of the tokens (K, T)."""
    log_joint = -nats.cumsum(1)
    scaled_likelihoods = np.exp(log_joint - log_joint.max(0))
    posterior: Floats = scaled_likelihoods / scaled_likelihoods.sum(0)
    return posterior


def _mean_nats(
    runs: Sequence[Run],
    texts: Sequence[str],
    text_contexts: Sequence[ContextValues],
    contexts: Sequence[ContextValues],
    unknown: str,
) -> tuple[Floats, Corpus]:
    """Return the nats of all targets given each context (K, targets), averaged over `runs`, and the texts as read."""
    all_nats, digests, corpora = [], [], list[Corpus]()
    for run in runs:
        columns = run.schema.columns()
        readable = [{name: value for name, value in row.items() if name in columns} for row in text_contexts]
        corpora = [
            run.read(texts, [{**row, **context} for row in readable], unknown=unknown, truncate=False)
            for context in contexts
        ]
        check_lengths(corpora[0], run.model.max_tokens, lambda row: f"text {row + 1:,}")
        digests.append(texts_digest(corpora[0]))  # equal for all contexts
        if digests[-1] != digests[0]:
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
        if dict(first) == dict(second):
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


def compared_columns(
    contexts: Sequence[ContextValues], text_contexts: Iterable[ContextValues]
) -> tuple[list[str], set[str]]:
    """Return the columns in which the contexts differ, and those that they, or the contexts of all texts, specify."""
    return differing_columns(contexts), common_columns(contexts) | common_columns(text_contexts)


def context_text(context: ContextValues) -> str:
    """Format a context as `rating=5; city=Oslo`, or as `expected` if it has no values."""
    return "; ".join(f"{name}={value}" for name, value in context.items()) or "expected"


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
