"""The program around the commands: help, exit status, errors in one line, no secrets, no Airflow."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import click
import pytest

from airflow_provider_pgqueue.cli.output import span
from airflow_provider_pgqueue.cli.program import COMMANDS, program, run_program
from airflow_provider_pgqueue.cli.text import one_line, printable
from airflow_provider_pgqueue.core import Consumer, InvalidArgument, run, verbs
from airflow_provider_pgqueue.core.connection import parameters
from airflow_provider_pgqueue.core.duration import parse_duration
from tests.conftest import Connection
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
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == help_


def test_each_command_takes_the_shared_options() -> None:
    context = click.Context(program)
    commands = [program.get_command(context, name) for name in COMMANDS]
    commands += [one for group in commands if isinstance(group, click.Group) for one in group.commands.values()]
    for command in commands:
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
        (["queues", "cretae", "orders"], "'create'"),
        (["publish", "orders", "--mesage", "1"], "'--message'"),
        (["stats", "--windo"], "'--window'"),
    ],
    ids=" ".join,
)
def test_a_mistyped_command_or_option_gets_a_suggestion(run_pgqueue: Pgqueue, arguments: list[str], meant: str) -> None:
    ended = run_pgqueue(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.endswith(f" Did you mean {meant}?\n")


def test_a_command_that_resembles_none_is_told_where_they_are_listed(run_pgqueue: Pgqueue) -> None:
    assert run_pgqueue("frobnicate").err.endswith("error: No such command 'frobnicate'. --help lists the commands.\n")


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


def test_a_database_without_the_schema_is_one_line_with_the_fix(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    ended = run_pgqueue("queues", "--dsn", empty_dsn)
    assert ended.status == 1
    assert ended.err.startswith("error: schema messages is not installed in database ")
    assert ended.err.endswith("Run pgqueue install, the setup DAG, or psql -f sql/install.sql.\n")


def test_ctrl_c_is_status_130(program: Program, dsn: str) -> None:
    with program("stats", "--json", "--watch", "10ms", dsn=dsn) as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(2)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err.strip()) == (130, "")
    assert [list(look) for look in looks] == [["queues"], ["queues"]]


def test_a_reader_that_goes_away_is_no_traceback(program: Program, dsn: str) -> None:
    with program("stats", "--json", "--watch", "10ms", dsn=dsn) as process:
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
def test_what_is_no_duration_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|too long"):
        parse_duration(text)


def test_text_of_strangers_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x9bc\u202ed é") == "a\\u001b[2Jb\\u009bc\\u202ed é"
    assert one_line("a\n  b\t\x07") == "a b \\u0007"


def test_every_letter_that_unicode_lets_a_reader_ignore_is_escaped() -> None:
    """Default_Ignorable_Code_Point in DerivedCoreProperties.txt of Unicode 16, and the blank of Braille."""
    ignorable = [0xAD, 0x34F, 0x61C, *range(0x115F, 0x1161), *range(0x17B4, 0x17B6), *range(0x180B, 0x1810)]
    ignorable += [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164]
    ignorable += [*range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4)]
    ignorable += [*range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000), 0x2800]
    for letter in map(chr, ignorable):
        assert printable(letter).isascii(), hex(ord(letter))
        assert json.loads(f'"{printable(letter)}"') == letter


def test_durations_are_shown_in_two_units() -> None:
    shown = [span(timedelta(seconds=seconds)) for seconds in (0, 0.25, 59, 125, 90061, -3600)]
    assert shown == ["0s", "0.25s", "59s", "2m 5s", "1d 1h", "-1h"]


@pytest.mark.parametrize(
    "arguments", [["peek", "default", "--reference", "\udcff"], ["dismiss", "default", "--yes", "--reason", "\udcff"]]
)
def test_an_argument_that_is_not_utf_8_is_named_as_such(pgqueue: Pgqueue, arguments: list[str]) -> None:
    ended = pgqueue(*arguments)
    assert ended.status == 1
    assert ended.err == "error: an argument is not valid UTF-8. Give text in UTF-8.\n"


def test_an_id_that_no_message_can_have_is_a_wrong_usage(pgqueue: Pgqueue) -> None:
    ended = pgqueue("show", "9" * 20)
    assert ended.status == 2
    assert "is not in the range" in ended.err


def test_publish_says_that_its_input_is_closed(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run_program(["publish", "default", "--dsn", dsn]) == 2
    assert "error: standard input is closed. Give FILE or --message." in capsys.readouterr().err


def test_a_full_disk_is_named_without_a_word_about_input(program: Program, dsn: str) -> None:
    with open("/dev/full", "w") as full, program("queues", dsn=dsn, stdout=full) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (1, "error: No space left on device\n")


DONE = {
    "publish": (["publish", "orders", "--message", "1"], "published 1 message to orders."),
    "publish --json": (["--json", "publish", "orders", "--message", "1"], "published 1 message to orders."),
    "pause": (["queues", "pause", "orders"], "paused queue orders."),
}


@pytest.mark.parametrize("name", DONE)
def test_a_command_that_is_done_but_cannot_print_says_so_with_a_status_of_its_own(
    program: Program, dsn: str, conn: Connection, name: str
) -> None:
    arguments, done = DONE[name]
    run(conn, verbs.create_queue("orders"))
    with open("/dev/full", "w") as full, program(*arguments, dsn=dsn, stdout=full) as process:
        _, err = process.communicate(timeout=PATIENCE)
    told = (
        f"error: the output cannot be written (No space left on device). The command is done, do not repeat it: {done}"
    )
    assert (process.returncode, err[: len(told)]) == (3, told)


def test_the_status_says_that_a_command_is_done_where_nothing_can_be_printed_at_all(
    program: Program, dsn: str, conn: Connection
) -> None:
    arguments, _ = DONE["publish"]
    run(conn, verbs.create_queue("orders"))
    with open("/dev/full", "w") as full, program(*arguments, dsn=dsn, stdout=full, stderr=full) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 3


@pytest.mark.parametrize("option", [["--dedup-window", "1h"], ["--on-conflict", "replace"]])
def test_what_is_said_about_dedup_keys_needs_a_field_of_them(pgqueue: Pgqueue, option: list[str]) -> None:
    ended = pgqueue("publish", "default", "--message", "1", *option)
    assert (ended.status, ended.err.splitlines()[-1]) == (
        2,
        "error: --dedup-window and --on-conflict need --dedup-key or --dedup-key-field.",
    )


@pytest.mark.parametrize("number", ["1e200000", "-1E131072", "[1e-20000]", "1e99999999999999999999", "9" * 140_000])
def test_a_number_that_postgresql_cannot_keep_is_named_with_its_line(pgqueue: Pgqueue, number: str) -> None:
    ended = pgqueue("publish", "default", "--batch-size", "1", stdin=f'1\n2\n{{"n": {number}}}\n')
    assert ended.status == 1
    assert ended.err.startswith("error: line 3")
    assert len(ended.err) < 300
    assert ended.err.endswith((" as a text.\n", " as a string.\n"))


def test_a_number_out_of_range_is_named_with_its_argument(pgqueue: Pgqueue) -> None:
    ended = pgqueue("queues", "alter", "default", "--max-leased", "9" * 20)
    assert ended.err == f"error: max_leased is {'9' * 20}. Give a whole number from 0 to 1000000000000.\n"
    ended = pgqueue("worker", "default", "json:dumps", "--batch-size", "9" * 20)
    assert (ended.status, "is not in the range 1<=x<=10000" in ended.err) == (2, True)
    with pytest.raises(InvalidArgument, match=r"batch_size is 10001\. Give a whole number from 1 to 10000"):
        Consumer(queue_name="default", handle=print, batch_size=10_001)
