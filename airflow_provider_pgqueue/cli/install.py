"""Installs, upgrades and removes the schema."""

from __future__ import annotations

from typing import Any

import click

from airflow_provider_pgqueue import __version__
from airflow_provider_pgqueue.cli.confirmation import confirm, yes_option
from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.output import show, show_done
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import migrations, verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import current_version
from airflow_provider_pgqueue.core.errors import INSTALL, PermissionDenied, SchemaMissing
from airflow_provider_pgqueue.core.installation import check_owner, schedule_upkeep
from airflow_provider_pgqueue.core.migrations import migrate, scripts
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query, sql_folder


@click.command()
@click.option(
    "--cron/--no-cron",
    default=None,
    help="--cron: let pg_cron do the upkeep, or fail; --no-cron: remove its jobs. Default: use it if available.",
)
@click.option(
    "--cron-role",
    metavar="NAME",
    help="The login that pg_cron does the upkeep as. Default: this one; for a superuser messages_cron.",
)
@click.option("--print-sql", is_flag=True, help="Print the SQL as one script for psql -f instead of running it.")
@shared_options
@pass_settings
def install(settings: Settings, cron: bool | None, cron_role: str | None, print_sql: bool) -> None:
    """Install or upgrade the schema; let pg_cron do the upkeep where it is available.

    Run it after every upgrade of the package; running it twice does no harm.
    """
    if print_sql:
        script = _install_script(cron)
        show(settings, {"sql": script}, "") if settings.as_json else click.echo(script, nl=False)
        return
    # One transaction: after a commit, whoever may write to the schema could replace what a superuser calls next.
    with connected(settings, check=False) as conn, conn.transaction():
        applied = migrate(conn)
        no_cron = schedule_upkeep(conn, cron, cron_role)
        found = {
            "database": conn.info.dbname,
            "schema_version": current_version(conn),
            "migrations_applied": applied,
            "upkeep_mode": run(conn, verbs.upkeep_mode()) if no_cron else "pg_cron",
            "no_cron_because": no_cron,
            "no_roles_because": _no_roles(conn),
        }
    show_done(settings, found, _installed(found))


def _no_roles(conn: Connection) -> str | None:
    """Return why the schema was installed without its group roles; None if it has them."""
    try:
        check_owner(conn)
    except PermissionDenied as error:
        return str(error)
    return None


def _installed(found: dict[str, Any]) -> str:
    version, database = f"version {found['schema_version']}", f"database {found['database']}"
    if found["migrations_applied"]:
        text = f"installed schema messages, {version}, in {database}."
    else:
        text = f"schema messages in {database} is already up to date, {version}."
    if found["no_roles_because"]:
        text += f" There are no group roles: {found['no_roles_because']}"
    if found["upkeep_mode"] == "pg_cron":
        return f"{text} pg_cron does the upkeep."
    return f"{text} pg_cron does not do the upkeep: run `pgqueue upkeep` or PgQueueUpkeepOperator every minute."


def _install_script(cron: bool | None = None) -> str:
    r"""Return `install.sql` with the files that its \ir lines name in their places, for psql."""
    _, _, body = (sql_folder() / "install.sql").read_text().partition("\\set ON_ERROR_STOP on\n")
    text = f"-- Installs or upgrades schema messages of pgqueue {__version__}: psql -f THIS_FILE DSN\n"
    text += "\\set ON_ERROR_STOP on\n" + body
    for script in scripts():
        text = text.replace(f"\\ir {script.path}\n", f"-- {script.path}\n{script.text.rstrip()}\n")
    if cron is not None:
        text = text.removesuffix("COMMIT;\n")
        text += query("install/install_cron" if cron else "install/uninstall_cron").decode() + "COMMIT;\n"
    return text


@click.command()
@yes_option
@shared_options
@pass_settings
def uninstall(settings: Settings, yes: bool) -> None:
    """Remove the schema with all queues, messages and archives."""
    with connected(settings, check=False) as conn:
        waiting, archived = _contents(conn)
        question = (
            f"Remove schema messages from database {conn.info.dbname} on {_server(conn)}, "
            f"with {quantity(waiting)} and {quantity(archived, 'archived message')}?"
        )
        confirm(question, yes=yes)
        migrations.uninstall(conn)
        removed = {"database": conn.info.dbname, "messages_deleted": waiting, "archived_deleted": archived}
    show_done(settings, removed, f"removed schema messages from database {removed['database']}.")


def _contents(conn: Connection) -> tuple[int, int]:
    """Return how many messages are unfinished and archived; SchemaMissing if there is no schema.

    It calls nothing of the schema, which a member of messages_owner may have written.
    """
    if not conn.execute(query("install/is_installed")).rowcount:
        raise SchemaMissing(f"schema messages is not installed in database {conn.info.dbname!r}", INSTALL)
    if not conn.execute(query("install/has_tables")).rowcount:
        return 0, 0
    ((waiting, archived),) = conn.execute(query("install/messages_to_remove")).fetchall()
    return waiting, archived


def _server(conn: Connection) -> str:
    return f"{conn.info.host}:{conn.info.port}"
