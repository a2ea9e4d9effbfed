"""Check that users and texts deleted over HTTP are in no raw byte that the service has written.

Each id and each text has a unique mark, which is searched for in the files of the store with its log, in the log of the
server and in a new export. Marks of users who stay must be found, otherwise the search would prove nothing.
"""

import random
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.service.client import Connection, until_answered
from benchmarks.service.processes import restartable_server
from benchmarks.service.report import Row
from factorcell.service.http.application import Settings
from factorcell.service.http.server import ServerOptions
from tests.ports import free_port
from tests.service.stores.servers import Server

TEXTS = 3  # per user
LETTERS, LENGTH = "bcdfghjkmnpqrstvwxz", 12  # letters and length of a mark
MARK = re.compile(rf"(?=([{LETTERS}]{{{LENGTH}}}))".encode())  # a lookahead finds overlapping matches
THREADS = 8
COLUMNS = {
    "store": "store",
    "deleted": "users deleted",
    "forgotten": "texts forgotten",
    "stayed": "remaining marks found",
    "before": "deleted marks found before cleaning",
    "left": "found after cleaning",
}


def marks(count: int, seed: int) -> list[str]:
    """Return random words that occur nowhere else."""
    draw = random.Random(seed)
    return ["".join(draw.choices(LETTERS, k=LENGTH)) for _ in range(count)]


def run(name: str, server: Server, model: Path, folder: Path, count: int) -> Row:
    """Delete `count` users, and a text of as many others; the log and the exports are in `folder`."""
    port = free_port()
    options = ServerOptions(model, server.url, port=port, settings=Settings(deadline=5.0))
    ids, words = marks(3 * count, 1), marks(3 * count * TEXTS, 2)
    texts = {user: words[TEXTS * number : TEXTS * number + TEXTS] for number, user in enumerate(ids)}
    deleted, forgetful, stay = ids[:count], ids[count : 2 * count], ids[2 * count :]
    log, exports = folder / f"{name}.log", folder / f"{name}-exports"
    exports.mkdir()

    def live(user: str) -> None:
        """Accept texts, complete and export; then delete the user or forget a text, if the user is chosen for it."""
        connection = Connection(port)
        for number, text in enumerate(texts[user]):
            body = {"user": user, "text": text, "idempotency_key": f"{user} {number}"}
            until_answered(connection, "POST", "/v1/accept", body)
        until_answered(connection, "POST", "/v1/complete", {"query": texts[user][0][:3], "user": user})
        until_answered(connection, "GET", f"/v1/users/{user}")
        if user in deleted_users:
            until_answered(connection, "DELETE", f"/v1/users/{user}")
        elif user in forgetting:
            until_answered(connection, "POST", f"/v1/users/{user}/forget", {"text": texts[user][0]})
        connection.close()

    deleted_users, forgetting = set(deleted), set(forgetful)
    with restartable_server(options, log):
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(live, random.Random(0).sample(ids, len(ids))))
        connection = Connection(port)
        for user in forgetful:
            while not until_answered(connection, "GET", f"/v1/users/{user}").json["learned"]:
                pass  # the user is relearned in the background
        before = _raw(server, [log])
        (exports / "people.jsonl").write_bytes(_command("export", "--store", server.url).stdout)
        connection.close()
        server.clean()
        running = _raw(server, [log, *exports.iterdir()])
    after = _raw(server, [log, *exports.iterdir()])
    erased = [word for user in deleted for word in (user, *texts[user])] + [texts[user][0] for user in forgetful]
    remaining = [word for user in stay for word in (user, *texts[user])]
    return {
        "what": "deletions",
        "store": name,
        "deleted": len(deleted),
        "forgotten": len(forgetful),
        "bytes": len(after),
        "stayed": f"{len(_marks_in(running, remaining))} of {len(remaining)}",
        "before": len(_marks_in(before, erased)),
        "left": len(_marks_in(running, erased)) + len(_marks_in(after, erased)),
    }


def _marks_in(content: bytes, words: Sequence[str]) -> set[str]:
    """Return the marks that occur in the bytes."""
    return {match.decode() for match in MARK.findall(content)} & set(words)


def _raw(server: Server, more: Sequence[Path]) -> bytes:
    """Return all bytes of a store, and of other files."""
    return b"\n".join([server.raw(), *(path.read_bytes() for path in more)])


def _command(subcommand: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run `factorcell users` and return its output."""
    command = [sys.executable, "-m", "factorcell", "users", subcommand, *words]
    return subprocess.run(command, check=True, capture_output=True)
