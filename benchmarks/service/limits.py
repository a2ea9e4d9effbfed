"""The mean reciprocal rank of a run whose searches are cut after a number of milliseconds."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.service.report import Row
from factorcell.completion.online import Learner
from factorcell.completion.replay import context_columns, open_systems, read_streams, replay
from factorcell.runs.run import Run

LIMITS = (None, 20.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.25)  # milliseconds; None: a search ends when it is complete
SYSTEMS = ("online", "blend")
COLUMNS = {"limit": "search, ms", "queries": "queries", **{name: f"MRR, {name}" for name in SYSTEMS}}


def measure(folder: Path, table: Path, rows_per_user: int, every: int) -> Iterator[Row]:
    """Yield a row for each limit; the replays complete the same prefixes."""
    run = Run.open(folder)
    data, learner = run.config.data, Learner(run, unknown="group")
    streams = read_streams(
        table,
        run.config,
        user_column=data.user,
        context_columns=context_columns(run, data.user),
        max_rows_per_user=rows_per_user,
        every=every,
    )
    for limit in LIMITS:
        seconds = None if limit is None else limit / 1000
        systems = open_systems(run, SYSTEMS, user_column=data.user, unknown="group", seconds=seconds)
        rows = list(replay(systems, streams, data.text, learner))
        ranks = {name: [row["rank"] for row in rows if row["system"] == name] for name in SYSTEMS}
        means = {name: sum(1 / rank for rank in of_name if rank) / len(of_name) for name, of_name in ranks.items()}
        yield {"what": "limits", "limit": limit, "queries": len(ranks["blend"]), **means}
