"""Many writers at once: no accept is lost, none is applied twice, and everybody is as alone."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.learning import ServedModel
from tests.service.oracle import learned_by_library, learned_by_service, random_texts

Opened = Callable[..., Service]


def test_sixty_four_writers_lose_nothing(opened: Opened, model: ServedModel) -> None:
    services, texts = [opened(), opened()], random_texts(1, 64)

    def write(number: int) -> None:
        for attempt in range(2):
            service = services[(number + attempt) % 2]
            assert service.accept("ann", texts[number], key=f"key {number}").number is not None

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(write, range(64)))
    profile = services[0].show("ann")
    assert profile is not None
    assert sorted(one.text for one in profile.texts) == sorted(texts)
    assert [one.number for one in profile.texts] == list(range(1, 65))
    assert learned_by_service(services[1], "ann") == learned_by_library(model, [one.text for one in profile.texts])


@pytest.mark.parametrize("requests", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_interleaved_people_are_as_alone(opened: Opened, model: ServedModel, requests: int) -> None:
    services, people = [opened(), opened(cache_size=20)], [f"user {number}" for number in range(100)]
    draw = random.Random(requests)
    turns = [(draw.choice(people), text) for text in random_texts(2, requests)]

    def turn(number: int) -> None:
        (user, text), service = turns[number], services[number % 2]
        accepted = service.accept(user, text, key=str(number))
        found = service.complete(CompletionRequest(text[:1], user, limit=3))
        assert (accepted.outcome, found.degraded) == ("learned", None)
        assert found.user_version is not None
        assert accepted.user_version is not None
        assert found.user_version >= accepted.user_version, "who accepted a text sees it at once"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(requests)))
    for user in {user for user, _ in turns}:
        profile = services[0].show(user)
        assert profile is not None
        texts = [one.text for one in profile.texts]
        assert sorted(texts) == sorted(text for who, text in turns if who == user)
        assert learned_by_service(services[0], user) == learned_by_library(model, texts)
