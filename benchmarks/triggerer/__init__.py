"""The cost of a thousand waiting tasks and a hundred watchers in one real triggerer: `make bench-airflow`."""
