"""The evidence of each token for one context against another (TACL 2018, figure 2).

    r_t = log p(w_t | w_<t, a) - log p(w_t | w_<t, b)

The end of the text is a token, so that the r_t of a text add up to the difference of its log likelihoods. Several runs
are averaged, which reduces noise. For any number of contexts, p(context | w_<=t) is the posterior with equal priors.
Columns that a context lacks are expected.

Shapes: R runs, K contexts, T targets of a text, N positions, V vocabulary.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import UserError
from factorcell.data.cache import report_truncated
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.rows import row_of
from factorcell.data.tables import open_table
from factorcell.model.language_model import RANKED
from factorcell.model.run import Run
from factorcell.progress import progress_bar

STRENGTHS = (0.5, 1.0, 2.0)  # nats from which a ratio is weak, clear or strong
TRAINED = ("min_count", "max_vocabulary")  # options of a tokenizer that only its training reads

Row = dict[str, Any]
Setting = Mapping[str, Any]  # column -> value
Floats = NDArray[np.float64]


def explain(
    runs: Sequence[Run], texts: Sequence[str], contexts: Mapping[str, Setting], *, unknown: str = "error"
) -> list[Row]:
    """Compute the nats of texts given each of the named `contexts`, the mean over `runs`.

    Texts are read whole. Returns a row per text with `nats` and `posterior` by context, and `tokens` with the same for
    each token, where the posterior is that after the token. For two contexts there is also `ratio` in nats, above 0
    where the first context is likelier. Raises a `UserError` for runs with different tokens, and for contexts that are
    the same or not valid.
    """
    contexts = {name: row_of(context) for name, context in contexts.items()}
    _check(runs, texts, list(contexts.values()))
    names = list(contexts)
    nats, corpus = _nats(runs, texts, list(contexts.values()), unknown)
    starts, rows = target_offsets(corpus), []
    tokenizer = runs[0].tokenizer
    end = tokenizer.specials.end
    for number, text in enumerate(texts):
        own = nats[:, starts[number] : starts[number + 1]]
        ids = corpus.tokens[corpus.offsets[number] + 1 : corpus.offsets[number + 1]].tolist()
        written = [*tokenizer.split(text), *tokenizer.decode([end])]
        posterior = _posterior(own)
        tokens = []
        for place, (token, index) in enumerate(zip(written, ids, strict=True)):
            known = index != tokenizer.specials.unknown
            tokens.append({"token": token, "known": known} | _figures(names, own[:, place], posterior[:, place]))
        whole = _figures(names, own.sum(1), posterior[:, -1])
        rows.append({"text": text, "unit": runs[0].config.tokenizer.kind, **whole, "tokens": tokens})
    return rows


def _figures(names: Sequence[str], nats: Floats, posterior: Floats) -> Row:
    row: Row = {
        "nats": dict(zip(names, nats.tolist(), strict=True)),
        "posterior": dict(zip(names, posterior.tolist(), strict=True)),
    }
    return row | {"ratio": float(nats[1] - nats[0])} if len(names) == 2 else row


def _posterior(nats: Floats) -> Floats:
    joint = -nats.cumsum(1)
    likelihood = np.exp(joint - joint.max(0))
    posterior: Floats = likelihood / likelihood.sum(0)
    return posterior


def _nats(
    runs: Sequence[Run], texts: Sequence[str], contexts: Sequence[Setting], unknown: str
) -> tuple[Floats, Corpus]:
    total: Floats | None = None
    for run in runs:
        corpora = [run.read(texts, [context] * len(texts), unknown=unknown, truncate=False) for context in contexts]
        own = np.stack([run.nats(corpus).astype(np.float64) for corpus in corpora])
        total = own if total is None else total + own
    assert total is not None
    return total / len(runs), corpora[0]


def _check(runs: Sequence[Run], texts: Sequence[str], contexts: Sequence[Setting]) -> None:
    if not texts:
        raise UserError("there is no text to explain")
    if len(contexts) < 2:
        raise UserError("one context has nothing to be compared with; give two or more")
    if not any(run.model.adapted for run in runs):
        raise UserError(f"{runs[0].folder} is not adapted: it reads texts alike in every context")
    for one, other in combinations(contexts, 2):
        if dict(one) == dict(other):
            raise UserError(f"the contexts are the same ({context_text(one)}): there is nothing to compare")
    for run in runs[1:]:
        options = _reading(run)
        for name, value in _reading(runs[0]).items():
            if options.get(name) != value:
                raise UserError(
                    f"{run.folder} reads texts with {name} {options.get(name)}, {runs[0].folder} with {value}"
                )
        if run.tokenizer.tokens != runs[0].tokenizer.tokens:
            raise UserError(f"{run.folder} and {runs[0].folder} have different vocabularies: they cannot be averaged")


def _reading(run: Run) -> Row:
    """Return the options that decide how `run` tokenizes texts."""
    options = dataclasses.asdict(run.config.tokenizer)
    split = {name: value for name, value in options.items() if name not in ("kind", *TRAINED)}
    return {"tokenizer": options["kind"], **split, "max_tokens": run.config.data.max_tokens}


def column_texts(source: Any, column: str) -> list[str]:
    return [text for chunk in open_table(source).chunks([column]) for text in chunk[column]]


def context_text(context: Setting) -> str:
    """Return a context as text: rating=5; city=Oslo."""
    return "; ".join(f"{name}={value}" for name, value in context.items()) or "expected"


def strength(ratio: float) -> int:
    """Return the strength of a ratio, from -3 to 3: how many of `STRENGTHS` it reaches, with its sign."""
    return int(np.sign(ratio)) * sum(abs(ratio) >= level for level in STRENGTHS)


def raised(
    runs: Sequence[Run],
    texts: Sequence[str],
    first: Setting,
    second: Setting,
    *,
    least: float = 1.0,
    unknown: str = "error",
    progress: bool = False,
) -> list[Row]:
    """Return by how much the whole model raises each token from context `second` to `first`: `token`, `ratio`, `count`.

    Over all positions h of `texts`, `count` is the sum of p(w|h) and `ratio` the mean of log p(w|h, first) -
    log p(w|h, second), weighted by p(w|h), the mean of both contexts; in an unweighted mean the many positions where w
    is impossible would dominate. Tokens with a count below `least` are omitted. Texts are cut as in training.
    """
    first, second = row_of(first), row_of(second)
    _check(runs, texts, [first, second])
    size = len(runs[0].tokenizer)
    total, mass = torch.zeros(2, size, dtype=torch.double)
    for run in runs:
        corpora = [run.read(texts, [context] * len(texts), unknown=unknown) for context in (first, second)]
        report_truncated(corpora[0].truncated, "the texts given", run.config.data.max_tokens)
        with run.scoring():
            for rows in progress_bar(corpora[0].batches(RANKED // size), desc="words", unit="batches", show=progress):
                both = (_log_probabilities(run, corpus, rows) for corpus in corpora)
                for ours, theirs in zip(*both, strict=True):
                    weight = (ours.exp() + theirs.exp()) / 2
                    total += (weight * (ours - theirs)).sum(0).double().cpu()  # NaN of the start token
                    mass += weight.sum(0).double().cpu()
    counts, ratios, tokens = (mass / len(runs)).tolist(), (total / mass).tolist(), runs[0].tokenizer.tokens
    start = runs[0].tokenizer.specials.start
    kept = [index for index in range(size) if index != start and counts[index] >= least]
    rows = [{"token": tokens[index], "ratio": ratios[index], "count": counts[index]} for index in kept]
    return sorted(rows, key=lambda row: -row["ratio"])


def _log_probabilities(run: Run, corpus: Corpus, rows: NDArray[np.int64]) -> Iterator[Tensor]:
    """Yield log probabilities (N, V) of all tokens, for some positions of the texts `rows` at a time."""
    batch = run.batch(corpus, rows)
    conditioned = run.model.condition(batch.context.select(torch.zeros(1, dtype=torch.long, device=run.device)))
    context_bias, same = run.model.head.fold(conditioned.head), torch.zeros_like(batch.rows)
    hidden = run.model.representations(batch, conditioned.select(same))[batch.mask()]
    for states in torch.split(hidden, max(1, RANKED // len(run.tokenizer))):
        yield run.model.head.log_probabilities(
            states, context_bias.select(torch.zeros_like(states[:, 0], dtype=torch.long))
        )
