"""Concurrent writers: no accept is lost or applied twice, and all users are learned as by the library alone."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from tests.service.oracle import learned_by_library, learned_by_service, random_texts

OpenService = Callable[..., Service]


def test_sixty_four_writers_lose_nothing(open_service: OpenService, model: ServedModel) -> None:
    services, texts = [open_service(), open_service()], random_texts(1, 64)

    def write(number: int) -> None:
        for attempt in range(2):
            service = services[(number + attempt) % 2]
            assert service.accept("ann", texts[number], key=f"key {number}").number is not None

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(write, range(64)))
    profile = services[0].show("ann")
    assert profile is not None
    assert sorted(text.text for text in profile.texts) == sorted(texts)
    assert profile.accepted == 64
    assert learned_by_service(services[1], "ann") == learned_by_library(model, [text.text for text in profile.texts])


@pytest.mark.parametrize("requests", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_interleaved_users_are_learned_as_alone(open_service: OpenService, model: ServedModel, requests: int) -> None:
    services, users = [open_service(), open_service(cache_size=20)], [f"user {number}" for number in range(100)]
    generator = random.Random(requests)
    requests_by_number = [(generator.choice(users), text) for text in random_texts(2, requests)]

    def send(number: int) -> None:
        (user, text), service = requests_by_number[number], services[number % 2]
        accepted = service.accept(user, text, key=str(number))
        completions = service.complete(CompletionRequest(text[:1], user, limit=3))
        assert (accepted.outcome, completions.degraded) == ("learned", None)
        assert completions.user_version is not None
        assert accepted.user_version is not None
        assert completions.user_version >= accepted.user_version, "a user sees an accepted text at once"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(requests)))
    for user in {user for user, _ in requests_by_number}:
        profile = services[0].show(user)
        assert profile is not None
        texts = [text.text for text in profile.texts]
        assert sorted(texts) == sorted(text for other, text in requests_by_number if other == user)
        assert learned_by_service(services[0], user) == learned_by_library(model, texts)
