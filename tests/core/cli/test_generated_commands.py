"""Hostile values for every option and argument of every command: an exit status and a sentence, never a bug or a hang.

EXAMPLES=n tries n calls of each instead of a few.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

from airflow_provider_pgqueue.cli.duration import ago, duration
from airflow_provider_pgqueue.cli.program import COMMANDS, program
from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.core import PgQueueError, run, verbs
from airflow_provider_pgqueue.core.errors import translate
from tests.core.cli.conftest import Pgqueue

Connection = psycopg.Connection[Any]
CALLS = int(os.environ.get("EXAMPLES", "8"))
LONGEST = 60  # seconds, on a machine with a lot to do; a call that takes longer hangs
TEXTS = [
    "orders", "orders", "orders", "nobody", "", " ", "-", "--", "-1", "x" * 300, "x" * 100_000, "a'b\"c;--", "ünï ☃",
    "\x01\x7f", "\x1b[31m", "\udcff", "Orders", "%s %(x)s {0}", "../../etc/passwd", "/", "a.b.c", "*.b.#", "#.#",
    "* * * * *", "0 0 31 2 *", "*/0 * * * *", "UTC", "Mars/Olympus", "success", "failed", "infinity", "NaN", "null",
    "{}", "[1]", '{"k": "\\u0000"}', "1e400", "[" * 2000, "builtins:print", "os:abort_", "no.such:thing", ":",
    "tests.core.cli.test_generated_commands:handle", "tests.core.cli.test_generated_commands:broken",
]  # fmt: skip
DURATIONS = ["0", "0s", "1s", "-1s", "90", "1d", "366d", "100000d", "99999999999999d", "1x", "", "1h30m", "1e3s", "∞"]
NUMBERS = ["0", "1", "2", "-1", "7", "100", "101", "2147483647", "2147483648", "9223372036854775808", "1" * 400, "x"]
# What would run forever, for long or next to this process is bounded; nothing here removes the schema.
BOUNDED: dict[str, list[str]] = {
    "tail": ["--no-follow"],
    "stats": ["--refreshes", "1", "--interval", "1s"],
    "top": ["--once"],
    "worker": ["--until-empty", "--processes", "1"],
    "bench": ["--messages", "3", "--consumers", "1"],
    "repair": [],
}
NEVER = {
    "uninstall": {"yes"},
    "tail": {"follow"},
    "stats": {"refreshes", "interval"},
    "top": {"once", "refreshes", "interval"},
    "metrics": {"listen"},
    "worker": {"until_empty", "processes"},
    "bench": {"messages", "consumers"},
}


def handle(message: Any) -> None:
    """Succeed."""


def broken(message: Any) -> None:
    """Fail, as a handler with a bug does."""
    raise KeyError("no such key")


def leaves(name: str) -> list[tuple[list[str], click.Command]]:
    """Return the words and the command, or those of the commands below it."""
    command = program.get_command(click.Context(program), name)
    assert command is not None
    below = [([name, each], one) for each, one in command.commands.items()] if isinstance(command, click.Group) else []
    return [([name], command), *below]


def value(parameter: click.Parameter, chance: random.Random, folder: Path) -> str:
    kind = parameter.type
    if isinstance(kind, click.Choice) and chance.random() < 0.9:
        return str(chance.choice(list(kind.choices)))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return chance.choice(NUMBERS)
    if getattr(kind, "func", None) in {duration, ago}:
        return chance.choice(DURATIONS)
    if isinstance(kind, click.File | click.Path):
        return chance.choice([str(folder / "lines"), str(folder), str(folder / "none"), "-", ""])
    return chance.choice(TEXTS + DURATIONS + NUMBERS)


def words(path: list[str], command: click.Command, chance: random.Random, folder: Path) -> list[str]:
    """Return arguments as somebody may give them: each argument, and a few of the options."""
    given = [*path, *(BOUNDED.get(path[0], []) if not isinstance(command, click.Group) else [])]
    last: list[str] = []
    for parameter in command.params:
        if parameter.name in {"dsn", "debug", "help"} | NEVER.get(path[0], set()):
            continue
        if isinstance(parameter, click.Argument):
            if chance.random() < 0.9:
                last.append(value(parameter, chance, folder))
        elif parameter.required or chance.random() < 0.3:
            assert isinstance(parameter, click.Option)
            option = chance.choice(parameter.opts)
            given += [option] if parameter.is_flag else [option, value(parameter, chance, folder)]
    return given + (["--", *last] if chance.random() < 0.5 else last)


@contextmanager
def alarm() -> Iterator[None]:
    """Raise a TimeoutError, which nobody takes for an error of a command, when the time is over."""

    def ring(*_: object) -> None:
        raise BaseException(f"still busy after {LONGEST} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def bug(arguments: list[str]) -> str | None:
    """Run a command as the program does, and return what it would report as a bug or show as the driver wrote it."""
    try:
        with alarm():
            program.main(arguments, prog_name="pgqueue", obj=Settings(), standalone_mode=False)
    except (click.ClickException, click.Abort, click.exceptions.Exit, PgQueueError, OSError):
        return None
    except psycopg.Error as error:
        known = isinstance(translate(error), PgQueueError)
        return None if known else f"{error.sqlstate} {str(error).splitlines()[0][:120]}"
    except BaseException as error:
        return f"{type(error).__name__} {str(error)[:120]}"
    return None


OTHER = "SELECT array_agg(m ORDER BY id) FROM messages.message m WHERE queue_name = 'other'"


# `web` serves until it is stopped, and takes a number and a flag: tests/web/test_alone.py.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "web"])
def test_no_command_fails_by_accident_hangs_or_touches_another_queue(
    pgqueue: Pgqueue, conn: Connection, queue: Callable[..., str], tmp_path: Path, name: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert pgqueue("--version").status == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text('{"n": 1}\n[2]\n')
    run(conn, verbs.publish_batch(queue("other"), [1, 2, 3]))
    run(conn, verbs.lease("other"))
    before = conn.execute(OTHER.encode()).fetchall()
    chance, told = random.Random(name), Counter[str]()
    for path, command in leaves(name):
        for _ in range(CALLS):
            if not conn.execute("SELECT FROM messages.queue WHERE queue_name = 'orders'").rowcount:
                run(conn, verbs.publish_batch(queue("orders"), [{"n": n} for n in range(3)]))
            arguments = words(path, command, chance, tmp_path)
            if found := bug(arguments):
                told[f"{ascii(arguments)[:300]}: {found}"] += 1
            capsys.readouterr()
            assert conn.execute(OTHER.encode()).fetchall() == before, arguments
    assert not told, "\n".join(told)
