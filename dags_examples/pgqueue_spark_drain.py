"""Publishes all flights of 2013, lets Spark work them off, and checks the delays against the data file.

The connection `spark_default` names the Spark: host `local[2]` on one machine, `spark://master` and a port for others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.publish import PgQueuePublishOperator
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator
from flights import read_flights

QUEUE = "spark_flights"


@task
def create_queue() -> None:
    """Make the queue if it does not exist."""
    PgQueueHook().install([QUEUE])


@task.pyspark(config_kwargs={"spark.master": "local[2]", "spark.ui.enabled": "false"})
def compare(spark: Any) -> dict[str, Any]:
    """Compute the delay of each carrier and month from the archive, and compare with the file."""
    from flights_on_spark import delays, mean_delays

    from airflow_provider_pgqueue.spark import register

    register(spark, PgQueueHook().conninfo())
    limit = get_current_context()["params"]["flights"]
    archive = (
        spark.read.format("pgqueue")
        .option("table", "archive")
        .option("columns", "result,output")
        .option("queue", QUEUE)
        .load()
    )
    from_archive = mean_delays(archive)
    from_file = delays(flight for flight in read_flights(limit) if flight["arr_time"] is not None)
    if from_archive != from_file:
        different = [name for name in from_archive | from_file if from_archive.get(name) != from_file.get(name)]
        raise ValueError(f"{len(different)} of {len(from_file)} figures differ, for example {different[:3]}")
    worst = max(from_file, key=lambda name: from_file[name][1])
    return {"figures": len(from_file), "worst": worst, "minutes": from_file[worst][1]}


def flights() -> Any:
    """Yield as many flights as the run asks for."""
    return read_flights(get_current_context()["params"]["flights"])


with DAG(
    "pgqueue_spark_drain",
    schedule=None,
    params={"flights": Param(None, type=["null", "integer"], minimum=1, description="How many; empty for all")},
    tags=["pgqueue", "spark"],
    doc_md=__doc__,
) as dag:
    publish = PgQueuePublishOperator(task_id="publish", queue_name=QUEUE, messages=flights, one_transaction=False)
    drain = PgQueueSparkOperator(
        task_id="drain",
        pipeline="drain",
        arguments={"queue": QUEUE, "function": "flights_on_spark:check"},
        env_vars={"PYTHONPATH": str(Path(__file__).parent)},
        driver_memory="1g",
        # Flights without an arrival report fail until they are dead, which is no reason to stop here.
        fail_on=["stopped"],
    )
    create_queue() >> publish >> drain >> compare()
