"""Where Spark finds the queue: where libpq finds it from the same connection string, and never shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgqueue.core import InvalidArgument, connect
from airflow_provider_pgqueue.export.connection import Database
from tests.core.roles.test_roles import logins
from tools import ROOT

Environment = Callable[..., None]
OTHER = ("[other]", "port=1", "user=nobody", "channel_binding=require", "target_session_attrs=read-only")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Set the variables of libpq, and no others: `environment(PGPORT="1")`."""

    def only(**variables: str) -> None:
        for name in ("DSN", "HOST", "HOSTADDR", "PORT", "USER", "DATABASE", "SSLMODE", "OPTIONS", "PASSWORD"):
            monkeypatch.delenv(f"PG{name}", raising=False)
        for name in ("PGQUEUE_DSN", "PGSERVICE", "PGSERVICEFILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return only


@pytest.fixture
def services(dsn: str, tmp_path: Path) -> Iterator[str]:
    """Return a service file with the service shop: the database of this test, for a user of its own."""
    where = {"port": "5432"} | conninfo_to_dict(dsn)
    shop = {name: where[name] for name in ("host", "port", "dbname")}
    shop |= {"user": "shopper", "sslmode": "disable", "options": "-c work_mem=1234kB"}
    file = tmp_path / "services.conf"
    file.write_text("\n".join(["[shop]", *(f"{name}={value}" for name, value in shop.items()), *OTHER, ""]))
    with logins(dsn) as login:
        login("shopper")
        yield str(file)


def arrived(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return what a session was opened with, but for how that was found."""
    with conn:
        (memory,) = conn.execute("SHOW work_mem").fetchone() or ("",)
        given = conn.info.get_parameters()  # psycopg itself looks up a host that it knows
        return {name: value for name, value in given.items() if name not in ("service", "servicefile", "hostaddr")} | {
            "port": conn.info.port,
            "dbname": conn.info.dbname,
            "work_mem": memory,
        }


@pytest.mark.parametrize(
    ("conninfo", "variables"),
    [
        ("service=shop", {}),
        ("postgresql:///?service=shop", {}),
        ("service=shop", {"PGPORT": "1", "PGUSER": "nobody", "PGSSLMODE": "require", "PGDATABASE": "none"}),
        ("service=shop", {"PGSERVICE": "other"}),
        ("service=shop options='-c work_mem=4321kB' sslmode=allow", {}),
        ("", {"PGSERVICE": "shop"}),
        ("", {"PGSERVICE": "shop", "PGPORT": "1", "PGSSLMODE": "require"}),
        ("sslmode=allow", {"PGSERVICE": "shop"}),
    ],
    ids=str,
)
def test_a_service_is_found_as_libpq_finds_it_and_goes_with_the_tasks(
    services: str, environment: Environment, conninfo: str, variables: dict[str, str]
) -> None:
    environment(PGSERVICEFILE=services, **variables)
    wanted = arrived(connect(conninfo, application_name="test"))
    assert wanted["user"] == "shopper"
    assert wanted["sslmode"] != "prefer"
    found = Database(conninfo)
    assert arrived(found.connect("test")) == wanted
    sent = pickle.dumps(found)
    environment()
    assert arrived(pickle.loads(sent).connect("test")) == wanted
    with pickle.loads(sent).arrow() as conn, conn.cursor() as cursor:
        cursor.execute("SELECT current_user::text, current_setting('work_mem')")
        assert cursor.fetchone() == ("shopper", wanted["work_mem"])


@pytest.mark.parametrize("way", ["dsn", "variable", "variables of libpq"])
def test_the_other_ways_give_the_same_as_libpq(dsn: str, environment: Environment, way: str) -> None:
    known = {"port": "5432"} | conninfo_to_dict(dsn)
    names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD"}
    variables = {names[name]: str(value) for name, value in known.items() if name in names}
    environment(
        **{
            "dsn": {},
            "variable": {"PGQUEUE_DSN": dsn},
            "variables of libpq": variables | {"PGOPTIONS": "-c work_mem=999kB", "PGSSLMODE": "disable"},
        }[way]
    )
    found = Database(dsn if way == "dsn" else "")
    wanted = arrived(connect("" if way.startswith("variables") else dsn, application_name="test"))
    assert arrived(found.connect("test")) == wanted
    environment()
    assert arrived(found.connect("test")) == wanted


def test_the_defaults_of_libpq_are_left_to_the_executors(environment: Environment) -> None:
    environment()
    sent = conninfo_to_dict(Database("host=a,b user=u")._conninfo)
    assert sent == {"host": "a,b", "port": "5432", "user": "u"}


def test_a_service_that_there_is_not_is_an_error_and_no_other_server(services: str, environment: Environment) -> None:
    environment(PGSERVICEFILE=services)
    with pytest.raises(InvalidArgument, match='"shpo" not found'):
        Database("service=shpo").connect()
    environment(PGSERVICEFILE=services, PGSERVICE="shpo")
    with pytest.raises(InvalidArgument, match='"shpo" not found'):
        Database().connect()


@pytest.mark.parametrize(
    "conninfo",
    ["postgresql://u:Geheim%Wort@h/db", "host=h password=Ganz Geheim", "postgresql://u:Geheim/x@h/db", "Geheim"],
)
def test_a_connection_string_that_cannot_be_read_is_not_quoted(conninfo: str) -> None:
    for take in (Database, connect):
        with pytest.raises(InvalidArgument, match="the connection string is not valid") as raised:
            take(conninfo)
        assert "Geheim" not in "".join(
            line
            for line in traceback.format_exception(raised.value)
            if "take(conninfo)" not in line and "def " not in line
        )
        assert raised.value.__context__ is None


def test_each_process_of_spark_that_imports_the_data_source_is_spared_pandas() -> None:
    code = "import sys, airflow_provider_pgqueue.spark.source.data_source; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
