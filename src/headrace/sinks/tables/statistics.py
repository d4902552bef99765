"""What the footers of parts say of their columns, so that readers of a table can pass over files."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq

from headrace.core.files import safe_files
from headrace.core.stores.addresses import Address, is_address, parse
from headrace.core.stores.clients import client_for
from headrace.core.stores.objects import ObjectPath, open_arrow
from headrace.core.stores.options import Options

_AT_ONCE = 16
_LONGEST = 32  # characters of a text


def footers(paths: Sequence[str], options: Options) -> list[pq.FileMetaData]:
    """Read the footers of parts."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-footers") as threads:
        return list(threads.map(lambda path: _footer(path, options), paths))


def _footer(path: str, options: Options) -> pq.FileMetaData:
    with opened_part(path, options) as data:
        return pq.read_metadata(data)


def opened_part(path: str, options: Options) -> Any:
    """Open a part, of a folder or of a store."""
    return open_arrow(_found(path, options)) if is_address(path) else safe_files.file(path)


def _found(path: str, options: Options) -> ObjectPath:
    address: Address = parse(path)
    entry = client_for(address, options).head(address.key)
    if entry is None:
        raise FileNotFoundError(path)
    return ObjectPath.of(address, entry, options)


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return the smallest and the largest value, and the number of nulls, of columns that say so exactly.

    Integers, dates, booleans and short texts have a smallest and a largest. Of floats, NaN would stand outside both.
    Where a column with values has none, no column gets them: deltalake's filters of a dataset take what is missing
    beside other ranges for null, and pass over all rows.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    whole = True
    schema = footer.schema
    for number in range(len(schema)):
        column = schema.column(number)
        name = column.path
        # Columns of a struct or a list: nobody looks at them.
        if name != column.name or column.max_repetition_level:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if all(each is not None and each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        full = [each for each in found if each is None or each.num_values]
        ranges = [(each.min, each.max) for each in full if each is not None and each.has_min_max]
        if len(ranges) == len(full) and ranges:
            low[name], high[name] = min(least for least, _ in ranges), max(most for _, most in ranges)
        if full and not (name in low and _exact(low[name]) and _exact(high[name])):
            whole = whole and column.logical_type.type == "NONE" and column.physical_type == "BYTE_ARRAY"
    if not whole:
        return {"nullCount": nulls}
    return {
        "minValues": {name: value for name, value in low.items() if _exact(value)},
        "maxValues": {name: value for name, value in high.items() if _exact(value)},
        "nullCount": nulls,
    }


def _exact(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    plain = type(value) in (int, bool, datetime.date)
    return plain
