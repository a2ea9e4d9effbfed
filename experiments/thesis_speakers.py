"""Chapter 5's user vector, and the rules by which it learns, on a second set: who speaks in oral arguments.

A FactorCell of words is told the speaker alone, by a vector that a layer stands over, as ours, or that is the context
vector itself, as chapter 5 has it. Everybody who speaks in the test begins as the unknown speaker and is learned
utterance by utterance, each judged before it is learned: not at all, by Adadelta without a bound, as printed, by
Adadelta with ours, and by Adagrad. Rates are those of the lowest perplexity on dev. Texts are those of rescoring.py.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import corpora
from corpora import Tables
from factorcell.completion.online import Learner, LearningRule
from factorcell.completion.replay.streams import Stream
from factorcell.completion.replay.tuning import rates
from factorcell.evaluation.text_figures import TextSums
from factorcell.model.run import Run
from rescoring import tables
from study import ROWS, Experiment, Measured, Row
from thesis_queries import RULES

SPEAKER = "speaker"
LEARNED = {"none": None, **RULES}  # how the names of figures end -> the optimiser and how far a vector may move


def streams(table: Path) -> list[Stream]:
    """What each speaker says in a table of utterances, in its order."""
    said: dict[str, list[Row]] = {}
    for row in corpora.read(table).to_pylist():
        said.setdefault(row[SPEAKER], []).append({"text": row["text"]})
    return [Stream(speaker, tuple(rows), (None,) * len(rows)) for speaker, rows in said.items()]


def measure(run: Run, tables: Tables) -> Measured:
    """Of each rule the perplexity of what is said in the test, and the rate that suits dev."""
    row: Row = {}
    figures: dict[str, TextSums] = {}
    for name, how in LEARNED.items():
        rule = LearningRule("sgd", 0.0) if how is None else suiting(run, streams(tables["tuned"]), *how)
        sums = progressive(Learner(run, rule, "group"), streams(tables["test"]))
        row |= {f"rate_{name}": rule.rate, f"said_{name}": float(np.exp(sums.ratio))}
        figures[f"said_{name}"] = sums
    return Measured(row, figures)


def suiting(run: Run, said: Sequence[Stream], optimiser: str, reach: float) -> LearningRule:
    """The rule of an optimiser under which what is said has the lowest perplexity."""
    _, *tried = rates(run, said, [optimiser], reach=reach, unknown="group")
    return LearningRule(optimiser, min(tried, key=lambda one: float(one["perplexity"]))["rate"], reach)


def progressive(learner: Learner, said: Sequence[Stream]) -> TextSums:
    """The nats of each utterance, before it is learned, and its targets."""
    nats, targets = list[float](), list[int]()
    for stream in said:
        texts = [row["text"] for row in stream.rows]
        user = learner.new()
        for text in texts:
            (user,), cost = learner.learn([user], [text])
            nats.append(float(cost[0]))
        targets += learner.run.read(texts, [{}] * len(texts), unknown=learner.unseen).lengths.tolist()
    return TextSums(f"utterances {len(nats)} {sum(targets)}", np.array(nats), np.array(targets, dtype=np.float64))


EXPERIMENT = Experiment("speakers", "nbest.toml", ROWS["speakers"], tables, measure)
