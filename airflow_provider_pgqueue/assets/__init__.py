"""Queues as assets of Airflow."""
