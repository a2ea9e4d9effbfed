"""Table 5.2 of the thesis, figures 5.2 and 5.3: who is completed for better, by commit subjects in place of queries.

    python experiments/thesis_queries.py --data DATA --out OUT

Three models of characters; those that tell users apart learn new ones online, by Adadelta at the rate that suits the
users of dev. The users of the test wrote nothing that any model was trained on. A figure is a mean over their texts,
and what a user adds to it is kept, so intervals are over users.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import corpora
import study
from commits import first
from corpora import Tables
from factorcell import files
from factorcell.completion.completer import Completer
from factorcell.completion.online import LearningRule, tells_apart
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.streams import PrefixDraw, Stream, System, known_prefixes, read, replay
from factorcell.completion.replay.systems import MostPopular, Personalised, Unpersonalised
from factorcell.completion.replay.tuning import rates
from factorcell.evaluation.text_figures import Figures, TextSums
from factorcell.model.run import Run
from study import Experiment, Measured, Options, Row

TEXTS, FEWEST, MOST = 6000, 20, 400  # of dev and of the test, at least; texts of a user that is in one of them
TUNED, KEPT = 100, 200  # texts of each user of dev and of the test, the first ones
EVERY = 3  # one text of so many is completed
LATE = 50  # texts of a user that figure 5.3 leaves out

ROWS: dict[str, Options] = {
    "unadapted": {"model": {"adapt": []}},
    "concat": {"model": {"adapt": ["concat"]}},
    "factor": {"model": {"adapt": ["factor"]}},
}


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Three groups of users by a hash of their names; training texts of all the others."""

    @cache
    def parts() -> dict[str, pa.Table]:
        every = corpora.read(data / "commits" / "train.parquet")
        return corpora.split(every, "user", round(TEXTS * min(1.0, 10 * share)), range(FEWEST, MOST + 1))

    def cut(part: str) -> pa.Table:
        table = parts()[part]
        most = {"dev": TUNED, "test": KEPT}.get(part)
        return table.slice(0, round(len(table) * share)) if most is None else first(table, most)

    return {
        part: corpora.kept(folder / f"queries-{part}-{share:g}.parquet", partial(cut, part)) for part in corpora.PARTS
    }


def measure(run: Run, tables: Tables) -> Measured:
    """Reciprocal ranks of a run and, beside one that tells nobody apart, of the most popular completion."""
    data = run.config.data
    streams = read(tables["test"], data, most_rows=KEPT, draw=PrefixDraw(EVERY))
    row, systems = systems_of(run, tables)
    path = run.folder.with_name(f"{run.folder.name}-replay.jsonl")
    for _ in replay(systems, streams, path, text=data.text, known=known_prefixes(streams, tables["train"], data)):
        pass
    rows, figures = files.read_rows(path), Figures()
    for system in systems:
        figures |= ranks([one for one in rows if one["system"] == system], streams, system)
    return Measured({**row, **{name: sums.ratio for name, sums in figures.items()}}, figures)


def systems_of(run: Run, tables: Tables) -> tuple[Row, dict[str, System]]:
    """What is replayed, and the rate at which a run learns new users: that of the best perplexity on dev."""
    completer = Completer(run, unknown="group")
    if not tells_apart(run):
        return {}, {"mrr": Unpersonalised(completer, "user"), "mpc": MostPopular(Popularity.of(run))}
    tried = list(rates(run, read(tables["dev"], run.config.data, most_rows=TUNED), ["adadelta"]))
    best = min(tried[1:], key=lambda one: float(one["perplexity"]))
    LearningRule(best["optimiser"], best["rate"]).save(run)
    return {"online_rate": float(best["rate"])}, {"mrr": Personalised(run, completer)}


KINDS: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "_seen": lambda row: bool(row["seen"]),
    "_unseen": lambda row: not row["seen"],
    "_late": lambda row: int(row["position"]) >= LATE,
}


def ranks(rows: Sequence[Row], streams: Sequence[Stream], name: str) -> Figures:
    """What each user adds to mean reciprocal ranks: of all texts, of seen and unseen prefixes, of late texts."""
    places = {stream.user: number for number, stream in enumerate(streams)}
    figures: Figures = {}
    for kind, fits in KINDS.items():
        above, below = np.zeros(len(places)), np.zeros(len(places))
        for row in filter(fits, rows):
            above[places[row["user"]]] += 1 / row["rank"] if row["rank"] else 0.0
            below[places[row["user"]]] += 1
        figures[name + kind] = TextSums(f"users{kind} {len(places)} {below.sum():.0f}", above, below)
    return figures


EXPERIMENT = Experiment("queries", "commits_small.toml", ROWS, tables, measure)


def main(argv: Sequence[str]) -> int:
    """Train what the arguments ask for."""
    given = study.parser("Table 5.2: completion for new users.").parse_args(argv)
    return study.main(EXPERIMENT, given, [__file__, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
