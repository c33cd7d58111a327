"""One value per verb of the queue: which function, which arguments, what comes back.

A statement knows no connection. `client.run` and `client.run_async` run it, so each verb is written once. Each module
has the verbs of the chapter of its name in sql/chapters. All its public names are exported here, also to type checkers.
"""
# ruff: noqa: F403

from airflow_provider_pgqueue.core.statement import Statement as Statement
from airflow_provider_pgqueue.core.verbs.access import *
from airflow_provider_pgqueue.core.verbs.archive import *
from airflow_provider_pgqueue.core.verbs.audit import *
from airflow_provider_pgqueue.core.verbs.causes import *
from airflow_provider_pgqueue.core.verbs.cron import *
from airflow_provider_pgqueue.core.verbs.dead import *
from airflow_provider_pgqueue.core.verbs.dispatch import *
from airflow_provider_pgqueue.core.verbs.health import *
from airflow_provider_pgqueue.core.verbs.history import *
from airflow_provider_pgqueue.core.verbs.lease import *
from airflow_provider_pgqueue.core.verbs.maintenance import *
from airflow_provider_pgqueue.core.verbs.partitions import *
from airflow_provider_pgqueue.core.verbs.publish import *
from airflow_provider_pgqueue.core.verbs.queues import *
from airflow_provider_pgqueue.core.verbs.spark import *
from airflow_provider_pgqueue.core.verbs.status import *
from airflow_provider_pgqueue.core.verbs.topics import *


def __dir__() -> list[str]:
    """Return the verbs and the types of their arguments, without what their modules import."""
    inside = f"{__name__}."
    return sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(inside))
