"""The program around the commands: help, exit status, errors in one line, no secrets, no Airflow."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import click
import pytest

from airflow_provider_pgqueue.cli.output import span
from airflow_provider_pgqueue.cli.program import COMMANDS, program
from airflow_provider_pgqueue.cli.suggestion import SYNONYMS
from airflow_provider_pgqueue.cli.text import one_line, printable
from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.core.connection import parameters
from airflow_provider_pgqueue.core.duration import parse_duration
from tests.core.cli.conftest import Pgqueue, Program
from tests.waiting import PATIENCE
from tools import ROOT

UNREACHABLE = "postgresql://shop:geheim@127.0.0.1:1/shop"
IMPORTS = """
import importlib, pkgutil, sys
import airflow_provider_pgqueue.cli as cli
from airflow_provider_pgqueue.cli.program import COMMANDS, run_program
assert run_program(["--help"]) == 0
print(sorted({"psycopg", "rich", "airflow"} & set(sys.modules)), file=sys.stderr)
for module in pkgutil.iter_modules(cli.__path__):
    if module.name != "__main__":
        importlib.import_module(f"{cli.__name__}.{module.name}")
print("airflow" in sys.modules, file=sys.stderr)
"""


def test_the_help_loads_no_driver_and_no_command_loads_airflow() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines() == ["[]", "False"]
    assert all(name in ended.stdout for name in COMMANDS)


def test_the_help_of_the_program_says_what_each_command_says_of_itself() -> None:
    context = click.Context(program)
    for name, (_, help_) in COMMANDS.items():
        command = program.get_command(context, name)
        assert command is not None
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == help_


def test_each_command_takes_the_shared_options() -> None:
    context = click.Context(program)
    commands = [program.get_command(context, name) for name in COMMANDS]
    commands += [one for group in commands if isinstance(group, click.Group) for one in group.commands.values()]
    for command in commands:
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--dsn", "--json", "--debug"} <= options, command.name


def test_no_command_prints_the_help_and_is_wrong_usage(run_pgqueue: Pgqueue) -> None:
    ended = run_pgqueue()
    assert (ended.status, ended.out) == (2, "")
    assert "Commands:" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["publish"], ["publish", "orders", "/nowhere"], ["peek", "orders", "--delay", "1s"], ["queues", "nope"]],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_with_one_line_of_error(run_pgqueue: Pgqueue, arguments: list[str]) -> None:
    ended = run_pgqueue(*arguments)
    assert (ended.status, ended.out) == (2, "")
    usage, error = ended.err.splitlines()
    assert usage.startswith("Usage: pgqueue")
    assert error.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["pubish", "orders"], "'publish'"),
        (["queus"], "'queues'"),
        (["create-queue", "orders"], "'queues create'"),
        (["consume", "orders"], "'worker'"),
        (["queues", "cretae", "orders"], "'create'"),
        (["publish", "orders", "--mesage", "1"], "'--message'"),
        (["stats", "--watchh"], "'--watch'"),
    ],
    ids=" ".join,
)
def test_a_mistyped_command_or_option_gets_a_suggestion(run_pgqueue: Pgqueue, arguments: list[str], meant: str) -> None:
    ended = run_pgqueue(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.endswith(f" Did you mean {meant}?\n")


def test_a_command_that_resembles_none_is_told_where_they_are_listed(run_pgqueue: Pgqueue) -> None:
    assert run_pgqueue("frobnicate").err.endswith("error: No such command 'frobnicate'. --help lists the commands.\n")


def test_suggested_synonyms_are_commands() -> None:
    for meant in SYNONYMS.values():
        command: click.Command | None = program
        for name in meant.split():
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name)
        assert command is not None, meant


def test_each_option_says_what_it_does() -> None:
    context = click.Context(program)
    commands = [program.get_command(context, name) for name in COMMANDS]
    commands += [one for group in commands if isinstance(group, click.Group) for one in group.commands.values()]
    silent = [
        f"{command.name} {option.opts[0]}"
        for command in commands
        if command
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_a_server_that_is_not_there_is_status_1_without_the_password(run_pgqueue: Pgqueue) -> None:
    ended = run_pgqueue("queues", "--dsn", UNREACHABLE)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("error: connection failed: ")
    assert len(ended.err.splitlines()) == 1
    assert "geheim" not in ended.err


@pytest.mark.parametrize("variable", ["PGQUEUE_DSN", "PGHOST", "PGSERVICE"])
def test_a_failed_connection_names_the_variable_unless_a_server_was_named(
    run_pgqueue: Pgqueue, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("PGQUEUE_DSN", "PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPORT", "1")
    unnamed = run_pgqueue("queues")
    assert (unnamed.status, len(unnamed.err.splitlines())) == (1, 1)
    assert "PGQUEUE_DSN is not set: name the database there" in unnamed.err
    monkeypatch.setenv(variable, "port=1" if variable == "PGQUEUE_DSN" else "no-such-server.invalid")
    named = run_pgqueue("queues")
    assert (named.status, "PGQUEUE_DSN" in named.err) == (1, False)


def test_debug_shows_the_traceback_without_the_password(run_pgqueue: Pgqueue) -> None:
    ended = run_pgqueue("--debug", "queues", "--dsn", UNREACHABLE)
    assert ended.status == 1
    assert "Traceback" in ended.err
    assert "geheim" not in ended.err


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://shop:geheim/x@host/shop",
        "postgresql://shop:x@geheim@host/shop",
        "postgres//shop:geheim@host/shop",
        "postgresql://shop:1/geheim@host/shop",
        "postgresql://shop:geheim%zz@host/shop",
        "geheim",
    ],
)
def test_a_bad_connection_string_is_not_quoted(run_pgqueue: Pgqueue, dsn: str) -> None:
    ended = run_pgqueue("queues", "--debug", "--dsn", dsn)
    assert ended.status == 1
    assert "error: the connection string is not valid. Write postgresql://" in ended.err
    assert "geheim" not in ended.err.replace(repr(dsn), "")


def test_good_connection_strings_are_taken() -> None:
    assert parameters("") == {}
    assert parameters("postgresql://u:p%40ss@a:1,b:2/db")["password"] == "p@ss"
    assert parameters("host=/run/postgresql dbname=db")["host"] == "/run/postgresql"
    with pytest.raises(InvalidArgument):
        parameters("port=x")


def test_the_last_place_of_a_shared_option_counts(pgqueue: Pgqueue) -> None:
    assert pgqueue("--dsn", "port=1", "queues").status == 1
    assert pgqueue("--json", "queues").json["queues"][0]["queue_name"] == "default"
    assert pgqueue("queues", "--dsn", UNREACHABLE).status == 1


def test_a_database_without_the_schema_is_one_line_with_the_cure(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    ended = run_pgqueue("queues", "--dsn", empty_dsn)
    assert ended.status == 1
    assert ended.err.startswith("error: schema messages is not installed in database ")
    assert ended.err.endswith("Install it: pgqueue install\n")


def test_ctrl_c_is_status_130(program: Program, dsn: str) -> None:
    with program("stats", "--watch", "--json", dsn=dsn) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(2)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err.strip()) == (130, "")


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_reader_that_goes_away_is_no_traceback(program: Program, dsn: str, form: list[str]) -> None:
    with program("stats", "--watch", *form, "--interval", "10ms", dsn=dsn) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 604800),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("PT10M", 600),
        ("P1DT2H", 93600),
        ("P1W", 604800),
        ("PT0.5S", 0.5),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "10x", "-5s", "m", "P", "PT", "P1Y", "P1M", "1h 30m", "٣s", "9" * 400 + "s"]
)
def test_what_is_no_duration_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|too long"):
        parse_duration(text)


def test_text_of_strangers_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x9bc\u202ed é") == "a\\x1b[2Jb\\x9bc\\u202ed é"
    assert one_line("a\n  b\t\x07") == "a b \\x07"


def test_durations_are_shown_in_two_units() -> None:
    shown = [span(timedelta(seconds=seconds)) for seconds in (0, 0.25, 59, 125, 90061, -3600)]
    assert shown == ["0s", "0.25s", "59s", "2m 5s", "1d 1h", "-1h"]
