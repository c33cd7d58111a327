"""The cost of waiting in an event loop of Airflow, next to the triggers of Redis and SQS: `make bench-brokers`."""
