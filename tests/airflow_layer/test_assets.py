"""Queues as assets."""

from __future__ import annotations

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset

from airflow_provider_pgqueue.assets.pgqueue import create_asset
from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


@pytest.mark.parametrize(
    "uri",
    [
        "pgqueue://pgqueue_default/orders",
        "PGQUEUE://pgqueue_default/orders/",
        "pgqueue:///orders",
        "pgqueue://pgqueue_default/orders#x",
    ],
)
def test_a_queue_is_one_asset_however_it_is_written(uri: str) -> None:
    assert Asset(uri).uri == create_asset(queue_name="orders").uri == "pgqueue://pgqueue_default/orders"


@pytest.mark.parametrize(
    "uri", ["pgqueue://c/Orders", "pgqueue://c", "pgqueue://c/a/b", "pgqueue://c:5432/orders", "pgqueue://c/orders?a=1"]
)
def test_a_uri_that_names_no_queue_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="URI format pgqueue://"):
        Asset(uri)


def test_a_queue_where_the_connection_belongs_is_shown_how_to_write_it() -> None:
    with pytest.raises(ValueError, match="For the default connection write pgqueue:///orders"):
        Asset("pgqueue://orders")


def test_common_messaging_takes_the_uri_of_a_queue() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning, match="queue"):
        wrapped = MessageQueueTrigger(queue="pgqueue://shop/orders", min_messages=3)
    expected = PgQueueMessageTrigger(queue_name="orders", pgqueue_conn_id="shop", min_messages=3)
    assert wrapped.serialize() == expected.serialize()
    with pytest.warns(AirflowProviderDeprecationWarning, match="queue"):
        bad = MessageQueueTrigger(queue="pgqueue://shop/No Queue")
    with pytest.raises(InvalidArgument, match="'No Queue' cannot be a queue"):
        bad.serialize()
