"""The group roles that the installation makes, and who is given them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, translate

GROUPS: Final = ("publisher", "consumer", "observer", "upkeep", "admin", "raw", "reader", "pipeline")


def leave_out_roles(conn: psycopg.Connection[Any]) -> None:
    """Let installations until the end of the transaction make no group roles and leave the owner as it is."""
    conn.execute("SET LOCAL messages.roles = 'off'")


def check_owner(conn: psycopg.Connection[Any]) -> None:
    """Raise PermissionDenied unless the schema belongs to `messages_owner`."""
    owned = "SELECT FROM pg_namespace WHERE nspname = 'messages' AND nspowner = to_regrole('messages_owner')"
    if conn.execute(owned).rowcount != 1:
        raise PermissionDenied(
            f"role {conn.info.user!r} could not give schema messages to messages_owner. "
            "Install as a superuser, as a role with CREATEROLE, or as a member of messages_owner."
        )


def grant_group(conn: psycopg.Connection[Any], group: str, users: str | Iterable[str]) -> None:
    """Make users members of `messages_publisher`, `messages_consumer`, …: give the short name. Twice does no harm.

    InvalidArgument for a group or user that does not exist, PermissionDenied for who may not grant it.
    """
    if group not in GROUPS:
        raise InvalidArgument(f"group role {group!r} does not exist. Give one of {', '.join(GROUPS)}.")
    for user in [users] if isinstance(users, str) else users:
        try:
            conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(f"messages_{group}"), sql.Identifier(user)))
        except psycopg.errors.UndefinedObject as error:
            raise InvalidArgument(f"{error.diag.message_primary}. Create it before you grant to it.") from error
        except psycopg.Error as error:
            raise translate(error) from error
