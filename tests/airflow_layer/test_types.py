"""What a type checker says of the arguments of our operators and sensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GOOD = """\
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor

PgQueueMessageSensor(task_id="wait", queue_name="orders", min_messages=3, timeout=60, pool="slow", retries=2)
PgQueueConsumeOperator(task_id="consume", queue_name="orders", apply_function="a:b", batch_size=5, owner="me")
PgQueueDispatchOperator(task_id="dispatch", queue_name="orders", trigger_dag_id="pack", on_failure="fail")
"""
BAD = [
    ("min_messages=3", "min_messages='3'"),
    ("batch_size=5", "batch_size='5'"),
    ("trigger_dag_id=", "trigger_dag="),
    ('on_failure="fail"', 'on_failure="lose"'),
]


def test_mypy_rejects_a_value_of_the_wrong_type_and_a_missing_argument(tmp_path: Path) -> None:
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
