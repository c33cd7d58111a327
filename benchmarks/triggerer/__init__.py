"""What a thousand waiting tasks and a hundred watchers cost one triggerer of a real Airflow: `make bench-airflow`."""
