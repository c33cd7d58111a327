"""What the operators that start runs of another DAG have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_pgqueue.core.argument import json_object
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.dispatch import CONF
from airflow_provider_pgqueue.tasks.task import QueueTask


def more_conf(value: Any) -> str | None:
    """Judge what a DAG adds to the `conf` of the runs."""
    if isinstance(value, Mapping) and CONF in value:
        return f"The runs get their messages under {CONF!r}: give your values another key."
    return json_object(value)


class RunStarter(QueueTask):
    """A task that hands messages to runs of another DAG: runs of its own would end them as handled, and only dispatch.

    :param trigger_dag_id: the DAG that gets the messages.
    """

    trigger_dag_id: str

    def check_written(self) -> None:
        """Check the arguments as they were written; with the DAG of the task, if it is known yet."""
        super().check_written()
        if self.has_dag():  # type: ignore[no-untyped-call]
            self._check_target(self.dag.dag_id)

    def pre_execute(self, context: Any) -> None:
        """Check what templates made, and the DAG that the task runs in, before anything is leased."""
        super().pre_execute(context)
        self._check_target(context["ti"].dag_id)

    def _check_target(self, own: str) -> None:
        if self.trigger_dag_id == own:
            raise InvalidArgument(
                f"trigger_dag_id is {own!r}, the DAG of this task",
                "Give the id of another DAG, whose tasks handle the messages.",
            )
