"""The parts of the provider that run in Airflow's own processes."""
