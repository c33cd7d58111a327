"""Where an export goes: a folder on a local or shared disk, in an object store or in HDFS."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem, SubTreeFileSystem

from airflow_provider_pgqueue.core.errors import InvalidArgument


def open_target(uri: str) -> SubTreeFileSystem:
    """Return the folder that a path, or a URI of file, s3, gs or hdfs, names; paths in it are relative to it.

    InvalidArgument if no file system of pyarrow is meant.
    """
    try:
        filesystem, root = FileSystem.from_uri(uri if "://" in uri else os.path.abspath(uri))
    except (OSError, pa.ArrowException) as error:
        raise InvalidArgument(
            f"target {shown(uri)!r} cannot be opened: {type(error).__name__}. "
            "Give a path, or a URI of file, s3, gs or hdfs; hdfs needs its client libraries."
        ) from error
    return SubTreeFileSystem(root, filesystem)


def shown(uri: str) -> str:
    """Return the URI without what may be secret: user, password and parameters."""
    if "://" not in uri:
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def files_in(target: SubTreeFileSystem, folder: str) -> list[FileInfo]:
    """Return all files below a folder, none if there is no such folder."""
    found = target.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    return [info for info in found if info.type == FileType.File]


def remove_folder(target: SubTreeFileSystem, folder: str) -> None:
    """Remove a folder and all in it, if it is there."""
    if target.get_file_info(folder).type == FileType.Directory:
        target.delete_dir(folder)


def is_inside(path: str) -> bool:
    """Return whether a path stays in the target: relative, and with no segment that leads out again."""
    return not path.startswith("/") and not {"", ".", ".."} & set(path.split("/"))


def remove_file(target: SubTreeFileSystem, path: str) -> None:
    """Remove a file, if it is there. InvalidArgument for a path that leads out of the target."""
    if not is_inside(path):
        raise InvalidArgument(f"path {path!r} leads out of the target. Give one relative to the target, without '..'.")
    with suppress(FileNotFoundError):
        target.delete_file(path)


def move(target: SubTreeFileSystem, source: str, path: str) -> None:
    """Move a file into place, over what is there: at once on a file system, by a copy in an object store."""
    target.create_dir(str(PurePosixPath(path).parent), recursive=True)
    target.move(source, path)


def write(target: SubTreeFileSystem, path: str, content: bytes, *, by_way_of: str) -> None:
    """Write a small file so that nobody ever sees half of it: elsewhere first, then moved into place."""
    target.create_dir(str(PurePosixPath(by_way_of).parent), recursive=True)
    with target.open_output_stream(by_way_of) as stream:
        stream.write(content)
    sync(target, [by_way_of])
    move(target, by_way_of, path)
    sync_folders(target, [path])


def sync(target: SubTreeFileSystem, paths: list[str]) -> None:
    """Force files, or the entries of folders, to the disk. Other file systems keep a file safe once it is closed."""
    if not isinstance(target.base_fs, LocalFileSystem):
        return
    for path in paths:
        descriptor = os.open(os.path.join(target.base_path, path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_folders(target: SubTreeFileSystem, paths: list[str]) -> None:
    """Force the entries of files in their folders, and of these in theirs, to the disk."""
    sync(target, sorted({str(folder) for path in paths for folder in PurePosixPath(path).parents}))
