"""The options that a message keeps, each with a value, and what became of them."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_pgqueue.core.message import TRAVELS

KEPT: dict[str, Any] = {
    "priority": 7,
    "headers": {"fair_key": "acme", "trace": "t-1"},
    "reference": "cart 7",
    "topic": "shop.eu",
    "group_key": "customer-7",
}


def lost(found: Any) -> dict[str, Any]:
    """Return what differs from what was published, in a row, an object of JSON or a message."""
    values = found if isinstance(found, dict) else {name: getattr(found, name, None) for name in TRAVELS}
    values = {name: json.loads(v) if name == "headers" and isinstance(v, str) else v for name, v in values.items()}
    return {name: values.get(name) for name in TRAVELS if values.get(name) != KEPT[name]}
