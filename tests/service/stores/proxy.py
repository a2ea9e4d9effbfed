"""A connection between a client and a server of TCP whose answers come late, or not at all."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Hands on what both sides say; before each piece of an answer it waits for `delay()` seconds.

    It ends the connection in place of a piece where `cuts()` says so.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.target = parts.hostname or "", parts.port or 0
        self.delay: Callable[[], float] = lambda: 0.0
        self.cuts: Callable[[], bool] = lambda: False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.url = url.replace(f":{parts.port}", f":{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self.target)
                self._sockets += [client, server]
                for source, sink, late in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._hand_on, args=(source, sink, late), daemon=True).start()

    def _hand_on(self, source: socket.socket, sink: socket.socket, late: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                time.sleep(self.delay() if late else 0.0)
                if late and self.cuts():
                    break
                sink.sendall(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
