"""Users who accept and complete over HTTP, and checks of the result.

Each sends an accept until it is answered, with one idempotency key, like real clients. In the end every user must have
the same state as if the same texts had been learned without other users, bit for bit, and no response may contain data
of another user.
"""

import queue
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.service.client import Connection, until_answered
from benchmarks.service.report import Row
from factorcell.completion.online import User
from factorcell.completion.popularity import History
from factorcell.service.engine import Service
from factorcell.service.privacy import Privacy
from tests.service.oracle import learned_by_library, learned_by_service

PATIENCE = 120.0  # seconds for which an accept is repeated
STORED = ("learned", "kept", "repeated")  # outcomes after which the text is stored
TYPED = 3  # length of the prefix that is completed

COLUMNS = {
    "what": "what",
    "people": "people",
    "requests": "requests",
    "accepts": "accepts",
    "unlike": "users that differ from learning alone, and other faults",
}

Texts = dict[int, str]  # number in the service -> text


@dataclass
class Book:
    """Acknowledged texts of each user, and the observed faults; thread-safe."""

    texts: dict[str, Texts] = field(default_factory=lambda: defaultdict(dict))
    faults: list[str] = field(default_factory=list)
    repeated: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self) -> int:
        """The number of acknowledged accepts."""
        with self._lock:
            return sum(map(len, self.texts.values()))

    def acknowledge(self, user: str, text: str, answer: dict[str, Any]) -> None:
        """Record the response to an accept."""
        with self._lock:
            if answer["outcome"] not in STORED:
                self.faults.append(f"{user}: {answer}")
            elif answer["number"] in self.texts[user]:
                self.faults.append(f"{user}: number {answer['number']} occurs twice")
            else:
                self.texts[user][answer["number"]] = text
                self.repeated += answer["outcome"] == "repeated"

    def check(self, connection: Connection, whole: bool = True) -> None:
        """Compare the service's users with the acknowledged texts; with `whole`, no other text may exist."""
        with self._lock:
            acknowledged = {user: dict(texts) for user, texts in self.texts.items()}
        for user, texts in acknowledged.items():
            answer = until_answered(connection, "GET", f"/v1/users/{user}")
            shown: Any = answer.json if answer.status == 200 else {"accepted": 0, "texts": []}
            stored = {row["number"]: row["text"] for row in shown["texts"]}
            if shown["accepted"] < max(texts):
                self.faults.append(f"{user}: {max(texts) - shown['accepted']} acknowledged texts are lost")
            if whole and shown["accepted"] != len(texts):
                self.faults.append(f"{user}: {shown['accepted']} texts for {len(texts)} accepts")
            oldest = min(stored, default=shown["accepted"] + 1)
            if any(stored.get(number) != text for number, text in texts.items() if number >= oldest):
                self.faults.append(f"{user}: texts differ from those acknowledged")

    def check_learned(self, service: Service) -> None:
        """Compare the learned state of every user with that of the same texts learned alone."""
        for user, texts in self.texts.items():
            service.relearn(user)
            learned = learned_by_library(service.model, [text for _, text in sorted(texts.items())])
            if _without_texts(learned_by_service(service, user)) != _without_texts(learned):
                self.faults.append(f"{user}: state differs from that of the same texts learned alone")


def accept(connection: Connection, book: Book, user: str, text: str, key: str) -> None:
    """Send an accept until it is answered."""
    body = {"user": user, "text": text, "idempotency_key": key}
    answer = until_answered(connection, "POST", "/v1/accept", body, PATIENCE)
    if answer.status != 200:
        book.faults.append(f"{user}: {answer.status} {answer.body!r:.200}")
        return
    book.acknowledge(user, text, answer.json)


def one_person(port: int, service: Service, texts: Sequence[str]) -> Row:
    """Let one writer per text accept for the same user at once; every accept is sent twice."""
    book = Book()

    def write(number: int) -> None:
        connection = Connection(port)
        accept(connection, book, "ann", texts[number], f"key {number}")
        again = until_answered(
            connection,
            "POST",
            "/v1/accept",
            {"user": "ann", "text": texts[number], "idempotency_key": f"key {number}"},
        ).json
        if again["outcome"] != "repeated" or book.texts["ann"].get(again["number"]) != texts[number]:
            book.faults.append(f"ann: the repeated accept gave {again}")
        connection.close()

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, range(len(texts))))
    finish(port, service, book)
    return {
        "what": f"{len(texts)} writers of one user",
        "people": 1,
        "requests": 2 * len(texts),
        "accepts": book.count,
        "unlike": len(book.faults),
        "faults": book.faults[:20],
    }


def many_people(
    port: int, service: Service, texts_by_user: Mapping[str, Sequence[str]], requests: int, threads: int = 16
) -> Row:
    """Send requests of many users in random order; every user has their own texts.

    Half of the requests are accepts, the others completions, profiles and exports, whose responses may not contain a
    text that another user accepted.
    """
    book, draw, connections = Book(), random.Random(requests), [Connection(port) for _ in range(threads)]
    free = queue.SimpleQueue[Connection]()
    owner = {text: user for user, texts in texts_by_user.items() for text in texts}
    people, places = list(texts_by_user), dict.fromkeys(texts_by_user, 0)
    turns: list[tuple[str, str, str]] = []
    for _ in range(requests):
        user, kind = draw.choice(people), draw.choice(("accept", "accept", "complete", "show", "show", "accept"))
        text = texts_by_user[user][places[user] % len(texts_by_user[user])]
        places[user] += kind == "accept"
        turns.append((user, kind, text))

    def turn(number: int) -> None:
        user, kind, text = turns[number]
        connection = free.get()
        if kind == "accept":
            accept(connection, book, user, text, f"key {number}")
        for suggested in [] if kind == "accept" else _texts(connection, user, kind, text):
            if owner.get(suggested, user) != user:
                book.faults.append(f"{kind} of {user} has a text of {owner[suggested]}")
        free.put(connection)

    for connection in connections:
        free.put(connection)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(turn, range(requests)))
    for connection in connections:
        connection.close()
    finish(port, service, book)
    return {
        "what": "interleaved requests",
        "people": len(people),
        "requests": requests,
        "accepts": book.count,
        "unlike": len(book.faults),
        "faults": book.faults[:20],
    }


def storable_texts(texts: Sequence[str]) -> list[str]:
    """Return the distinct texts that the service would store."""
    return [text for text in dict.fromkeys(texts) if not Privacy().withhold_reason(text)]


def distribute(texts: Sequence[str], people: int) -> dict[str, Sequence[str]]:
    """Distribute texts over `people` users."""
    return {f"user-{number}": texts[number::people] for number in range(people)}


@contextmanager
def working(threads: Sequence[threading.Thread], over: threading.Event) -> Iterator[None]:
    """Run threads until this context ends, then set `over` and wait for them."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def finish(port: int, service: Service, book: Book) -> None:
    """Run all checks at the end."""
    connection = Connection(port)
    book.check(connection)
    book.check_learned(service)
    connection.close()


def _texts(connection: Connection, user: str, kind: str, text: str) -> list[str]:
    """Return the texts in the response to a user that can only come from what that user accepted."""
    if kind == "complete":
        body = {"query": text[:TYPED], "user": user, "limit": 20, "deadline_ms": 5000}
        results = until_answered(connection, "POST", "/v1/complete", body).json["results"]
        return [result["text"] for result in results if "history" in result["source"]]
    answer = until_answered(connection, "GET", f"/v1/users/{user}")
    return [result["text"] for result in answer.json["texts"]] if answer.status == 200 else []


def _without_texts(user: bytes) -> bytes:
    """Return the state of a user without texts, as not all texts are stored."""
    return replace(User.from_bytes(user), history=History()).to_bytes()
