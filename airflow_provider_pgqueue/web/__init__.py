"""The page of the queues: server-rendered HTML that knows no Airflow. See `make_app`."""

from airflow_provider_pgqueue.web.app import make_app
from airflow_provider_pgqueue.web.request import Links, Person, Task

__all__ = ["Links", "Person", "Task", "make_app"]
