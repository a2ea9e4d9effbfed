"""Thesis chapter 5: mean reciprocal ranks of completions, with commit subjects as queries.

Models that distinguish users learn new ones online, with Adadelta at the best rate for the development users and
without a bound on the step. No model was trained on texts of the test users. Intervals are over users. Other rows are
a FactorCell whose context vector is the user's embedding, control codes, which learn nothing, and n-grams, which have
only a perplexity. The FactorCell also has figures of the user's earlier texts alone, and of the blend of all sources.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

import corpora
import tacl_baselines
from commits import first_per_user
from corpora import Tables
from factorcell.completion.blend import Blend, BlendWeights, save_settings
from factorcell.completion.online import Learner, LearningRule, distinguishes_users
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay import (
    Stream,
    System,
    model_system,
    open_systems,
    popular_texts_system,
    read_streams,
    replay,
)
from factorcell.completion.tuning import candidate_lists
from factorcell.config import Config
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.runs.run import Run
from figures import LENGTHS, TEXTS_SEEN
from replays import find_seen_prefixes, nats_of_completed_texts, try_rates
from study import ROWS, Experiment, Measurement, Options, Row, Training
from tacl_baselines import ngram_row

TEXTS = 6000  # minimum for dev and for the test
MIN_USER_TEXTS, MAX_USER_TEXTS = 20, 400  # limits for users of dev and of the test
DEV_TEXTS_PER_USER, TEST_TEXTS_PER_USER = 100, 200  # the first texts of each user
EVERY = 1  # every text is completed
MIN_POPULAR = 3  # texts that occur less often are not popular
LATE = 50  # figure 5.3 leaves out the first texts of each user

Condition = Callable[[Row], bool]

PAPER_RULE = "adadelta"  # the online learning rule of the thesis
RULES = {  # rule -> optimizer, and bound on the change of a user vector; 0: no bound
    PAPER_RULE: ("adadelta", 0.0),
    "adadelta with a bound": ("adadelta", LearningRule.max_norm),
    "adagrad": ("adagrad", LearningRule.max_norm),
}


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Split users by a hash of their names; the users of dev.parquet are test users."""

    @cache
    def parts() -> dict[str, pa.Table]:
        every = corpora.read(data / "commits" / "train.parquet")
        split = corpora.split(
            every, "user", round(TEXTS * min(1.0, 10 * share)), range(MIN_USER_TEXTS, MAX_USER_TEXTS + 1)
        )
        others = corpora.read(data / "commits" / "dev.parquet").select(every.column_names)
        return {**split, "test": pa.concat_tables([split["test"], others.slice(0, round(len(others) * share))])}

    def cut(part: str) -> pa.Table:
        table = parts()[part]
        max_texts = {"dev": DEV_TEXTS_PER_USER, "test": TEST_TEXTS_PER_USER}.get(part)
        return table.slice(0, round(len(table) * share)) if max_texts is None else first_per_user(table, max_texts)

    return {
        part: corpora.create_once(folder / f"queries-{part}-{share:g}.parquet", partial(cut, part))
        for part in corpora.PARTS
    }


def measure(run: Run, tables: Tables) -> Measurement:
    """Measure reciprocal ranks of a run, and of most popular completion next to a run that ignores users."""
    row, streams, rows = replay_test_users(run, tables, EVERY, tuple(RULES), with_blend=run.config.model == BLENDED)
    figures = reciprocal_ranks(rows.pop("mrr"), streams, "mrr", SUBSETS)
    for name, system_rows in rows.items():
        figures |= reciprocal_ranks(system_rows, streams, name, BASIC_SUBSETS)
    return Measurement({**row, **{name: sums.ratio for name, sums in figures.items()}}, figures)


def replay_test_users(
    run: Run, tables: Tables, every: int, rules: Sequence[str] = (PAPER_RULE,), with_blend: bool = False
) -> tuple[Row, list[Stream], dict[str, list[Row]]]:
    """Replay one of `every` texts of the test users; return figures, streams and the rows of each system."""
    config = run.config
    streams = read_streams(tables["test"], config, max_rows_per_user=TEST_TEXTS_PER_USER, every=every)
    row, systems = build_systems(run, tables, rules, with_blend)
    known = find_seen_prefixes(streams, tables["train"], config)
    prefixes = {(stream.user, place): prefix for stream in streams for place, prefix in enumerate(stream.prefixes)}
    learner = Learner(run) if distinguishes_users(run) else None
    rows_by_system: dict[str, list[Row]] = {name: [] for name in systems}
    for replay_row in replay(systems, streams, config.data.text, learner):
        replay_row["seen"] = prefixes[replay_row["user"], replay_row["position"]] in known
        rows_by_system[replay_row["system"]].append(replay_row)
    nats, targets = (sum(values) for values in zip(*nats_of_completed_texts(run, streams).values(), strict=True))
    return {**row, "perplexity_online": float(np.exp(nats / targets))}, streams, rows_by_system


def popular_texts(run: Run) -> Popularity:
    """Return the training texts that occur at least `MIN_POPULAR` times, by any number of users."""
    counts = TextCounts.open(run.folder / POPULARITY)
    frequent = {text: count for text, count in counts.counts.items() if count >= MIN_POPULAR}
    return Popularity(replace(counts, counts=frequent))


def build_systems(run: Run, tables: Tables, rules: Sequence[str], with_blend: bool) -> tuple[Row, dict[str, System]]:
    """Return the systems to replay, and figures of the online learning rules; the best rate on dev is used."""
    if not distinguishes_users(run):
        plain = open_systems(run, ["plain"], unknown="group")["plain"]
        return {}, {"mrr": plain, "mpc": popular_texts_system(popular_texts(run))}
    streams = read_streams(tables["dev"], run.config, max_rows_per_user=DEV_TEXTS_PER_USER)
    best: dict[str, Row] = {}
    for name in rules:
        optimizer, max_norm = RULES[name]
        best["none"], *tried = try_rates(run, streams, [optimizer], max_norm=max_norm)
        best[name] = min(tried, key=lambda tried_row: float(tried_row["perplexity"]))
    rate, (optimizer, max_norm) = float(best[PAPER_RULE]["rate"]), RULES[PAPER_RULE]
    save_settings(run, LearningRule(optimizer, rate, max_norm), BlendWeights.load(run.folder))
    perplexities = {f"dev_{name}": float(tried_row["perplexity"]) for name, tried_row in best.items()}
    opened = open_systems(run, ["online", "history"], unknown="group")
    systems: dict[str, System] = {"mrr": opened["online"]}
    if with_blend:
        blend = Blend(run, popular_texts(run), unknown="group")
        examples = chain.from_iterable(candidate_lists(blend, Learner(run), streams))
        systems["history"] = opened["history"]
        systems["blend"] = model_system(Blend(run, blend.popularity, BlendWeights.fit(list(examples)), unknown="group"))
    return {"online_rate": rate, **perplexities}, systems


def range_subsets(name: str, key: str, begins: Sequence[int], min_position: int = 0) -> dict[str, Condition]:
    """Return the subsets of rows whose number `key` is in the range from each of `begins`."""
    spans = {begin: range(begin, end) for begin, end in pairwise((*begins, sys.maxsize))}
    return {f"_{name}_{begin}": partial(_is_in_range, key, span, min_position) for begin, span in spans.items()}


def _is_in_range(key: str, span: range, min_position: int, row: Row) -> bool:
    return row[key] in span and row["position"] >= min_position


BASIC_SUBSETS: dict[str, Condition] = {
    "": lambda row: True,
    "_seen": lambda row: bool(row["seen"]),
    "_unseen": lambda row: not row["seen"],
    "_late": lambda row: int(row["position"]) >= LATE,
}
LENGTH_SUBSETS = [range_subsets(name, f"{name}_length", begins, LATE) for name, begins in LENGTHS.items()]
SUBSETS = {**BASIC_SUBSETS, **range_subsets("after", "position", TEXTS_SEEN), **LENGTH_SUBSETS[0], **LENGTH_SUBSETS[1]}


def reciprocal_ranks(
    rows: Sequence[Row], streams: Sequence[Stream], name: str, subsets: Mapping[str, Condition]
) -> Figures:
    """Return the sums of reciprocal ranks of each user, for each nonempty subset of the rows."""
    places = {stream.user: number for number, stream in enumerate(streams)}
    figures: Figures = {}
    for kind, condition in subsets.items():
        numerator, denominator = np.zeros(len(places)), np.zeros(len(places))
        for row in filter(condition, rows):
            numerator[places[row["user"]]] += 1 / row["rank"] if row["rank"] else 0.0
            denominator[places[row["user"]]] += 1
        if denominator.any():
            figures[name + kind] = TextSums(
                f"users{kind} {len(places)} {denominator.sum():.0f}", numerator, denominator
            )
    return figures


def ngram(config: Config, tables: Tables, folder: Path) -> Measurement:
    """Measure the n-gram model of the best order; it does not learn online."""
    measured = tacl_baselines.ngram(config, tables, folder)
    return measured | Measurement({"perplexity_online": measured.row["perplexity"]})


BASELINES = ngram_row(ngram)
EXPERIMENT = Experiment("queries", "commits_small.toml", ROWS["queries"], tables, measure, baselines=BASELINES)
BLENDED = EXPERIMENT.config(Training("factor", 0), 1).model  # the model that is also blended with other sources


# ---- models of random sizes ----


def measure_trial(run: Run, tables: Tables) -> Measurement:
    row, streams, rows = replay_test_users(run, tables, 6)
    figures = reciprocal_ranks(rows["mrr"], streams, "mrr", {"": BASIC_SUBSETS[""]})
    return Measurement({**row, "mrr": figures["mrr"].ratio}, figures)


def with_sizes(kind: str, sizes: Options) -> Options:
    options = ROWS["queries"][kind]
    return {**options, **sizes, "model": {**options["model"], **sizes["model"]}}


TRIALS = Experiment(
    "queries_trials",
    "commits_small.toml",
    {
        f"{kind} {number}": with_sizes(kind, sizes)
        for number, sizes in ROWS["queries_trials"].items()
        for kind in ("unadapted", "concat", "factor")
    },
    tables,
    measure_trial,
    seeds=(0,),
)
