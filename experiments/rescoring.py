"""What context brings to a recogniser: lists of a simulated one (nbest.py), rescored with and without a language model.

Turns of oral arguments are heard, many of them by five speakers who are not in training. The recipe nbest.toml reads
three million words once. Weights are fitted to lists of dev, by the fewest word errors and, for figures whose name
begins with likelihood, by the likelihood objective; errors are those of the lists of the test.

A FactorCell scores in the context of each utterance, new speakers as rare ones (no ending), without any context
(`_bare`), and learning who speaks from what it chose (`_learned`). Beside word errors is the perplexity of what was
said.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import corpora
import nbest
from corpora import Tables
from factorcell import files
from factorcell.completion.online import Learner
from factorcell.config import Config
from factorcell.evaluation.ngram import FILE as COUNTED
from factorcell.evaluation.ngram import NGram
from factorcell.evaluation.rescoring import rescore, speakers
from factorcell.evaluation.rescoring.nbest import NBest, read_nbest
from factorcell.evaluation.rescoring.rescore import Scored
from factorcell.evaluation.text_figures import Figures, TextSums, per_text
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from study import ROWS, Baseline, Experiment, Measured, Row
from thesis_sixteen import turns

WORDS, DEVELOPED = 3_000_000, 200_000  # of the training texts, and of those by which weights are chosen
UTTERANCES = {"dev": 400, "test": 2000}  # lists to fit to and to judge, at most
KINDS: dict[str, tuple[str, ...]] = {"": ("no", "yes"), "_new": ("no",), "_known": ("yes",)}
CONTEXT = ("speaker", "role", "case")
ORDER = 4  # of the n-gram model beside them
LEARNED, BARE = "_learned", "_bare"  # how the names of figures end


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Turns to train on, none of them by new speakers, turns to develop on, and utterances with their lists."""
    whole = corpora.parts(data, folder, "scotus")
    new = nbest.held(corpora.read(whole["dev"]).to_pylist())

    def known() -> pa.Table:
        table = corpora.read(whole["train"]).select(["text", *CONTEXT])
        theirs = pa.array([speaker not in new for speaker in table["speaker"].to_pylist()])
        return turns(table.filter(theirs), round(WORDS * share))

    def heard(part: str) -> pa.Table:
        count = max(20, round(UTTERANCES[part] * min(1.0, 10 * share)))
        return pa.Table.from_pylist(nbest.utterances(corpora.read(whole[part]).to_pylist(), new, count, seed=0))

    train = corpora.kept(folder / f"rescoring-train-{share:g}.parquet", known)
    dev = folder / f"rescoring-dev-{share:g}.parquet"
    made = {
        "train": train,
        "dev": corpora.kept(dev, lambda: turns(corpora.read(whole["dev"]), round(DEVELOPED * share))),
    }
    for part, name in (("dev", "tuned"), ("test", "test")):
        made[name] = corpora.kept(folder / f"rescoring-{name}-{share:g}.parquet", partial(heard, part))
    return made | written(made, folder / f"rescoring-{share:g}")


def written(tables: Tables, folder: Path) -> Tables:
    """The lists of both tables of utterances, made at the first call with the bigram model of the first pass."""
    made = {f"{name} lists": folder / f"{name}.jsonl" for name in ("tuned", "test")}
    for seed, (name, path) in enumerate(made.items()):
        if not path.exists():
            bigram = counted(tables["train"], folder / "bigram", 2)
            rows = corpora.read(tables[name.partition(" ")[0]]).to_pylist()
            files.write_rows(path, nbest.lists(bigram, rows, seed))
    return made


def counted(train: Path, folder: Path, order: int) -> NGram:
    """The n-gram model in a folder, made at the first call."""
    return NGram.open(folder) if (folder / COUNTED).is_file() else NGram.fit(train, nbest.DATA, folder, order=order)


def both(tables: Tables, bare: bool = False) -> list[NBest]:
    """The lists to fit to and those to judge, without the values of their columns if `bare`."""
    nothing = dict.fromkeys(CONTEXT) if bare else {}
    found = [files.read_rows(tables[f"{name} lists"]) for name in ("tuned", "test")]
    return [read_nbest([{**row, **nothing} for row in rows]) for rows in found]


def scored(model: Run | NGram, lists: Sequence[NBest]) -> list[Scored]:
    """Lists with the scores of a model."""
    return [rescore.score(model, one, unknown="group") for one in lists]


def judged(pair: Sequence[Scored], name: str = "") -> Figures:
    """Word errors of the lists to judge by weights that are fitted to the others, of both objectives."""
    figures: Figures = {}
    for kind, objective in (("wer", "errors"), ("likelihood", "likelihood")):
        rows = rescore.rescore(pair[1], rescore.fit(pair[0], objective)[0])
        figures |= by_kind(f"{kind}{name}", [row["errors"] for row in rows], *words(rows))
    return figures


def words(rows: Sequence[Row]) -> tuple[list[int], list[str]]:
    """The words of each utterance, and whether its speaker is known."""
    return [row["words"] for row in rows], [row["columns"]["known"] for row in rows]


def by_kind(name: str, above: Sequence[float], below: Sequence[float], known: Sequence[str]) -> Figures:
    """What each utterance adds to a figure of all of them, of new speakers' and of known ones'."""
    figures: Figures = {}
    for kind, values in KINDS.items():
        own = np.isin(known, values)
        key = f"utterances{kind} {len(known)} {np.sum(below):.0f}"
        figures[name + kind] = TextSums(key, np.where(own, above, 0.0), np.where(own, below, 0.0))
    return figures


def said(model: Scorer, table: Path, name: str = "") -> Figures:
    """The nats of what was said, new speakers as rare ones; without the values of columns where `name` is _bare."""
    rows = corpora.read(table).to_pylist()
    nothing = dict.fromkeys(CONTEXT) if name == BARE else {}
    corpus = model.prepare([{**row, **nothing} for row in rows], unknown="group")
    nats, known = per_text(model.nats(corpus), corpus), [row["known"] for row in rows]
    return by_kind(f"said{name}", nats.tolist(), corpus.lengths.tolist(), known)


def said_learning(run: Run, table: Path) -> Figures:
    """The nats of what was said, by vectors of speakers that move after each utterance; known ones begin as trained."""
    learner, rows = Learner(run, None, "group"), corpora.read(table).to_pylist()
    places = {name: place for place, name in enumerate(learner.variable.values)}
    people = {row["speaker"]: speakers.begin(learner, places.get(row["speaker"], 0)) for row in rows}
    nats = []
    for row in rows:
        who, context = row["speaker"], {name: row[name] for name in run.config.data.context}
        (people[who],), cost = learner.learn([people[who]], [row["text"]], [context])
        nats.append(float(cost[0]))
    lengths = run.prepare(rows, unknown="group").lengths.tolist()
    return by_kind(f"said{LEARNED}", nats, lengths, [row["known"] for row in rows])


def measure(run: Run, tables: Tables) -> Measured:
    """Word errors and the perplexity of what was said, of an adapted run in three ways."""
    plain = scored(run, both(tables))
    figures = judged(plain) | said(run, tables["test"])
    if run.model.adapted:
        weights = rescore.fit(plain[0])[0]
        learned = [speakers.learn(run, one.nbest, weights, unknown="group") for one in plain]
        figures |= judged(learned, LEARNED) | said_learning(run, tables["test"])
        figures |= judged(scored(run, both(tables, bare=True)), BARE) | said(run, tables["test"], BARE)
    return of(figures)


def of(figures: Figures) -> Measured:
    """Figures with their values: word errors as shares, what was said as perplexities."""
    ratios = {name: sums.ratio for name, sums in figures.items() if sums.below.any()}
    values = {name: float(np.exp(ratio)) if name.startswith("said") else ratio for name, ratio in ratios.items()}
    return Measured(values, {name: figures[name] for name in values})


# ---- what is no run ----


def ngram(config: Config, tables: Tables, folder: Path) -> Measured:
    """An n-gram model in place of a run."""
    model = counted(tables["train"], folder, ORDER)
    return of(judged(scored(model, both(tables))) | said(model, tables["test"]))


def alone(config: Config, tables: Tables, folder: Path, which: str) -> Measured:
    """Without a language model: the first of each list, the best in it, or that by weights of the scores it has."""
    nothing = [Scored(lists, tuple(np.zeros(len(one.texts)) for one in lists.utterances)) for lists in both(tables)]
    if which == "errors":
        return of(judged(nothing))
    rows = rescore.rescore(nothing[1], rescore.fit(nothing[0])[0])
    return of(by_kind("wer", [row[which] for row in rows], *words(rows)))


def exact(measure: Callable[..., Measured], **more: str) -> Baseline:
    """A row that has no chance in it."""
    return Baseline(partial(measure, **more), seeded=False, exact=True)


OTHERS = {
    "first pass": exact(alone, which="errors_first"),
    "reweighted": exact(alone, which="errors"),
    "n-grams": exact(ngram),
    "oracle": exact(alone, which="errors_oracle"),
}
EXPERIMENT = Experiment("rescoring", "nbest.toml", ROWS["rescoring"], tables, measure, baselines=OTHERS)
