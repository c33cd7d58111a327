"""What a type checker says of the arguments of our operators and sensors."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator

from airflow_provider_pgqueue.sensors.result import SensorArguments
from airflow_provider_pgqueue.tasks.task import CommonArguments, TaskArguments
from tests.airflow_layer.airflow_versions import AIRFLOW

ROOT = Path(__file__).parents[2]
OF_NO_USE = {"self", "kwargs", "sla"}
LATER = {"render_template_as_native_obj": (3, 2), "retry_policy": (3, 3)}
OURS = {"poke_interval", "max_wait"}


def arguments(kind: type[Any]) -> set[str]:
    return set(inspect.signature(kind.__init__).parameters) - OF_NO_USE


def test_the_arguments_of_all_tasks_are_those_of_the_installed_airflow() -> None:
    later = {name for name, since in LATER.items() if since > AIRFLOW}
    assert set(TaskArguments.__annotations__) - later == {*arguments(BaseOperator), "pgqueue_conn_id"}


def test_the_arguments_of_sensors_are_those_of_the_installed_airflow() -> None:
    own = set(SensorArguments.__annotations__) - set(TaskArguments.__annotations__)
    assert own == arguments(BaseSensorOperator) - OURS
    assert set(CommonArguments.__annotations__) <= set(SensorArguments.__annotations__)


GOOD = """\
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor

PgQueueMessageSensor(task_id="wait", queue_name="orders", min_messages=3, timeout=60, pool="slow", retries=2)
PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function="a:b", batch_size=5, owner="me")
"""
BAD = [
    ("min_messages=", "min_mesages="),
    ("timeout=60", "timeout='60'"),
    ('pool="slow"', 'pol="slow"'),
    ('queue_name="orders", apply', 'queue="orders", apply'),
    ("batch_size=5", "batch_size='5'"),
]


def test_mypy_rejects_a_misspelled_argument(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    files = [tmp_path / f"dag_{number}.py" for number in range(len(BAD) + 1)]
    for file, (old, new) in zip(files, [("", ""), *BAD], strict=True):
        assert old in GOOD
        file.write_text(GOOD.replace(old, new) if old else GOOD)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    # By name: mypy keeps what it said of the same text in another folder.
    wrong = {Path(line.partition(":")[0]).name for line in said.splitlines() if ": error:" in line}
    assert wrong == {file.name for file in files[1:]}, said
