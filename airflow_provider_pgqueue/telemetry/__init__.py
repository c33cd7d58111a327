"""Metrics, traces and OpenLineage datasets of the queue in Airflow."""
