"""Does the upkeep where there is no pg_cron, and removes bodies that are kept elsewhere and no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, duration, truth
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.upkeep import do_upkeep
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.tasks.task import QueueTask, TaskArguments
from airflow_provider_pgqueue.tasks.telemetry import record_status

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgQueueUpkeepOperator(QueueTask):
    """Archives expired messages, rings again for waiting ones, makes partitions, and publishes the due schedules.

    The result has the counts, `scheduled` that of the messages of schedules. Any number may run at once: each tick of a
    schedule is published once.

    :param skip_if_pg_cron: skip the task where pg_cron does the upkeep.
    :param with_metrics: report the numbers of all queues to Airflow's metrics first, even where pg_cron does the
        upkeep; this needs the role `messages_observer`.
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
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.skip_if_pg_cron = skip_if_pg_cron
        self.with_metrics = with_metrics
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish the due schedules and do the upkeep once."""
        hook = PgQueueHook(self.pgqueue_conn_id)
        with hook.connect() as conn:
            if self.with_metrics:
                record_status(hook.run(verbs.status(), conn=conn))
            if self.skip_if_pg_cron and hook.run(verbs.upkeep_mode(), conn=conn) == "pg_cron":
                raise AirflowSkipException("pg_cron does the upkeep")
            scheduled = hook.run(verbs.run_schedules(), conn=conn)
            done = do_upkeep(conn) | {"scheduled": scheduled}
        self.log.info("upkeep: %s", done)
        return done


class PgQueueCleanBodiesOperator(QueueTask):
    """Removes the bodies that the folder of the connection keeps, and to which no message points, waiting or archived.

    So a body is removed once its message has left the archive, after the retention of the queue, or its publish was
    rolled back. The result is `{"removed"}`, a number. It reads all messages, but no large body, and needs the role
    `messages_reader`; once a day is enough. Any number may run, while others publish and consume. Bodies of other
    databases in the folder stay. The task is skipped if the connection has no `bodies_at`.

    :param older_than: keep what was written more recently, because its publish may not have committed: give more than
        the longest transaction that publishes.
    """

    template_fields: Sequence[str] = ("pgqueue_conn_id",)
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "older_than": duration(timedelta(hours=1), timedelta(days=3660)),
    }

    def __init__(self, *, older_than: Duration = timedelta(days=1), **kwargs: Unpack[TaskArguments]) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.check_written()

    def execute(self, context: Context) -> dict[str, int]:
        """Remove them once."""
        hook = PgQueueHook(self.pgqueue_conn_id)
        if (bodies := hook.body_store()) is None:
            raise AirflowSkipException(f"connection {self.pgqueue_conn_id!r} has no bodies_at")
        with hook.connect() as conn:
            removed = bodies.clean(conn, older_than=self.older_than)
        self.log.info("bodies that were removed from %s: %d", bodies.folder, removed)
        return {"removed": removed}
