"""An export of a partition takes the place of an older one: at each moment one of the two is whole and valid.

The files of each export have names of their own. The new ones come to stand beside the old ones, then the manifest is
replaced, and only then the old ones go. Who is killed in between leaves files that no manifest names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from pyarrow.fs import SubTreeFileSystem

from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.jobs.exported.manifest import (
    File,
    Manifest,
    export_of,
    partition_of,
    read_manifest,
)
from airflow_provider_pgqueue.spark.jobs.exported.target import files_in, move, remove_file, sync_folders

log = logging.getLogger(__name__)


def take_place(
    target: SubTreeFileSystem,
    manifest: Manifest,
    staged: Iterable[tuple[str, File]],
    *,
    older: Manifest | None,
    still_alone: Callable[[], object],
) -> None:
    """Make an export valid with the files where they were staged, and remove those of the older one.

    `still_alone` raises if another export of the partition may be at work by now: then nothing becomes valid.
    """
    for path, file in staged:
        move(target, path, file.path)
    sync_folders(target, [file.path for file in manifest.files])
    still_alone()
    manifest.save(target)
    if older is not None:
        remove_others(target, manifest, [file.path for file in older.files])


def is_in_place(target: SubTreeFileSystem, manifest: Manifest) -> bool:
    """Return whether a manifest is the valid one of its partition, and all its files are there."""
    if read_manifest(target, manifest.partition) != manifest:
        return False
    found = target.get_file_info([file.path for file in manifest.files])
    return all(info.is_file and info.size == file.bytes for info, file in zip(found, manifest.files, strict=True))


def files_by_partition(target: SubTreeFileSystem) -> Mapping[str, list[str]]:
    """Return all files in `data` by their partition, named by a manifest or not."""
    found: dict[str, list[str]] = {}
    for info in files_in(target, "data"):
        if partition := partition_of(info.base_name):
            found.setdefault(partition, []).append(info.path)
    return found


def of_several_exports(paths: Iterable[str]) -> bool:
    """Return whether files of one partition are of more than one export, so that some are not valid."""
    return len({export_of(path) for path in paths}) > 1


def remove_others(target: SubTreeFileSystem, manifest: Manifest, paths: Iterable[str]) -> None:
    """Remove those of the files of a partition that its manifest does not name.

    They must have been there before its lock was taken: else they may be of an export that is at work now.
    """
    others = set(paths) - {file.path for file in manifest.files}
    for path in sorted(others):
        remove_file(target, path)
    if others:
        log.info("partition %s: %s of other exports removed", manifest.partition, quantity(len(others), "file"))
