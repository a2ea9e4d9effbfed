"""Evidence of tokens for contexts: log likelihood ratios (TACL 2018, figure 2), and counts in the training texts.

    r_t = log p(w_t | w_<t, a) - log p(w_t | w_<t, b)

A model also changes the probability of tokens that no training text has in any of the compared contexts; such changes
come from other contexts or from the random initial weights.
Shapes: K contexts, T targets of a text, of which the last is its end, V vocabulary.
"""

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from factorcell.data.columns.rows import ResultRows, to_row, to_values
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.tables.tables import open_table
from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS, Specials
from factorcell.errors import UserError
from factorcell.evaluation.diagnostics import differing_columns, report_run
from factorcell.evaluation.explaining.embeddings import bias_shift
from factorcell.evaluation.likelihoods import check_adapted
from factorcell.io.findings import Finding, report
from factorcell.nn.scoring import check_lengths
from factorcell.options import limits
from factorcell.runs.run import Run

STRENGTHS = (0.5, 1.0, 2.0)  # minimum absolute log ratios, in nats, of weak, clear and strong evidence
MIN_RATIO = 9.0  # equal frequencies exceed it for 0.3 % of tokens: the square of 3 standard deviations

Row = dict[str, Any]
ContextValues = Mapping[str, Any]  # column -> value
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def explain(
    run: Run,
    texts: Sequence[str],
    contexts: Mapping[str, ContextValues],
    *,
    unknown: str = "error",
    text_contexts: Sequence[ContextValues] | None = None,
) -> ResultRows:
    """Compute the nats of texts given each of several named contexts.

    The posterior after a token assumes that all contexts are equally probable before the text. A column that a context
    lacks has the expected value.

    Args:
        run: An adapted run.
        texts: A list or a column of texts; they are not truncated.
        contexts: The values of columns for each named context.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        text_contexts: For each text, the values of further columns; the values of `contexts` have precedence.

    Returns:
        A row per text with `text`, `tokenizer` (the kind of tokenizer), `nats` and `posterior` by context, and
        `tokens`, which has a row per token. The row of a token has `token`, `known` (whether the token is in the
        vocabulary), the `nats` of the token, and the `posterior` after it. For two contexts, rows of texts and of
        tokens also have the `ratio` (the log likelihood ratio in nats); it is positive if the first context is more
        likely. If training counted the tokens (`count_tokens`), their rows also have `counts`, how often the token
        occurs in the training texts with each context. The counts of an
        out-of-vocabulary token are None, because training did not count it. The ratio of a token that does not occur is
        not evidence.

    Raises:
        UserError: There are no texts or fewer than two contexts; contexts are equal or invalid; or the run is not
            adapted.
    """
    texts = to_values(texts, "texts")
    contexts = {name: to_row(context) for name, context in contexts.items()}
    _check_arguments(run, texts, list(contexts.values()))
    report_run(run, differing_columns([*contexts.values()]))
    text_contexts = [{}] * len(texts) if text_contexts is None else text_contexts
    nats, corpus = _nats(run, texts, text_contexts, list(contexts.values()), unknown)
    starts, rows, tokenizer, names = target_offsets(corpus), ResultRows(), run.tokenizer, list(contexts)
    counts = count_tokens(run, list(contexts.values()), unknown=unknown)
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
        rows.append({"text": text, "tokenizer": run.config.tokenizer.kind, **totals, "tokens": tokens})
    report(*evidence_findings(rows))
    return rows


def _nats(
    run: Run,
    texts: Sequence[str],
    text_contexts: Sequence[ContextValues],
    contexts: Sequence[ContextValues],
    unknown: str,
) -> tuple[Floats, Corpus]:
    """Return the nats of all targets given each context (K, targets), and the texts as read."""
    columns = run.schema.columns()
    readable = [{name: value for name, value in row.items() if name in columns} for row in text_contexts]
    corpora = [
        run.read(texts, [{**row, **context} for row in readable], unknown=unknown, truncate=False)
        for context in contexts
    ]
    check_lengths(corpora[0], run.model.max_tokens, lambda row: f"text {row + 1:,}")
    return np.stack([run.nats(corpus).astype(np.float64) for corpus in corpora]), corpora[0]


def _figures(names: Sequence[str], nats: Floats, posterior: Floats) -> Row:
    row: Row = {
        "nats": dict(zip(names, nats.tolist(), strict=True)),
        "posterior": dict(zip(names, posterior.tolist(), strict=True)),
    }
    return {**row, "ratio": float(nats[1] - nats[0])} if len(names) == 2 else row


def _check_arguments(run: Run, texts: Sequence[str], contexts: Sequence[ContextValues]) -> None:
    if not texts:
        raise UserError("texts: expected at least one, got none")
    if len(contexts) < 2:
        raise UserError(f"contexts: expected at least two, got {len(contexts)}")
    check_adapted(run)
    for first, second in combinations(contexts, 2):
        if first == second:
            raise UserError(f"contexts: expected different contexts, got {context_text(first)} twice")


def read_texts(source: Any, column: str, context_columns: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """Read distinct texts in a column of a table, with their values of the `context_columns` that it has."""
    table = open_table(source)
    columns = [name for name in context_columns if name in table.columns]
    rows, count = dict[str, tuple[Any, ...]](), 0
    for chunk in table.chunks([column, *columns]):
        for row in zip(chunk[column], *(chunk[name] for name in columns), strict=True):
            count += 1
            if not isinstance(row[0], str):
                raise UserError(f"{table.place(count)}: {column} is {row[0]!r}, not a text; remove such rows")
            rows.setdefault(repr(row), row)
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


def count_tokens(run: Run, contexts: Sequence[Mapping[str, Any]], *, unknown: str = "error") -> Counts | None:
    """Return how often each token occurs in the training texts of several contexts (K, V), or report why not.

    Training counted the tokens by the values of each category of at most 256 values, unless the run has users. So the
    contexts must differ in one such category; a context that lacks it has the counts of all texts.
    """
    compared = run.read([""] * len(contexts), contexts, unknown=unknown).context(np.arange(len(contexts)))
    distinct_others, _ = replace(compared, categories=torch.zeros_like(compared.categories)).distinct()
    categories, by_value = compared.categories.numpy(), None
    columns = np.flatnonzero((categories != categories[0]).any(0))
    if len(columns) == len(distinct_others) == 1:
        by_value = run.unigram_counts_by_value(run.schema.categories[columns[0]].name)
    if by_value is None:
        reason = "training counts words only by one category of at most 256 values, and not with users"
        report(Finding("no evidence", f"words without evidence may be shown, because {reason}"))
        return None
    values, of_all_texts = categories[:, columns[0]], run.unigram_counts().numpy()
    return np.stack([of_all_texts if value < 0 else by_value[[value]].toarray()[0] for value in values])


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


def most_shifted_tokens(
    run: Run,
    context: Mapping[str, Any],
    against: Mapping[str, Any] | None = None,
    *,
    count: int = 10,
    unknown: str = "error",
) -> list[Row]:
    """Return the tokens that the softmax bias of a context raises most, then those that it lowers most.

    Only tokens are returned whose change the training texts support (`is_more_frequent`). Without counts
    (`count_tokens`), all tokens are considered, and a finding says so.

    Args:
        run: An adapted run.
        context: The values of columns; a column without a value has its expected value.
        against: The context to compare with; by default the expected context.
        count: The maximum number of raised tokens, and of lowered tokens.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Returns:
        A row per token with `token` and the change of its log probability in `nats`; the largest changes come first in
        both groups. If the tokens were counted, `count` and `count_against` are their counts in the training texts of
        the context and of the other context.

    Raises:
        UserError: The context is invalid, or does not change the softmax bias of the run.
    """
    [count] = limits.check(count=count)
    contexts = [context, against or {}]
    report_run(run, differing_columns(contexts))
    nats = bias_shift(run, context, against, unknown=unknown)
    nats[run.tokenizer.specials.unknown] = 0.0  # neither raised nor lowered, so it is not returned
    counts = count_tokens(run, contexts, unknown=unknown)
    if counts is not None:
        nats[~np.where(nats > 0, is_more_frequent(*counts), is_more_frequent(*counts[::-1]))] = 0.0
    order = np.argsort(-nats, kind="stable").tolist()
    token_ids = [token_id for token_id in order if nats[token_id] > 0][:count]
    token_ids += [token_id for token_id in reversed(order) if nats[token_id] < 0][:count]
    rows: list[Row] = [
        {"token": run.tokenizer.readable(run.tokenizer.tokens[i]), "nats": float(nats[i])} for i in token_ids
    ]
    if counts is not None:
        for row, (first, second) in zip(rows, counts[:, token_ids].T.tolist(), strict=True):
            row |= {"count": first, "count_against": second}
    return rows


def token_separator(tokenizer: str) -> str:
    """Return the text between two tokens of a tokenizer: a space between words, nothing between characters."""
    return " " if tokenizer in ("word", "space") else ""


def visible_token(token: str) -> str:
    """Return a token in visible form: white space becomes ␣, and a combining mark has a dotted circle before it."""
    if token.isspace():
        return "␣"
    return f"◌{token}" if unicodedata.combining(token[:1] or " ") else token


def readable_token(token: str) -> str:
    """Return a token in readable form: the end token becomes ¶, and control characters become spaces."""
    if token == SPECIAL_TOKENS[Specials().end]:
        return "¶"
    controls = ("Cc", "Zl", "Zp")  # categories of Unicode: control characters, and separators of lines and paragraphs
    return "".join(" " if unicodedata.category(character) in controls else character for character in token)
