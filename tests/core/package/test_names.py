"""What the package calls things: the one face that users import from, the channels, and no name for two things."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import airflow_provider_pgqueue.core as face
from airflow_provider_pgqueue.core import channels
from tools import ROOT
from tools.chapters import functions

PACKAGE = ROOT / "airflow_provider_pgqueue"


def public_classes() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path.relative_to(PACKAGE).as_posix()


def test_the_face_is_what_users_need_and_no_more() -> None:
    assert sorted(face.__all__) == sorted(
        [
            *("connect", "connect_async", "run", "run_async", "verbs"),
            *("install", "migrate", "check_version"),
            *("Message", "DeadMessage", "Duplicate", "Unreadable"),
            *("Success", "Rejected", "Failed", "Retry", "RejectMessage", "Outcome"),
            *("Consumer", "Worker", "Lease"),
            *("Repair", "KEEP", "LEAVE", "Dismiss"),
            *("PgQueueError", "QueueNotFound", "QueuePaused", "LeaseLost"),
            *("InvalidMessage", "InvalidArgument", "InvalidOutcome", "HandlerBroken", "PermissionDenied"),
            "ConnectionFailed",
        ]
    )
    assert [name for name in face.__all__ if not getattr(face, name).__doc__] == []


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for name, place in public_classes():
        places[name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_channels_are_those_that_the_schema_notifies() -> None:
    channel_of = re.compile(r"pg_notify\(([^,]+),")
    notified = {
        name
        for one in functions().values()
        for given in channel_of.findall(one.text)
        for name in re.findall(r"'(\w+)'", given)
    }
    assert {value for name, value in vars(channels).items() if name.isupper()} == notified
