"""Which queues a task reads and writes, for OpenLineage.

Only the provider of OpenLineage calls this, so only there its classes are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


def place_of(pgqueue_conn_id: str) -> tuple[str, str]:
    """Return `HOST:PORT` of a connection, and its database."""
    conn = PgQueueHook.get_connection(pgqueue_conn_id)
    return f"{conn.host or 'localhost'}:{conn.port or 5432}", conn.schema or conn.login or ""


class QueueLineage:
    """An operator whose task reads or writes the queue `queue_name` on `pgqueue_conn_id`.

    A queue is the dataset `DATABASE/QUEUE` in the namespace `pgqueue://HOST:PORT`, with a symlink to the table of the
    messages, `DATABASE.messages.message` in `postgres://HOST:PORT`. A task that works on all queues names none.
    """

    reads_queue: ClassVar[bool] = False
    writes_queue: ClassVar[bool] = False
    lineage_rows: int | None = None
    """How many messages the task wrote, once it has."""

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the datasets of the task; at its end, when OpenLineage asks again, also how many messages it wrote."""
        from airflow.providers.common.compat.openlineage.facet import (
            Dataset,
            Identifier,
            OutputDataset,
            OutputStatisticsOutputDatasetFacet,
            SQLJobFacet,
            SymlinksDatasetFacet,
        )
        from airflow.providers.openlineage.extractors import OperatorLineage

        queue_name: str | None = getattr(self, "queue_name", None)
        if queue_name is None or not (self.reads_queue or self.writes_queue):
            return OperatorLineage()
        place, database = place_of(self.pgqueue_conn_id)  # type: ignore[attr-defined]
        table = Identifier(namespace=f"postgres://{place}", name=f"{database}.messages.message", type="TABLE")
        named: dict[str, Any] = {
            "namespace": f"pgqueue://{place}",
            "name": f"{database}/{queue_name}",
            "facets": {"symlinks": SymlinksDatasetFacet(identifiers=[table])},
        }
        written = OutputDataset(**named)
        if self.lineage_rows is not None:
            written.outputFacets = {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=self.lineage_rows)}
        sql = getattr(self, "sql", None)
        return OperatorLineage(
            inputs=[Dataset(**named)] if self.reads_queue else [],
            outputs=[written] if self.writes_queue else [],
            job_facets={"sql": SQLJobFacet(query=sql)} if sql else {},
        )
