"""The md5 of messages in their physical order, made alike by PostgreSQL and from a Parquet file.

Each row is a text: numbers, times as microseconds since 1970, other values with their length before them, so that no
two rows have the same text. What is longer than 256 bytes counts by its own md5, so that the text of many rows stays
small. `messages.archive_checksums` does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from hashlib import md5
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import SubTreeFileSystem

_LONG: Final = 256

Group = tuple[str, str, date]  # queue, result, day
Checksum = tuple[int, str]  # rows, md5


def checksum_of_file(target: SubTreeFileSystem, path: str) -> Checksum:
    """Read a file back and return how many rows it has and the md5 of their content."""
    rows, digest = 0, md5(usedforsecurity=False)
    with target.open_input_file(path) as stream:
        file = pq.ParquetFile(stream)
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group).to_batches(max_chunksize=10_000):
                rows += batch.num_rows
                digest.update(text_of(batch))
    return rows, digest.hexdigest()


def text_of(batch: pa.RecordBatch) -> memoryview:
    """Return the text of all rows, one behind the other."""
    rows = pc.binary_join_element_wise(*_values(batch), "\n", "|", null_handling="replace", null_replacement="")
    length = pc.sum(pc.binary_length(rows)).as_py() or 0
    return memoryview(rows.buffers()[2] or b"")[:length]


def _values(batch: pa.RecordBatch) -> Iterator[pa.Array | str]:
    """Give the texts of the columns, to be joined; those without any value next to each other as one."""
    for empty, columns in groupby(batch.columns, key=lambda column: column.null_count == len(column)):
        if empty:
            yield "|" * (len(list(columns)) - 1)
        else:
            yield from map(_value, columns)


def _value(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_integer(column.type):
        return column.cast(pa.string())
    length = pc.binary_length(column)
    return pc.binary_join_element_wise(length.cast(pa.string()), _shortened(column, length), ":")


def _shortened(column: pa.Array, length: pa.Array) -> pa.Array:
    long = pc.fill_null(pc.greater(length, _LONG), False)
    hashes = [md5(value.as_buffer(), usedforsecurity=False).hexdigest() for value in column.filter(long)]
    return pc.replace_with_mask(column, long, pa.array(hashes, pa.string())) if hashes else column
