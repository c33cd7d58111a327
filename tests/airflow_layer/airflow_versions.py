"""What the tests take from Airflow that has another address in an older version."""

from __future__ import annotations

from importlib.metadata import version

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from packaging.version import Version

AIRFLOW = Version(version("apache-airflow-core")).release[:2]

if AIRFLOW >= (3, 2):
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.exceptions import TaskDeferralTimeout
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
    from airflow.sdk.serde import deserialize, serialize
    from airflow.serialization.serialized_objects import DagSerialization
else:
    from airflow.exceptions import TaskDeferralTimeout
    from airflow.models.dagbag import DagBag
    from airflow.providers_manager import ProvidersManager as ProvidersManagerTaskRuntime
    from airflow.serialization.serde import deserialize, serialize
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

__all__ = [
    "AIRFLOW",
    "AirflowException",
    "AirflowFailException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "DagBag",
    "DagSerialization",
    "ProvidersManagerTaskRuntime",
    "TaskDeferralTimeout",
    "TaskDeferred",
    "deserialize",
    "serialize",
]
