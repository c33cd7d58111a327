"""Messages that DAG runs finish."""

from airflow_provider_pgqueue.dispatch.dispatch import get_messages as get_messages
