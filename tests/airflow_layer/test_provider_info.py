"""What Airflow discovers."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any

import jsonschema
import pytest
from airflow.cli.cli_parser import get_parser
from airflow.providers_manager import ProvidersManager

from airflow_provider_pgqueue import __version__
from airflow_provider_pgqueue.get_provider_info import get_provider_info
from tests.airflow_layer.airflow_versions import ProvidersManagerTaskRuntime

PACKAGE = "airflow-provider-pgqueue"


def test_the_metadata_fit_the_schema_of_airflow() -> None:
    schema: dict[str, Any] = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_each_module_that_is_named_can_be_imported() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in (module for entry in info[kind] for module in entry["python-modules"]):
            import_module(module)


def test_what_is_named_exists() -> None:
    info = get_provider_info()
    (uris,) = info["asset-uris"]
    (decorator,) = info["task-decorators"]
    assert [resolve_name(name).__name__ for name in (*info["extra-links"], *info["notifications"])] == [
        "PgQueueLink",
        "PgQueueNotifier",
    ]
    for name in (uris["handler"], uris["factory"], uris["to_openlineage_converter"], decorator["class-name"]):
        assert callable(resolve_name(name))


def test_the_queue_provider_and_the_hook_exist_under_their_names() -> None:
    info = get_provider_info()
    assert resolve_name(info["queues"][0])().scheme == "pgqueue"
    (connection_type,) = info["connection-types"]
    hook = resolve_name(connection_type["hook-class-name"])
    assert (hook.conn_type, hook.hook_name) == (connection_type["connection-type"], connection_type["hook-name"])
    assert set(connection_type["conn-fields"]) & {"listen_conn_id"} <= hook.ignored_extra_options


def test_airflow_discovers_the_provider_its_connection_type_and_its_queues() -> None:
    manager = ProvidersManager()
    assert manager.providers[PACKAGE].version == __version__
    hook = ProvidersManagerTaskRuntime().hooks["pgqueue"]
    assert hook is not None
    assert hook.hook_class_name == "airflow_provider_pgqueue.hooks.pgqueue.PgQueueHook"
    assert "airflow_provider_pgqueue.queues.pgqueue.PgQueueMessageQueueProvider" in manager.queue_class_names


def test_the_command_of_airflow_shows_the_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    """Called here, which is what the program does, because a program with Airflow takes seconds to start."""
    arguments = get_parser().parse_args(["providers", "get", PACKAGE, "--full", "-o", "json"])
    arguments.func(arguments)
    printed = capsys.readouterr().out
    (shown,) = json.loads(printed[printed.index("[") :])
    info = get_provider_info()
    assert shown["versions"] == [__version__]
    # Airflow cuts what it shows as text off at its last full stop, and leaves out what its interface alone needs.
    told = info.keys() - {"description", "connection-types"}
    assert {name: shown[name] for name in told} == {name: info[name] for name in told}


def test_the_hook_itself_says_what_the_form_of_a_connection_shows() -> None:
    """Airflow 3.1 reads nothing else."""
    (kind,) = get_provider_info()["connection-types"]
    hook = resolve_name(kind["hook-class-name"])
    assert "get_ui_field_behaviour" in vars(hook)
    assert hook.get_ui_field_behaviour() == {"hidden_fields": []} | kind["ui-field-behaviour"]
