"""`@task.pgqueue`: a task that is a function of a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import get_unique_task_id, task_decorator_factory

from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator


class PgQueueDecoratedOperator(PgQueueConsumeOperator):
    """What `@task.pgqueue` makes of a function: a consume operator that calls it.

    :param python_callable: the function.
    :param batches: call it with lists of messages.
    """

    custom_operator_name = "@task.pgqueue"
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("apply_function", "apply_function_batch", "model")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        batches: bool = False,
        multiple_outputs: bool = False,
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # The return value of the task is a count of outcomes: what the function returns belongs to its message.
        del multiple_outputs
        if not getattr(self, "_BaseOperator__from_mapped", False):
            task_id = get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group"))
        handler: dict[str, Any] = {"apply_function_batch" if batches else "apply_function": python_callable}
        super().__init__(task_id=task_id, op_args=op_args, op_kwargs=op_kwargs, **handler, **kwargs)


def pgqueue_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function of a message a task that consumes a queue: `@task.pgqueue(queue_name="orders")`.

    The function gets each Message, or with `batches=True` lists of them, and returns None or outcomes, as for
    `PgQueueConsumeOperator`, whose parameters are the other ones. The arguments of the call in the DAG are further
    arguments of the function, and may be templates or results of other tasks.

    :param python_callable: the function, if the decorator is used without parentheses.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=PgQueueDecoratedOperator, **kwargs
    )
