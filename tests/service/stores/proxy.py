"""A TCP proxy that delays the responses of a server."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards both directions. Before each chunk of a response it waits `delay()` seconds."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.target = parts.hostname or "", parts.port or 0
        self.delay: Callable[[], float] = lambda: 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.url = url.replace(f":{parts.port}", f":{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for item in self._sockets:
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self.target)
                self._sockets += [client, server]
                for source, sink, late in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._forward, args=(source, sink, late), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_response: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                time.sleep(self.delay() if is_response else 0.0)
                sink.sendall(chunk)
        for item in (source, sink):
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
