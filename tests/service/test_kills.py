"""`kill -9` in the middle of accepting: what was acknowledged is there, once, and in order."""

import random
from pathlib import Path

import pytest

from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.stores.opening import open_store
from tests.kills import forks, killed
from tests.service.oracle import alone, kept, words

USERS, KILLS = ("ann", "bob", "eve"), 60


@forks
@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_applied_twice(model: ServedModel, tmp_path: Path) -> None:
    model.probe()  # what it loads is loaded once for all copies of this process
    url, acknowledged, draw = f"sqlite:///{tmp_path / 'users.db'}", tmp_path / "acknowledged", random.Random(0)
    acknowledged.touch()
    texts, died = words(3, 100_000), 0

    def live() -> None:
        service = Service(model, open_store(url))
        begin = len(acknowledged.read_text().splitlines())
        with acknowledged.open("a") as file:
            for number in range(begin, len(texts)):
                outcome = service.accept(USERS[number % 3], texts[number], key=f"{number}").outcome
                file.write(f"{number} {outcome}\n")
                file.flush()

    for _ in range(KILLS):
        died += killed(live, after=draw.uniform(0.05, 0.4))
    assert died == KILLS
    rows = [row.split() for row in acknowledged.read_text().splitlines()]
    assert [int(number) for number, _ in rows] == list(range(len(rows)))
    assert len(rows) > KILLS
    service = Service(model, open_store(url))
    for place, user in enumerate(USERS):
        profile, mine = service.show(user), [texts[number] for number in range(len(rows)) if number % 3 == place]
        assert profile is not None
        there = [one.text for one in profile.texts]
        newest = mine[-len(there) :] if len(there) < len(mine) else mine
        assert there == newest or there[:-1] == newest[-len(there) + 1 :], "the last one may not have been acknowledged"
        lived = [texts[number] for number in range(place, 3 * profile.accepted, 3)]
        assert kept(service, user) == alone(model, lived)
    service.close()
