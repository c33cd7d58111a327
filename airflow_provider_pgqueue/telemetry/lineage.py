"""The queues that a task reads and writes, for OpenLineage.

Only the provider of OpenLineage calls this, so only there its classes are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


def place_of(pgqueue_conn_id: str) -> tuple[str, str]:
    """Return `HOST:PORT` of a connection, and its database."""
    conn = PgQueueHook.get_connection(pgqueue_conn_id)
    return f"{conn.host or 'localhost'}:{conn.port or 5432}", conn.schema or conn.login or ""


def lineage_of(
    pgqueue_conn_id: str, queue_name: str | None, *, reads: bool, writes: bool, rows: int | None, sql: str | None
) -> OperatorLineage[Any, Any]:
    """Return the datasets of a task that reads or writes a queue, with the number of rows that it wrote, if it has.

    A queue is the dataset `DATABASE/QUEUE` in the namespace `pgqueue://HOST:PORT`, with a symlink to the table of the
    messages, `DATABASE.messages.message` in `postgres://HOST:PORT`. A task that works on all queues names none.
    """
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        Identifier,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
        SQLJobFacet,
        SymlinksDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    if queue_name is None or not (reads or writes):
        return OperatorLineage()
    place, database = place_of(pgqueue_conn_id)
    table = Identifier(namespace=f"postgres://{place}", name=f"{database}.messages.message", type="TABLE")
    named: dict[str, Any] = {
        "namespace": f"pgqueue://{place}",
        "name": f"{database}/{queue_name}",
        "facets": {"symlinks": SymlinksDatasetFacet(identifiers=[table])},
    }
    written = OutputDataset(**named)
    if rows is not None:
        written.outputFacets = {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows)}
    return OperatorLineage(
        inputs=[Dataset(**named)] if reads else [],
        outputs=[written] if writes else [],
        job_facets={"sql": SQLJobFacet(query=sql)} if sql else {},
    )
