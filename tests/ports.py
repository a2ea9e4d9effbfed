"""Free ports for servers of the tests."""

import os
import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port that no process listens on, below those that the system gives to connections."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 1000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("localhost", port))
            return port
    raise OSError("no port is free")
