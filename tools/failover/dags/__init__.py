"""The DAGs of the Airflow, and how many messages each lease and each dispatched run has."""

BATCH = 20
