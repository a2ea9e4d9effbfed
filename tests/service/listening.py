"""Serves an application over a real socket, within the test process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from factorcell.service.http import server


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a free port of the loopback interface, and yield its address."""
    with server.bind_socket("127.0.0.1", 0) as port:
        uvicorn_server = server.uvicorn_server(app)
        thread = threading.Thread(target=uvicorn_server.run, args=([port],))
        thread.start()
        while not uvicorn_server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}/"
        finally:
            uvicorn_server.should_exit = True
            thread.join()
