"""Tables 3.4 and 3.5 of the thesis: which communities gain from being known, and which lie near each other.

    python experiments/thesis_subreddits.py --data DATA --out OUT

Some titles of every eighth community are held out of training: those to develop on are too few for a perplexity each.
Beside the two models of the thesis are control codes and n-grams.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import study
import tacl
import titles
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.embeddings import Embeddings
from factorcell.evaluation.groups import column_groups
from factorcell.evaluation.perplexity import text_tallies
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer, Tally
from study import Experiment, Measured, Row
from tacl_baselines import NGRAM, best_ngram, counted, scored
from thesis_sixteen import combined

PUBLISHED = (
    *("FlashTV", "shield", "GlobalOffensive", "nba", "SquaredCircle", "Fitness", "hockey", "leagueoflegends"),
    *("pcmasterrace", "nfl", "AskWomen", "news", "worldnews", "AskMen", "gaming", "pics", "videos", "funny"),
)
NEIGHBOURS_OF = (
    *("pittsburgh", "Python", "nba", "Christianity", "StarWars"),
    *("photography", "Physics", "germany", "Cooking", "running"),
)
EVERY, NEAREST = 8, 4
UNADAPTED, ADAPTED, CODES = "unadapted", "concat+low_rank+hash", "prefix"
ROWS = {
    UNADAPTED: combined(()),
    ADAPTED: combined(("concat", "low_rank", "hash")),
    CODES: tacl.options(CODES),
    NGRAM: combined(()),
}


def chosen(train: pa.Table) -> set[str]:
    """Every eighth community, and those of the thesis."""
    return {*sorted(set(train["subreddit"].to_pylist()))[::EVERY], *PUBLISHED}


def tables(data: Path, folder: Path, share: float) -> Tables:
    """The titles to train on, those to develop on, and those of which each community's perplexity is taken."""
    return titles.tables(data, folder, share, "reddit", chosen)


def by_community(scorer: Scorer, tables: Tables) -> list[Row]:
    """Nats and targets of each community, out-of-vocabulary ones too."""
    corpus = scorer.prepare(tables["judged"], unknown="group")
    sums: dict[str, tuple[int, Tally]] = {}
    for name, tally in zip(column_groups(tables["judged"], "subreddit"), text_tallies(scorer, corpus), strict=True):
        count, total = sums.get(name, (0, Tally()))
        sums[name] = count + 1, total + tally
    return [
        {"value": name, "count": count, "targets": tally.tokens, "perplexity": tally.perplexity}
        for name, (count, tally) in sorted(sums.items())
    ]


def nearest(run: Run, names: Sequence[str]) -> dict[str, list[str]]:
    """The `NEAREST` communities of each of `names` by Euclidean distance of their embeddings; none without any."""
    if run.model.encoder is None:
        return {}
    found = Embeddings.of(run, "subreddit")
    near = {name: found.neighbours([name], NEAREST, "distance") for name in names if name in found.values}
    return {name: [one["near"] for one in rows] for name, rows in near.items()}


def measure(run: Run, tables: Tables) -> Measured:
    """What tables 3.4 and 3.5 are made of."""
    return Measured({"by": by_community(run, tables), "nearest": nearest(run, NEIGHBOURS_OF)})


def ngram(config: Config, tables: Tables, folder: Path) -> Measured:
    """Perplexities of the n-gram model of the best order, that of each community among them."""
    best = best_ngram(config, tables, folder)
    told = {"order": len(best.grams), "by": by_community(best, tables), "nearest": {}}
    return scored(best, tables) | Measured(told)


EXPERIMENT = Experiment("subreddits", "thesis_reddit.toml", ROWS, tables, measure, baselines=counted(ngram))
main = study.script(__file__, __doc__, EXPERIMENT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
