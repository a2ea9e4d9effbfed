"""People learned by the library alone: what the service is held against."""

import random
from typing import Any

from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel


def learned_by_library(model: ServedModel, texts: list[Any]) -> bytes:
    user = model.learner.new()
    for text in texts:
        text, context = text if isinstance(text, tuple) else (text, {})
        (user,), _ = model.learner.learn([user], [text], [context])
    return user.to_bytes()


def learned_by_service(service: Service, user: str) -> bytes:
    record = service.store.read(user)
    known = service.model.user(record)
    assert known is not None
    assert service.model.has_learned(record) if record else True
    return known.to_bytes()


def random_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join("".join(draw.choices("abc ", k=draw.randint(1, 9))).split()) or "a" for _ in range(count)]
