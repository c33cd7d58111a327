"""What the operators that start runs of another DAG have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.argument import Rule, json_object, optional, text, whole
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Dispatch
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.dispatch.dispatch import CONF, hand_over
from airflow_provider_pgqueue.tasks.task import QueueTask

if TYPE_CHECKING:
    from airflow.sdk import Context


def _more_conf(value: Any) -> str | None:
    if isinstance(value, Mapping) and CONF in value:
        return f"The runs get their messages under {CONF!r}: give your values another key."
    return json_object(value)


class RunStarter(QueueTask):
    """Hands messages to runs of another DAG.

    A run of its own would only dispatch, and its success would archive the messages.

    :param trigger_dag_id: the DAG whose runs get the messages, another one than that of this task. While it is paused
        it gets none.
    :param batch_size: the largest number of messages for one run.
    :param max_open: the largest number of runs under way for this queue and DAG, whoever started them.
    :param conf: more `conf` for the runs, under other keys than `pgqueue`.
    """

    queue_name: str
    trigger_dag_id: str
    conf: Mapping[str, Any] | None
    reads_queue = True
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": argument.queue_name,
        "trigger_dag_id": text,
        "batch_size": whole(1, 10_000),
        "max_open": whole(1, 10_000),
        "conf": optional(_more_conf),
    }

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

    @abstractmethod
    def _opening(self, context: Context) -> Statement[list[Dispatch]]:
        """Return what records dispatches for the messages that may have a run."""

    def _hand_over(self, context: Context) -> dict[str, int]:
        """Reconcile, start runs for the messages that may have one, and return how many."""
        opening = self._opening(context)
        return dict(hand_over(self.pgqueue_conn_id, self.queue_name, self.trigger_dag_id, opening, self.conf))
