"""What waiting costs in one event loop of Airflow, beside the triggers of Redis and SQS: `make bench-brokers`."""
