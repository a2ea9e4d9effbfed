"""Small runs with random weights, including the adapters, and their texts."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorcell.config import Config
from factorcell.data.corpus import Batch
from factorcell.data.preparation import prepare
from factorcell.data.tokenizers.kinds import new_tokenizer
from factorcell.ngram.mixture import NGRAM, CountModels, Mixture
from factorcell.ngram.ngram import NGram, count_ngrams
from factorcell.nn.language_model import Conditioning
from factorcell.nn.output import Proposal
from factorcell.runs.run import Run
from factorcell.training.trainer import observe
from paper_kinds import SizedSoftmaxOptions

ROWS: list[dict[str, Any]] = [
    {"text": "the sea is cold", "city": "Oslo", "stars": "5", "lat": 59.9, "lon": 10.8},
    {"text": "sun and sand", "city": "Nice", "stars": "1", "lat": 43.7, "lon": 7.3},
    {"text": "cold sand", "city": "Oslo", "stars": "1", "lat": 60.1, "lon": 10.7},
    {"text": "", "city": "Nice", "stars": "5", "lat": 43.6, "lon": 7.2},
    {"text": "the sun the sea the sand the cold", "city": "Oslo", "stars": "5", "lat": 59.0, "lon": 10.0},
] * 2
CONTEXT = ("city", "stars", "lat:number", "lon:number")


SMALL_HASH = {"head": SizedSoftmaxOptions.kind, "hash_size": 50, "bloom_size": 2000}


def as_any(opaque: object) -> Any:
    """Return an opaque object without its type, for tests that read its attributes."""
    return opaque


def make_run(
    folder: Path,
    context: tuple[str, ...] = CONTEXT,
    training: dict[str, Any] | None = None,
    rows: Sequence[dict[str, Any]] = ROWS,
    **model: Any,
) -> Run:
    """Create a run of words with random weights in all parameters."""
    config = Config.of(
        **{
            "context": context,
            "min_count": 1,
            "min_context_count": 1,
            "embedding_size": 5,
            "hidden_size": 6,
            "rank": 2,
            "context_size": 3,
            "variable_size": 2,
            **(SMALL_HASH if "hash" in model.get("output_bias", ()) else {}),
            **model,
            **(training or {}),
        }
    )
    corpus = prepare(rows, config)
    run = Run.create(folder, config, corpus.tokenizer, corpus.schema)
    observe(run.model, corpus)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.5)
    return run


def split(text: str, config: Config) -> list[str]:
    """Split a text by the tokenizer of a config."""
    return new_tokenizer(config).split(text)


def join(tokens: Sequence[str], kind: str) -> str:
    """Join tokens by a kind of tokenizer."""
    return new_tokenizer(Config.of(tokenizer=kind)).join(tokens)


def nats_of(run: Run, row: dict[str, Any]) -> list[float]:
    """Compute the nats of the targets of one text, step by step."""
    corpus = run.prepare([row])
    conditioning = run.model.condition(corpus.context(np.array([0])))
    return step_nats(run, corpus.tokens.tolist(), conditioning)


def step_nats(run: Run, ids: Sequence[int], conditioning: Conditioning) -> list[float]:
    """Compute the nats of all tokens of `ids` but the first, step by step."""
    state, nats = None, []
    with torch.no_grad():
        for token, target in itertools.pairwise(ids):
            logs, state = run.model.step(torch.tensor([token]), conditioning, state)
            nats.append(-float(logs[0, target]))
    return nats


def gradient_of_sampled_loss(run: Run, batch: Batch) -> torch.Tensor:
    """Return the gradient of the token embeddings; it is the same if the loss reads whole tables or their rows."""
    samples = Proposal.by_rank(run.tokenizer, 2).draw()
    sampled_rows = run.model.sampled_rows(batch, samples)
    row_values = [
        [table[rows].detach().requires_grad_() for table in tables]
        for rows, tables in zip(sampled_rows.rows, run.model.head.row_tables(), strict=True)
    ]
    nats = run.model.sampled_nats(batch, samples, sampled_rows, row_values)
    expected = run.model.sampled_nats(batch, samples, conditioning=run.model.condition(batch.context))
    torch.testing.assert_close(nats, expected)
    (rows_gradient,) = torch.autograd.grad(nats.sin().sum(), row_values[0][0])
    (table_gradient,) = torch.autograd.grad(expected.sin().sum(), run.model.embedding)
    torch.testing.assert_close(rows_gradient, table_gradient[sampled_rows.tokens])
    return table_gradient


def hash_bucket(column: int, value: int, token: int, size: int) -> int:
    """Hash by equation 3.4 of the thesis: (w r_0 + f_i r_i) mod l, with constant numbers r."""
    token_factor, value_factor = (
        1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % (size - 1)
        for name in ("bucket word", f"bucket variable {column}")
    )
    return (token * token_factor + (value + 1) * value_factor) % size


def make_letters(
    texts: tuple[str, ...] = ("abc", "cab", "ba"),
    seed: int = 0,
    spread: float = 0.5,
    data: dict[str, Any] | None = None,
    **model: Any,
) -> Run:
    """Create a run of characters in memory, with the context variable city; `spread`: scale of its random weights."""
    sizes = {"embedding_size": 4, "rank": 2, "context_size": 3, "variable_size": 2}
    if "backbone" not in model:
        sizes["hidden_size"] = 5
    options = {"context": ("city",), "tokenizer": "char", "min_count": 1, "min_context_count": 1, "max_tokens": 12}
    config = Config.of(**{**options, **(data or {}), **sizes, **model})
    prompts = {"first": "ab", "second": "c"}
    corpus = prepare([{"text": text, "city": city, **prompts} for text in texts for city in ("Oslo", "Nice")], config)
    run = Run(folder=Path("letters"), config=config, tokenizer=corpus.tokenizer, schema=corpus.schema)
    observe(run.model, corpus)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, spread, generator=random)
    return run


def with_ngrams(run: Run, texts: Sequence[str] = ("abc", "cab", "ba", "abac")) -> Run:
    """Give a run a mixture of its model with trigrams of `texts`; its weights are the same for all targets."""
    corpus = run.read(texts, [{}] * len(texts))
    ngram = NGram(run.folder, run.config, run.tokenizer, count_ngrams(corpus, 3))
    counts = CountModels(ngram, None, (), (NGRAM,))
    run.mixture = Mixture(run.model, run.schema, counts, np.tile([0.6, 0.4], (counts.length_count, 1)))
    return run
