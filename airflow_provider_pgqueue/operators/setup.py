"""Installs the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_pgqueue.core.argument import Rule
from airflow_provider_pgqueue.core.installation import RULES, Users
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import QueueTask

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgQueueSetupOperator(QueueTask):
    """Installs or upgrades the schema, creates queues, and lets pg_cron run maintenance where it is available.

    Running it again is safe; run it after every upgrade. The result has `schema_version`, `migrations_applied`,
    `queues_created`, `group_roles` (whether there are any) and `maintenance_mode`: `pg_cron`, or `airflow` if
    PgQueueMaintenanceOperator has to run every minute.

    :param queues: names, or dicts with the arguments of `verbs.create_queue`, such as
        `{"queue_name": "orders", "max_attempts": 3}`, which also change a queue that exists; a text is one name.
    :param cron: True fails where there is no pg_cron; False removes its jobs; None uses it if it is available.
    :param cron_role: the login as which pg_cron runs maintenance; by default that of the connection, or if that is a
        superuser `messages_cron`, which is created if it is missing.
    :param roles: True fails if the group roles cannot be created; False creates none; None creates them if possible.
    :param grants: users by group role, such as `{"publisher": ["shop"], "consumer": ["packer"]}`; the users must exist.
    :param queue_grants: users by queue and privilege (publish, consume, observe), such as
        `{"orders": {"consume": ["packer"]}}`; those users reach no other queue.
    :param dry_run: install in a transaction that is rolled back, and return what would be done. The task fails where
        the installation would. Meanwhile it holds the locks of an installation.
    """

    template_fields: Sequence[str] = ("queues", "grants", "queue_grants", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {**QueueTask.rules, **RULES}

    def __init__(
        self,
        *,
        queues: str | Sequence[str | Mapping[str, Any]] = (),
        cron: bool | None = None,
        cron_role: str | None = None,
        roles: bool | None = None,
        grants: Mapping[str, Users] | None = None,
        queue_grants: Mapping[str, Mapping[str, Users]] | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queues = queues
        self.cron = cron
        self.cron_role = cron_role
        self.roles = roles
        self.grants = grants
        self.queue_grants = queue_grants
        self.is_dry_run = dry_run
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Install, and return what was done."""
        summary = PgQueueHook(self.pgqueue_conn_id).install(
            self.queues,
            cron=self.cron,
            cron_role=self.cron_role,
            roles=self.roles,
            grants=self.grants,
            queue_grants=self.queue_grants,
            dry_run=self.is_dry_run,
        )
        if self.is_dry_run:
            self.log.info("a dry run: nothing of this was done")
        if summary["maintenance_mode"] == "airflow":
            self.log.info("there is no pg_cron: run PgQueueMaintenanceOperator every minute")
        return summary
