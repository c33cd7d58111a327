"""Resolves dead messages: publishes them again, or dismisses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Final, TypeVar
from uuid import uuid4

import click

from airflow_provider_pgqueue.cli.connection import Connection, connected, status_for
from airflow_provider_pgqueue.cli.fix import log_to_stderr
from airflow_provider_pgqueue.cli.json_lines import read_message
from airflow_provider_pgqueue.cli.options import cause, confirm, duration, time_options, yes_option
from airflow_provider_pgqueue.cli.output import records, show, show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import DEAD_RESULTS, Requeued
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.repair.canary import wait_for_canary
from airflow_provider_pgqueue.core.repair.repair import unknown_ids
from airflow_provider_pgqueue.core.signals import stop_on_signals
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.core.verbs import DeadFilter

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The dead messages that a command resolves."""

    queue: str | None
    ids: tuple[int, ...]
    causes: tuple[str, ...]
    results: tuple[str, ...]
    reference: str | None
    since: datetime | None
    until: datetime | None
    max_messages: int

    def __post_init__(self) -> None:
        """Refuse an empty choice, which would take every dead message."""
        if self.queue is None and not self.named:
            raise click.UsageError("name a queue, or messages with --id, --cause or --reference.")

    def __str__(self) -> str:
        """Return the choice in words."""
        if self.queue is not None:
            return self.queue
        if self.causes:
            return f"{'cause' if len(self.causes) == 1 else 'causes'} {', '.join(self.causes)}"
        return f"reference {self.reference}" if self.reference else "those that were named"

    @property
    def taken(self) -> Collection[str]:
        """The results to take: the given ones, all for named messages, or `failed` and `lock_expired` for a queue."""
        return self.results or (DEAD_RESULTS if self.named else _USUAL)

    @property
    def named(self) -> bool:
        """Whether the choice names messages, and not only a queue, results or a time."""
        return bool(self.ids or self.causes) or self.reference is not None

    def filter(
        self, results: Collection[str], max_requeues: int | None = None, *, in_parts: bool = False
    ) -> DeadFilter:
        """Return the filter for messages with these results."""
        # A command of several transactions must not take a message that it has requeued and that died again meanwhile.
        in_parts = in_parts or self.max_messages > TUNING.resolutions_at_once
        until = datetime.now(UTC) if self.until is None and in_parts else self.until
        return DeadFilter(
            self.queue,
            results=results,
            fingerprints=self.causes or None,
            ids=self.ids or None,
            max_requeues=max_requeues,
            reference=self.reference,
            since=self.since,
            until=until,
        )

    def waiting(self, conn: Connection, results: Collection[str]) -> Counter[str]:
        """Count the messages by result; for a whole queue, without the leased ones."""
        if self.queue is not None:
            status_for(conn, self.queue, "lease_dead")  # an unknown queue is an error
            if not self.named and self.since is None and self.until is None:
                found = run(conn, verbs.dead_queues([self.queue]))
                return Counter({one.result: one.waiting for one in found if one.result in results})
        if self.ids and (unknown := unknown_ids(conn, self.ids, self.queue)):
            raise InvalidArgument(
                f"no dead message{f' of {self.queue}' if self.queue else ''} has the id {_ids(unknown)}",
                "Nothing was changed. See what became of a message: pgqueue show ID",
            )
        return Counter(
            {result: number for result in results if (number := len(run(conn, verbs.dead_ids(self.filter([result])))))}
        )

    def left(self, conn: Connection) -> Counter[str]:
        """Count by result the dead messages that are left out because their result was not given."""
        left: Counter[str] = Counter()
        return left if self.results else self.waiting(conn, [one for one in DEAD_RESULTS if one not in self.taken])

    def resolved(self, conn: Connection) -> list[int]:
        """Return the ids of messages that are already resolved."""
        found = run(conn, verbs.resolutions(self.ids))
        return sorted(found)

    def remaining(self, conn: Connection, done: int, which: DeadFilter) -> int:
        """Return how many messages are left because of --max, also leased ones."""
        return len(run(conn, verbs.dead_ids(which))) if done == self.max_messages else 0

    def in_parts(self, take: Callable[[int], list[T]], most: int) -> list[T]:
        """Take messages in several short transactions, and return all that were taken."""
        taken: list[T] = []
        while size := min(TUNING.resolutions_at_once, most - len(taken)):
            some = take(size)
            taken += some
            if len(some) < size:
                break
        return taken


_USUAL: Final = ("failed", "lock_expired")
_OPTIONS: Final = (
    click.argument("queue", required=False),
    click.option(
        "--id", "ids", multiple=True, type=click.IntRange(1, 2**63 - 1), help="Only this message; can be repeated."
    ),
    click.option(
        "--cause",
        "causes",
        multiple=True,
        type=cause,
        help="Only messages of this cause, as `pgqueue dead` prints it; can be repeated.",
    ),
    click.option("--reference", help="Only messages with this reference, the key of the publisher."),
    time_options("messages that died"),
    click.option(
        "--max",
        "max_messages",
        type=click.IntRange(1, 10_000_000),
        default=1000,
        show_default=True,
        help="Handle at most this many messages, 5,000 in each transaction; run it again for the rest.",
    ),
    click.option("--dry-run", is_flag=True, help="Count the messages and change nothing."),
    click.option(
        "--result",
        "results",
        multiple=True,
        type=click.Choice(DEAD_RESULTS),
        help=f"Only messages with this result; can be repeated. Default: {', '.join(_USUAL)}; with --id, --cause or "
        "--reference, all.",
    ),
)


def _which(command: F) -> Callable[..., Any]:
    """Add the options that choose messages, and call the command with a `Which`."""

    @wraps(command)
    def call(**given: Any) -> Any:
        return command(Which(**{one.name: given.pop(one.name) for one in fields(Which)}), **given)

    added: Callable[..., Any] = call
    for option in reversed(_OPTIONS):
        added = option(added)
    return added


@click.command()
@_which
@click.option("--max-requeues", type=click.IntRange(1), help="Leave out messages that were requeued this many times.")
@click.option(
    "--delay", type=duration, default="0", help="Keep the messages from being leased for this long: 90s, 10m, 2h, 1d."
)
@click.option("--message", metavar="JSON", help="Publish this body in place of the dead one; - reads standard input.")
@click.option(
    "--canary",
    type=click.IntRange(1),
    help="Requeue this many first, and the others only if those do not die again. Something must consume the queue.",
)
@click.option(
    "--stop-when-failing",
    type=click.FloatRange(0, 100, min_open=True),
    default=10.0,
    show_default=True,
    help="Percentage of the canary that must die again for the command to stop.",
)
@click.option(
    "--canary-wait",
    type=duration,
    default="10m",
    show_default=True,
    help="How long the canary may take; the command stops if it is not finished by then.",
)
@with_settings
def requeue(
    settings: Settings,
    which: Which,
    /,
    max_requeues: int | None,
    delay: timedelta,
    message: str | None,
    canary: int | None,
    dry_run: bool,
    **patience: Any,
) -> int:
    """Publish dead messages again.

    Name a queue, a cause (--cause), a reference (--reference) or single messages (--id). Each message gets a new id.
    The archive keeps the dead one, with the new id. Give one message another body with --id and --message.

    The exit status is 1 if the canary stopped the command.
    """
    if message is not None and len(which.ids) != 1:
        raise click.UsageError("--message is for one dead message: name it with --id.")
    bodies = None if message is None else {which.ids[0]: read_message(message).text}
    with connected(settings) as conn:
        waiting, left = which.waiting(conn, which.taken), which.left(conn)
        chosen, before = which.filter(which.taken, max_requeues, in_parts=canary is not None), which.resolved(conn)
        if dry_run:
            would = len(run(conn, verbs.dead_ids(chosen, max_messages=which.max_messages)))
            preview = {"queue_name": which.queue, "would_requeue": would, "waiting": waiting, "left_out": left}
            show(settings, preview, f"would requeue {_what(would, waiting, which)}{_left(left)}{_before(before)}.")
            return 0
        who = f"pgqueue {process_name()}" + (f" canary {uuid4()}" if canary else "")

        def take(size: int) -> list[Requeued]:
            statement = verbs.requeue_dead(chosen, max_messages=size, bodies=bodies, delay=delay, resolved_by=who)
            return run(conn, statement)

        first = min(canary or which.max_messages, which.max_messages)
        requeued = which.in_parts(take, first) if waiting or not which.ids else []
        fate: dict[str, Any] = {}
        if first < which.max_messages and run(conn, verbs.dead_ids(chosen, max_messages=1)):
            log_to_stderr()
            with stop_on_signals() as told_to_stop:
                fate = wait_for_canary(conn, who, first, stop=told_to_stop, **patience)
            if "stopped" not in fate:
                requeued += which.in_parts(take, which.max_messages - len(requeued))
        stopped = fate.get("stopped")
        remaining = which.remaining(conn, which.max_messages if stopped else len(requeued), chosen)
    done = records(requeued)
    found = {"queue_name": which.queue, "requeued": len(done), "remaining": remaining, "messages": done}
    new = f", as {requeued[0].new_id}" if len(requeued) == 1 else ""
    rest = f"; stopped: {stopped}; {remaining:,} more remain" if stopped else _rest(remaining)
    show_done(
        settings,
        found | {"left_out": left} | fate,
        f"requeued {quantity(len(done))} of {which}{new}{rest}{_left(left)}{_before(before)}.",
    )
    return int(stopped is not None)


@click.command()
@_which
@click.option("--reason", required=True, help="The reason, which is kept in the archive.")
@yes_option
@with_settings
def dismiss(settings: Settings, which: Which, reason: str, dry_run: bool, yes: bool) -> None:
    """Dismiss dead messages: nothing more is done about them.

    They stay in the archive with the reason, and are no longer listed as dead.
    """
    with connected(settings) as conn:
        waiting, left, before = which.waiting(conn, which.taken), which.left(conn), which.resolved(conn)
        number = min(sum(waiting.values()), which.max_messages)
        if dry_run:
            found = {"queue_name": which.queue, "would_dismiss": number, "waiting": waiting, "left_out": left}
            show(settings, found, f"would dismiss {_what(number, waiting, which)}{_left(left)}{_before(before)}.")
            return
        confirm(f"Dismiss {_what(number, waiting, which)}?", yes=yes)
        chosen, who = which.filter(which.taken), f"pgqueue {process_name()}"

        def take(size: int) -> list[int]:
            return run(conn, verbs.dismiss_dead(chosen, reason, max_messages=size, resolved_by=who))

        done = which.in_parts(take, which.max_messages) if waiting or not which.ids else []
        remaining = which.remaining(conn, len(done), chosen)
    show_done(
        settings,
        {"queue_name": which.queue, "dismissed": len(done), "remaining": remaining, "ids": done, "left_out": left},
        f"dismissed {quantity(len(done))} of {which}{_rest(remaining)}{_left(left)}{_before(before)}.",
    )


def _what(number: int, waiting: Counter[str], which: Which) -> str:
    """Return the choice in words: `2 messages of orders: 2 failed`, `the oldest 1,000 of 1,200 messages of …`."""
    by_result = ", ".join(f"{number:,} {result}" for result, number in waiting.items())
    whole = sum(waiting.values())
    if which.max_messages < whole and number == which.max_messages:
        return f"the oldest {number:,} of {quantity(whole)} of {which}: {by_result}"
    none = f"no dead message without a lease ({', '.join(which.taken)})"
    if which.causes:
        none = f"no open dead message has the cause {' or '.join(which.causes)}"
    return f"{quantity(number)} of {which}: {by_result or none}"


def _left(left: Counter[str]) -> str:
    return "".join(f"; {number:,} {result} left out: add --result {result}" for result, number in left.items())


def _before(ids: Sequence[int]) -> str:
    return f"; requeued or dismissed before: {_ids(ids)}" if ids else ""


def _ids(ids: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ids)[:10])) + (", …" if len(ids) > 10 else "")


def _rest(remaining: int) -> str:
    return f"; {remaining:,} more remain: run it again, or raise --max" if remaining else ""
