"""Without the extras `spark` and `export`: their parts say how to get them, and everything else works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_pgqueue
from tools import ROOT

PACKAGE = Path(airflow_provider_pgqueue.__file__).parent
INSTALL = 'is not installed. Install it with: pip install "airflow-provider-pgqueue[spark]"'
# A path finder that finds all but the extra, as if it were not installed.
WITHOUT = """
import importlib.machinery, sys
extra = {"pyspark", "pyarrow", "adbc_driver_manager", "adbc_driver_postgresql"}
find = importlib.machinery.PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name in extra else find(name, path, target)

sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder]
sys.meta_path.append(type("Finder", (), {"find_spec": staticmethod(find_spec)}))
"""


def python(code: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code where the extra cannot be imported."""
    home = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(
        command, env=os.environ | home, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "from airflow_provider_pgqueue.spark import register",
        "import runpy; runpy.run_module('airflow_provider_pgqueue.spark', run_name='__main__')",
        "import airflow_provider_pgqueue.spark.pipelines.drain.drain",
    ],
)
def test_what_needs_pyspark_says_how_to_get_it(code: str, tmp_path: Path) -> None:
    done = python(code, tmp_path, "drain", "--help")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: pyspark {INSTALL}"


def test_the_program_of_the_pipelines_says_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    command = [sys.executable, "-m", "airflow_provider_pgqueue.spark", "--help"]
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: pyspark {INSTALL}\n")


def test_the_operator_says_how_to_get_what_it_needs(tmp_path: Path) -> None:
    # Airflow looks for its providers once, by what is installed; this one goes afterwards.
    code = """
import airflow_provider_pgqueue.hooks.pgqueue
extra.add("airflow.providers.apache.spark")
for name in [name for name in sys.modules if name.startswith("airflow.providers.apache.spark")]: del sys.modules[name]
import airflow_provider_pgqueue.operators.spark
"""
    done = python(code, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: airflow.providers.apache.spark {INSTALL}"


def test_the_export_says_how_to_get_what_it_needs(tmp_path: Path) -> None:
    done = python("import airflow_provider_pgqueue.export", tmp_path)
    missing = INSTALL.replace("[spark]", "[export]")
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: adbc_driver_manager {missing}"
    done = python(
        "from airflow_provider_pgqueue.cli import main; sys.exit(main())", tmp_path, "export", "--target", "x"
    )
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (
        1,
        "",
        [
            "error: adbc_driver_manager is not installed. Install it with: "
            'pip install "airflow-provider-pgqueue[export]"'
        ],
    )


def test_everything_else_is_imported_without_the_extra(tmp_path: Path) -> None:
    files = (file.relative_to(PACKAGE.parent).with_suffix("") for file in PACKAGE.rglob("*.py"))
    names = sorted(".".join(file.parts).removesuffix(".__init__") for file in files)
    needs = re.compile(r"\.spark|airflow_provider_pgqueue\.export|__main__$")
    others = [name for name in names if not needs.search(name)]
    assert len(others) > 50
    code = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "assert not extra & set(sys.modules), extra & set(sys.modules)\n"
    done = python(code, tmp_path, *others)
    assert done.returncode == 0, done.stderr[-2000:]
