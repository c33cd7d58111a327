"""The folder `sql/`, and the queries that Python sends and no function of the schema answers, by name in its files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(rb"^-- name: (.*)\n", re.MULTILINE)


def sql_folder() -> Traversable:
    """Return `sql/`: inside the installed package, or next to it in a checkout."""
    packaged = files("airflow_provider_pgqueue") / "sql"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "sql"


def query(name: str) -> bytes:
    """Return the text below `-- name: NAME` in a file of `sql/queries/`, with the placeholders of psycopg."""
    try:
        return _queries()[name]
    except KeyError:
        raise LookupError(f"no file in sql/queries/ has a query {name!r}") from None


@cache
def _queries() -> dict[str, bytes]:
    return queries_of(file.read_bytes() for file in (sql_folder() / "queries").iterdir() if file.name.endswith(".sql"))


def queries_of(texts: Iterable[bytes]) -> dict[str, bytes]:
    """Return the queries of some files by name; LookupError if two have one name."""
    found: dict[str, bytes] = {}
    for text in texts:
        _, *parts = _NAME.split(text)
        for name, statement in zip(map(bytes.decode, parts[::2]), parts[1::2], strict=True):
            if name in found:
                raise LookupError(f"two queries in sql/queries/ have the name {name!r}")
            found[name] = statement.rstrip() + b"\n"
    return found
