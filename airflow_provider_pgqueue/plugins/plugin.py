"""The plugin, which Airflow loads in each of its processes."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_pgqueue.dispatch import listener
from airflow_provider_pgqueue.plugins import page


class PgQueuePlugin(AirflowPlugin):
    """Tells the queue when a DAG run that has messages ends, and adds the Queues page."""

    name = "pgqueue"
    listeners = [listener]  # noqa: RUF012 Airflow's own type
    fastapi_apps = [{"app": page.Page(), "url_prefix": page.PREFIX, "name": "Queues"}]  # noqa: RUF012
    external_views = page.views()
