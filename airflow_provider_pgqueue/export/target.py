"""The folder that an export goes to, on any file system."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem, SubTreeFileSystem

from airflow_provider_pgqueue.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Target:
    """A folder by its path, or by a URI of file, s3, gs or hdfs; the paths of what is in it are relative to it."""

    uri: str
    folder: SubTreeFileSystem

    @classmethod
    def open(cls, uri: str) -> Self:
        """Return the folder that a path or a URI names; InvalidArgument if no file system of pyarrow is meant."""
        if not uri:
            raise InvalidArgument("target is empty. Give a path, or a URI of file, s3, gs or hdfs.")
        try:
            filesystem, root = FileSystem.from_uri(uri if "://" in uri else os.path.abspath(uri))
        except (OSError, pa.ArrowException) as error:
            raise InvalidArgument(
                f"target {shown(uri)!r} cannot be opened: {type(error).__name__}. "
                "Give a path, or a URI of file, s3, gs or hdfs; hdfs needs its client libraries."
            ) from error
        return cls(uri, SubTreeFileSystem(root, filesystem))

    def __str__(self) -> str:
        """Return the URI in quotes, without what may be secret: user, password and parameters."""
        return repr(shown(self.uri))

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system of this machine."""
        return isinstance(self.folder.base_fs, LocalFileSystem)

    @property
    def base(self) -> str:
        """The prefix of the paths of its files for other programs: a path on this machine, else a URI."""
        return (self.folder.base_path if self.is_local else shown(self.uri)).rstrip("/")

    def files_in(self, folder: str) -> list[FileInfo]:
        """Return all files below a folder, none if there is no such folder."""
        found = self.folder.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
        return [info for info in found if info.type == FileType.File]

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and all in it, if it is there."""
        if self.folder.get_file_info(folder).type == FileType.Directory:
            self.folder.delete_dir(folder)

    def remove_file(self, path: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self.folder.delete_file(path)

    def move(self, source: str, path: str) -> None:
        """Move a file into place, over what is there: at once on a file system, by a copy in an object store."""
        self.folder.create_dir(str(PurePosixPath(path).parent), recursive=True)
        self.folder.move(source, path)

    def sync(self, paths: Iterable[str]) -> None:
        """Force files, or the entries of folders, to the disk. Elsewhere a file is safe once it is closed."""
        for path in paths if self.is_local else ():
            descriptor = os.open(os.path.join(self.folder.base_path, path), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_folders(self, paths: Iterable[str]) -> None:
        """Force the entries of files in their folders, and of these in theirs, to the disk."""
        self.sync(sorted({str(folder) for path in paths for folder in PurePosixPath(path).parents}))


def shown(uri: str) -> str:
    """Return a path or a URI without what may be secret."""
    if "://" not in uri:
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
