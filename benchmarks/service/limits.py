"""The mean reciprocal rank of a run whose searches are cut after a number of milliseconds."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.service.report import Row
from factorcell.completion.replay import systems
from factorcell.completion.replay.streams import PrefixDraw, read_streams, replay
from factorcell.runs.run import read_config

LIMITS = (None, 20.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.25)  # milliseconds; None: a search ends when it is complete
SYSTEMS = ("online", "blend")
COLUMNS = {"limit": "search, ms", "queries": "queries", **{name: f"MRR, {name}" for name in SYSTEMS}}


def measure(run: Path, table: Path, folder: Path, rows_per_user: int, every: int) -> Iterator[Row]:
    """Yield a row for each limit; the replays complete the same prefixes."""
    config = read_config(run)
    _, columns = systems.find_config_and_columns(run, SYSTEMS, config.data.user)
    read = partial(read_streams, table, config, user_column=config.data.user, context_columns=columns)
    for limit in LIMITS:
        streams = read(max_rows_per_user=rows_per_user, draw=PrefixDraw(every))
        seconds = None if limit is None else limit / 1000
        opened = systems.open_systems(run, SYSTEMS, user_column=config.data.user, unknown="group", seconds=seconds)
        rows = list(replay(opened, streams, folder / f"limit-{limit}.jsonl", text_column=config.data.text))
        ranks = {name: [row["rank"] for row in rows if row["system"] == name] for name in SYSTEMS}
        means = {name: sum(1 / rank for rank in of_name if rank) / len(of_name) for name, of_name in ranks.items()}
        yield {"what": "limits", "limit": limit, "queries": len(ranks["blend"]), **means}
