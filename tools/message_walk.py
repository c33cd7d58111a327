"""Counts how far a reader has to walk: which files one message enters, and how often it moves between them.

    .venv/bin/python -m tools.message_walk [--moves]

One message is published by PgQueuePublishOperator and handled by PgQueueConsumeOperator, on a PostgreSQL of its own.
A move is a call into, or a return to, another file of the package; what Airflow and psycopg do is left out, and so is
the thread that renews leases.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final

from tools import ROOT, STATE

PACKAGE: Final = str(ROOT / "airflow_provider_pgqueue") + os.sep
os.environ.setdefault("AIRFLOW_HOME", str(STATE / "walk" / "airflow-home"))
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


class Walk:
    """The files of the package in the order in which the code of this thread went through them."""

    def __init__(self) -> None:
        self.places: list[str] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        here: FrameType | None = frame if event == "call" else frame.f_back if event == "return" else None
        if here is not None and here.f_code.co_filename.startswith(PACKAGE):
            place = here.f_code.co_filename.removeprefix(PACKAGE)
            if self.places[-1:] != [place]:
                self.places.append(place)

    @property
    def moves(self) -> Counter[tuple[str, str]]:
        return Counter(zip(self.places, self.places[1:], strict=False))


def walk() -> Walk:
    """Take one message all the way, after another one that imported what is imported late."""
    from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
    from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
    from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator

    publish = PgQueuePublishOperator(task_id="publish", queue_name="orders", message={"order_id": 7})
    consume = PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function=lambda message: None)
    PgQueueSetupOperator(task_id="setup", queues=["orders"], cron=False).execute(_context(0))
    for number in (1, 2):
        context, followed = _context(number), Walk()
        with followed.followed():
            published, counts = publish.execute(context), consume.execute(context)
        assert (published["published"], counts) == (1, {"success": 1}), (published, counts)
    return followed


def _context(number: int) -> Any:
    ti = SimpleNamespace(dag_id="orders", run_id=f"manual__{number}", task_id="work", map_index=-1, try_number=1)
    return {"ti": ti, "task_instance": ti}


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", action="store_true", help="also say how often it moves from where to where")
    arguments = parser.parse_args()
    from airflow.sdk.bases.operator import ExecutorSafeguard

    from airflow_provider_pgqueue.testing.private import private_server

    ExecutorSafeguard.test_mode = True
    Path(os.environ["AIRFLOW_HOME"]).mkdir(parents=True, exist_ok=True)
    with private_server() as uri:
        os.environ["AIRFLOW_CONN_PGQUEUE_DEFAULT"] = uri
        found = walk()
    for place, times in Counter(found.places).most_common():
        print(f"{times:5}  {place}")
    if arguments.moves:
        for (start, end), times in found.moves.most_common():
            print(f"{times:5}  {start} -> {end}")
    print(f"{len(set(found.places))} files, {found.moves.total()} moves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
