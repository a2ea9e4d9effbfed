"""Tables 3.4 and 3.5 of the thesis: which communities gain from being known, and which are near each other.

Some titles of every eighth community are held out of training, as the development part has too few of each. A title
that is also in the training texts, of another community, is not judged.
"""

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pyarrow as pa

import corpora
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.embeddings import Embeddings
from factorcell.evaluation.perplexity import column_groups, text_tallies
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer, Tally
from study import ROWS, Experiment, Measured, Row
from tacl_baselines import best_ngram, measure_scorer, ngram_row

HELD = 60  # titles of each community
DEVELOPED = 10_000  # titles to choose the best weights by
EVERY, NEAREST = 8, 4
PUBLISHED = (
    *("FlashTV", "shield", "GlobalOffensive", "nba", "SquaredCircle", "Fitness", "hockey", "leagueoflegends"),
    *("pcmasterrace", "nfl", "AskWomen", "news", "worldnews", "AskMen", "gaming", "pics", "videos", "funny"),
)
NEIGHBOURS_OF = (
    *("pittsburgh", "Python", "nba", "Christianity", "StarWars"),
    *("photography", "Physics", "germany", "Cooking", "running"),
)


def parted(train: pa.Table, test: pa.Table, chosen: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """Return the training texts without the first `HELD` of each chosen community, and those with its test texts."""
    taken, is_held_out = Counter[str](), []
    for name in train["subreddit"].to_pylist():
        is_held_out.append(name in chosen and taken[name] < HELD)
        taken[name] += 1
    tested = [name in chosen for name in test["subreddit"].to_pylist()]
    rest = train.filter(pa.array([not value for value in is_held_out]))
    return rest, unread(pa.concat_tables([train.filter(pa.array(is_held_out)), test.filter(pa.array(tested))]), rest)


def unread(titles: pa.Table, train: pa.Table) -> pa.Table:
    """Return the titles that are not among the training texts."""
    known = set(train["text"].to_pylist())
    return titles.filter(pa.array([title not in known for title in titles["text"].to_pylist()], pa.bool_()))


def titles(data: Path, folder: Path, share: float, name: str, chosen: Callable[[pa.Table], Collection[str]]) -> Tables:
    """Return the titles to train on, to develop on and to test on, and those of `chosen` communities (`judged`).

    The test part has what the development part has beyond its first titles. `name` begins the names of the files.
    """
    paths = corpora.parts(data, folder, "reddit_titles", share)

    @functools.cache
    def parts() -> tuple[pa.Table, pa.Table]:
        train = corpora.read(paths["train"])
        return parted(train, corpora.read(paths["test"]), chosen(train))

    def tested() -> pa.Table:
        more = corpora.read(paths["dev"]).slice(DEVELOPED)
        return unread(pa.concat_tables([corpora.read(paths["test"]), more]), parts()[0])

    makers = {
        "train": lambda: parts()[0],
        "judged": lambda: parts()[1],
        "dev": lambda: corpora.read(paths["dev"]).slice(0, DEVELOPED),
        "test": tested,
    }
    return {
        part: corpora.create_once(folder / f"{name}-{part}-of-{share:g}.parquet", make) for part, make in makers.items()
    }


def chosen(train: pa.Table) -> set[str]:
    """Return every eighth community, and those of the thesis."""
    return {*sorted(set(train["subreddit"].to_pylist()))[::EVERY], *PUBLISHED}


def by_community(scorer: Scorer, tables: Tables) -> list[Row]:
    """Return the perplexity of each community, out-of-vocabulary words included."""
    corpus = scorer.prepare(tables["judged"], unknown="group")
    sums: dict[str, tuple[int, Tally]] = {}
    for name, tally in zip(column_groups(tables["judged"], "subreddit"), text_tallies(scorer, corpus), strict=True):
        count, total = sums.get(name, (0, Tally()))
        sums[name] = count + 1, total + tally
    return [
        {"value": name, "count": count, "targets": tally.targets, "perplexity": tally.perplexity}
        for name, (count, tally) in sorted(sums.items())
    ]


def nearest(run: Run, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the nearest communities of each of `names` by the Euclidean distance of embeddings."""
    if run.model.encoder is None:
        return {}
    embeddings = Embeddings.from_run(run, "subreddit")
    near = {name: embeddings.neighbours([name], NEAREST, "distance") for name in names if name in embeddings.values}
    return {name: [row["near"] for row in rows] for name, rows in near.items()}


def measure(run: Run, tables: Tables) -> Measured:
    """Measure the perplexity of each community, and which ones are near each other."""
    return Measured({"by": by_community(run, tables), "nearest": nearest(run, NEIGHBOURS_OF)})


def ngram(config: Config, tables: Tables, folder: Path) -> Measured:
    """Measure the n-gram model of the best order."""
    best = best_ngram(config, tables, folder)
    figures = {"order": len(best.grams), "by": by_community(best, tables), "nearest": {}}
    return measure_scorer(best, tables) | Measured(figures)


tables = functools.partial(titles, name="reddit", chosen=chosen)
BASELINES = ngram_row(ngram)
EXPERIMENT = Experiment("subreddits", "thesis_reddit.toml", ROWS["subreddits"], tables, measure, baselines=BASELINES)
