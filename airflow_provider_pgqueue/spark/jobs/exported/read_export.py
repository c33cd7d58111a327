"""Reads what was exported: the files that the manifests name, and no others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyarrow.fs import LocalFileSystem
from pyspark.errors import AnalysisException

from airflow_provider_pgqueue.core.errors import ExportError
from airflow_provider_pgqueue.spark.jobs.exported.manifest import Manifest, read_manifests
from airflow_provider_pgqueue.spark.jobs.exported.target import open_target, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: Final = {"bigint": "bigint", "integer": "int", "smallint": "smallint", "timestamp with time zone": "timestamp"}


def read_export(spark: SparkSession, target: str) -> DataFrame:
    """Return the exported messages, each once, with the columns of the archive and `date`; of valid exports only.

    ExportError if there is no export, a manifest is damaged or of a newer version, or a file is gone.
    """
    manifests = _manifests(target)
    columns = {column.name: _TYPES.get(column.kind, "string") for each in manifests for column in each.columns}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in (columns | {"date": "date"}).items())
    base = _for_spark(_base(target))
    paths = [f"{base}/{file.path}" for manifest in manifests for file in manifest.files]
    if not paths:
        return spark.createDataFrame([], schema)
    try:
        rows = spark.read.schema(schema).option("basePath", f"{base}/data").parquet(*paths)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise ExportError(
            f"a file that a manifest of {shown(target)!r} names is not there. If its partition was exported anew just "
            "now, read again. Else export the partition again, or bring the file back from a backup."
        ) from error
    return rows.select(*columns, "date")


def export_files(target: str) -> list[str]:
    """Return all files of valid exports, to hand them to another program: paths on this machine, else URIs.

    Queue, result and day are in the names of their folders only. An export that comes later may remove some of them.
    ExportError if there is no export, or a manifest is damaged or of a newer version.
    """
    manifests, base = _manifests(target), _base(target)
    return [f"{base}/{file.path}" for manifest in manifests for file in manifest.files]


def exported_queues(target: str) -> set[str]:
    """Return the names of the queues of which messages were exported. ExportError as `export_files`."""
    return {file.queue_name for manifest in _manifests(target) for file in manifest.files}


def _manifests(target: str) -> list[Manifest]:
    try:
        found = read_manifests(open_target(target))
    except OSError as error:
        raise ExportError(
            f"target {shown(target)!r} cannot be read: {error.strerror or error}. "
            "Give the folder of an export, and grant the right to read it."
        ) from error
    if not found:
        raise ExportError(f"{shown(target)!r} has no export. Give the target of one that finished.")
    return found


def _base(target: str) -> str:
    folder = open_target(target)
    local = isinstance(folder.base_fs, LocalFileSystem)
    return (folder.base_path if local else shown(target)).rstrip("/")


def _for_spark(path: str) -> str:
    return re.sub("^s3:", "s3a:", path if "://" in path else f"file://{path}")
