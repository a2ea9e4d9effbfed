"""An application that is served over a real socket, within the process of the tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from factorcell.service.http import server


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    with server.bind_socket("127.0.0.1", 0) as port:
        serving = server.uvicorn_server(app)
        thread = threading.Thread(target=serving.run, args=([port],))
        thread.start()
        while not serving.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}/"
        finally:
            serving.should_exit = True
            thread.join()
