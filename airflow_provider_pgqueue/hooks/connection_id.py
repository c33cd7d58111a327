"""Ids of Airflow connections: a URI in the place of one would be written, with its password, into the log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_pgqueue.core.errors import InvalidArgument

CONNECTION_STRING: Final = re.compile("://|[@=]")
NAME_IT: Final = "Define an Airflow connection, and give its id."


def check_connection_ids(arguments: Mapping[str, Any], error: type[InvalidArgument] = InvalidArgument) -> None:
    """Raise, without the value, if an argument whose name ends with `conn_id` is a URI or a connection string."""
    for name, value in arguments.items():
        if name.endswith("conn_id") and _is_connection_string(value):
            raise error(f"{name} is a URI or a connection string", NAME_IT)


def _is_connection_string(value: Any) -> bool:
    """Return whether this is what a driver takes, and no id; of a template only what it surely makes."""
    if not isinstance(value, str):
        return False
    is_template = "{{" in value or "{%" in value
    return "://" in value if is_template else CONNECTION_STRING.search(value) is not None
