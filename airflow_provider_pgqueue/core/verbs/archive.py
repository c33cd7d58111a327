"""Finishing messages, and finding what is finished."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from airflow_provider_pgqueue.core.client import JsonText, Statement, list_of, to_json, unless_lost
from airflow_provider_pgqueue.core.message import ArchivedMessage
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success


def archive(
    lock_token: UUID,
    ids: Collection[int],
    *,
    result: str = "success",
    details: str | None = None,
    handled_by: str | None = None,
    outcomes: Mapping[int, Success | Rejected | Failed] | None = None,
    output: Any = None,
    failure: Mapping[str, Any] | None = None,
) -> Statement[list[int]]:
    """Finish leased messages in one statement; `outcomes` overrides the rest for single ids.

    LeaseLost names those that were lost; the others are archived.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "result": result,
        "details": details,
        "handled_by": handled_by,
        "outcomes": _object({str(id_): _as_result(outcome) for id_, outcome in outcomes.items()}) if outcomes else None,
        "output": None if output is None else to_json(output),
        "failure": None if failure is None else to_json(failure),
    }
    types = {"ids": "bigint[]", "outcomes": "jsonb", "output": "jsonb", "failure": "jsonb"}
    return Statement("archive", arguments, unless_lost(ids), types)


def _as_result(outcome: Success | Rejected | Failed) -> JsonText:
    match outcome:
        case Success(details, output):
            said = {"result": "success", "details": details, "output": output}
        case Rejected(reason, output):
            said = {"result": "rejected", "details": reason, "output": output}
        case Failed(details, failure, output):
            said = {"result": "failed", "details": details, "failure": failure, "output": output}
    return _object({key: value for key, value in said.items() if value is not None})


def _object(members: Mapping[str, Any]) -> JsonText:
    # By hand, so that an output that is text already stays as it is.
    return JsonText("{" + ",".join(f"{to_json(key)}:{to_json(value)}" for key, value in members.items()) + "}")


def search_archive(
    queue_name: str | None = None,
    *,
    id: int | None = None,
    reference: str | None = None,
    result: str | None = None,
    fingerprint: str | None = None,
    archived_from: datetime | None = None,
    archived_to: datetime | None = None,
    max_messages: int = 100,
) -> Statement[list[ArchivedMessage]]:
    """Find finished messages, newest first, without their bodies. BeforeArchive for a time that is not kept."""
    return Statement("search_archive", dict(locals()), list_of(ArchivedMessage))
