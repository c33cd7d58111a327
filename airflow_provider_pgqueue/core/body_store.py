"""Bodies that are too large for a message: a file in a folder has the body, and the message a pointer to it.

SQL knows nothing of this: to it a pointer, `{"pgqueue_body": {"name", "bytes", "sha256"}}`, is a body like any other.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core.client import fetch
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import BodyUnavailable, InvalidArgument, MessageTooLarge, refused
from airflow_provider_pgqueue.core.json_text import JsonText, read_json, to_json
from airflow_provider_pgqueue.core.message import DeadMessage, Message, Unreadable
from airflow_provider_pgqueue.core.query import query

M = TypeVar("M", Message, DeadMessage)
_KEY: Final = "pgqueue_body"
# The database, the time and a random number: no name is ever used twice, and none leads out of the folder.
_NAME: Final = re.compile(r"[0-9]{1,20}-[0-9]{1,10}-[0-9]{8}T[0-9]{6}-[0-9a-f]{32}")
# What looks like a pointer would be taken for one, also with white space or an escape in its JSON.
_LOOKS_LIKE_ONE: Final = re.compile(rf'\s*{{\s*"({_KEY}"|[a-z_]*\\)')


class Folder(Protocol):
    """What keeps the bodies: a `pathlib.Path`, a universal path, or Airflow's `ObjectStoragePath`."""

    def __truediv__(self, name: str, /) -> Any: ...
    def iterdir(self) -> Iterable[Any]: ...


@dataclass(frozen=True, slots=True)
class BodyStore:
    """Keeps bodies of more than `above` bytes in a folder, which must exist, and gives them back to consumers.

    Any number of processes, queues and databases may use one folder. A body of more than `at_most` bytes is neither
    written nor read; a pointer is not trusted, and leads to a file directly in this folder, or nowhere.
    """

    folder: Folder
    above: int = 100_000
    at_most: int = 268_435_455

    def __post_init__(self) -> None:
        if not hasattr(self.folder, "iterdir"):
            raise InvalidArgument(
                f"folder is a {type(self.folder).__name__}", 'Give a path, such as pathlib.Path("/var/lib/bodies").'
            )
        if not isinstance(self.above, int) or not 0 <= self.above <= self.at_most:
            raise InvalidArgument(f"above is {self.above}. Give a number of bytes from 0 to {self.at_most}.")

    def put(self, conn: psycopg.Connection[Any], body: Any) -> JsonText:
        """Return what to publish for a body over this connection: the body, or a pointer to it if it is too large.

        The file is complete before this returns. Each call writes another one: those of a publish that was rolled back,
        or whose dedup key was remembered, stay until `clean` removes them. BodyUnavailable, which names the folder, if
        the file cannot be written.
        """
        text = to_json(body)
        data = text.encode()
        if len(data) <= self.above and not _LOOKS_LIKE_ONE.match(text):
            return JsonText(text)
        if len(data) > self.at_most:
            raise MessageTooLarge(f"a body of {len(data)} bytes is too large: at_most is {self.at_most}")
        database, time = _named(conn)
        name = f"{database}{time}-{secrets.token_hex(16)}"
        try:
            (self.folder / name).write_bytes(data)
        except Exception as error:
            raise BodyUnavailable(
                f"a body of {len(data)} bytes cannot be written to {self.folder}: {_said(error)}",
                "Let publishers write to this folder; a directory must exist.",
            ) from error
        return JsonText(to_json({_KEY: {"name": name, "bytes": len(data), "sha256": sha256(data).hexdigest()}}))

    def read(self, message: M) -> M:
        """Return a message with the body that its pointer leads to; one without a pointer as it is.

        BodyUnavailable, which names the message and the folder, if the body is missing, cannot be read, is not what was
        published, or if the pointer is not one that `put` made.
        """
        if not _is_pointer(message.body):
            return message
        pointer, wrong = message.body[_KEY], partial(self._unavailable, message)
        match pointer:
            case {"name": str(name), "bytes": int(size), "sha256": digest} if len(pointer) == 3:
                pass
            case _:
                raise wrong("the pointer to it is malformed")
        if not _NAME.fullmatch(name):
            raise wrong("the pointer to it has a name that this package does not give")
        if not 0 < size <= self.at_most:
            raise wrong(f"the pointer to it says another size than 1 to {self.at_most} bytes")
        try:
            self._forget_listing()
            with (self.folder / name).open("rb") as file:
                # One more, because the file may be larger than the pointer says.
                data = file.read(size + 1)
        except FileNotFoundError as error:
            raise wrong("it is missing") from error
        except Exception as error:
            raise wrong(_said(error)) from error
        if len(data) != size or sha256(data).hexdigest() != digest:
            raise wrong("it is not what was published")
        if isinstance(body := read_json(data), Unreadable):
            raise wrong(f"Python cannot read its JSON: {body.reason}")
        return replace(message, body=body)

    def _unavailable(self, message: Message | DeadMessage, why: str) -> BodyUnavailable:
        return BodyUnavailable(
            f"the body of message {message.id} of queue {message.queue_name} in {self.folder} cannot be had: {why}",
            "Let consumers read the folder that publishers write to, or dismiss the message.",
        )

    def clean(self, conn: psycopg.Connection[Any], *, older_than: Duration = timedelta(days=1)) -> int:
        """Remove the bodies to which no message of this database points, waiting or archived, and return how many.

        Those of other databases stay, and so do those that were written less than `older_than` ago by the clock of the
        database: give more than the longest transaction that publishes. It may run while others publish, consume or
        clean. It reads all messages but no large body, and needs the role `messages_reader`. If the folder refuses to
        list or to remove, its own error rises, and another call continues.
        """
        database, time = _named(conn, as_timedelta(older_than))
        names = {name for name in self._names() if _NAME.fullmatch(name) and database < name < f"{database}{time}"}
        if names:
            fix = partial(refused, wants="reader")
            names.difference_update(name for (name,) in fetch(conn, tuple_row, query("bodies_elsewhere"), [], fix=fix))
        for name in names:
            with suppress(FileNotFoundError):  # somebody else has cleaned it
                self._remove(self.folder / name)
        return len(names)

    def _names(self) -> set[str]:
        """Return the names of all files in the folder."""
        self._forget_listing()
        try:
            return {path.name for path in self.folder.iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            if getattr(self.folder, "protocol", "file") in ("", "file"):
                raise
            # An object store has no folder without a file in it.
            return set()

    def _forget_listing(self) -> None:
        """Let a universal path look again: after a listing it knows no file that others write later."""
        if self._system is not None:
            self._system.invalidate_cache()

    def _remove(self, file: Any) -> None:
        if self._system is None:
            file.unlink()
        else:
            # `unlink` of S3 says nothing if the server refuses.
            self._system.rm_file(file.path)

    @property
    def _system(self) -> Any:
        """What a universal path stands on; `pathlib` has nothing like it."""
        return getattr(self.folder, "fs", None)


def bytes_elsewhere(body: Any) -> int:
    """Return how many bytes the body has to which this one points, as far as it says; 0 if it is not a pointer."""
    said = body[_KEY].get("bytes") if _is_pointer(body) and isinstance(body[_KEY], dict) else 0
    return said if isinstance(said, int) else 0


def _said(error: Exception) -> str:
    """Return what a store says: each has errors of its own, and few of them name the folder."""
    return f"{type(error).__name__}: {error}".rstrip(".")


def _is_pointer(body: Any) -> bool:
    return isinstance(body, dict) and len(body) == 1 and _KEY in body


def _named(conn: psycopg.Connection[Any], ago: timedelta = timedelta(0)) -> tuple[str, str]:
    """Return what the names of this database begin with, and how they say the time so long ago."""
    ((database, time),) = fetch(conn, tuple_row, query("body_name"), [ago])
    return database, time
