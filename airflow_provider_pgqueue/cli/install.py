"""Installs, upgrades and removes the schema, and runs its maintenance by hand."""

from __future__ import annotations

from typing import Any

import click

from airflow_provider_pgqueue import __version__
from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.options import confirm, yes_option
from airflow_provider_pgqueue.cli.output import show, show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.core import installation, migrations
from airflow_provider_pgqueue.core.errors import INSTALL, SchemaMissing
from airflow_provider_pgqueue.core.installation import GROUPS
from airflow_provider_pgqueue.core.maintenance import run_maintenance
from airflow_provider_pgqueue.core.pgmq import install_names, names_of_pgmq
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query, sql_folder

_WITHOUT_ROLES = (
    "Until then statements such as GRANT messages_publisher TO shop fail. To let a login publish without group roles: "
    "GRANT USAGE ON SCHEMA messages TO shop; GRANT EXECUTE ON FUNCTION messages.publish TO shop."
)


@click.command()
@click.option(
    "--cron/--no-cron",
    default=None,
    help="--cron: let pg_cron run maintenance, or fail; --no-cron: remove its jobs. Default: use it if available.",
)
@click.option(
    "--cron-role",
    metavar="NAME",
    help="The login that pg_cron runs maintenance as. Default: this one; for a superuser messages_cron.",
)
@click.option("--pgmq", is_flag=True, help="Also make schema pgmq, for the clients of PGMQ.")
@click.option("--print-sql", is_flag=True, help="Print the SQL as one script for psql -f instead of running it.")
@with_settings
def install(settings: Settings, cron: bool | None, cron_role: str | None, pgmq: bool, print_sql: bool) -> None:
    """Install or upgrade the schema; let pg_cron run maintenance where it is available.

    Run it after every upgrade of the package; running it twice does no harm.
    """
    if print_sql:
        script = _install_script(cron) + (names_of_pgmq() if pgmq else "")
        show(settings, {"sql": script}, "") if settings.as_json else click.echo(script, nl=False)
        return
    with connected(settings, check=False) as conn:
        found = {"database": conn.info.dbname, **installation.install(conn, cron=cron, cron_role=cron_role)}
        if pgmq:
            install_names(conn)
        found["pgmq"] = pgmq
    show_done(settings, found, _installed(found))


def _installed(found: dict[str, Any]) -> str:
    version, database = f"version {found['schema_version']}", f"database {found['database']}"
    if found["migrations_applied"]:
        text = f"installed schema messages, {version}, in {database}."
    else:
        text = f"schema messages in {database} is already up to date, {version}."
    if found["pgmq"]:
        text += " Clients of PGMQ find their names in schema pgmq."
    if found["no_roles_because"]:
        text += f" There are no group roles: {found['no_roles_because']} {_WITHOUT_ROLES}"
    else:
        groups = ", ".join(f"messages_{group}" for group in GROUPS)
        text += f" It has the group roles {groups}: GRANT messages_publisher TO shop."
    if found["maintenance_mode"] == "pg_cron":
        return f"{text} pg_cron runs maintenance."
    text += " pg_cron does not run maintenance:"
    return f"{text} run `pgqueue maintenance` or PgQueueMaintenanceOperator every minute."


def _install_script(cron: bool | None = None) -> str:
    r"""Return `install.sql` with the files that its \ir lines name in their places, for psql."""
    _, _, body = (sql_folder() / "install.sql").read_text(encoding="utf-8").partition("\\set ON_ERROR_STOP on\n")
    text = f"-- Installs or upgrades schema messages of pgqueue {__version__}: psql -f THIS_FILE DSN\n"
    text += "\\set ON_ERROR_STOP on\n" + body
    for script in migrations.scripts():
        text = text.replace(f"\\ir {script.path}\n", f"-- {script.path}\n{script.text.rstrip()}\n")
    if cron is not None:
        text = text.removesuffix("COMMIT;\n")
        text += query("install_cron" if cron else "uninstall_cron").decode() + "COMMIT;\n"
    return text


@click.command()
@yes_option
@with_settings
def uninstall(settings: Settings, yes: bool) -> None:
    """Remove the schema with all queues, messages and archives."""
    with connected(settings, check=False) as conn:
        waiting, archived = _contents(conn)
        question = (
            f"Remove schema messages from database {conn.info.dbname} on {conn.info.host}:{conn.info.port}, "
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
    if not conn.execute(query("is_installed")).rowcount:
        raise SchemaMissing(f"schema messages is not installed in database {conn.info.dbname!r}", INSTALL)
    if not conn.execute(query("has_tables")).rowcount:
        return 0, 0
    ((waiting, archived),) = conn.execute(query("messages_to_remove")).fetchall()
    return waiting, archived


@click.command()
@with_settings
def maintenance(settings: Settings) -> None:
    """Run maintenance once, which pg_cron or Airflow does every minute.

    It ends expired leases, archives expired messages, notifies consumers of waiting ones and makes partitions of the
    archive. Running it at the same time as another maintenance run does no harm.

    The counts: freed, expired leases that it ended; archived, messages that had expired or were out of attempts;
    notified, messages for which it notified consumers again; partitions_made and partitions_dropped, of the archive;
    archive_deleted, archived messages whose retention had ended; cron_history_purged, old rows of its jobs in the
    history of pg_cron; history_rows, what it recorded for the history. While another is in progress there is only
    skipped, with the reason.
    """
    with connected(settings) as conn:
        counts = run_maintenance(conn)
    show_done(
        settings, counts, "ran maintenance: " + ", ".join(f"{key} {value}" for key, value in counts.items()) + "."
    )
