"""Users learned by the library alone, with which the service is compared."""

import random
from typing import Any

from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel


def learned_by_library(model: ServedModel, texts: list[Any]) -> bytes:
    """Return a user's state after the library learned the texts in order."""
    user = model.learner.new()
    for text in texts:
        text, context = text if isinstance(text, tuple) else (text, {})
        (user,), _ = model.learner.learn([user], [text], [context])
    return user.to_bytes()


def learned_by_service(service: Service, user: str) -> bytes:
    """Return the state of a user whom the service has fully learned."""
    record = service.store.read(user)
    learned = service.model.user(record)
    assert learned is not None
    assert service.model.has_learned(record) if record else True
    return learned.to_bytes()


def random_texts(seed: int, count: int) -> list[str]:
    generator = random.Random(seed)
    return [
        " ".join("".join(generator.choices("abc ", k=generator.randint(1, 9))).split()) or "a" for _ in range(count)
    ]
