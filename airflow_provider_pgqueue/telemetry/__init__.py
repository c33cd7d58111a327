"""What Airflow's metrics, traces and OpenLineage learn of the queue."""
