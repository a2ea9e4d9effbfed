"""Table A.1 of the thesis: low-rank and sparse softmax biases over an unadapted recurrent layer.

Rows differ in the penalties of the columns, first equal and then random ones, and in the size of embeddings.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import corpora
from corpora import Tables
from factorcell.data.corpus import Corpus
from factorcell.evaluation.text_figures import TextSums, sum_per_text, texts_digest
from factorcell.runs.run import Run
from study import ROWS, Experiment, Measurement
from tacl_baselines import ngram_row, per_value

VARIABLES = ("hotel", "city", "rating")
TOP = 3


def tables(data: Path, folder: Path, share: float) -> Tables:
    return corpora.parts(data, folder, "hotels", share)


def measure(run: Run, tables: Tables) -> Measurement:
    corpus = run.prepare(tables["test"], unknown="group")
    top = ranks(run, corpus) <= TOP
    sums = TextSums(texts_digest(corpus, "top"), sum_per_text(top, corpus), corpus.lengths.astype(np.float64))
    return Measurement({"top_3": float(top.mean())}, {"top_3": sums})


def ranks(run: Run, corpus: Corpus) -> NDArray[np.int64]:
    """Return the rank of every target among all tokens, 1 the most probable; ties count against the target."""
    result, model = [], run.model
    with torch.inference_mode():
        for row in range(len(corpus)):  # one text at a time, because the log probabilities of many take much memory
            batch = corpus.batch(np.array([row]))
            conditioning, inputs = model.condition(batch.context), F.embedding(batch.tokens[:, :-1], model.embedding)
            vectors, _ = model.backbone(inputs, conditioning.conditions, conditioning.start)
            bias = model.head.fold(conditioning.head).select(torch.zeros(vectors.shape[1], dtype=torch.long))
            logs = model.head.log_probabilities(vectors[0], bias)
            result.append((logs >= logs.gather(1, batch.tokens[0, 1:, None])).sum(1))
    return torch.cat(result).numpy()


BASELINES = {**per_value("rating"), **ngram_row()}
EXPERIMENT = Experiment("sparse", "thesis_hotels.toml", ROWS["sparse"], tables, measure, baselines=BASELINES)
