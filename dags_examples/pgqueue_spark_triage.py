"""Each morning: what messages died of, as a table and a page; then the causes for which there is a repair are fixed.

triage → the causes → one `repair` for each that we can repair → drain: what was requeued is worked off. All other
causes wait for a person, who finds them on the page. The Airflow variable `pgqueue_triage_report` says where that is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator

QUEUE = "spark_flights"
REPAIRS = {"no arrival report yet": "flights_on_spark:report_arrival"}  # by the pattern of the cause
HERE = {"PYTHONPATH": str(Path(__file__).parent)}


@task
def choose_causes() -> list[dict[str, str]]:
    """Return the causes of the triage that have a repair, as arguments of `repair`; none: the rest is skipped."""
    with PgQueueHook().connect() as conn:
        found = conn.execute(
            "SELECT cause, pattern FROM messages.triage_causes(%s) WHERE unremedied > 0", [QUEUE]
        ).fetchall()
    return [{"cause": cause, "function": REPAIRS[pattern]} for cause, pattern in found if pattern in REPAIRS]


with DAG(
    "pgqueue_spark_triage",
    schedule="0 6 * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["pgqueue", "spark"],
    doc_md=__doc__,
) as dag:
    triage = PgQueueSparkOperator(
        task_id="triage",
        pipeline="triage",
        arguments={"report": "{{ var.value.get('pgqueue_triage_report', '/tmp/pgqueue_triage.html') }}"},
        driver_memory="1g",
    )
    causes = choose_causes()
    repair = PgQueueSparkOperator.partial(
        task_id="repair", pipeline="repair", env_vars=HERE, driver_memory="1g", max_active_tis_per_dag=1
    ).expand(arguments=causes)
    drain = PgQueueSparkOperator(
        task_id="drain",
        pipeline="drain",
        arguments={"queue": QUEUE, "function": "flights_on_spark:judge"},
        env_vars=HERE,
        driver_memory="1g",
    )
    triage >> causes
    repair >> drain
