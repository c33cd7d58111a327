"""Fills a database with a day at an airport, serves the page, and lets Chromium draw it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from airflow_provider_pgqueue.core import migrate
from airflow_provider_pgqueue.core.connection import connect
from airflow_provider_pgqueue.web import Links, Person, make_app
from tools import ROOT, chromium
from tools.postgres import Cluster, fleeting_place
from tools.screenshots.served import served

IMAGES: Final = ROOT / "docs" / "images"
STORY: Final = Path(__file__).parent / "story.sql"
LEVELS: Final = Path(__file__).parent / "levels.sql"


@dataclass(frozen=True)
class Picture:
    """A page at a size."""

    name: str
    path: str
    height: int = 900


PICTURES: Final = (
    Picture("queues", "/"),
    Picture("queue", "/queues/departures?span=day", height=1500),
    Picture("message", "/messages/{dead}", height=900),
)


def main() -> None:
    """Draw all pictures, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="which pictures (default: all)")
    parser.add_argument("--into", type=Path, default=IMAGES, help="the folder (default: docs/images)")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    with _database() as dsn, served(_app(dsn)) as address, chromium.browser() as tab:
        ids = _ids(dsn)
        for picture in PICTURES:
            if not given.names or picture.name in given.names:
                tab.resize(width=1240, height=picture.height)
                tab.open(address + picture.path.format_map(ids))
                tab.draw(given.into / f"{picture.name}.png")


@contextmanager
def _database() -> Iterator[str]:
    cluster = Cluster(fleeting_place() / "screenshots")
    try:
        cluster.start()
        dsn = cluster.create_database("airport")
        with psycopg.connect(dsn, autocommit=True) as conn:
            migrate(conn)
            conn.execute(STORY.read_bytes())
            for _ in range(2):  # the history is counted a minute late
                conn.execute("UPDATE messages.history_progress SET next_at = next_at - interval '1 minute'")
                conn.execute("SELECT messages.maintain()")
            conn.execute(LEVELS.read_bytes())
        yield dsn
    finally:
        cluster.destroy()


def _ids(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT max(id) FROM messages.dead_message WHERE result = 'failed'").fetchone()
    return {"dead": row[0] if row else 0}


def _app(dsn: str) -> object:
    links = Links(run=lambda dag_id, run_id: "#", task=lambda task: "#")
    return make_app(lambda: connect(dsn), lambda: Person("ann", True), secret=b"pictures", links=links)


if __name__ == "__main__":
    main()
