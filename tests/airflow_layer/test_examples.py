"""The DAGs of the programs that no test runs whole."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from airflow.sdk import DAG

from tools import ROOT
from tools.failover.__main__ import DAGS


def dags(module: str) -> list[str]:
    return sorted(value.dag_id for value in vars(import_module(module)).values() if isinstance(value, DAG))


def test_airflow_can_import_the_dags_of_the_chaos() -> None:
    assert dags("tools.chaos.dags.waiting") == ["chaos_deferred", "chaos_waited", "chaos_watched"]


def test_airflow_can_import_the_dags_of_the_failover() -> None:
    assert dags("tools.failover.dags.failover") == sorted(DAGS)


@pytest.mark.parametrize("program", ["tools.failover", "benchmarks.soak"])
def test_a_program_that_takes_minutes_says_what_it_does(program: str) -> None:
    command = [sys.executable, "-m", program, "--help"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert f"usage: python -m {program} " in shown
