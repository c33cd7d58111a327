"""Each morning: the causes of dead messages for which there is a repair are fixed.

the causes → one `repair` for each that we can repair → drain: what was requeued is worked off. All other causes wait
for a person, who finds them on the page of the queue or in `messages.dead_causes()`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator

QUEUE = "spark_flights"
REPAIRS = {"no arrival report yet": "flights_on_spark:report_arrival"}  # by what the messages died of
HERE = {"PYTHONPATH": str(Path(__file__).parent)}


@task
def choose_causes() -> list[dict[str, str]]:
    """Return the causes that have a repair, as arguments of `repair`; if there is none, the rest is skipped."""
    causes = PgQueueHook().run(verbs.dead_causes(QUEUE))
    return [
        {"queue": QUEUE, "cause": cause.fingerprint, "function": REPAIRS[cause.example]}
        for cause in causes
        if cause.example in REPAIRS
    ]


with DAG(
    "pgqueue_spark_repair",
    schedule="0 6 * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["pgqueue", "spark"],
    doc_md=__doc__,
) as dag:
    repair = PgQueueSparkOperator.partial(
        task_id="repair", pipeline="repair", env_vars=HERE, driver_memory="1g", max_active_tis_per_dag=1
    ).expand(arguments=choose_causes())
    drain = PgQueueSparkOperator(
        task_id="drain",
        pipeline="drain",
        arguments={"queue": QUEUE, "function": "flights_on_spark:check"},
        env_vars=HERE,
        driver_memory="1g",
    )
    repair >> drain
