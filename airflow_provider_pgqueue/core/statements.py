"""One value per verb of the queue: which function, which arguments, what comes back.

A statement knows no connection. `client.run` and `client.run_async` run it, so each verb is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack, cast
from uuid import UUID

from airflow_provider_pgqueue.core.body import to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument, LeaseLost
from airflow_provider_pgqueue.core.message import (
    Archived,
    DeadCause,
    DeadMessage,
    DeadQueue,
    Duplicate,
    Finding,
    Message,
    QueueStatus,
    ReadyQueue,
    Requeued,
    Row,
    Schedule,
)
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success

T = TypeVar("T")
_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A call of one function of schema `messages`; `decode` makes the result of all its rows."""

    function: str
    arguments: Mapping[str, Any]
    decode: Callable[[list[Row]], T]
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def sql(self) -> str:
        """The text to run: named arguments, so that the functions may grow new ones; NULL leaves the default."""
        named = ", ".join(
            f'"{name}" => %({name})s' + (f"::{self.types[name]}" if name in self.types else "") for name in self.given
        )
        return f"SELECT * FROM messages.{self.function}({named})"  # noqa: S608 names from this module only

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not left to the default of the function."""
        return {name: value for name, value in self.arguments.items() if value is not None}


def _nothing(rows: list[Row]) -> None:
    return None


def _only(row: Row) -> Any:
    (value,) = row.values()
    return value


def _one(rows: list[Row]) -> Any:
    return _only(rows[0])


def _onlys(rows: list[Row]) -> list[Any]:
    return [_only(row) for row in rows]


def _ids(rows: list[Row]) -> list[int]:
    return _onlys(rows)


def _list(kind: Callable[[Row], T]) -> Callable[[list[Row]], list[T]]:
    return lambda rows: [kind(row) for row in rows]


def _unless_lost(ids: Collection[int]) -> Callable[[list[Row]], list[int]]:
    """Decode ids; raise LeaseLost for those that were asked for and did not come back."""

    def decode(rows: list[Row]) -> list[int]:
        done = _ids(rows)
        if lost := set(ids) - set(done):
            raise LeaseLost(lost)
        return done

    return decode


# Queues ---------------------------------------------------------------------------------------------------------------


class Policy(TypedDict, total=False):
    """What can be said about a queue; what is left out keeps its value, or the default of a new queue.

    `max_attempts` deliveries at most; `lease_for` when the consumer does not say; `notify` is `always`, `gated` or
    `off`; `backoff_first` is the pause after the first failure, which doubles up to `backoff_max`; `dedup_window` is
    how long a dedup key is remembered; `retention` of finished messages; `on_dead_head` says whether a dead message
    blocks its group (`block`) or not (`skip`); `max_leased` messages at once, `max_depth` unfinished ones. In
    `alter_queue` zero lifts `retention`, `max_leased` and `max_depth`.
    """

    max_attempts: int | None
    lease_for: timedelta | None
    notify: str | None
    max_body_bytes: int | None
    paused: bool | None
    backoff_first: timedelta | None
    backoff_max: timedelta | None
    dedup_window: timedelta | None
    retention: timedelta | None
    on_dead_head: str | None
    max_leased: int | None
    max_depth: int | None


def create_queue(queue_name: str, **policy: Unpack[Policy]) -> Statement[bool]:
    """Create a queue: True if it is new, False (and nothing changed) if it exists."""
    return Statement("create_queue", {"queue_name": queue_name, **policy}, _one)


def alter_queue(queue_name: str, **policy: Unpack[Policy]) -> Statement[None]:
    """Change the policy of a queue, for waiting messages too; None keeps a value."""
    return Statement("alter_queue", {"queue_name": queue_name, **policy}, _nothing)


def pause_queue(queue_name: str) -> Statement[None]:
    """Let nothing be leased any more; publishing goes on."""
    return Statement("pause_queue", dict(locals()), _nothing)


def resume_queue(queue_name: str) -> Statement[None]:
    """End a pause and wake the consumers."""
    return Statement("resume_queue", dict(locals()), _nothing)


def purge_queue(queue_name: str) -> Statement[int]:
    """Delete the messages that nobody holds, without archiving them; how many there were."""
    return Statement("purge_queue", dict(locals()), _one)


def drop_queue(queue_name: str, *, force: bool = False) -> Statement[int]:
    """Remove a queue; how many unfinished messages went with it, which needs `force` (else QueueNotEmpty)."""
    return Statement("drop_queue", dict(locals()), _one)


def status(queue_name: str | None = None) -> Statement[list[QueueStatus]]:
    """Each queue in numbers; counts every message."""
    return Statement("status", dict(locals()), _list(QueueStatus.from_row))


# Publish --------------------------------------------------------------------------------------------------------------


class Options(TypedDict, total=False):
    """What can be said about a message beside its body.

    `priority` from -100 to 100, higher first; `delay` or `visible_at`, not leased before; `expires_in`, archived as
    `expired` if nobody handled it by then; `headers`, an object; `reference`, a text to find it by; `topic`, words
    with dots; `group_key`, one at a time and in order; `dedup_key`, published once in `dedup_window` (the queue's if
    not given), where `on_conflict` `replace` puts the new body in the place of one that still waits.
    """

    priority: int
    delay: timedelta
    expires_in: timedelta | None
    headers: Mapping[str, Any] | None
    reference: str | None
    visible_at: datetime | None
    topic: str | None
    group_key: str | None
    dedup_key: str | None
    dedup_window: timedelta | None
    on_conflict: str


class BatchOptions(TypedDict, total=False):
    """What can be said about the messages of a batch: as Options, and sequences with a value or None for each body."""

    priority: int
    delay: timedelta
    expires_in: timedelta | None
    headers: Mapping[str, Any] | None
    visible_at: datetime | None
    references: Sequence[str | None] | None
    topics: Sequence[str | None] | None
    group_keys: Sequence[str | None] | None
    dedup_keys: Sequence[str | None] | None
    dedup_window: timedelta | None
    on_conflict: str


class TopicOptions(TypedDict, total=False):
    """What can be said about a message that is published to a topic: as Options."""

    priority: int
    delay: timedelta
    expires_in: timedelta | None
    headers: Mapping[str, Any] | None
    reference: str | None
    visible_at: datetime | None
    group_key: str | None
    dedup_key: str | None


_BATCH_TYPES: Final = {
    "messages": "jsonb",
    "headers": "jsonb",
    "references": "text[]",
    "topics": "text[]",
    "group_keys": "text[]",
    "dedup_keys": "text[]",
}


def publish(queue_name: str, body: Any, **options: Unpack[Options]) -> Statement[int]:
    """Publish one message; its id, as a Duplicate if its dedup key is remembered. Acknowledged at the commit."""
    if options.get("dedup_key") is not None:
        batch = publish_batch(queue_name, [body], **_as_batch(options))
        return Statement(batch.function, batch.arguments, lambda rows: batch.decode(rows)[0], batch.types)
    arguments = {
        **options,
        "queue_name": queue_name,
        "message": to_json(body),
        "headers": _json(options.get("headers")),
    }
    return Statement("publish", arguments, _one, {"message": "jsonb", "headers": "jsonb"})


def publish_batch(queue_name: str, bodies: Iterable[Any], **options: Unpack[BatchOptions]) -> Statement[list[int]]:
    """Publish many messages in one statement, all or none; their ids in order, of duplicates as a Duplicate."""
    return publish_texts(queue_name, [to_json(body) for body in bodies], **options)


def publish_texts(queue_name: str, texts: Sequence[str], **options: Unpack[BatchOptions]) -> Statement[list[int]]:
    """Do the same for bodies that are JSON texts already."""
    if not texts:
        raise InvalidArgument("the batch is empty. Give at least one body.")
    # One JSON parameter: three times faster through the driver than an array of texts.
    arguments = {**options, "queue_name": queue_name, "messages": f"[{','.join(texts)}]"}
    arguments["headers"] = _json(options.get("headers"))
    for name in ("references", "topics", "group_keys", "dedup_keys"):
        if (values := arguments.get(name)) is not None:
            arguments[name] = list(values)  # type: ignore[call-overload]
    if arguments.get("dedup_keys") is None:
        return Statement("publish_batch", arguments, _ids, _BATCH_TYPES)
    return Statement("publish_deduplicated", arguments, _ids_or_duplicates, _BATCH_TYPES)


def _as_batch(options: Options) -> BatchOptions:
    """Give options of one message as those of a batch of one."""
    many = {"reference": "references", "topic": "topics", "group_key": "group_keys", "dedup_key": "dedup_keys"}
    return cast(
        "BatchOptions",
        {many.get(name, name): [value] if name in many else value for name, value in options.items()},
    )


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else to_json(value)


def _ids_or_duplicates(rows: list[Row]) -> list[int]:
    return [Duplicate(row["id"]) if row["duplicate"] else row["id"] for row in rows]


# Topics ---------------------------------------------------------------------------------------------------------------


def publish_topic(topic: str, body: Any, **options: Unpack[TopicOptions]) -> Statement[dict[str, int]]:
    """Publish one message to each queue that the topic reaches; the ids by queue. Unroutable if it reaches none."""
    arguments = {**options, "topic": topic, "message": to_json(body), "headers": _json(options.get("headers"))}
    types = {"message": "jsonb", "headers": "jsonb"}
    return Statement("publish_topic", arguments, lambda rows: {row["queue_name"]: row["id"] for row in rows}, types)


def route_topic(topic: str) -> Statement[list[str]]:
    """Say which queues a topic reaches, without publishing anything."""
    return Statement("route_topic", dict(locals()), _onlys)


def bind_topic(queue_name: str, pattern: str) -> Statement[bool]:
    """Let a queue get a copy of what is published under topics that the pattern matches; True if that is new.

    In a pattern `*` is any word and `#` any number of words: `orders.#` matches `orders` and `orders.eu.created`.
    """
    return Statement("bind_topic", dict(locals()), _one)


def unbind_topic(queue_name: str, pattern: str) -> Statement[bool]:
    """End a binding; True if there was one."""
    return Statement("unbind_topic", dict(locals()), _one)


# Lease and finish -----------------------------------------------------------------------------------------------------


def lease(
    queue_name: str,
    *,
    max_messages: int = 1,
    lease_for: timedelta | None = None,
    locked_by: str | None = None,
    topic: str | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Statement[list[Message]]:
    """Take up to `max_messages` ready messages under one fresh token; highest priority first, then oldest.

    With a `topic` pattern or with `headers` only those that match: whose topic does, whose headers contain these.
    """
    arguments = dict(locals()) | {"headers": _json(headers)}
    return Statement("lease", arguments, _list(Message.from_row), {"headers": "jsonb"})


def extend(lock_token: UUID, ids: Collection[int], *, lease_for: timedelta) -> Statement[list[int]]:
    """Make leases last `lease_for` from now. LeaseLost names those that were lost; the others are extended."""
    arguments = {"lock_token": lock_token, "ids": list(ids), "lease_for": lease_for}
    return Statement("extend", arguments, _unless_lost(ids), {"ids": "bigint[]"})


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
        "outcomes": to_json({str(id_): _as_result(outcome) for id_, outcome in outcomes.items()}) if outcomes else None,
        "output": None if output is None else to_json(output),
        "failure": _json(failure),
    }
    types = {"ids": "bigint[]", "outcomes": "jsonb", "output": "jsonb", "failure": "jsonb"}
    return Statement("archive", arguments, _unless_lost(ids), types)


def _as_result(outcome: Success | Rejected | Failed) -> dict[str, Any]:
    match outcome:
        case Success(details, output):
            said = {"result": "success", "details": details, "output": output}
        case Rejected(reason):
            said = {"result": "rejected", "details": reason}
        case Failed(details, failure):
            said = {"result": "failed", "details": details, "failure": failure}
    return {key: value for key, value in said.items() if value is not None}


def release(
    lock_token: UUID,
    ids: Collection[int],
    *,
    delay: timedelta = _ZERO,
    count_attempt: bool = True,
    details: str | None = None,
    failure: Mapping[str, Any] | None = None,
    back_off: bool = False,
) -> Statement[list[int]]:
    """Give leased messages back, now, after `delay`, or after the back-off of the queue.

    A counted last attempt is archived as `failed` with details and failure; without `count_attempt` this is "come back
    later", any number of times.

    LeaseLost names those that were lost; the others are released.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "delay": delay,
        "count_attempt": count_attempt,
        "details": details,
        "failure": _json(failure),
        "back_off": back_off or None,
    }
    return Statement("release", arguments, _unless_lost(ids), {"ids": "bigint[]", "failure": "jsonb"})


def consume(queue_name: str, *, max_messages: int = 1, handled_by: str | None = None) -> Statement[list[Message]]:
    """Take messages out and archive them as success in the caller's transaction."""
    return Statement("consume", dict(locals()), _list(Message.from_row))


def once(consumer: str, message_id: int) -> Statement[bool]:
    """Say whether this is the first time for a consumer and message, in the transaction of the effect."""
    return Statement("once", dict(locals()), _one)


# Dead messages --------------------------------------------------------------------------------------------------------


def lease_dead(
    queue_name: str | None = None,
    *,
    max_messages: int = 100,
    lease_for: timedelta | None = None,
    locked_by: str | None = None,
    results: Collection[str] | None = None,
    fingerprint: str | None = None,
) -> Statement[list[DeadMessage]]:
    """Take dead messages that nobody decided about under one fresh token, oldest first; of one cause, if wanted."""
    arguments = dict(locals()) | {"results": None if results is None else list(results)}
    return Statement("lease_dead", arguments, _list(DeadMessage.from_row), {"results": "text[]"})


def requeue(
    lock_token: UUID,
    ids: Collection[int],
    *,
    bodies: Mapping[int, Any] | None = None,
    delay: timedelta = _ZERO,
    remedied_by: str | None = None,
) -> Statement[list[Requeued]]:
    """Publish leased dead messages again under new ids, with a repaired body where `bodies` has one.

    LeaseLost names those that were lost; the others are requeued.
    """
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "messages": to_json({str(id_): body for id_, body in bodies.items()}) if bodies else None,
        "delay": delay,
        "remedied_by": remedied_by,
    }

    def decode(rows: list[Row]) -> list[Requeued]:
        requeued = [Requeued.from_row(row) for row in rows]
        if lost := set(ids) - {one.id for one in requeued}:
            raise LeaseLost(lost)
        return requeued

    return Statement("requeue", arguments, decode, {"ids": "bigint[]", "messages": "jsonb"})


def dismiss(
    lock_token: UUID,
    ids: Collection[int],
    reason: str,
    *,
    remedied_by: str | None = None,
) -> Statement[list[int]]:
    """Decide that nothing more is done about leased dead messages. LeaseLost names those that were lost."""
    arguments = {
        "lock_token": lock_token,
        "ids": list(ids),
        "reason": reason,
        "remedied_by": remedied_by,
    }
    return Statement("dismiss", arguments, _unless_lost(ids), {"ids": "bigint[]"})


def requeue_dead(
    queue_name: str | None = None,
    *,
    max_messages: int = 1000,
    results: Collection[str] | None = None,
    max_requeues: int | None = None,
    delay: timedelta = _ZERO,
    remedied_by: str | None = None,
    fingerprint: str | None = None,
) -> Statement[list[Requeued]]:
    """Lease dead messages (by default failed and lock_expired ones) and requeue them in one call.

    Messages that were requeued `max_requeues` times before are left on the work list.
    """
    arguments = dict(locals()) | {"results": None if results is None else list(results)}
    return Statement("requeue_dead", arguments, _list(Requeued.from_row), {"results": "text[]"})


def dead_causes(queue_name: str | None = None) -> Statement[list[DeadCause]]:
    """Ask why messages died about which nothing was decided yet; most frequent cause first."""
    return Statement("dead_causes", dict(locals()), _list(DeadCause.from_row))


# Archive --------------------------------------------------------------------------------------------------------------


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
) -> Statement[list[Archived]]:
    """Find finished messages, newest first, without their bodies. BeforeArchive for a time that is not kept."""
    return Statement("search_archive", dict(locals()), _list(Archived.from_row))


def partition_archive(partition_by: str) -> Statement[None]:
    """Make the partitions of the archive by `day` or by `month` from now on."""
    return Statement("partition_archive", dict(locals()), _nothing)


# Who may use a queue --------------------------------------------------------------------------------------------------


def grant_queue(queue_name: str, role_name: str, privilege: str) -> Statement[bool]:
    """Let a role `publish` to, `consume` from or `observe` this queue, and from now on only queues granted to it."""
    return Statement("grant_queue", dict(locals()), _one)


def revoke_queue(queue_name: str, role_name: str, privilege: str | None = None) -> Statement[int]:
    """Take back one privilege or all; how many there were. The role stays limited to its queues."""
    return Statement("revoke_queue", dict(locals()), _one)


# Waiting and upkeep ---------------------------------------------------------------------------------------------------


def ready_queues(queue_names: Collection[str] | None = None, *, count_up_to: int = 1000) -> Statement[list[ReadyQueue]]:
    """Ask which queues have a message to lease now or later; one question for any number of waiting consumers."""
    arguments = {
        "queue_names": None if queue_names is None else list(queue_names),
        "count_up_to": count_up_to,
    }
    return Statement("ready_queues", arguments, _list(ReadyQueue.from_row), {"queue_names": "text[]"})


def dead_queues(
    queue_names: Collection[str] | None = None,
) -> Statement[list[DeadQueue]]:
    """Ask which queues have dead messages that nobody decided about and nobody holds."""
    arguments = {"queue_names": None if queue_names is None else list(queue_names)}
    return Statement("dead_queues", arguments, _list(DeadQueue.from_row), {"queue_names": "text[]"})


def upkeep() -> Statement[dict[str, Any]]:
    """Archive what expired, ring for what waits, make partitions; counts of each."""
    return Statement("upkeep", {}, _one)


def health(*, held_for: timedelta | None = None, waiting_for: timedelta | None = None) -> Statement[list[Finding]]:
    """Check everything that may go wrong, a finding for each check, with the SQL that cures it; only reads.

    A transaction may hold its snapshot `held_for` (5 minutes; critical after twelve times as long), a message may wait
    `waiting_for` (1 day), ready or dead.
    """
    return Statement("health", dict(locals()), _list(Finding.from_row))


def upkeep_mode() -> Statement[str]:
    """Say who does the upkeep: `pg_cron` or `airflow`."""
    return Statement("upkeep_mode", {}, _one)


def install_cron() -> Statement[str]:
    """Schedule the upkeep through pg_cron; the name of the job. CronUnavailable says what is missing."""
    return Statement("install_cron", {}, _one)


def uninstall_cron() -> Statement[int]:
    """Remove the pg_cron jobs of the queue; how many there were."""
    return Statement("uninstall_cron", {}, _one)


# Schedules ------------------------------------------------------------------------------------------------------------


def schedule(
    schedule_name: str,
    cron: str,
    queue_name: str,
    body: Any,
    *,
    time_zone: str = "UTC",
    priority: int = 0,
    headers: Mapping[str, Any] | None = None,
    paused: bool | None = None,
) -> Statement[bool]:
    """Publish a message at each tick of a cron expression: True if the schedule is new, False if it exists.

    One that exists is then as given; the same again changes nothing. `paused=None` leaves that as it is.
    """
    arguments = dict(locals())
    arguments["message"] = to_json(arguments.pop("body"))
    arguments["headers"] = None if headers is None else to_json(headers)
    return Statement("schedule", arguments, _one, {"message": "jsonb", "headers": "jsonb"})


def unschedule(schedule_name: str) -> Statement[None]:
    """End a schedule; what it published stays."""
    return Statement("unschedule", dict(locals()), lambda rows: None)


def pause_schedule(schedule_name: str) -> Statement[None]:
    """Let a schedule publish nothing until it is resumed; twice does no harm."""
    return Statement("pause_schedule", dict(locals()), lambda rows: None)


def resume_schedule(schedule_name: str) -> Statement[None]:
    """Let a paused schedule go on with its next tick; what it missed is not made up for."""
    return Statement("resume_schedule", dict(locals()), lambda rows: None)


def schedules() -> Statement[list[Schedule]]:
    """List the schedules, without their bodies, with the next tick of each."""
    return Statement("schedules", {}, _list(Schedule.from_row))


def run_schedules() -> Statement[int]:
    """Publish what is due; how many messages. Any number may run at once: each tick is published once."""
    return Statement("run_schedules", {}, _one)
