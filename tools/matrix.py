"""Runs the tests of the Airflow layer, and a short run on a real Airflow, with each supported version of Airflow."""

from __future__ import annotations

import argparse
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import ROOT, STATE, SetupError, run_main

PINS: Final = ROOT / "tools" / "airflow_versions"
_UV: Final = STATE / "boot" / "bin" / "uv"
# What needs Spark, statsd or OpenLineage has those in the environment of the project only.
_PAGE: Final = ("tests/web/test_access.py",)
_LAYER: Final = (
    "tests/airflow_layer",
    "tests/test_bad_input.py::test_each_bad_argument_is_named_where_it_is_written",
    "tests/test_bad_input.py::test_no_task_fails_by_accident_hangs_or_touches_another_queue",
    *_PAGE,
    *(f"--ignore=tests/airflow_layer/test_{name}.py" for name in ("spark", "metrics", "lineage")),
)
_SMOKE: Final = tuple(
    f"tests/airflow_layer/test_{name}.py" for name in ("decorator", "operators", "provider_info", "sensors")
)
_SHORT: Final = (
    "tests/e2e/test_airflow.py::test_the_setup_dag_says_who_runs_maintenance",
    "tests/e2e/test_airflow.py::test_every_dag_is_parsed_without_an_error",
    "tests/e2e/test_airflow.py::test_a_notify_ends_a_deferred_sensor_without_a_worker",
    "tests/e2e/test_airflow.py::test_kill_9_of_the_triggerer_loses_nothing",
    "tests/e2e/test_airflow.py::test_a_burst_and_then_silence_leaves_no_message_unhandled",
    "tests/e2e/test_airflow.py::test_all_waiting_tasks_use_one_listening_connection",
    "tests/e2e/test_airflow.py::test_a_consumer_that_waits_resumes_and_drains",
    "tests/e2e/test_dispatch.py::test_each_message_is_finished_by_a_run_of_its_own",
    "tests/e2e/test_dispatch.py::test_a_failed_run_is_delivered_again_dies_and_is_dismissed_when_it_is_cleared",
    "tests/e2e/test_dispatch.py::test_a_run_that_was_deleted_is_delivered_again",
    "tests/e2e/test_tab.py",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A version of Airflow with a version of Python, and what is run there."""

    airflow: str
    python: str
    layer: tuple[str, ...] = _LAYER
    smoke: tuple[str, ...] = _SMOKE
    short: tuple[str, ...] = _SHORT

    @property
    def pins(self) -> Path:
        """The file of exact versions: the newest Airflow is that of the project itself."""
        own = PINS / f"{self.airflow}.txt"
        return own if own.exists() else ROOT / "requirements.lock"

    @property
    def executable(self) -> Path:
        """The Python of its environment."""
        return STATE / "matrix" / f"airflow-{self.airflow}-python-{self.python}" / "bin" / "python"

    def install(self) -> None:
        """Make its environment what the pins say."""
        if not self.executable.exists():
            _uv("venv", "--clear", "--python", self.python, str(self.executable.parents[1]))
        _uv("pip", "sync", "--python", str(self.executable), str(self.pins))
        _uv("pip", "install", "--python", str(self.executable), "--no-deps", "--no-build-isolation", "-e", ".")

    def run(self, *tests: str, workers: int = 0) -> bool:
        """Run tests there and return whether they pass. What older packages say of newer ones is no failure."""
        options = ("-q", "-n", str(workers), "-W", "default", "-p", "no:cacheprovider", "-p", "no:anyio")
        path = f"{self.executable.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return not subprocess.run(
            [self.executable, "-m", "pytest", *options, *tests], cwd=ROOT, env=os.environ | {"PATH": path}
        ).returncode


CELLS: Final = (
    Cell("3.1", "3.11"),
    Cell("3.2", "3.12"),
    Cell("3.3", "3.13"),
    # The auth manager of Flask AppBuilder: who may do what on the page.
    Cell("3.3-fab", "3.11", layer=_PAGE, smoke=_PAGE, short=()),
)


def _uv(*arguments: str) -> None:
    done = subprocess.run([_UV, "--quiet", *arguments], cwd=ROOT, env=os.environ | {"UV_PYTHON_DOWNLOADS": "never"})
    if done.returncode:
        raise SetupError(f"uv {' '.join(arguments[:2])} failed; a Python that is missing has to be installed")


def main() -> int:
    """Run all cells, or those that are named, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", help=f"versions of Airflow: {', '.join(c.airflow for c in CELLS)}")
    parser.add_argument("--smoke", action="store_true", help="the most telling tests only, without a running Airflow")
    arguments = parser.parse_args()
    results = []
    for cell in CELLS:
        if arguments.versions and cell.airflow not in arguments.versions:
            continue
        cell.install()
        layer = cell.run(*(cell.smoke if arguments.smoke else cell.layer), workers=0 if arguments.smoke else 2)
        short = None if arguments.smoke or not cell.short else cell.run(*cell.short)
        results.append((cell, layer, short))
    said = {True: "passed", False: "FAILED", None: "not run"}
    for cell, layer, short in results:
        print(f"Airflow {cell.airflow}, Python {cell.python}: tests {said[layer]}, on a running Airflow {said[short]}")
    return 0 if all(layer and short is not False for _, layer, short in results) else 1


if __name__ == "__main__":
    run_main(main)
