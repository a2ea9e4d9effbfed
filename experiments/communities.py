"""Thesis tables 3.4 and 3.5: the gain of each community, and the nearest neighbours of communities.

The development part has too few titles of each community, so some titles of every eighth community are held out of
training. Titles that other communities have in the training texts are not judged.
"""

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import corpora
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.explaining.embeddings import Embeddings
from factorcell.evaluation.perplexity import column_groups, perplexity_of
from factorcell.evaluation.text_figures import sum_per_text
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from study import ROWS, Experiment, Measurement, Row
from tacl_baselines import best_ngram, measure_scorer, ngram_row

HELD_OUT_TITLES = 60  # titles of each community
DEV_TITLES = 10_000  # titles that the best weights are chosen on
COMMUNITY_INTERVAL, NEIGHBOURS = 8, 4
THESIS_COMMUNITIES = (
    *("FlashTV", "shield", "GlobalOffensive", "nba", "SquaredCircle", "Fitness", "hockey", "leagueoflegends"),
    *("pcmasterrace", "nfl", "AskWomen", "news", "worldnews", "AskMen", "gaming", "pics", "videos", "funny"),
)
NEIGHBOURS_OF = (
    *("pittsburgh", "Python", "nba", "Christianity", "StarWars"),
    *("photography", "Physics", "germany", "Cooking", "running"),
)


def split_communities(train: pa.Table, test: pa.Table, chosen: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """Return the training texts without the first titles of each chosen community, and those with test texts."""
    counts, is_held_out = Counter[str](), []
    for name in train["subreddit"].to_pylist():
        is_held_out.append(name in chosen and counts[name] < HELD_OUT_TITLES)
        counts[name] += 1
    tested = [name in chosen for name in test["subreddit"].to_pylist()]
    rest = train.filter(pa.array([not value for value in is_held_out]))
    return rest, without_training_titles(
        pa.concat_tables([train.filter(pa.array(is_held_out)), test.filter(pa.array(tested))]), rest
    )


def without_training_titles(titles: pa.Table, train: pa.Table) -> pa.Table:
    """Return the titles that do not occur in the training texts."""
    known = set(train["text"].to_pylist())
    return titles.filter(pa.array([title not in known for title in titles["text"].to_pylist()], pa.bool_()))


def titles(data: Path, folder: Path, share: float, name: str, chosen: Callable[[pa.Table], Collection[str]]) -> Tables:
    """Write titles for training, development and test, and those of `chosen` communities (`judged`)."""
    paths = corpora.parts(data, folder, "reddit_titles", share)

    @functools.cache
    def parts() -> tuple[pa.Table, pa.Table]:
        train = corpora.read(paths["train"])
        return split_communities(train, corpora.read(paths["test"]), chosen(train))

    def tested() -> pa.Table:
        more = corpora.read(paths["dev"]).slice(DEV_TITLES)
        return without_training_titles(pa.concat_tables([corpora.read(paths["test"]), more]), parts()[0])

    makers = {
        "train": lambda: parts()[0],
        "judged": lambda: parts()[1],
        "dev": lambda: corpora.read(paths["dev"]).slice(0, DEV_TITLES),
        "test": tested,
    }
    return {
        part: corpora.create_once(folder / f"{name}-{part}-of-{share:g}.parquet", make) for part, make in makers.items()
    }


def selected_communities(train: pa.Table) -> set[str]:
    return {*sorted(set(train["subreddit"].to_pylist()))[::COMMUNITY_INTERVAL], *THESIS_COMMUNITIES}


def perplexity_by_community(scorer: Scorer, tables: Tables) -> list[Row]:
    """Return the perplexity of each community, out-of-vocabulary words included."""
    corpus = scorer.prepare(tables["judged"], unknown="group")
    sums: dict[str, tuple[int, float, int]] = {}  # the texts of each community, their nats and their targets
    nats = sum_per_text(scorer.nats(corpus), corpus).tolist()
    names = column_groups(tables["judged"], "subreddit")
    for name, total_nats, targets in zip(names, nats, corpus.lengths.tolist(), strict=True):
        count, nats_so_far, targets_so_far = sums.get(name, (0, 0.0, 0))
        sums[name] = count + 1, nats_so_far + total_nats, targets_so_far + targets
    return [
        {"value": name, "count": count, "targets": targets, "perplexity": perplexity_of(total_nats, targets)}
        for name, (count, total_nats, targets) in sorted(sums.items())
    ]


def nearest_communities(run: Run, names: Sequence[str]) -> dict[str, list[str]]:
    if run.model.encoder is None:
        return {}
    embeddings = Embeddings.from_run(run, "subreddit")
    near = {}
    for name in names:
        if name in embeddings.values:
            distances = np.linalg.norm(embeddings.vectors - embeddings.vectors[embeddings.row(name)], axis=1)
            near[name] = [embeddings.values[index] for index in np.argsort(distances)[1 : NEIGHBOURS + 1]]
    return near


def measure(run: Run, tables: Tables) -> Measurement:
    return Measurement({"by": perplexity_by_community(run, tables), "nearest": nearest_communities(run, NEIGHBOURS_OF)})


def ngram(config: Config, tables: Tables, folder: Path) -> Measurement:
    best = best_ngram(config, tables, folder)
    figures = {"order": len(best.orders), "by": perplexity_by_community(best, tables), "nearest": {}}
    return measure_scorer(best, tables) | Measurement(figures)


tables = functools.partial(titles, name="reddit", chosen=selected_communities)
BASELINES = ngram_row(ngram)
EXPERIMENT = Experiment("subreddits", "thesis_reddit.toml", ROWS["subreddits"], tables, measure, baselines=BASELINES)
