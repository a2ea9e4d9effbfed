"""A client rides over a server that is killed and started again."""

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from factorcell.client import Client, Patience
from factorcell.service.stores.opening import open_store
from tests.processes import free_port
from tests.service import runs
from tests.service.http.server_process import serving

TEXTS = [f"a{number}" for number in range(200)]
KILLS = 4


@pytest.mark.slow
def test_accepts_survive_kills(tmp_path: Path) -> None:
    runs.make(tmp_path / "run")
    port = free_port()
    draw, answered = random.Random(0), list[str]()

    def accept() -> None:
        patience = Patience(deadline=300, tries=10_000, first=0.05, longest=0.5)
        with Client(f"http://127.0.0.1:{port}", patience=patience) as client:
            answered.extend(client.accept(user="ann", text=text).outcome for text in TEXTS)

    person = threading.Thread(target=accept)
    person.start()
    for _ in range(KILLS):
        with serving(tmp_path / "run", tmp_path / "users.db", "--port", str(port)) as (process, _):
            person.join(draw.uniform(0.1, 0.6))
            os.killpg(process.pid, signal.SIGKILL)
    with serving(tmp_path / "run", tmp_path / "users.db", "--port", str(port)):
        person.join()
    store = open_store(f"sqlite:///{tmp_path / 'users.db'}")
    record = store.read("ann")
    store.close()
    assert len(answered) == len(TEXTS)
    assert set(answered) <= {"learned", "kept", "repeated"}
    assert record is not None
    assert [one.text for one in record.texts] == TEXTS
    assert record.accepted == len(TEXTS)
