"""PostgreSQL as the message queue of Apache Airflow."""

__version__ = "0.1.0"
