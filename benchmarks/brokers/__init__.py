"""What waiting costs in an event loop of Airflow, compared with the triggers of Redis and SQS: `make bench-brokers`."""
