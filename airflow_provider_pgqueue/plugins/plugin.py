"""What Airflow loads in each of its processes."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_pgqueue.plugins import dispatch_listener


class PgQueuePlugin(AirflowPlugin):
    """Tells the queue when a DAG run that has messages ends."""

    name = "pgqueue"
    listeners = [dispatch_listener]  # noqa: RUF012 Airflow's own type
