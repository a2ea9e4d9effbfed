"""Figures of the study of backbones: bits per byte, accuracy by Bayes' rule, calibration, controls and unseen users.

bits_per_byte                         over the test texts
bits_per_byte_shuffled, _without      the contexts are those of other texts, or missing
bits_per_byte_texts_N                 over texts whose value occurs N times or more in training, up to the next N
bits_from_N                           bits per token from token N of a text, up to the next N
accuracy, calibration_error           of Bayes' rule with the conditional prior; `prior_accuracy` of the prior
unseen_bits_per_byte, _not_learned    over the texts of unseen users, learned online or not; one unit is a user
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import corpora
from backbone_tables import DataSet
from corpora import Tables
from factorcell.completion.online import Learner, LearningRule, distinguishes_users
from factorcell.completion.replay import Stream, read_streams
from factorcell.completion.tuning import progressive_sums
from factorcell.data.corpus import Corpus, target_offsets
from factorcell.evaluation.bayes_rule import Classification, apply_bayes_rule, text_accuracies
from factorcell.evaluation.text_figures import Figures, Ratios, TextSums, figures_from_nats, sum_per_text
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from study import Measurement

POSITIONS = (0, 4, 16, 64, 10_000)
FREQUENCIES = (0, 10, 100, 1000, 10**9)
RATES, TUNING_USERS = (0.03, 0.1, 0.3), 5  # learning rates to try on users of the development texts
BITS = "bits_per_byte"
Floats = NDArray[np.float64]


def measure_scorer(scorer: Scorer, texts: Tables, data_set: DataSet, reads_context: bool) -> Measurement:
    """Measure a model; without a context it has neither controls nor an accuracy."""
    corpus = scorer.prepare(texts["test"], unknown="group")
    nats = scorer.nats(corpus).astype(np.float64)
    bits = byte_sums(nats, corpus)
    figures: Figures = {BITS: bits, **position_figures(nats, corpus), **frequency_figures(bits, texts, data_set)}
    if reads_context:
        for control in ("shuffled", "without"):
            control_corpus = scorer.prepare(texts[control], unknown="group")
            figures[f"{BITS}_{control}"] = byte_sums(scorer.nats(control_corpus).astype(np.float64), control_corpus)
    if data_set.user:
        figures |= unseen_figures(scorer, texts, data_set)
    row: dict[str, Any] = {name: sums.ratio for name, sums in figures.items()}
    row |= {"texts": len(corpus), **interval_row(BITS, bits)}
    measured = Measurement(row, figures)
    return measured | (measure_classification(classify(scorer, texts)) if reads_context else Measurement({}))


def byte_sums(nats: Floats, corpus: Corpus) -> TextSums:
    """Return the bits and the bytes of each text, under a key that does not depend on the tokenizer."""
    sums = figures_from_nats(nats, corpus)[BITS]
    return TextSums(sums.key, np.nan_to_num(sums.numerator), np.nan_to_num(sums.denominator))


def interval_row(name: str, sums: TextSums) -> dict[str, Any]:
    ratios = Ratios.from_sums([[sums]])
    return {} if ratios is None else ratios.interval(0).to_row(name)


def position_figures(nats: Floats, corpus: Corpus) -> Figures:
    """Return the bits per token in ranges of positions; positions depend on the tokenizer."""
    offsets = target_offsets(corpus)
    positions = np.arange(len(nats)) - np.repeat(offsets[:-1], corpus.lengths)
    figures = {}
    for begin, end in pairwise(POSITIONS):
        is_inside = (positions >= begin) & (positions < end)
        bits = sum_per_text(np.where(is_inside, nats, 0.0) / math.log(2), corpus)
        if is_inside.any():
            count = sum_per_text(is_inside, corpus)
            figures[f"bits_from_{begin}"] = TextSums(f"from {begin} {len(nats)}", bits, count)
    return figures


def frequency_figures(bits: TextSums, texts: Tables, data_set: DataSet) -> Figures:
    """Return the bits per byte of texts in ranges of the number of training texts with the same value."""
    column = data_set.frequency
    counts = Counter(corpora.read(texts["train"])[column].to_pylist())
    frequencies = np.array([counts[value] for value in corpora.read(texts["test"])[column].to_pylist()])
    figures = {}
    for begin, end in pairwise(FREQUENCIES):
        is_inside = (frequencies >= begin) & (frequencies < end)
        if is_inside.any():
            above, below = (np.where(is_inside, part, 0.0) for part in (bits.numerator, bits.denominator))
            figures[f"{BITS}_texts_{begin}"] = TextSums(f"{bits.key} {begin}", above, below)
    return figures


def classify(scorer: Scorer, texts: Tables) -> Classification:
    """Apply Bayes' rule to the nats of the judged texts with each candidate."""
    names, truth, prior = candidates(texts)
    corpus = scorer.prepare(texts["candidates"], unknown="group")
    likelihoods = -sum_per_text(scorer.nats(corpus), corpus).reshape(len(names), -1).T
    return apply_bayes_rule(names, likelihoods, truth).with_log_prior(prior, "conditional")


def candidates(texts: Tables) -> tuple[Sequence[str], Sequence[str], Floats]:
    """Return the names (K), the true value of each judged text (B), and the log priors (B, K)."""
    table = corpora.read(texts["candidates"])
    names = list(dict.fromkeys(table["candidate"].to_pylist()))
    priors = table["prior"].to_numpy().reshape(len(names), -1).T
    return names, table["truth"].to_pylist()[: len(priors)], priors


def judged_rows(texts: Tables, target: str) -> list[dict[str, str]]:
    """Return the judged texts with their true value in the column `target`."""
    table = corpora.read(texts["candidates"])
    count = len(candidates(texts)[1])
    return [{"text": row["text"], target: row["truth"]} for row in table.slice(0, count).to_pylist()]


def measure_classification(classification: Classification) -> Measurement:
    classification = replace(classification, key=f"judged {classification.log_posterior.shape}")
    metrics = classification.metrics()
    row = {"candidates": len(classification.names), "judged": metrics["texts"]}
    if classification.log_prior is not None:
        row["prior_accuracy"] = float((classification.log_prior.argmax(1) == classification.truth).mean())
    keys = ("accuracy", "accuracy_low", "accuracy_high", "calibration_error", "majority")
    row |= {name: metrics[name] for name in keys}
    return Measurement(row, {"accuracy": text_accuracies(classification)})


# ---- unseen users ----


def unseen_figures(scorer: Scorer, texts: Tables, data_set: DataSet) -> Figures:
    """Return the bits per byte of the texts of unseen users; a model that distinguishes users learns them online."""
    corpus = scorer.prepare(texts["unseen"], unknown="group")
    not_learned = user_sums(nats_of_users(scorer, corpus, texts["unseen"], data_set), texts, data_set)
    if not (isinstance(scorer, Run) and distinguishes_users(scorer)):
        return {f"unseen_{BITS}": not_learned}
    development, unseen = (user_streams(scorer, texts[part], data_set) for part in ("dev", "unseen"))
    costs = {rate: progressive_nats(scorer, development[:TUNING_USERS], rate).sum() for rate in RATES}
    nats = progressive_nats(scorer, unseen, min(costs, key=costs.__getitem__))
    return {f"unseen_{BITS}": user_sums(nats, texts, data_set), f"unseen_{BITS}_not_learned": not_learned}


def user_streams(run: Run, path: Path, data_set: DataSet) -> list[Stream]:
    columns = run.schema.columns(without=data_set.user)
    return read_streams(path, run.config, user_column=data_set.user, time_column="time", context_columns=columns)


def progressive_nats(run: Run, streams: Sequence[Stream], rate: float) -> Floats:
    """Return the nats of each user (U,), each text scored before it is learned."""
    return progressive_sums(Learner(run, LearningRule(rate=rate), "group"), streams)[:, 0]


def nats_of_users(scorer: Scorer, corpus: Corpus, path: Path, data_set: DataSet) -> Floats:
    users = corpora.read(path)[data_set.user].to_pylist()
    _, places = np.unique([users[row] for row in corpus.source_rows], return_inverse=True)
    return np.bincount(places, weights=sum_per_text(scorer.nats(corpus), corpus)).astype(np.float64)


def user_sums(nats: Floats, texts: Tables, data_set: DataSet) -> TextSums:
    """Return the bits and the bytes of the texts of each user, in the order of their names."""
    table = corpora.read(texts["unseen"])
    names, places = np.unique(table[data_set.user].to_pylist(), return_inverse=True)
    sizes = np.bincount(places, weights=[len(text.encode()) for text in table["text"].to_pylist()]).astype(np.float64)
    return TextSums(f"users {len(names)} {sizes.sum():.0f}", nats / math.log(2), sizes)
