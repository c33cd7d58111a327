"""DAGs that the end-to-end tests drive: partitions of assets, where this Airflow has them."""

from __future__ import annotations

from airflow import sdk
from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task

from airflow_provider_pgqueue.core import Message
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger

REGIONS = Asset("e2e_regions")
ARRIVED = Asset(
    "e2e_partitions_arrived",
    watchers=[AssetWatcher(name="partitions", trigger=PgQueueMessageTrigger(queue_name="e2e_partitions"))],
)


def note_region(message: Message) -> None:
    """Say which partition the message has changed."""
    get_current_context()["outlet_events"][REGIONS].add_partitions(message.body["region"])


if hasattr(sdk, "PartitionedAssetTimetable"):
    for dag_id, asset in (("e2e_of_a_region", REGIONS), ("e2e_of_a_watcher", ARRIVED)):
        with DAG(dag_id, schedule=sdk.PartitionedAssetTimetable(assets=asset)):

            @task
            def partition() -> str:
                """Return the partition of the run."""
                return str(get_current_context()["dag_run"].partition_key)

            partition()

    with DAG("e2e_note_regions", schedule=None):
        PgQueueConsumeOperator(
            task_id="consume", queue_name="e2e_regions", apply_function=note_region, outlets=[REGIONS]
        )
