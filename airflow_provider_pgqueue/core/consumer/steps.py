"""The steps of long work: what a handler has done for a message is kept, and another attempt does not do it again."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import key
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, LeaseLost, PgQueueError
from airflow_provider_pgqueue.core.json_text import JsonText, has_nul, to_json

if TYPE_CHECKING:
    from airflow_provider_pgqueue.core.consumer.held import Held


class Steps:
    """The steps of the messages of one lease, by the ids of the messages."""

    def __init__(self, lease: Held) -> None:
        # Not the lease itself, which has the messages: a cycle would keep their bodies until Python looks for cycles.
        self._lease = weakref.ref(lease)
        self._kept: dict[int, dict[str, Any]] = {}
        self._begun: set[tuple[int, str]] = set()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Let a message be sent to another process, where no lease holds it."""
        return type(None), ()

    def run(self, id_: int, name: str, function: Callable[[], Any]) -> Any:
        """Do what `Message.step` promises."""
        with self._step(id_, name) as kept:
            if name in kept:
                return kept[name]
            result = function()
            if isawaitable(result):
                if hasattr(result, "close"):
                    result.close()
                raise InvalidArgument(f"step {name!r} is asynchronous", "Write: await message.astep(…).")
            return self._record(id_, name, result)

    async def run_async(self, id_: int, name: str, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """Do what `Message.astep` promises."""
        with self._step(id_, name) as kept:
            if name in kept:
                return kept[name]
            result = function()
            return self._record(id_, name, await result if isawaitable(result) else result)

    @contextmanager
    def _step(self, id_: int, name: str) -> Iterator[dict[str, Any]]:
        """Give what earlier attempts have kept, while a step is done; after an exception it may be done again."""
        if (fix := key(name)) is not None:
            raise InvalidArgument(f"the name of a step is {str(name)[:50]!r}", fix)
        if (id_, name) in self._begun:
            raise InvalidArgument(
                f"step {name!r} of message {id_} is begun a second time in one attempt",
                "Give each step a name of its own, in a loop for example with the number of the turn.",
            )
        self._begun.add((id_, name))
        try:
            if id_ not in self._kept:
                # Also at the first attempt: a delivery that did not count may have kept some.
                kept = self._held(id_).call(id_, partial(verbs.recorded_steps, id=id_))
                self._kept[id_] = {step["name"]: step["result"] for step in kept}
            elif id_ not in self._held(id_).held_ids:
                raise LeaseLost([id_])
            yield self._kept[id_]
        except BaseException:
            self._begun.discard((id_, name))
            raise

    def _record(self, id_: int, name: str, result: Any) -> Any:
        try:
            text = to_json(result)
            if has_nul(text):
                raise InvalidMessage("the value has \\u0000, which cannot be stored", "Remove it.")
            lease = self._held(id_)
            record = partial(verbs.record_step, id=id_, name=name, result=JsonText(text), lease_for=lease.lease_for)
            return lease.call(id_, record)
        except PgQueueError as error:
            error.at(f"step {name!r} of message {id_} was done, but its result, a {type(result).__name__}, is not kept")
            raise

    def _held(self, id_: int) -> Held:
        if (lease := self._lease()) is None:
            # Its holder has let go of it: a call that hangs, or whoever kept the message and not the Lease.
            raise LeaseLost([id_])
        return lease
