"""Reads in Spark what an export left in its target."""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_pgqueue.core.errors import ExportError
from airflow_provider_pgqueue.export.manifest import all_manifests, arrow_schema
from airflow_provider_pgqueue.export.target import Target


def read_export(spark: SparkSession, target: str) -> DataFrame:
    """Return the exported messages, each once, with the columns of the archive and `date`; of valid exports only.

    ExportError if there is no export, a manifest is damaged or of a newer version, or a file is gone.
    """
    folder = Target.open(target)
    manifests = all_manifests(folder)
    columns = {name: kind for manifest in manifests for name, kind in manifest.columns.items()}
    schema = from_arrow_schema(arrow_schema(columns).append(pa.field("date", pa.date32())))
    base = f"file://{folder.base}" if folder.is_local else re.sub("^s3:", "s3a:", folder.base)
    paths = [f"{base}/{file.path}" for manifest in manifests for file in manifest.files]
    if not paths:
        return spark.createDataFrame([], schema)
    try:
        rows = spark.read.schema(schema).option("basePath", f"{base}/data").parquet(*paths)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise ExportError(
            f"a file that a manifest of {folder} names is not there. If its partition was exported anew just "
            "now, read again. Else export the partition again, or bring the file back from a backup."
        ) from error
    return rows.select(*columns, "date")
