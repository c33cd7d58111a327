"""The arguments `message` and `messages` of the operators that publish them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pgqueue.core.argument import Rule, a_type, json_value
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import check_call_without
from airflow_provider_pgqueue.core.json_text import all_to_json
from airflow_provider_pgqueue.tasks.publish import PublishTask

if TYPE_CHECKING:
    from airflow.sdk import Context

Messages = Iterable[Any] | Callable[[], Iterable[Any]] | XComArg


class PublishesBodies(PublishTask):
    """A task that publishes either `message` or `messages`.

    :param message: one body, any JSON value; the texts in it are templates. What they render to is not stored by
        Airflow, nor shown under Rendered Template. To publish JSON null, give `messages=[None]`.
    :param messages: bodies as a list, or the result of another task that is a list, or a function without parameters
        that returns any iterable, which is read as a stream. They are not templates.
    """

    message: Any
    messages: Messages | None
    template_fields: Sequence[str] = ("message", *PublishTask.template_fields)
    rules: ClassVar[Mapping[str, Rule]] = {**PublishTask.rules, "message": json_value}
    _takes_arguments: ClassVar[bool] = False

    def check_written(self) -> None:
        """Check the arguments as they were written, and let the task that returns the messages run first."""
        super().check_written()
        if isinstance(self.messages, XComArg) and not getattr(self, "_BaseOperator__from_mapped", False):
            # Airflow sees dependencies in templated fields only, and shows those.
            XComArg.apply_upstream_relationship(self, self.messages)

    def _check_together(self) -> None:
        if (self.message is None) == (self.messages is None):
            raise InvalidArgument(
                f"{'nothing' if self.message is None else 'message and messages'} given",
                "Give one of message and messages; to publish JSON null, messages=[None].",
            )
        if hasattr(self.messages, "operator_class"):
            # It can be called, and would then return no messages but a task.
            raise InvalidArgument("messages is a task that is not called. Call it: messages=task().")
        _check_several(self.messages, "messages is")
        if not (self.messages is None or callable(self.messages) or isinstance(self.messages, Iterable | XComArg)):
            raise InvalidArgument(f"messages is {a_type(self.messages)}. Give a list, or use message.")
        if callable(self.messages) and not self._takes_arguments:
            check_call_without(self.messages)
        if isinstance(self.messages, list | tuple):
            self._check_replaces_one(len(self.messages))
        super()._check_together()

    def _take_arguments(self, context: Context) -> None:
        if isinstance(self.messages, XComArg):
            self._check_upstream(self.messages)
            if (found := self.messages.resolve(context)) is None:
                raise InvalidArgument(
                    "messages is None: the other task returned nothing", "Let it return a list, which may be empty."
                )
            self.messages = found
        super()._take_arguments(context)

    def _check_upstream(self, messages: XComArg) -> None:
        """Raise if this task does not wait for the one that returns the messages: Airflow sees no `partial`."""
        if missing := {task.task_id for task, _ in messages.iter_references()} - self.upstream_task_ids:
            raise InvalidArgument(
                f"messages come from {', '.join(sorted(missing))}, and this task does not wait for it",
                "Give messages to expand, or set the dependency with >>.",
            )

    def _batches(self) -> Iterator[list[str]]:
        bodies: Any = [self.message] if self.messages is None else self.messages
        if callable(bodies):
            bodies = bodies()
            _check_several(bodies, "the function of messages returned")
            if not isinstance(bodies, Iterable):
                raise InvalidArgument(f"the function of messages returned {a_type(bodies)}", "Let it return a list.")
        texts = all_to_json(bodies)
        while batch := list(islice(texts, self.batch_size)):
            yield batch


def _check_several(messages: object, what: str) -> None:
    """Raise for one body in the place of several, whose characters or keys would be published."""
    if isinstance(messages, str | bytes | Mapping):
        raise InvalidArgument(f"{what} one {type(messages).__name__}. Give a list, or use message.")
