"""`python -m airflow_provider_pgqueue.cli` is `pgqueue`."""

from airflow_provider_pgqueue.cli import main

main()
