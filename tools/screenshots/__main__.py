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
    width: int = 1240
    height: int = 900
    dark: bool = False
    empty: bool = False


PICTURES: Final = (
    Picture("queues", "/"),
    Picture("queues-dark", "/", dark=True),
    Picture("queues-narrow", "/", width=412, height=900),
    Picture("queues-empty", "/", height=520, empty=True),
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
    with _databases() as (full, empty):
        ids = _ids(full)
        with served(_app(full)) as of_full, served(_app(empty)) as of_empty, chromium.browser() as tab:
            for picture in PICTURES:
                if not given.names or picture.name in given.names:
                    tab.look(width=picture.width, height=picture.height, dark=picture.dark)
                    tab.open((of_empty if picture.empty else of_full) + picture.path.format_map(ids))
                    tab.draw(given.into / f"{picture.name}.png")


@contextmanager
def _databases() -> Iterator[tuple[str, str]]:
    cluster = Cluster(fleeting_place() / "screenshots")
    try:
        cluster.start()
        full, empty = (cluster.create_database(name) for name in ("airport", "nothing"))
        for dsn in (full, empty):
            with psycopg.connect(dsn, autocommit=True) as conn:
                migrate(conn)
                conn.execute(STORY.read_bytes() if dsn == full else b"SELECT messages.drop_queue('default')")
                conn.execute("SELECT messages.upkeep()")
                if dsn == full:
                    conn.execute(LEVELS.read_bytes())
        yield full, empty
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
