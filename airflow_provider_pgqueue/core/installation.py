"""Installs the queue as a whole: schema, queues, group roles and maintenance."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, check, optional, queue_name, text, truth
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import current_version
from airflow_provider_pgqueue.core.errors import (
    CronUnavailable,
    InvalidArgument,
    InvalidMessage,
    PermissionDenied,
    translate,
)
from airflow_provider_pgqueue.core.migrations import migrate
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.verbs.queues import POLICY_RULES, Policy

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]
Users = str | Collection[str]
T = TypeVar("T")
CRON_ROLE: Final = "messages_cron"
GROUPS: Final = ("publisher", "consumer", "observer", "maintenance", "admin", "raw", "reader", "pipeline")
_PRIVILEGES: Final = ("publish", "consume", "observe")
_MAY_INSTALL: Final = "Install as the owner of schema messages, or if there is none, as a role that may create one."


def _queues(value: Any) -> str | None:
    if isinstance(value, str):
        return queue_name(value)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        return "Give a list of names or objects with queue_name."
    return next((fix for one in value if (fix := _queue(one))), None)


def _queue(one: Any) -> str | None:
    if not isinstance(one, Mapping):
        return queue_name(one)
    if unknown := [key for key in one if key not in {"queue_name", *Policy.__annotations__}]:
        return f"A queue has no {unknown[0]!r}: give queue_name, and any of {', '.join(Policy.__annotations__)}."
    if "queue_name" not in one:
        return "Give each object a queue_name."
    try:
        check(one, POLICY_RULES)
    except InvalidArgument as error:
        return f"In queue {one['queue_name']!r}, {error}"
    return queue_name(one["queue_name"])


def _users(value: Any) -> bool:
    good = isinstance(value, Collection) and not isinstance(value, Mapping | bytes)
    return good and all(text(user) is None for user in _listed(value))


def _grants(value: Any) -> str | None:
    good = isinstance(value, Mapping) and all(group in GROUPS and _users(users) for group, users in value.items())
    return None if good else f"Give one of {', '.join(GROUPS)} as a key, and a list of users as its value."


def _queue_grants(value: Any) -> str | None:
    good = isinstance(value, Mapping) and all(
        queue_name(queue) is None
        and isinstance(privileges, Mapping)
        and all(privilege in _PRIVILEGES and _users(users) for privilege, users in privileges.items())
        for queue, privileges in value.items()
    )
    return None if good else f"Give queues, each with users by privilege: {', '.join(_PRIVILEGES)}."


RULES: Final[Mapping[str, Rule]] = {
    "queues": _queues,
    "grants": optional(_grants),
    "queue_grants": optional(_queue_grants),
    "cron": optional(truth),
    "cron_role": optional(text),
    "roles": optional(truth),
    "dry_run": truth,
}


def install(
    conn: Connection,
    queues: str | Sequence[str | Mapping[str, Any]] = (),
    *,
    cron: bool | None = None,
    cron_role: str | None = None,
    roles: bool | None = None,
    grants: Mapping[str, Users] | None = None,
    queue_grants: Mapping[str, Mapping[str, Users]] | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Install or upgrade the schema, create queues, and let pg_cron run maintenance where there is one.

    Running it again is safe. Returns `schema_version`, `migrations_applied`, `queues_created`, `group_roles` (whether
    there are any) and `maintenance_mode`: `pg_cron`, or `airflow` if something else has to run maintenance every
    minute. `no_roles_because` and `no_cron_because` have the reasons, or None.

    :param queues: names, or dicts with the arguments of `verbs.create_queue`, which also change a queue that exists;
        a text is one name.
    :param cron: True raises CronUnavailable where there is no pg_cron; False removes its jobs; None uses it if it is
        available.
    :param cron_role: the login as which pg_cron runs maintenance; by default this one, or for a superuser
        `messages_cron`, which is created if it is missing.
    :param roles: True raises PermissionDenied if the group roles cannot be created; False creates none.
    :param grants: users by group role, such as `{"publisher": ["shop"], "consumer": ["packer"]}`.
    :param queue_grants: users by queue and privilege, such as `{"orders": {"consume": ["packer"]}}`; those users
        reach no other queue.
    :param dry_run: install in a transaction that is rolled back, and return what would be done; raises what the
        installation would raise. Meanwhile it holds the locks of an installation.
    """
    check(locals(), RULES)
    # One transaction: after a commit, a role that may write to the schema could replace a function before the
    # superuser calls it.
    with conn.transaction(force_rollback=dry_run):
        applied = _migrate(conn, roles)
        if (no_roles := _no_roles(conn)) and roles is not False:
            log.info("there are no group roles: %s", no_roles)
        created = [_name(queue) for queue in _listed(queues) if _create(conn, queue)]
        for group, users in (grants or {}).items():
            grant_group(conn, group, users)
        for queue, privileges in (queue_grants or {}).items():
            for privilege, users in privileges.items():
                for user in _listed(users):
                    run(conn, verbs.grant_queue(queue, user, privilege))
        if no_cron := _schedule_maintenance(conn, cron, cron_role):
            log.info("no maintenance through pg_cron: %s", no_cron)
        return {
            "schema_version": current_version(conn),
            "migrations_applied": applied,
            "queues_created": created,
            "group_roles": no_roles is None,
            "no_roles_because": no_roles,
            "maintenance_mode": run(conn, verbs.maintenance_mode()) if no_cron else "pg_cron",
            "no_cron_because": no_cron,
        }


def _schedule_maintenance(conn: Connection, wanted: bool | None, run_as: str | None) -> str | None:
    """Let pg_cron run maintenance, or remove its jobs if `wanted` is False; return why it does not run it, or None.

    Raises CronUnavailable or PermissionDenied only if `wanted` is True.
    """
    if wanted is False:
        run(conn, verbs.uninstall_cron())
        return "it is not wanted"
    try:
        # A savepoint inside the caller's transaction, which continues without pg_cron.
        with conn.transaction():
            run(conn, verbs.install_cron(run_as or _cron_role(conn)))
    except (CronUnavailable, PermissionDenied) as error:
        if wanted:
            raise
        return str(error)
    return None


def _cron_role(conn: Connection) -> str | None:
    """Return the login that a superuser leaves the jobs to: what they run belongs to others."""
    return CRON_ROLE if conn.execute(query("is_superuser")).rowcount else None


def grant_group(conn: Connection, group: str, users: Users) -> None:
    """Make users members of a group role, named without its prefix: `publisher` for `messages_publisher`.

    Running it again is safe. Raises InvalidArgument if the group or a user does not exist, PermissionDenied if this
    login may not grant it.
    """
    if group not in GROUPS:
        raise InvalidArgument(f"group role {group!r} does not exist. Give one of {', '.join(GROUPS)}.")
    for user in _listed(users):
        try:
            conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(f"messages_{group}"), sql.Identifier(user)))
        except psycopg.errors.UndefinedObject as error:
            raise InvalidArgument(f"{error.diag.message_primary}. Create it before you grant to it.") from error
        except psycopg.Error as error:
            raise translate(error) from error


def leave_out_roles(conn: Connection) -> None:
    """Make installations in this transaction create no group roles and keep the owner of the schema."""
    conn.execute("SET LOCAL messages.roles = 'off'")


def check_owner(conn: Connection) -> None:
    """Raise PermissionDenied unless the schema belongs to `messages_owner`."""
    if conn.execute(query("is_owned")).rowcount != 1:
        ((statement,),) = conn.execute(query("right_to_make_roles")).fetchall()
        raise PermissionDenied(
            f"role {conn.info.user!r} could not give schema messages to messages_owner",
            f"Install again after {statement}, or install as a superuser.",
        )


def _no_roles(conn: Connection) -> str | None:
    """Return why the schema was installed without its group roles; None if it has them."""
    try:
        check_owner(conn)
    except PermissionDenied as error:
        return str(error)
    return None


def _migrate(conn: Connection, roles: bool | None) -> list[int]:
    with conn.transaction():
        if roles is False:
            leave_out_roles(conn)
        try:
            applied = migrate(conn)
        except PermissionDenied as error:
            # The usual fix, a group role, does not allow an installation.
            cause = error.__cause__
            hint = cause.diag.message_hint if isinstance(cause, psycopg.Error) else error.fix
            raise PermissionDenied(error.problem, hint or _MAY_INSTALL) from error
        if roles:
            check_owner(conn)
    return applied


def _name(queue: str | Mapping[str, Any]) -> str:
    return queue if isinstance(queue, str) else queue["queue_name"]


def _create(conn: Connection, queue: str | Mapping[str, Any]) -> bool:
    policy = {} if isinstance(queue, str) else {key: value for key, value in queue.items() if key != "queue_name"}
    try:
        if run(conn, verbs.create_queue(_name(queue), **policy)):
            return True
        if policy:
            run(conn, verbs.alter_queue(_name(queue), **policy))
    except (InvalidArgument, InvalidMessage) as error:
        error.at(f"queue {_name(queue)!r}")
        raise
    return False


def _listed(some: str | Iterable[T]) -> Iterable[str | T]:
    return [some] if isinstance(some, str) else some
