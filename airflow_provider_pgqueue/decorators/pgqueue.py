"""`@task.pgqueue`: a task that is a function of a message; `@task.pgqueue.publish`: one that returns messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import get_unique_task_id, task_decorator_factory

from airflow_provider_pgqueue.core.argument import check, truth
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator
    from airflow.sdk import Context


_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PgQueueDecoratedOperator(PgQueueConsumeOperator):
    """What `@task.pgqueue` makes of a function: a consume operator that calls it.

    :param python_callable: the function.
    :param batches: call it with lists of messages.
    """

    custom_operator_name = "@task.pgqueue"
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("apply_function", "apply_function_batch", "model", "python_callable")

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
        check({"batches": batches}, {"batches": truth})
        if not getattr(self, "_BaseOperator__from_mapped", False):
            task_id = get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group"))
        handler: dict[str, Any] = {"apply_function_batch" if batches else "apply_function": python_callable}
        super().__init__(task_id=task_id, op_args=op_args, op_kwargs=op_kwargs, **handler, **kwargs)
        self.python_callable = python_callable

    def _further(self, context: Context) -> dict[str, Any]:
        return _asked_for(self.python_callable, context, (None, *self.op_args))


def pgqueue_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function of a message a task that consumes a queue: `@task.pgqueue(queue_name="orders")`.

    The function gets each Message, or with `batches=True` lists of them, and returns None or outcomes, as for
    `PgQueueConsumeOperator`, whose other parameters the decorator takes too. The arguments of the call in the DAG are
    passed to the function after the message, and may be templates or results of other tasks. Parameters such as
    `ti=None`, and `**context`, get what they get from `@task`.

    :param python_callable: the function, if the decorator is used without parentheses.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=PgQueueDecoratedOperator, **kwargs
    )


class PgQueuePublishDecoratedOperator(PgQueuePublishOperator):
    """What `@task.pgqueue.publish` makes of a function: a publish operator that calls it.

    :param python_callable: the function.
    """

    custom_operator_name = "@task.pgqueue.publish"
    template_fields: Sequence[str] = (*PgQueuePublishOperator.template_fields, "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("messages", "python_callable")
    _takes_arguments = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        multiple_outputs: bool = False,
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # The return value of the task says what was published.
        del multiple_outputs
        if not getattr(self, "_BaseOperator__from_mapped", False):
            task_id = get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group"))
        super().__init__(task_id=task_id, messages=python_callable, **kwargs)
        self.python_callable = python_callable
        self.op_args = op_args
        self.op_kwargs = op_kwargs or {}

    def execute(self, context: Context) -> dict[str, Any]:
        """Call the function, publish what it returns, and return how many and their ids."""
        more = _asked_for(self.python_callable, context, self.op_args)
        self.messages = lambda: _messages_of(self.python_callable(*self.op_args, **{**more, **self.op_kwargs}))
        return super().execute(context)


def _asked_for(function: Callable[..., Any], context: Context, args: Sequence[Any]) -> dict[str, Any]:
    """Return the values of the context that a function has parameters for, besides those that get `args`."""
    parameters = inspect.signature(function).parameters
    free = dict(list(parameters.items())[len(args) :])
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        taken = parameters.keys() - free.keys()
        return {name: value for name, value in context.items() if name not in taken}
    named = {name for name, one in free.items() if one.kind in _BY_NAME}
    return {name: value for name, value in context.items() if name in named}


def _messages_of(returned: Any) -> Iterable[Any]:
    if returned is None:
        return ()
    return returned if isinstance(returned, list | tuple | Iterator) else (returned,)


def publish_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function a task that publishes what it returns: `@task.pgqueue.publish(queue_name="orders")`.

    A list, a tuple or an iterator is read as a stream of messages; None publishes nothing, and anything else is one
    message. The decorator takes the arguments of `PgQueuePublishOperator` except the messages, and the result is
    the same. The arguments of the call in the DAG are passed to the function, and may be templates or results of other
    tasks.

    :param python_callable: the function, if the decorator is used without parentheses.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=PgQueuePublishDecoratedOperator, **kwargs
    )


# Airflow finds decorators by one name without dots, and hands out what has that name: so the second hangs on the first.
pgqueue_task.publish = publish_task  # type: ignore[attr-defined]
