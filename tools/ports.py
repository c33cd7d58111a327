"""TCP ports of the loopback address."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ephemeral ports of the system, which a client may take while a server starts.
_PORTS: Final = range(20_000, 32_768)
_chance: Final = random.SystemRandom()  # hypothesis lets all processes draw the same


def is_free(port: int) -> bool:
    """Return whether a server may take this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(preferred: int = 0) -> int:
    """Return the preferred port if it is free now, else another free port."""
    if preferred and is_free(preferred):
        return preferred
    return next(port for port in _chance.sample(_PORTS, len(_PORTS)) if is_free(port))
