"""Finds the error of a task or of the data source in an error of Spark, which has only the text of it."""

from __future__ import annotations

import re
from typing import Final

from airflow_provider_pgqueue.core import errors
from airflow_provider_pgqueue.core.errors import PgQueueError

_RAISED: Final = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.M)


def raised_in_spark(error: BaseException) -> PgQueueError | None:
    """Return the error of `core.errors` that Spark reports in one of its own; None if it reports another.

    The texts of these errors quote no body and no connection string, as those of Spark may.
    """
    for name, text in _RAISED.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PgQueueError) and kind is not errors.LeaseLost:
            return kind(text)
    return None
