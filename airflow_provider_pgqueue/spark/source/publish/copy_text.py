"""Arrow as the text that COPY reads: one line a row, so that the line that PostgreSQL names is the row."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_TEXT: Final = pa.large_string()
_TAB, _LINE_END, _NULL = (pa.scalar(text, _TEXT) for text in ("\t", "\n", "\\N"))
_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def lines(batch: pa.RecordBatch, *, attempt: int, after: int) -> memoryview:
    """Return the rows of a batch as lines: the attempt, the ordinal, which goes on after `after`, and the columns."""
    ordinals = pa.array(range(after + 1, after + 1 + batch.num_rows), pa.int64())
    fields = [pa.scalar(str(attempt), _TEXT), ordinals.cast(_TEXT), *map(_field, batch.columns)]
    joined = pc.binary_join_element_wise(*fields, _TAB, null_handling="replace", null_replacement=_NULL.as_py())
    ended = pc.binary_join_element_wise(joined, pa.scalar("", _TEXT), _LINE_END)
    # The characters of an array lie one after the other: no copy, and no Python object for each row.
    return memoryview(ended.buffers()[2])[: pc.sum(pc.binary_length(ended)).as_py() or 0]


def _field(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz="UTC")).cast(_TEXT)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.cast(_TEXT)
    field = column.cast(_TEXT)
    for character, escaped in _ESCAPES:
        field = pc.replace_substring(field, character, escaped)
    return field
