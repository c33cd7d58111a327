"""Exports the archive to Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.fix import log_to_stderr
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.core.quantity import quantity

if TYPE_CHECKING:
    from airflow_provider_pgqueue.export.exporter import Until


@click.command()
@click.option(
    "--target", required=True, type=click.Path(), help="Path or URI (file, s3, gs, hdfs) of the folder to export to."
)
@click.option(
    "--older-than",
    type=duration,
    default="0",
    help="Only partitions that were completed at least this long ago, such as 30d. Default: all completed ones.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME",
    help="Only this partition, such as message_archive_202601, whatever its age; can be repeated.",
)
@click.option(
    "--until",
    type=click.Choice(["completed", "now"]),
    default="completed",
    show_default=True,
    help="now also exports what is in partitions that still take messages; these are not dropped.",
)
@click.option("--drop", is_flag=True, help="Drop each partition after its export was compared with it, row by row.")
@click.option(
    "--parallelism",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="How many threads export at once; each has a connection and buffers up to 64 MB of rows.",
)
@with_settings
def export(
    settings: Settings,
    target: str,
    older_than: timedelta,
    partitions: Sequence[str],
    until: Until,
    drop: bool,
    parallelism: int,
) -> None:
    """Export the completed partitions of the archive to Parquet.

    Killed or not, run it again: what is exported and unchanged is skipped. What --drop has to keep is named with the
    reason, and the next run tries again. Needs adbc-driver-manager, adbc-driver-postgresql and pyarrow.

    For example: pgqueue export --target /data/messages --older-than 30d --drop
    """
    try:
        from airflow_provider_pgqueue.export import export_archive
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    log_to_stderr()
    with connected(settings):
        summary = export_archive(
            settings.dsn,
            target=target,
            older_than=older_than,
            partitions=partitions,
            drop=drop,
            until=until,
            parallelism=parallelism,
        )
    show_done(settings, summary, _text(summary))


def _text(summary: dict[str, Any]) -> str:
    """Return what was done: `exported 1 partition with 1,200 messages in 3 files, 0 skipped, 1 dropped.`"""
    done = f"exported {quantity(len(summary['exported']), 'partition')}"
    if summary["exported"]:
        done += f" with {quantity(summary['rows'])} in {quantity(summary['files'], 'file')}"
    kept = [f"kept {name}: {why.rstrip('.')}" for name, why in summary["kept"].items()]
    if not summary["exported"]:
        kept += [f"{name} waits: {why}" for name, why in summary["waiting"].items()]
    return "; ".join([f"{done}, {len(summary['skipped']):,} skipped, {len(summary['dropped']):,} dropped", *kept]) + "."
