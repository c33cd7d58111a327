#!/bin/bash
# Sets everything up: Airflow's metadata, the schema of the queue, and what the example DAGs publish to and write into.
# Runs at every start; what is there already stays as it is, and an older schema is upgraded.
set -euo pipefail

airflow db migrate
pgqueue install
for queue in alarms flights orders packing quotes reports wakeups; do
    pgqueue queues create "$queue"
done
pgqueue maintenance  # or the health of the queue is red until pg_cron comes by
cd "${AIRFLOW__CORE__DAGS_FOLDER:-/opt/airflow/dags}"
python -c 'from flights import create_table; create_table()'
