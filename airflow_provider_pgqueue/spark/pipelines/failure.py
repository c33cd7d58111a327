"""Explains errors of Spark to the user of a pipeline: by the error of the queue in them, or by a fix."""

from __future__ import annotations

import re
from typing import Final

from airflow_provider_pgqueue.core import errors
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError

_RAISED: Final = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.M)
_JAVA: Final = re.compile(r"^: ([\w.$]+)", re.M)  # the class of the exception, in the text of a Py4JJavaError
_MISSING: Final = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.M)
# These cannot come in a zip.
_INSTALLED: Final = frozenset(
    {"adbc_driver_manager", "adbc_driver_postgresql", "click", "pandas", "psycopg", "pyarrow"}
)
_OWN: Final = __name__.partition(".")[0]
_SAME_RUN: Final = "The same --run-id continues with what is left."
# A pattern of the text of an error, its meaning, and the fix. The first match counts.
_KNOWN: Final = (
    (
        "Cannot run program|PYTHON_VERSION_MISMATCH|different (minor )?version",
        "the executors do not find the Python of the driver",
        "Set PYSPARK_PYTHON to the path of the same version of Python on each executor.",
    ),
    (
        "OutOfMemoryError|Container killed|exit code 137",
        "Spark ran out of memory",
        f"Give it more, as --driver-memory or spark.executor.memory, or a smaller --batch-size. {_SAME_RUN}",
    ),
    (
        "Python worker exited unexpectedly|ExecutorLostFailure|executor .* exited|Slave lost|Worker lost",
        "a process of Spark ended in the middle of its work: killed, out of memory, or ended by the function",
        f"Choose a smaller --batch-size or more memory. {_SAME_RUN}",
    ),
    ("JAVA_GATEWAY_EXITED|Java gateway process exited", "Java does not start", "Install Java 17, and set JAVA_HOME."),
    (
        "All masters are unresponsive|Could not parse Master URL|Failed to connect to master|Invalid master URL",
        "the master of Spark cannot be reached",
        "Check --master, such as spark://spark:7077 or local[2].",
    ),
    ("cancelled|canceled", "somebody canceled the job", _SAME_RUN),
)


def raised_in_spark(error: BaseException) -> PgQueueError | None:
    """Return the error of `core.errors` that Spark reports in one of its own; None if it reports another.

    The texts of these errors quote no body and no connection string, as those of Spark may.
    """
    for name, said in _RAISED.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PgQueueError) and kind is not errors.LeaseLost:
            return kind(said)
    return None


def explained(error: BaseException) -> PgQueueError:
    """Return an error as one line that names the fix. Nothing else of its text is in it, which may quote data."""
    if isinstance(error, PgQueueError):
        return error
    if raised := raised_in_spark(error):
        return raised
    text = str(error)
    if missing := _MISSING.search(text):
        return _without(missing[1])
    for pattern, problem, fix in _KNOWN:
        if re.search(pattern, text):
            return PgQueueError(problem, fix)
    java = _JAVA.search(text)
    name = f"{type(error).__name__}{f' of {java[1]}' if java else ''}"
    return PgQueueError(name, f"--debug shows where; the log of Spark says more. {_SAME_RUN}")


def missing_on_executors(error: Exception) -> PgQueueError | None:
    """Return what to do where a task cannot import a module, which the driver could; None for another error."""
    absent = error.__cause__ if isinstance(error, InvalidArgument) else error
    if isinstance(absent, ModuleNotFoundError) and absent.name:
        return _without(absent.name.partition(".")[0])
    return None


def _without(module: str) -> PgQueueError:
    """Return the error for a module that is on the driver only."""
    if module == _OWN:
        fix = f"Send it: --py-files pgqueue.zip, which python -m {_OWN}.spark.package pgqueue.zip makes."
    elif module in _INSTALLED:
        fix = "Install it in their Python, or set PYSPARK_PYTHON to one that has it."
    else:
        fix = f"Send it with spark-submit: --py-files {module}.py, or a zip if it is a package."
    return InvalidArgument(f"on the executors there is no module {module!r}, which the driver has", fix)
