"""The evidence of each token for one context against another (TACL 2018, figure 2).

    r_t = log p(w_t | w_<t, a) - log p(w_t | w_<t, b)

The end of the text is a token, so that the r_t of a text add up to the difference of its log likelihoods. Several runs
are averaged, which reduces noise. For any number of contexts, p(context | w_<=t) is the posterior with equal priors.
Columns that a context lacks are expected.

Shapes: K contexts, T targets of a text.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import UserError
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.data.rows import to_row
from factorcell.data.tables import open_table
from factorcell.evaluation.text_figures import texts_digest
from factorcell.model.run import Run

STRENGTHS = (0.5, 1.0, 2.0)  # nats from which a ratio is weak, clear or strong

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
    contexts = {name: to_row(context) for name, context in contexts.items()}
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
    total, key = None, ""
    for run in runs:
        corpora = [run.read(texts, [context] * len(texts), unknown=unknown, truncate=False) for context in contexts]
        key = texts_digest(corpora[0]) if total is None else key
        if texts_digest(corpora[0]) != key:
            raise UserError(f"{run.folder} and {runs[0].folder} read these texts differently: they cannot be averaged")
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


def read_texts(source: Any, column: str) -> list[str]:
    return [text for chunk in open_table(source).chunks([column]) for text in chunk[column]]


def context_text(context: Setting) -> str:
    """Return a context as text: rating=5; city=Oslo."""
    return "; ".join(f"{name}={value}" for name, value in context.items()) or "expected"


def strength(ratio: float) -> int:
    """Return the strength of a ratio, from -3 to 3: how many of `STRENGTHS` it reaches, with its sign."""
    return int(np.sign(ratio)) * sum(abs(ratio) >= level for level in STRENGTHS)
