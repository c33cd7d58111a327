"""Two schedulers and two triggerers of one Airflow, of which each is killed once: `make failover`."""
