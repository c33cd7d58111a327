"""Says which task instance did something, for `locked_by`, `handled_by` and `remedied_by`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgqueue.core.connection import process_name

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_of(context: Context) -> str:
    """Return `dag/run/task/map_index` of the task instance: the same in each of its tries."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"


def name_of(context: Context) -> str:
    """Return `dag/run/task/map_index/try` of the task instance and the process that runs it."""
    return f"{task_of(context)}/{context['ti'].try_number}@{process_name()}"
