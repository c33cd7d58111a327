"""What Airflow loads in each of its processes."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_pgqueue.plugins import dispatch_listener, page, state_listener


class PgQueuePlugin(AirflowPlugin):
    """Tells the queue when a DAG run that has messages ends, and adds the page Queues to the navigation.

    Where the configuration says so, it publishes states.
    """

    name = "pgqueue"
    listeners = [dispatch_listener, state_listener]  # noqa: RUF012 Airflow's own type
    fastapi_apps = [{"app": page.Page(), "url_prefix": page.PREFIX, "name": "Queues"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Queues",
            "href": f"{page.base_path()}{page.PREFIX}/",
            "destination": "nav",
            "url_route": "queues",
            "nav_top_level": True,
            "icon": f"{page.base_path()}{page.PREFIX}/static/queues.svg",
            "icon_dark_mode": f"{page.base_path()}{page.PREFIX}/static/queues-dark.svg",
        }
    ]
