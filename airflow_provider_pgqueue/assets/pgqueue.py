"""Queues as assets: `Asset("pgqueue://pgqueue_default/orders")` is the queue `orders` of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow.providers.common.compat.assets import Asset

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.hooks.connection_id import check_connection_ids

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset as OpenLineageDataset

_DEFAULT = "pgqueue_default"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the one form of the URI of a queue; ValueError if it names none.

    `pgqueue:///orders` is on the default connection, a slash at the end is left away.
    """
    if uri.query or "@" in uri.netloc or ":" in uri.netloc:
        raise ValueError("URI format pgqueue:// has the id of an Airflow connection, and neither login, port nor query")
    name = uri.path.strip("/")
    if argument.queue_name(name) is not None:
        meant = "" if name else f" For the default connection write pgqueue:///{uri.netloc}."
        raise ValueError(
            f"URI format pgqueue:// is pgqueue://CONNECTION/QUEUE.{meant} {name[:100]!r} cannot be a queue"
        )
    return SplitResult("pgqueue", uri.netloc or _DEFAULT, f"/{name}", "", "")


def create_asset(*, queue_name: str, pgqueue_conn_id: str = _DEFAULT, extra: dict[str, Any] | None = None) -> Asset:
    """Return a queue as an asset, for inlets, outlets and schedules.

    :param queue_name: the queue.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    :param extra: what Airflow keeps of the asset and shows.
    """
    check_connection_ids({"pgqueue_conn_id": pgqueue_conn_id})
    return Asset(uri=f"pgqueue://{pgqueue_conn_id}/{queue_name}", extra=extra)


def queue_of(uri: str) -> dict[str, str]:
    """Return the arguments `queue_name` and `pgqueue_conn_id` that the URI of a queue stands for."""
    try:
        parts = sanitize_uri(urlsplit(uri))
    except ValueError as error:
        # A login stays out of the log.
        shown = "a URI with a login" if "@" in uri else repr(uri[:100])
        raise InvalidArgument(f"queue is {shown}", f"{error}.") from error
    return {"queue_name": parts.path.strip("/"), "pgqueue_conn_id": parts.netloc}


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> OpenLineageDataset:
    """Return the dataset that OpenLineage knows the queue by, which is that of our operators."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    from airflow_provider_pgqueue.telemetry.lineage import place_of

    found = queue_of(asset.uri)
    place, database = place_of(found["pgqueue_conn_id"])
    return Dataset(namespace=f"pgqueue://{place}", name=f"{database}/{found['queue_name']}")
