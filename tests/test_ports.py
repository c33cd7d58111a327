"""The ports of the servers that the tests start."""

from __future__ import annotations

import socket

from tools.ports import free_port, is_free


def test_the_port_of_a_server_that_restarts_is_given_to_no_client_meanwhile() -> None:
    assert all(port < 32_768 and is_free(port) for port in (free_port() for _ in range(20)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]
