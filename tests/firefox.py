"""Firefox, driven by Marionette: its own protocol of JSON messages over a socket, with the commands of WebDriver."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.ports import free_port

PROGRAMS = ("firefox-esr", "firefox")
START_SECONDS = 120
SCRIPT_MILLISECONDS = 200_000
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of a reference to an element (W3C WebDriver)
ENTER = "\ue007"


def firefox_path() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Firefox:
    """A connection to a running Firefox."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.count, self.rest = connection, 0, b""
        self._receive()  # a greeting

    def send(self, command: str, **parameters: Any) -> Any:
        """Return the result of a command of WebDriver; raise an error if it fails."""
        self.count += 1
        content = json.dumps([0, self.count, f"WebDriver:{command}", parameters]).encode()
        self.connection.sendall(f"{len(content)}:".encode() + content)
        _, number, error, result = self._receive()
        assert number == self.count
        if error is not None:
            raise RuntimeError(f"Firefox: {command}: {error['error']}: {error['message']}")
        return result

    def _receive(self) -> Any:
        """Return a message: its length in bytes, a colon, and JSON."""
        while b":" not in self.rest:
            self._read()
        head, _, self.rest = self.rest.partition(b":")
        while len(self.rest) < int(head):
            self._read()
        content, self.rest = self.rest[: int(head)], self.rest[int(head) :]
        return json.loads(content)

    def _read(self) -> None:
        part = self.connection.recv(1 << 20)
        if not part:
            raise ConnectionError("Firefox closed the connection")
        self.rest += part


@contextmanager
def open_firefox() -> Iterator[Firefox]:
    """Yield a Firefox with a new profile, and close it."""
    port, program = free_port(), firefox_path()
    assert program is not None
    with TemporaryDirectory(prefix="firefox-", ignore_cleanup_errors=True) as profile:
        (Path(profile) / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        command = [program, "--headless", "--marionette", "--no-remote", "--profile", profile]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                with connect(port, process) as connection:
                    firefox = Firefox(connection)
                    firefox.send("NewSession", capabilities={})
                    firefox.send("SetTimeouts", script=SCRIPT_MILLISECONDS, pageLoad=60_000, implicit=0)
                    yield firefox
            finally:
                process.terminate()


def connect(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    """Return a connection to a Firefox that starts."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=300)
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.2)
