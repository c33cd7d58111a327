"""The md5 of messages in their physical order, computed from a Parquet file as PostgreSQL computes it from its rows.

Each row is a text: numbers, times as microseconds since 1970, other values with their length before them, so that no
two rows have the same text. What is longer than a kilobyte counts by its own md5, so that the text of many rows stays
small. `messages.archive_checksums` does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import SubTreeFileSystem

_LONG: Final = 1024


def checksum_of_file(target: SubTreeFileSystem, path: str) -> str:
    """Read a file back and return the md5 of its content; OSError or ArrowException if it is damaged."""
    digest = md5(usedforsecurity=False)
    with target.open_input_file(path) as stream:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group).to_batches(max_chunksize=10_000):
                digest.update(_texts(batch))
    return digest.hexdigest()


def _texts(batch: pa.RecordBatch) -> memoryview:
    """Return the texts of the rows, one behind the other."""
    texts = pc.binary_join_element_wise(*_fields(batch), "\n", "|", null_handling="replace", null_replacement="")
    _, _, characters = texts.buffers()
    return memoryview(characters or b"")[: pc.sum(pc.binary_length(texts)).as_py() or 0]


def _fields(batch: pa.RecordBatch) -> Iterator[pa.Array | str]:
    """Give what is joined to the texts; columns without any value next to each other as one."""
    for empty, columns in groupby(batch.columns, key=lambda column: column.null_count == len(column)):
        if empty:
            yield "|" * (sum(1 if _is_number(column) else 2 for column in columns) - 1)
        else:
            for column in columns:
                yield from _values(column)


def _values(column: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_timestamp(column.type):
        yield column.cast(pa.int64()).cast(pa.string())
    elif _is_number(column):
        yield column.cast(pa.string())
    else:
        length = pc.binary_length(column)
        yield length.cast(pa.string())
        yield _shortened(column, length)


def _is_number(column: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type))


def _shortened(column: pa.Array, length: pa.Array) -> pa.Array:
    if pc.max(length).as_py() <= _LONG:
        return column
    long = pc.fill_null(pc.greater(length, _LONG), False)
    hashes = [md5(value.as_buffer(), usedforsecurity=False).hexdigest() for value in column.filter(long)]
    return pc.replace_with_mask(column, long, pa.array(hashes, pa.string()))
