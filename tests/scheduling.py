"""Which tests stay together when several processes of pytest-xdist share the work, and in which order they begin."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# The longest first, so that no process is alone with one at the end. What is not named comes after them.
ORDER = (
    "tests/e2e/",
    "tests/spark/test_faults.py",
    "tests/core/maintenance/test_pg_cron.py",  # computes nothing, for minutes
    "tests/spark/",
    "tests/core/connection/test_settings.py",
    "tests/test_bad_input.py",
    "tests/chaos/",
    "tests/airflow_layer/test_spark.py",
    "tests/core/whole/test_costs.py",
    "tests/core/lease/test_waits.py",  # computes little, for half a minute
    "tests/core/maintenance/test_health.py",
    "tests/web/",
    "tests/test_site.py",
    "tests/core/roles/test_roles.py",
    "tests/core/package/test_wheel.py",
    "tests/core/whole/test_state_machine.py",
    "tests/test_compose.py",
    "tests/test_seeds.py",  # waits for a minute of pg_cron, too
)


class FileScheduling(LoadScopeScheduling):
    """Gives each process one file after the other; all that needs the one Airflow as one, and so the one Spark.

    Instead of --dist loadgroup, whose marks pytest-xdist 3.8 loses in silence with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return what a test shares with others of its process: the one Airflow, the one Spark, or its file."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/e2e/"):
        return "e2e"
    if file.startswith("tests/spark/") and file != "tests/spark/test_faults.py":
        # A Spark that starts costs as much as many tests, and its first results too.
        return "one Spark"
    return file


def rank(nodeid: str) -> int:
    """Return the place of a test among those that begin first."""
    return next((place for place, start in enumerate(ORDER) if nodeid.startswith(start)), len(ORDER))
