"""Chapter 5 of the thesis: mean reciprocal ranks of completions, with commit subjects as queries.

Models that distinguish users learn new ones online, by Adadelta at the rate that suits the development users, without a
bound on the step. No model was trained on texts of the test users. Intervals are over users. Other rows are a
FactorCell whose context vector is the user's embedding, control codes, which learn nothing, and n-grams, which have a
perplexity alone. The FactorCell has figures of the user's earlier texts alone, and of the blend of all sources.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

import corpora
import tacl_baselines
from commits import first
from corpora import Tables
from factorcell import files
from factorcell.completion.blend import Blend, BlendWeights
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, LearningRule, distinguishes_users
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.streams import PrefixDraw, Stream, System, find_seen_prefixes, read_streams, replay
from factorcell.completion.replay.systems import MostPopular, Personalised, Unpersonalised, UserHistory
from factorcell.completion.replay.tuning import candidate_lists, try_rates
from factorcell.config import Config
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.model.run import Run
from figures import LENGTHS, PLACES
from study import ROWS, Experiment, Measured, Options, Row, Training
from tacl_baselines import ngram_row

TEXTS, FEWEST, MOST = 6000, 20, 400  # of dev and of the test, at least; texts of a user that is in one of them
TUNED, KEPT = 100, 200  # texts of each user of dev and of the test, the first ones
EVERY = 1  # one text of so many is completed
LATE = 50  # texts of a user that figure 5.3 leaves out

Kind = Callable[[Row], bool]

PRINTED = "adadelta"  # the rule by which users are learned
RULES = {  # the optimiser of each rule that dev is learned by, and how far it lets a vector move; 0: without a bound
    PRINTED: ("adadelta", 0.0),
    "adadelta with a bound": ("adadelta", LearningRule.reach),
    "adagrad": ("adagrad", LearningRule.reach),
}


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Three groups of users by a hash of their names; training texts of all the others.

    The users of dev.parquet, of whom nothing is in the training table, are in the test too.
    """

    @cache
    def parts() -> dict[str, pa.Table]:
        every = corpora.read(data / "commits" / "train.parquet")
        split = corpora.split(every, "user", round(TEXTS * min(1.0, 10 * share)), range(FEWEST, MOST + 1))
        others = corpora.read(data / "commits" / "dev.parquet").select(every.column_names)
        return {**split, "test": pa.concat_tables([split["test"], others.slice(0, round(len(others) * share))])}

    def cut(part: str) -> pa.Table:
        table = parts()[part]
        most = {"dev": TUNED, "test": KEPT}.get(part)
        return table.slice(0, round(len(table) * share)) if most is None else first(table, most)

    return {
        part: corpora.create_once(folder / f"queries-{part}-{share:g}.parquet", partial(cut, part))
        for part in corpora.PARTS
    }


def measure(run: Run, tables: Tables) -> Measured:
    """Reciprocal ranks of a run and, beside one that tells nobody apart, of the most popular completion."""
    row, streams, rows = replayed(run, tables, EVERY, tuple(RULES), beyond=run.config.model == BLENDED)
    figures = ranks(rows.pop("mrr"), streams, "mrr", KINDS)
    for name, system_rows in rows.items():
        figures |= ranks(system_rows, streams, name, SPLIT)
    return Measured({**row, **{name: sums.ratio for name, sums in figures.items()}}, figures)


def replayed(
    run: Run, tables: Tables, every: int, rules: Sequence[str] = (PRINTED,), beyond: bool = False
) -> tuple[Row, list[Stream], dict[str, list[Row]]]:
    """Of the users of the test one text of `every` is completed: their streams, and what each system made of them.

    The row has the perplexity of those texts, each judged before it is learned; that of dev by all `rules`.
    """
    config = run.config
    streams = read_streams(tables["test"], config, max_rows_per_user=KEPT, draw=PrefixDraw(every))
    row, systems = systems_of(run, tables, rules, beyond)
    path = run.folder.with_name(f"{run.folder.name}-replay.jsonl")
    known = find_seen_prefixes(streams, tables["train"], config)
    for _ in replay(systems, streams, path, text_column=config.data.text, seen_prefixes=known):
        pass
    rows_by_system = {
        name: [replay_row for replay_row in files.read_rows(path) if replay_row["system"] == name] for name in systems
    }
    nats, targets = (sum(replay_row[key] for replay_row in rows_by_system["mrr"]) for key in ("nats", "targets"))
    return {**row, "perplexity_online": float(np.exp(nats / targets))}, streams, rows_by_system


def systems_of(run: Run, tables: Tables, rules: Sequence[str], beyond: bool) -> tuple[Row, dict[str, System]]:
    """What is replayed, and the rate at which a run learns new users: that of the best perplexity on dev.

    What goes `beyond` are one's own earlier texts, and the blend.
    """
    completer = Completer(run, unknown="group")
    if not distinguishes_users(run):
        return {}, {"mrr": Unpersonalised(completer, "user"), "mpc": MostPopular(Popularity.from_run(run))}
    streams = read_streams(tables["dev"], run.config, max_rows_per_user=TUNED)
    best: dict[str, Row] = {}
    for name in rules:
        optimiser, reach = RULES[name]
        best["none"], *tried = try_rates(run, streams, [optimiser], reach=reach)
        best[name] = min(tried, key=lambda tried_row: float(tried_row["perplexity"]))
    rate, (optimiser, reach) = float(best[PRINTED]["rate"]), RULES[PRINTED]
    LearningRule(optimiser, rate, reach).save(run)
    perplexities = {f"dev_{name}": float(tried_row["perplexity"]) for name, tried_row in best.items()}
    systems: dict[str, System] = {"mrr": Personalised(run, completer)}
    if beyond:
        popularity = Popularity.from_run(run)
        weights = BlendWeights.fit(list(candidate_lists(completer, Learner(run), popularity, streams)))
        systems["history"] = UserHistory(run.config.data.text)
        systems["blend"] = Personalised(run, Blend(completer, popularity, weights))
    return {"online_rate": rate, **perplexities}, systems


def within(name: str, key: str, begins: Sequence[int], least: int = 0) -> dict[str, Kind]:
    """Kinds of texts, whose number `key` lies in the range that begins at each of `begins`, after `least` texts."""
    spans = {begin: range(begin, end) for begin, end in pairwise((*begins, sys.maxsize))}
    return {f"_{name}_{begin}": partial(_inside, key, span, least) for begin, span in spans.items()}


def _inside(key: str, span: range, least: int, row: Row) -> bool:
    return row[key] in span and row["position"] >= least


SPLIT: dict[str, Kind] = {
    "": lambda row: True,
    "_seen": lambda row: bool(row["seen"]),
    "_unseen": lambda row: not row["seen"],
    "_late": lambda row: int(row["position"]) >= LATE,
}
LONG = [within(name, f"{name}_length", begins, LATE) for name, begins in LENGTHS.items()]
KINDS = {**SPLIT, **within("after", "position", PLACES), **LONG[0], **LONG[1]}


def ranks(rows: Sequence[Row], streams: Sequence[Stream], name: str, kinds: Mapping[str, Kind]) -> Figures:
    """What each user adds to mean reciprocal ranks, of the texts of each kind that there are."""
    places = {stream.user: number for number, stream in enumerate(streams)}
    figures: Figures = {}
    for kind, fits in kinds.items():
        above, below = np.zeros(len(places)), np.zeros(len(places))
        for row in filter(fits, rows):
            above[places[row["user"]]] += 1 / row["rank"] if row["rank"] else 0.0
            below[places[row["user"]]] += 1
        if below.any():
            figures[name + kind] = TextSums(f"users{kind} {len(places)} {below.sum():.0f}", above, below)
    return figures


def ngram(config: Config, tables: Tables, folder: Path) -> Measured:
    """The n-gram model of the best order, which learns of nobody: its perplexity is that of a model that learns."""
    measured = tacl_baselines.ngram(config, tables, folder)
    return measured | Measured({"perplexity_online": measured.row["perplexity"]})


BASELINES = ngram_row(ngram)
EXPERIMENT = Experiment("queries", "commits_small.toml", ROWS["queries"], tables, measure, baselines=BASELINES)
BLENDED = EXPERIMENT.config(Training("factor", 0), 1).model  # the run that is blended with other sources


# ---- models of random sizes ----


def measure_trial(run: Run, tables: Tables) -> Measured:
    """Measure perplexity and mean reciprocal rank of the same texts, one of six."""
    row, streams, rows = replayed(run, tables, 6)
    figures = ranks(rows["mrr"], streams, "mrr", {"": SPLIT[""]})
    return Measured({**row, "mrr": figures["mrr"].ratio}, figures)


def drawn(kind: str, sizes: Options) -> Options:
    """Return a model of a kind with random sizes."""
    options = ROWS["queries"][kind]
    return {**options, **sizes, "model": {**options["model"], **sizes["model"]}}


TRIALS = Experiment(
    "queries_trials",
    "commits_small.toml",
    {
        f"{kind} {number}": drawn(kind, sizes)
        for number, sizes in ROWS["queries_trials"].items()
        for kind in ("unadapted", "concat", "factor")
    },
    tables,
    measure_trial,
    seeds=(0,),
)
