"""PostgreSQL as the message queue of Apache Airflow."""

__version__ = "1.0.0rc1"
