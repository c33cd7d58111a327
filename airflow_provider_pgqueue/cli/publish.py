"""Publishes JSON lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from io import BufferedReader, RawIOBase
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.json_lines import Line, json_object, read_lines, read_message
from airflow_provider_pgqueue.cli.options import F, duration
from airflow_provider_pgqueue.cli.output import console, show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import print_text
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage
from airflow_provider_pgqueue.core.message import PLURALS, Duplicate
from airflow_provider_pgqueue.core.quantity import quantity, rate

_DEFAULT_BATCH = 1000
_BUFFER = 65_536  # bytes
_KEYS: Final = [name for name in PLURALS if name != "topic"]
_MEANINGS: Final = {
    "reference": "Reference of the one --message, such as an order number.",
    "group_key": "Group key of the one --message: messages of one group are handled in order.",
    "dedup_key": "Deduplication key of the one --message: a known key is not published again.",
}


def key_options(command: F) -> F:
    """Add two options for each key: the key of the one --message, and the field that has it in each line."""
    for key in reversed(_KEYS):
        option, words = _option(key), key.replace("_", " ")
        field = f"Of lines: top-level field of the body to take the {words} from."
        command = click.option(f"{option}-field", metavar="NAME", help=field)(command)
        command = click.option(option, help=_MEANINGS.get(key, f"The {words} of the one --message."))(command)
    return command


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


@click.command()
@click.argument("queue")
@click.argument("file", type=click.File("rb"), required=False)
@click.option(
    "--message", metavar="JSON", help="Publish one message with this body instead of a file; - reads standard input."
)
@key_options
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    default=4,
    show_default=True,
    help="Messages of a higher priority are leased first.",
)
@click.option(
    "--delay", type=duration, default="0", help="Keep the messages from being leased for this long: 90s, 10m, 2h, 1d."
)
@click.option("--expires-in", type=duration, help="Archive messages as expired if not finished within this time.")
@click.option("--headers", type=json_object, metavar="JSON", help="Headers of all messages, as a JSON object.")
@click.option("--topic", help="Topic of all messages.")
@click.option(
    "--dedup-window",
    type=duration,
    help="How long the deduplication keys are remembered. Default: the policy of the queue.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["skip", "replace"]),
    default="skip",
    show_default=True,
    help="Skip a message with a known key, or let it replace one that still waits.",
)
@click.option(
    "--one-transaction/--per-batch",
    default=True,
    show_default=True,
    help="Publish all messages or none, or each batch as soon as it is read.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 100_000),
    default=_DEFAULT_BATCH,
    show_default=True,
    help="Messages per batch.",
)
@with_settings
def publish(
    settings: Settings,
    /,
    queue: str,
    file: BinaryIO | None,
    message: str | None,
    one_transaction: bool,
    batch_size: int,
    **policy: Any,
) -> None:
    """Publish JSON lines from a file or standard input.

    Each line of FILE is the JSON body of one message; empty lines are skipped. Without FILE, or if it is -, standard
    input is read.
    """
    if message is not None and file is not None:
        raise click.UsageError("give a file or --message, not both.")
    for key in _KEYS:
        option = _option(key)
        if policy[key] is not None and message is None:
            raise click.UsageError(f"{option} is for one --message. Of lines, name a field: {option}-field.")
        if policy[key] is not None and policy[f"{key}_field"] is not None:
            raise click.UsageError(f"give {option} or {option}-field, not both.")
    with_keys = policy["dedup_key"] is not None or policy["dedup_key_field"] is not None
    if not with_keys and (policy["dedup_window"] is not None or policy["on_conflict"] != "skip"):
        raise click.UsageError("--dedup-window and --on-conflict need --dedup-key or --dedup-key-field.")
    started = time.monotonic()
    published = duplicates = 0
    place = ""
    with (
        connected(settings) as conn,
        conn.transaction() if one_transaction else nullcontext(),
        _lines(file, message) as lines,
    ):
        try:
            for batch in _batches(lines, batch_size):
                ids = _publish(conn, queue, batch, policy)
                repeated = sum(isinstance(id_, Duplicate) for id_ in ids)
                published += len(ids) - repeated
                duplicates += repeated
                place = batch[-1].place
        except BaseException:
            if place and not one_transaction:
                # Repeating the whole command would publish these messages twice.
                print_text(f"published {quantity(published)} to {queue}, up to {place}, before this error:", err=True)
            raise
    seconds = time.monotonic() - started
    result = {
        "queue_name": queue,
        "published": published,
        "duplicates": duplicates,
        "seconds": round(seconds, 3),
        "per_second": round(published / max(seconds, 0.001), 1),
    }
    others = f" and found {quantity(duplicates, 'duplicate')}" if duplicates else ""
    # The rate of a single message would be that of opening the connection.
    took = f" in {seconds:.2f} s ({rate(published, seconds)})" if published + duplicates > 1 else ""
    show_done(
        settings,
        result,
        f"published {quantity(published)} to {queue}{others}{took}.",
    )


def _batches(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    while batch := list(islice(lines, size)):
        yield batch


def _publish(conn: Connection, queue: str, batch: list[Line], policy: Mapping[str, Any]) -> list[int]:
    """Publish a batch as the options of the command say: the same for all messages, or a key from a field of each."""

    def keys(name: str) -> list[str] | None:
        if policy[name] is not None:
            return [policy[name]]
        field = policy[f"{name}_field"]
        return [line.key(field) for line in batch] if field else None

    options: Any = {name: policy[name] for name in ("priority", "delay", "expires_in", "headers")}
    options["topics"] = [policy["topic"]] * len(batch) if policy["topic"] else None
    options |= {PLURALS[name]: keys(name) for name in _KEYS}
    if options["dedup_keys"]:
        options |= {name: policy[name] for name in ("dedup_window", "on_conflict")}
    statement = verbs.publish_texts(queue, [line.text for line in batch], **options)
    try:
        return run(conn, statement)
    except (InvalidArgument, InvalidMessage) as error:
        if isinstance(error, InvalidArgument) and not isinstance(error.__cause__, psycopg.DataError):
            raise  # it is about an option, and not about a body
        first, last = batch[0].place, batch[-1].place
        raise type(error)(f"{first if first == last else f'{first} to {last}'}: {error}") from error


@contextmanager
def _lines(file: BinaryIO | None, message: str | None) -> Iterator[Iterator[Line]]:
    """Give the bodies; for a file on a terminal, with a progress bar."""
    if message is not None:
        yield iter([read_message(message)])
        return
    if file is None and sys.stdin is None:  # closed by the shell
        raise click.UsageError("standard input is closed. Give FILE or --message.")
    source = file or sys.stdin.buffer
    size = _size(source)
    if not size or not sys.stderr.isatty():
        yield read_lines(source)
        return
    from rich.progress import wrap_file

    with wrap_file(source, size, description="publish", console=console(stderr=True), transient=True) as watched:
        # The buffer, because to move the bar for each line would halve the rate.
        yield read_lines(BufferedReader(cast("RawIOBase", watched), _BUFFER))


def _size(source: BinaryIO) -> int:
    """Return the number of bytes to read; 0 if it is unknown, as for a pipe."""
    try:
        return os.fstat(source.fileno()).st_size
    except OSError:
        return 0
