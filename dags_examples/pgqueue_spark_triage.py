"""Each morning: dead messages by cause, as a table and a page; then one cause that can be repaired is reprocessed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator

QUEUE = "spark_flights"
HERE = {"PYTHONPATH": str(Path(__file__).parent)}


@task.short_circuit
def choose_cause() -> list[str]:
    """Return the causes that this DAG knows how to repair: failed flights without an arrival report."""
    return sorted(
        cause.fingerprint
        for cause in PgQueueHook().dead_causes(QUEUE)
        if cause.result == "failed" and cause.fingerprint and "no arrival report" in (cause.example or "")
    )


def arguments(fingerprint: str) -> dict[str, Any]:
    """Return the options of `reprocess` for one cause."""
    return {"queue": QUEUE, "fingerprint": fingerprint, "repair": "flights_on_spark:report_arrival"}


with DAG(
    "pgqueue_spark_triage",
    schedule="0 6 * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["pgqueue", "spark"],
    doc_md=__doc__,
) as dag:
    triage = PgQueueSparkOperator(
        task_id="triage",
        pipeline="triage",
        arguments={"report": "{{ var.value.get('pgqueue_triage_report', '/tmp/pgqueue_triage.html') }}"},
        driver_memory="1g",
    )
    causes = choose_cause()
    reprocess = PgQueueSparkOperator.partial(
        task_id="reprocess", pipeline="reprocess", env_vars=HERE, driver_memory="1g", max_active_tis_per_dag=1
    ).expand(arguments=causes.map(arguments))
    triage >> causes
