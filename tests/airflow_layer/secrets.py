"""A secrets backend, which is how Airflow is told where to look for connections: here, while a test lets it."""

from __future__ import annotations

import threading
from typing import ClassVar

from airflow.secrets.base_secrets import BaseSecretsBackend


class Vault(BaseSecretsBackend):
    """Knows connections by their ids, and keeps whoever asks waiting while it is closed.

    Airflow keeps one for the rest of the process, so all have the same content, and an empty one changes nothing.
    """

    connections: ClassVar[dict[str, str]] = {}
    open: ClassVar[threading.Event] = threading.Event()
    asked: ClassVar[list[str]] = []

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        """Return a connection as JSON; None for one that is unknown when the answer is given."""
        self.asked.append(conn_id)
        self.open.wait()
        return self.connections.get(conn_id)
