"""Replay a table of texts through the running service and in Python, and compare the ranks.

The service neither stores nor learns a text that looks like a secret (`Privacy`); the library learns it. So three
systems are compared: the service, the blend of `factorcell replay`, and the blend that learns only what the service
stores. The first and the last must give every text the same rank.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.service.client import Connection, until_answered
from benchmarks.service.report import Row
from factorcell.completion.blend import Blend, new_suggester, rank_of
from factorcell.completion.online import Learner, User
from factorcell.completion.replay import (
    SUGGESTION_COUNT,
    Stream,
    context_columns,
    read_streams,
)
from factorcell.runs.run import Run
from factorcell.service.privacy import Privacy

SERVED, WHOLE, SAME = "service", "blend", "blend without what is withheld"
DEADLINE_MS = 10_000  # longer than any search
COLUMNS = {
    "system": "system",
    "queries": "queries",
    "mrr": "MRR",
    "withheld": "texts withheld",
    "differing": "ranks that differ from the service",
}


class Served:
    """The service at a port."""

    def __init__(self, port: int) -> None:
        self.connection, self.withheld = Connection(port), 0

    def delete(self, user: str) -> None:
        """Delete the user, so that the service has no earlier texts."""
        until_answered(self.connection, "DELETE", f"/v1/users/{quote(user, safe='')}")

    def suggest(self, user: str, prefix: str, context: dict[str, Any]) -> list[str]:
        body = {"query": prefix, "user": user, "limit": SUGGESTION_COUNT, "deadline_ms": DEADLINE_MS}
        answer = until_answered(self.connection, "POST", "/v1/complete", {**body, "context": context})
        assert answer.status == 200, answer.body
        assert answer.json["degraded"] is None, answer.json["degraded"]
        return [result["text"] for result in answer.json["results"]]

    def accept(self, user: str, text: str, context: dict[str, Any]) -> None:
        body = {"user": user, "text": text, "context": context}
        answer = until_answered(self.connection, "POST", "/v1/accept", body)
        assert answer.status == 200, answer.body
        assert answer.json["outcome"] in ("learned", "withheld"), answer.json
        self.withheld += answer.json["outcome"] == "withheld"


def run(model: Path, port: int, table: Path, rows_per_user: int, every: int) -> list[Row]:
    """Return rows of the service at `port`, which serves the run `model`, and of the library."""
    opened, served = Run.open(model), Served(port)
    data, columns = opened.config.data, context_columns(opened, opened.config.data.user)
    streams = read_streams(
        table,
        opened.config,
        user_column=data.user,
        context_columns=columns,
        max_rows_per_user=rows_per_user,
        every=every,
    )
    blend, learner = new_suggester(opened, unknown="group"), Learner(opened, unknown="group")
    assert isinstance(blend, Blend)
    ranks: dict[str, list[int | None]] = {SERVED: [], SAME: [], WHOLE: []}

    def replay_stream(stream: Stream) -> None:
        served.delete(stream.user)
        users: dict[str, User] = {SAME: learner.new(), WHOLE: learner.new()}
        for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
            text, context = row[data.text], {name: row[name] for name in columns}
            if prefix is not None:
                ranks[SERVED].append(rank_of(text, served.suggest(stream.user, prefix, context)))
                for name, user in users.items():
                    suggestions = blend.complete(prefix, user, context, SUGGESTION_COUNT)
                    ranks[name].append(rank_of(text, [suggestion.text for suggestion in suggestions]))
            served.accept(stream.user, text, context)
            for name in [WHOLE] if Privacy().withhold_reason(text, context) else users:
                (users[name],), _ = learner.learn([users[name]], [text], [context])

    for stream in streams:
        replay_stream(stream)
    served.connection.close()
    return [
        {
            "what": "replay",
            "system": name,
            "queries": len(of_name),
            "mrr": sum(1 / rank for rank in of_name if rank) / len(of_name),
            "withheld": served.withheld if name == SERVED else None,
            "differing": sum(rank != other for rank, other in zip(of_name, ranks[SERVED], strict=True)),
        }
        for name, of_name in ranks.items()
    ]
