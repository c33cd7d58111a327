"""What `pip install` brings: the package and all of sql/, with Airflow or without; what the sdist and the index get."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgqueue.core import migrations
from tests import test_guides as guides
from tests.wheels import UV, built, empty_environment
from tools import ROOT

pytestmark = pytest.mark.long

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEAN = (ROOT / "docs" / "how-to" / "without-airflow.md").read_text()


def block(shell: str) -> str:
    (code,) = re.findall(rf"^<!-- shell: {shell} -->\n```sh\n(.*?)^```$", LEAN, re.M | re.S)
    return code


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", tmp_path_factory.mktemp("sdist"))


def unpacked(sdist: Path, folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "tarfile", "-e", str(sdist), str(folder)], check=True)
    (sources,) = folder.iterdir()
    return sources


def test_whoever_builds_again_gets_the_same_files(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    sources = unpacked(sdist, tmp_path / "elsewhere")
    for path in (sources / "sql").rglob("*"):
        os.utime(path)
    for target, first in (("wheel", wheel), ("sdist", sdist)):
        again = built(target, tmp_path / target, sources)
        assert (again.name, again.read_bytes()) == (first.name, first.read_bytes())


def test_the_wheel_carries_the_whole_of_sql(wheel: Path) -> None:
    prefix = "airflow_provider_pgqueue/sql/"
    with zipfile.ZipFile(wheel) as archive:
        carried = {name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)}
        entry_points = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "airflow_provider_pgqueue/py.typed" in archive.namelist()
        assert any(name.endswith("/sboms/sbom.cdx.json") for name in archive.namelist())
        page = {"templates/queues.html", "static/page.js", "vendor/htmx.js", "vendor/htmx.LICENSE"}
        assert {f"airflow_provider_pgqueue/web/{name}" for name in page} <= set(archive.namelist())
        assert b"get_provider_info:get_provider_info" in archive.read(entry_points[0])
        licences = {name.partition("/licenses/")[2] for name in archive.namelist() if "/licenses/" in name}
    assert licences == {"LICENSE"} | {
        str(path.relative_to(ROOT)) for path in (ROOT / "airflow_provider_pgqueue").rglob("*.LICENSE")
    }
    tree = {str(path.relative_to(ROOT / "sql")) for path in (ROOT / "sql").rglob("*") if path.is_file()}
    assert carried == tree


def test_the_migrations_are_read_from_inside_a_zip(wheel: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        " from airflow_provider_pgqueue.core import migrations as m;"
        " assert m.__file__.startswith(sys.argv[1]), m.__file__; print(len(m.scripts()), m.code_version())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(wheel)], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    number, version = run.stdout.split()
    assert int(number) == len(migrations.scripts()) > 20
    assert int(version) == migrations.code_version()


def test_every_link_of_the_description_works_on_a_package_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    source = PROJECT["urls"]["Source"]
    description = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", description)
    prefix = f"{source}/blob/v{metadata['Version']}/"
    assert [target for target in targets if not re.match(r"https://|#", target)] == []
    linked = [target.removeprefix(prefix).partition("#")[0] for target in targets if target.startswith(prefix)]
    assert len(linked) > 5
    assert [path for path in linked if not (ROOT / path).exists()] == []


def test_the_tests_of_the_sdist_pass_with_a_verb_in_the_three_places_that_contributing_names(
    sdist: Path, tmp_path: Path
) -> None:
    sources = unpacked(sdist, tmp_path)
    assert {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yml")} <= {
        path.name for path in sources.iterdir()
    }
    contributing, name = "../../CONTRIBUTING.md", "oldest_ready"
    places = re.findall(r"<!-- add: (\S+) -->", (sources / "CONTRIBUTING.md").read_text())
    assert len(places) == 3
    for place in places:
        with (sources / place).open("a") as file:
            file.write(f"\n\n{guides.block(contributing, f'add: {place}')}")

    files = ["roles/test_roles", "package/test_verbs", "install/test_schema", "publish/test_publish"]
    some = [places[-1], *(f"tests/core/{file}.py" for file in files), "tests/test_site.py", "tests/test_docs.py"]
    about_a_verb = f"{name} or every_file or comment or has_a_verb or (test_schema or test_site) and (verb or role)"
    chosen = ["-k", f"{about_a_verb} or dedup or links or named or make_targets"]
    command = [sys.executable, "-m", "pytest", "-q", "-rp", "-p", "no:cacheprovider", *some, *chosen]
    run = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout[-5000:]
    assert re.search(rf"PASSED .*::test_a_role_may_do_its_verbs_and_no_other\[{name}\]", run.stdout)
    assert re.search(rf"PASSED .*::test_a_verb_is_named_as_its_function_.*\[{name}\]", run.stdout)
    assert re.search(r"PASSED .*test_publish.py::.*dedup", run.stdout)


def test_the_lean_installation_publishes_and_works_in_a_clean_environment(
    wheel: Path, tmp_path: Path, empty_dsn: str
) -> None:
    shell = clean_environment(tmp_path, empty_dsn)
    (service,) = re.findall(r"^<!-- file: service.py -->\n```py\n(.*?)^```$", LEAN, re.M | re.S)
    (tmp_path / "service.py").write_text(service)
    shell(block("install").replace("airflow-provider-pgqueue", str(wheel)))
    installed = shell("pip list --format freeze").split()
    shell("pip check")
    printed = shell(block("use"))

    assert len(installed) == 9
    # One publish in a hundred goes another way, which costs an id.
    assert re.search(r"<Message \d of orders, attempt 1 of 15>", printed)
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT message, result FROM messages.message_archive").fetchall() == [
            ({"order_id": 7}, "success")
        ]
    # What needs more names the extra.
    (tmp_path / "order.json").write_text("{}")
    asked = shell(
        "pgqueue metrics 2>&1 || true; pgqueue web 2>&1 || true;"
        "pgqueue export --target export 2>&1 || true;"
        "python -c 'from airflow_provider_pgqueue.core.repair.validator import load_validator;"
        'load_validator("order.json")\' 2>&1 || true'
    )
    needed = re.findall(r"pip install (.*)", asked)
    assert needed == re.findall(r"`pip install (.*)`", LEAN)
    named = re.findall(r"pgqueue\[(\w+)\]", " ".join(needed))
    assert named == ["metrics", "web", "export"]
    assert [one for name in named for one in PROJECT["optional-dependencies"][name] if "airflow" in one] == []


def clean_environment(folder: Path, dsn: str) -> Callable[[str], str]:
    """Make an environment with nothing in it; return what runs a shell there, with libpq's variables for `dsn`."""
    programs = empty_environment(folder / "environment")
    # The pip of uv: the same commands and what it downloaded before.
    (programs / "pip").write_text(f'#!/bin/sh\nexec {UV} --quiet pip "$@"\n')
    (programs / "pip").chmod(0o755)
    settings = "\n".join(f"{key}={value}" for key, value in conninfo_to_dict(dsn).items())
    (folder / "services").write_text(f"[queue]\n{settings}\n")
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(programs.parent),
        "PGSERVICEFILE": str(folder / "services"),
        "PGSERVICE": "queue",
    }

    def shell(code: str) -> str:
        command, given = ["sh", "-euc", code], os.environ | variables
        run = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout

    return shell


def test_each_provider_that_is_imported_is_declared_and_no_other() -> None:
    text = "\n".join(file.read_text() for file in (ROOT / "airflow_provider_pgqueue").rglob("*.py"))
    imported = set(re.findall(r"from airflow\.providers\.(common\.\w+|\w+)", text)) - {"apache", "openlineage"}
    declared = {re.split("[<>=]", one)[0] for one in PROJECT["optional-dependencies"]["airflow"]}
    assert declared == {"apache-airflow"} | {f"apache-airflow-providers-{name.replace('.', '-')}" for name in imported}
