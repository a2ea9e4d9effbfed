"""Small versions of benchmarks/service: nothing is lost, duplicated, left behind or mixed up between users."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.service import deletions, kills, outages, replaying
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from tests.service import runs
from tests.service.listening import listening
from tests.service.oracle import random_texts
from tests.service.stores.servers import SERVERS, Server

USERS = ("ann", "bob", "eve")


@pytest.fixture
def port(model: ServedModel, tmp_path: Path) -> Iterator[int]:
    service = Service(model, open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    with listening(application(Site(service, Settings(deadline=5.0)))) as address:
        yield int(address.rstrip("/").rpartition(":")[2])


@pytest.fixture
def served(tmp_path: Path) -> ServedModel:
    return ServedModel(runs.make_run(tmp_path / "run"))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as started:
        yield started


@pytest.mark.slow
def test_replay_over_http_ranks_as_the_library(port: int, served: ServedModel, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{USERS[index % 3]},{text},{index},Oslo" for index, text in enumerate(random_texts(4, 60))]
    table.write_text("\n".join(["who,text,time,city", *rows]) + "\n", encoding="utf-8")
    results = replaying.run(served.run.folder, port, table, rows_per_user=1000, every=1)
    assert [row["system"] for row in results] == [replaying.SERVED, replaying.SAME, replaying.WHOLE]
    assert [row["differing"] for row in results] == [0, 0, 0]
    assert results[0]["mrr"] > 0


@pytest.mark.slow
def test_kills_neither_lose_nor_duplicate_texts(server: Server, served: ServedModel, tmp_path: Path) -> None:
    row = kills.run("store", server, served, tmp_path, kills=8)
    assert row["accepts"] > 8
    assert row["faults"] == []


@pytest.mark.slow
def test_service_survives_stopped_and_killed_stores(server: Server, served: ServedModel, tmp_path: Path) -> None:
    if server.program is None:
        pytest.skip("SQLite has no server")
    for outage in (outages.stopped, outages.killed):
        row = outages.run("store", server, served, tmp_path, outage, seconds=2.0)
        assert (row["faults"], row["acknowledged"]) == ([], 0)
        assert row["completed"] == row["degraded"] > 10
        assert row["ready"] == "0%"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_service_survives_a_full_disk(served: ServedModel, tmp_path: Path) -> None:
    with outages.small_disk(tmp_path / "disk", "8m") as disk, SERVERS["sqlite"](disk) as server:
        row = outages.run("sqlite", server, served, tmp_path, outages.disk_full, seconds=2.0)
    assert (row["faults"], row["acknowledged"], row["degraded"], row["ready"]) == ([], 0, 0, "0%")
    assert row["completed"] > 10


@pytest.mark.slow
def test_deleted_data_leaves_no_trace(server: Server, served: ServedModel, tmp_path: Path) -> None:
    row = deletions.run("store", server, served.run.folder, tmp_path, count=20)
    assert (row["stayed"], row["left"]) == ("80 of 80", 0)
    assert row["before"] > 0
