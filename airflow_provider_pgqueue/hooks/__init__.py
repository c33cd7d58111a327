"""The queue through an Airflow connection."""
