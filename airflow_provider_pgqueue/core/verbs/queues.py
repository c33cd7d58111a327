"""Queues and their policy."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final, TypedDict, Unpack, get_args, get_type_hints

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import LeasePolicy, ReadyQueue
from airflow_provider_pgqueue.core.statement import Statement, list_of, nothing, one, only_row


class Policy(TypedDict, total=False):
    """The policy of a queue. What is left out keeps its value, or the default for a new queue.

    - `max_attempts`: deliveries after which a message is dead.
    - `lease_for`: length of a lease if the consumer gives none.
    - `notify`: whether publishing notifies consumers: `always`, `gated` or `off`.
    - `max_body_bytes`: size of the largest body.
    - `fair_by`: messages of one priority are leased in turns, one of each key: the `group` or the first word of the
      `topic`, unless a header `fair_key` says otherwise.
    - `paused`: nothing is leased; publishing continues.
    - `backoff_first`, `backoff_max`: the pause after the first failure doubles with each further one up to the maximum.
    - `dedup_window`: how long a dedup key is remembered.
    - `retention`: how long the archive keeps messages.
    - `on_dead_head`: whether a dead message blocks its group (`block`) or not (`skip`).
    - `max_leased`: the most messages leased at the same time.
    - `max_leased_per_group`: the most messages of one group leased at the same time; only 1 keeps their order.
    - `rate_limit`, `rate_period`: how many messages may be leased in a period, evenly spread; each delivery counts.
    - `rate_burst`: how many messages may be leased at once after a pause.
    - `handler_timeout`: how long a handler may take for a message, unless the consumer says otherwise.

    In `alter_queue` zero removes the limit of `retention`, `max_leased`, `rate_limit` and
    `handler_timeout`, and an empty text removes `fair_by`.
    """

    max_attempts: int | None
    lease_for: Duration | None
    notify: str | None
    max_body_bytes: int | None
    fair_by: str | None
    paused: bool | None
    backoff_first: Duration | None
    backoff_max: Duration | None
    dedup_window: Duration | None
    retention: Duration | None
    on_dead_head: str | None
    max_leased: int | None
    max_leased_per_group: int | None
    rate_limit: int | None
    rate_period: Duration | None
    rate_burst: int | None
    handler_timeout: Duration | None


def _rule_of(hint: Any) -> argument.Rule:
    """Return the rule for a type; the database checks the value."""
    kinds = get_args(hint)
    if timedelta in kinds:
        # PostgreSQL also reads a text, such as '5 minutes'.
        return lambda value: None if value is None or isinstance(value, str) else argument.timed(value)
    rule = argument.truth if bool in kinds else argument.whole(0, 10**12) if int in kinds else argument.any_text
    return argument.optional(rule)


POLICY_RULES: Final = {name: _rule_of(hint) for name, hint in get_type_hints(Policy).items()}
"""What the database would refuse without naming the argument."""


def create_queue(queue_name: str, **policy: Unpack[Policy]) -> Statement[bool]:
    """Create a queue and return True; return False, and change nothing, if it exists."""
    argument.check_names("create_queue", policy, Policy.__annotations__)
    argument.check(policy, POLICY_RULES)
    return Statement("create_queue", {"queue_name": queue_name, **policy}, one)


def alter_queue(queue_name: str, **policy: Unpack[Policy]) -> Statement[None]:
    """Change the policy of a queue, also for the messages already in it; None keeps a value."""
    argument.check_names("alter_queue", policy, Policy.__annotations__)
    argument.check(policy, POLICY_RULES)
    return Statement("alter_queue", {"queue_name": queue_name, **policy}, nothing)


def pause_queue(queue_name: str) -> Statement[None]:
    """Stop leasing from a queue; publishing continues."""
    return Statement("pause_queue", locals(), nothing)


def resume_queue(queue_name: str) -> Statement[None]:
    """Allow leasing from a paused queue again, and notify its consumers."""
    return Statement("resume_queue", locals(), nothing)


def purge_queue(queue_name: str) -> Statement[int]:
    """Delete the messages that are not leased, without archiving them, and return their number."""
    return Statement("purge_queue", locals(), one)


def drop_queue(queue_name: str, *, force: bool = False) -> Statement[int]:
    """Remove a queue, and return how many unfinished messages were deleted with it.

    Raises QueueNotEmpty if it has any, unless `force` is True.
    """
    return Statement("drop_queue", locals(), one)


def scan(queue_names: Collection[str], *, count_up_to: int = 1000) -> Statement[list[ReadyQueue]]:
    """End what is due in these queues, and return what `ready_queues` then returns: for consumers that wait."""
    return Statement("scan", locals(), list_of(ReadyQueue))


def lease_policy(queue_name: str) -> Statement[LeasePolicy]:
    """Return how long leases and handlers of the queue may take, unless the consumer says otherwise."""
    return Statement("lease_policy", locals(), lambda rows: LeasePolicy(**only_row(rows)))
