"""Runs maintenance where there is no pg_cron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, truth
from airflow_provider_pgqueue.core.maintenance import run_maintenance
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import QueueTask
from airflow_provider_pgqueue.telemetry.telemetry import record_status

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgQueueMaintenanceOperator(QueueTask):
    """Archives expired messages, notifies again for waiting ones, and makes partitions.

    The result has the counts. Any number may run at once.

    :param skip_if_pg_cron: skip the task where pg_cron runs maintenance.
    :param with_metrics: report the numbers of all queues to Airflow's metrics first, even where pg_cron runs
        maintenance; this needs the role `messages_observer`.
    """

    template_fields: Sequence[str] = ("pgqueue_conn_id",)
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "skip_if_pg_cron": truth,
        "with_metrics": truth,
    }

    def __init__(
        self,
        *,
        skip_if_pg_cron: bool = False,
        with_metrics: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.skip_if_pg_cron = skip_if_pg_cron
        self.with_metrics = with_metrics
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Run maintenance once."""
        hook = PgQueueHook(self.pgqueue_conn_id)
        with hook.connect() as conn:
            if self.with_metrics:
                record_status(hook.run(verbs.status(), conn=conn))
            if self.skip_if_pg_cron and hook.run(verbs.maintenance_mode(), conn=conn) == "pg_cron":
                raise AirflowSkipException("pg_cron runs maintenance")
            done = run_maintenance(conn)
        self.log.info("maintenance: %s", done)
        return done
