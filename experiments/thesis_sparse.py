"""Table A.1 of the thesis: low-rank and sparse softmax biases over an unadapted recurrent layer.

Rows have a penalty for each column, the same for all at first and random ones then, and the size of embeddings.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import corpora
from corpora import Tables
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.evaluation.text_figures import TextSums, key_of, per_text
from factorcell.model.run import Run
from study import ROWS, Experiment, Measured
from tacl_baselines import counted, per_value

VARIABLES = ("hotel", "city", "rating")
TOP = 3
RANKED = 4_000_000  # log probabilities that exist at one time, to rank targets among them


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Return the hotel reviews."""
    return corpora.parts(data, folder, "hotels", share)


def measure(run: Run, tables: Tables) -> Measured:
    """Measure how often the next word is among the three most probable ones."""
    corpus = run.prepare(tables["test"], unknown="group")
    top = ranks(run, corpus) <= TOP
    sums = TextSums(key_of(corpus, "top"), per_text(top, corpus), corpus.lengths.astype(np.float64))
    return Measured({"top_3": float(top.mean())}, {"top_3": sums})


def ranks(run: Run, corpus: Corpus) -> NDArray[np.int64]:
    """Return the rank of every target among all tokens, 1 the most probable, text after text; ties count against it."""
    found, model = np.zeros(corpus.targets, dtype=np.int64), run.model
    starts, size = target_offsets(corpus), max(1, RANKED // len(run.tokenizer))
    with torch.inference_mode():
        for batch in run.batches(corpus):
            conditioned, inside = model.condition(batch.context), batch.mask()
            inputs = F.embedding(batch.tokens[:, :-1], model.embedding)
            vectors = model.backbone(inputs, conditioned.conditions, conditioned.start, batch.lengths)[0][inside]
            text, wanted = inside.nonzero()[:, 0], batch.tokens[:, 1:][inside]
            parts = []
            for states, texts, targets in zip(*(torch.split(x, size) for x in (vectors, text, wanted)), strict=True):
                own, place = torch.unique(texts, return_inverse=True)  # biases of all texts at once would not fit
                bias = model.head.fold(conditioned.head.select(own)).select(place)
                logs = model.head.log_probabilities(states, bias)
                parts.append((logs >= logs.gather(1, targets[:, None])).sum(1))
            rows, lengths = batch.rows.tolist(), batch.lengths.tolist()
            for row, line in zip(rows, torch.split(torch.cat(parts).cpu(), lengths), strict=True):
                found[starts[row] : starts[row + 1]] = line.numpy()
    return found


BASELINES = {**per_value("rating"), **counted()}
EXPERIMENT = Experiment("sparse", "thesis_hotels.toml", ROWS["sparse"], tables, measure, baselines=BASELINES)
