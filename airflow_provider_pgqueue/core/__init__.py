"""The queue without Airflow, and the names that users need; everything inside the package imports from the modules.

conn = connect("postgresql://worker@db:5432/shop")
run(conn, verbs.publish("orders", {"order_id": 7}))
Consumer(queue_name="orders", handle=pack).drain(conn)
"""

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run, run_async
from airflow_provider_pgqueue.core.connection import check_version, connect, connect_async
from airflow_provider_pgqueue.core.consumer.consumer import Consumer
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    HandlerBroken,
    InvalidArgument,
    InvalidMessage,
    InvalidOutcome,
    LeaseLost,
    PermissionDenied,
    PgQueueError,
    QueueNotFound,
    QueuePaused,
)
from airflow_provider_pgqueue.core.installation import install
from airflow_provider_pgqueue.core.message import DeadMessage, Duplicate, Message, Unreadable
from airflow_provider_pgqueue.core.migrations import migrate
from airflow_provider_pgqueue.core.outcome import Failed, Outcome, Rejected, RejectMessage, Retry, Success
from airflow_provider_pgqueue.core.repair import KEEP, LEAVE, Dismiss, Repair
from airflow_provider_pgqueue.core.worker import Worker

__all__ = [
    "KEEP",
    "LEAVE",
    "ConnectionFailed",
    "Consumer",
    "DeadMessage",
    "Dismiss",
    "Duplicate",
    "Failed",
    "HandlerBroken",
    "InvalidArgument",
    "InvalidMessage",
    "InvalidOutcome",
    "Lease",
    "LeaseLost",
    "Message",
    "Outcome",
    "PermissionDenied",
    "PgQueueError",
    "QueueNotFound",
    "QueuePaused",
    "RejectMessage",
    "Rejected",
    "Repair",
    "Retry",
    "Success",
    "Unreadable",
    "Worker",
    "check_version",
    "connect",
    "connect_async",
    "install",
    "migrate",
    "run",
    "run_async",
    "verbs",
]
