"""A thousand sensors, whose deferral the benchmark writes into the metadata, and a hundred watchers."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from benchmarks.triggerer.triggers import LoopDelayTrigger, RecordedTrigger

with DAG("bench_sensors", schedule=None) as sensors:
    PgQueueMessageSensor.partial(task_id="wait").expand(queue_name=[f"wait_{number % 100}" for number in range(1000)])


def watched(number: int) -> Asset:
    """Return an asset with a watcher of a queue."""
    trigger = RecordedTrigger(queue_name=f"watch_{number}")
    return Asset(f"watched_{number}", watchers=[AssetWatcher(name=f"watch_{number}", trigger=trigger)])


loop = Asset("loop", watchers=[AssetWatcher(name="loop", trigger=LoopDelayTrigger())])

with DAG("bench_watchers", schedule=[*map(watched, range(100)), loop]) as watchers:
    pass
