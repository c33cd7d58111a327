"""Publishes dead messages again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Unpack

from airflow_provider_pgqueue.core.repair import Repair, RepairFunction, Validator, keep
from airflow_provider_pgqueue.tasks.remedy import RemedyArguments, RemedyTask

_CURABLE: Final = ("failed", "lock_expired")


class PgQueueRequeueOperator(RemedyTask):
    """Publishes dead messages again, unchanged and under new ids.

    The arguments for the choice of messages and the pace, and the result, are those of `RemedyTask`.

    :param results: by default `failed` and `lock_expired`, because rejected messages would only be rejected again;
        with a `cause`, `fingerprints` or `ids` all results.
    :param max_messages: requeue at most this many messages, oldest first, in all tries of the task together.
    """

    def __init__(
        self,
        *,
        queue_name: str | None,
        results: Sequence[str] | None = None,
        max_messages: int | None = 1000,
        batch_size: int = 1000,
        **kwargs: Unpack[RemedyArguments],
    ) -> None:
        super().__init__(
            queue_name=queue_name, results=results, max_messages=max_messages, batch_size=batch_size, **kwargs
        )
        self.check_written()

    def _function(self) -> tuple[RepairFunction | str, Validator | str | None]:
        return keep, None

    def _repair(self, run_id: str) -> Repair:
        if self.results is None and self.cause is None and self.fingerprints is None and self.ids is None:
            self.results = _CURABLE
        return super()._repair(run_id)
