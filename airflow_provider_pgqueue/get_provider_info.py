"""What Airflow discovers of this provider."""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_pgqueue import __version__

_PACKAGE: Final = "airflow_provider_pgqueue"
_INTEGRATION: Final = "PostgreSQL message queue"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; its schema is Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-pgqueue",
        "name": _INTEGRATION,
        "description": "PostgreSQL as the message queue of Airflow.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://airflow-provider-pgqueue.github.io/airflow-provider-pgqueue/",
                "tags": ["software"],
            }
        ],
        "hooks": _modules("hooks.pgqueue"),
        "operators": _modules(
            "operators.setup",
            "operators.publish",
            "operators.consume",
            "operators.dispatch",
            "operators.requeue",
            "operators.maintenance",
            "operators.spark",
        ),
        "sensors": _modules("sensors.message", "sensors.dead_message", "sensors.outcome"),
        "triggers": _modules(
            "triggers.message",
            "triggers.dead_message",
            "triggers.dispatch",
            "triggers.outcome",
        ),
        "task-decorators": [
            {"name": "pgqueue", "class-name": f"{_PACKAGE}.decorators.pgqueue.pgqueue_task"},
        ],
        "queues": [f"{_PACKAGE}.queues.pgqueue.PgQueueMessageQueueProvider"],
        "asset-uris": [
            {
                "schemes": ["pgqueue"],
                "handler": f"{_PACKAGE}.assets.pgqueue.sanitize_uri",
                "factory": f"{_PACKAGE}.assets.pgqueue.create_asset",
                "to_openlineage_converter": f"{_PACKAGE}.assets.pgqueue.convert_asset_to_openlineage",
            }
        ],
        "extra-links": [f"{_PACKAGE}.task.PgQueueLink"],
        "notifications": [f"{_PACKAGE}.notifications.pgqueue.PgQueueNotifier"],
        "connection-types": [_connection_type()],
        "config": {"pgqueue": _config()},
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}]


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "pgqueue",
        "hook-class-name": f"{_PACKAGE}.hooks.pgqueue.PgQueueHook",
        "hook-name": _INTEGRATION,
        "ui-field-behaviour": {
            "relabeling": {"schema": "Database", "login": "User"},
            "placeholders": {"host": "db.example.com, or the directory of a socket", "port": "5432"},
        },
        "conn-fields": {
            "listen_conn_id": {
                "label": "Connection to listen on",
                "description": "Id of a direct connection to the same database, if this one goes through a pooler "
                "such as PgBouncer, where notifications do not arrive.",
                "schema": {"type": ["string", "null"]},
            },
            "prepare_threshold": {
                "label": "Prepare threshold",
                "description": "Executions after which a statement is prepared. Without it 5, and never through a "
                "pooler such as PgBouncer.",
                "schema": {"type": ["integer", "null"], "minimum": 0},
            },
            "application_name": {
                "label": "Application name",
                "description": "How the sessions appear in pg_stat_activity; without it, after the DAG and the task.",
                "schema": {"type": ["string", "null"], "maxLength": 63},
            },
            "sslmode": {
                "label": "SSL mode",
                "schema": {
                    "type": ["string", "null"],
                    "enum": [None, "disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
                },
            },
        },
    }


def _config() -> dict[str, Any]:
    return {
        "description": "The Queues page and dispatches.",
        "options": {
            "conn_id": _option("The Airflow connection of the Queues page.", "pgqueue_default", "pgqueue_default"),
            "dispatch_conn_ids": _option(
                "The Airflow connections of the dispatchers, with commas between: the listener that ends dispatches at "
                "once looks there. Empty for conn_id.",
                "pgqueue_default,pgqueue_billing",
                "",
            ),
        },
    }


def _option(description: str, example: str, default: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "1.0.0",
        "type": "string",
        "example": example,
        "default": default,
    }
