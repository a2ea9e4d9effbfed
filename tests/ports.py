"""Free ports for servers in tests."""

import os
import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port that no process listens on, below the range that the system uses for outgoing connections."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 1000):
        with socket.socket() as server, suppress(OSError):
            server.bind(("localhost", port))
            return port
    raise OSError("no port is free")
