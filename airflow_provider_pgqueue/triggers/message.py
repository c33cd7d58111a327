"""Fires when a queue has messages to lease."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Final, Unpack

from airflow_provider_pgqueue.core.argument import Rule, duration, optional, whole
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.triggers.notification import NotificationTrigger, TriggerArguments
from airflow_provider_pgqueue.triggers.watch import ConsumerWatch, MessageWatch

MESSAGE_RULES: Final[Mapping[str, Rule]] = {
    # Each poll counts as many messages.
    "min_messages": whole(1, 1_000_000),
    "max_wait": optional(duration(timedelta(0), timedelta(days=366))),
}


class PgQueueMessageTrigger(NotificationTrigger):
    """Fires a notification `{"queue_name", "ready", "oldest_age", "topics"}` when the queue has messages to lease.

    `ready` is counted up to about a thousand, `oldest_age` is in seconds, and `topics` has up to twenty different
    topics of the messages that were counted. Messages that cannot be leased now, because of `max_leased`, are not
    ready. The further parameters are those of `NotificationTrigger`.

    :param min_messages: fire only when this many messages are ready.
    :param max_wait: the time after which fewer are enough, counted from when the oldest became ready.
    """

    rules: ClassVar[Mapping[str, Rule]] = {**NotificationTrigger.rules, **MESSAGE_RULES}
    watch_class = MessageWatch

    def __init__(
        self,
        *,
        min_messages: int = 1,
        max_wait: Duration | None = None,
        **kwargs: Unpack[TriggerArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.min_messages = min_messages
        self.max_wait = None if max_wait is None else seconds(max_wait)
        self.check_arguments()


class PgQueueConsumerTrigger(PgQueueMessageTrigger):
    """Resumes tasks that take messages: of those that wait for one queue in a triggerer, as many as there are messages.

    A task that was resumed counts as one message for `poll_interval`. If the messages are still there then, others are
    resumed. The parameters are those of `PgQueueMessageTrigger`.
    """

    watch_class = ConsumerWatch
