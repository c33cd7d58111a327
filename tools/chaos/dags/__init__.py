"""The DAGs of the Airflow in a run, and what they have in common."""

HISTORY = "CHAOS_HISTORY"
"""The environment variable that names the folder of the histories."""
