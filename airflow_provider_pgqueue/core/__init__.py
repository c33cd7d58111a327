"""The queue without Airflow: values, verbs, listener, worker."""
