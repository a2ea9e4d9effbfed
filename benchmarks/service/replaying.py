"""Replay a table of texts through the running service and in Python, and compare the ranks.

The service neither stores nor learns a text that looks like a secret (`Privacy`); the library learns it. So three
systems are compared: the service, the blend of `factorcell replay`, and the blend that learns only what the service
stores. The first and the last must give every text the same rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.service.client import Connection, until_answered
from benchmarks.service.report import Row
from factorcell.completion.replay import summary, systems
from factorcell.completion.replay.streams import PrefixDraw, System, read_streams, replay
from factorcell.completion.suggestions import Suggestion
from factorcell.io import files
from factorcell.runs.run import read_config
from factorcell.service.privacy import Privacy

SERVED, WHOLE, SAME = "service", "blend", "blend without what is withheld"
DEADLINE_MS = 10_000  # longer than any search
COLUMNS = {
    "system": "system",
    "queries": "queries",
    "users": "users",
    "mrr": "MRR",
    "mrr_interval": "95 % interval",
    "success_10": "success at 10",
    "withheld": "texts withheld",
    "differing": "ranks that differ from the service",
}


@dataclass
class Served(System):
    """The service as a system of a replay; its state of a user is the id."""

    connection: Connection
    text: str
    columns: tuple[str, ...]
    withheld: int = 0

    def start(self, user: str) -> str:
        """Delete the user, so that the service has no earlier texts."""
        until_answered(self.connection, "DELETE", f"/v1/users/{quote(user, safe='')}")
        return user

    def suggest(self, user: str, prefix: str, row: Mapping[str, Any], k: int) -> list[Suggestion]:
        context = {name: row[name] for name in self.columns}
        body = {"query": prefix, "user": user, "limit": k, "deadline_ms": DEADLINE_MS, "context": context}
        answer = until_answered(self.connection, "POST", "/v1/complete", body)
        assert answer.status == 200, answer.body
        answer_json = answer.json
        assert answer_json["degraded"] is None, answer_json["degraded"]
        return [Suggestion(result["text"], result["score"], result["source"]) for result in answer_json["results"]]

    def learn(self, user: str, row: Mapping[str, Any]) -> str:
        context = {name: row[name] for name in self.columns}
        body = {"user": user, "text": row[self.text], "context": context}
        answer = until_answered(self.connection, "POST", "/v1/accept", body)
        assert answer.status == 200, answer.body
        self.withheld += answer.json["outcome"] == "withheld"
        assert answer.json["outcome"] in ("learned", "withheld"), answer.json
        return user


@dataclass
class WithoutWithheld(System):
    """Another system that does not learn texts that the service would withhold."""

    system: Any
    text: str
    columns: tuple[str, ...]

    def start(self, user: str) -> Any:
        return self.system.start(user)

    def suggest(self, state: Any, prefix: str, row: Mapping[str, Any], k: int) -> list[Suggestion]:
        suggestions: list[Suggestion] = self.system.suggest(state, prefix, row, k)
        return suggestions

    def learn(self, state: Any, row: Mapping[str, Any]) -> Any:
        withheld = Privacy().withhold_reason(row[self.text], {name: row[name] for name in self.columns})
        return state if withheld else self.system.learn(state, row)


def run(model: Path, port: int, table: Path, folder: Path, rows_per_user: int, every: int) -> list[Row]:
    """Return rows of the service at `port`, which serves the run `model`, and of the library."""
    user = read_config(model).data.user or "user"
    config, columns = systems.find_config_and_columns(model, ["blend"], user)
    streams = read_streams(
        table,
        config,
        user_column=user,
        context_columns=columns,
        max_rows_per_user=rows_per_user,
        draw=PrefixDraw(every),
    )
    blend = systems.open_systems(model, ["blend"], user_column=user, unknown="group")["blend"]
    served = Served(Connection(port), config.data.text, tuple(columns))
    replayed_systems: dict[str, System] = {
        SERVED: served,
        SAME: WithoutWithheld(blend, config.data.text, tuple(columns)),
        WHOLE: blend,
    }
    path = folder / "rows.jsonl"
    for _ in replay(replayed_systems, streams, path, text_column=config.data.text):
        pass
    served.connection.close()
    judged = files.read_rows(path)
    for judged_row in judged:  # only some systems have these, so the summary could not compare them
        judged_row["nats"] = judged_row["targets"] = None
    ranks = {
        name: {
            (judged_row["user"], judged_row["position"]): judged_row["rank"]
            for judged_row in judged
            if judged_row["system"] == name
        }
        for name in replayed_systems
    }
    figures = summary.summarise(judged, WHOLE)["rows"]
    return [
        {
            "what": "replay",
            "system": row["system"],
            "queries": row["queries"],
            "users": row["users"],
            "mrr": row["mrr"],
            "mrr_interval": None if row["mrr_low"] is None else f"{row['mrr_low']:.4f} to {row['mrr_high']:.4f}",
            "success_10": row["success_10"],
            "withheld": served.withheld if row["system"] == SERVED else None,
            "differing": sum(ranks[row["system"]][at] != rank for at, rank in ranks[SERVED].items()),
        }
        for row in figures
        if row["by"] == "all"
    ]
