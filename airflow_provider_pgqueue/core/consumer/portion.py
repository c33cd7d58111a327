"""Limits how many messages are handled together, so that a message that kills, raises or hangs affects no others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, Self, TypeVar
from uuid import UUID

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import LeaseLost
from airflow_provider_pgqueue.core.outcome import class_name, loggable
from airflow_provider_pgqueue.core.quantity import quantity

log = logging.getLogger(__name__)

_PARTS: Final = 10


class Portion:
    """The number of messages to lease next, at most `batch_size`.

    A message that comes again after a lease that ended without a result may have ended its consumer, as may each of
    those that were leased with it. It is handled in a tenth of a batch, the next time in a hundredth, and alone at its
    last attempt.
    """

    def __init__(self, batch_size: int) -> None:
        self._most = batch_size
        self.size = batch_size

    def fit(
        self, conn: psycopg.Connection[Any], lock_token: UUID | None, attempts: Mapping[int, int], max_attempts: int
    ) -> int:
        """Return how many of these messages, from the first on, to handle; the others go back without an attempt."""
        ids = list(attempts)
        again = [id_ for id_ in ids if attempts[id_] > 1]
        abandoned = run(conn, verbs.abandoned(lock_token, again)) if again and lock_token else []
        if not abandoned or not lock_token:
            self.size = min(self._most, _PARTS * self.size)
            return len(ids)
        fits, most = 0, len(ids)
        for fits, id_ in enumerate(ids):
            if id_ in abandoned:
                last = attempts[id_] >= max_attempts
                most = min(most, 1 if last else -(-self._most // _PARTS ** (attempts[id_] - 1)))
            if fits >= most:
                break
        else:
            fits = len(ids)
        self.size = fits
        if others := ids[fits:]:
            log.info("the lease of %s ended without a result before: %s first", quantity(len(abandoned)), fits)
            with suppress(LeaseLost):
                run(conn, verbs.release(lock_token, others, count_attempt=False))
        return fits


class Sliced(Protocol):
    """A batch, such as a list of messages or a table."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: slice, /) -> Self: ...


_Piece = TypeVar("_Piece", bound=Sliced)


def tenths(piece: _Piece, error: BaseException) -> list[_Piece]:
    """Return a piece whose call raised in tenths, the first one last, to be handled before what waits.

    So a call may see the neighbours of a bad message again, once for each power of ten in the size of the batch.
    """
    why = loggable(class_name(error))
    log.info("%s in a call for %s: handling them in smaller batches", why, quantity(len(piece)))
    size = -(-len(piece) // _PARTS)
    return [piece[place : place + size] for place in range(0, len(piece), size)][::-1]
