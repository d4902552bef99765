"""Small inputs in many shards."""

from __future__ import annotations

import headrace as hr
from headrace.sources.range import RangeSource


def numbers(rows: int, per_shard: int = 100) -> hr.Dataset:
    """Return ``rows`` numbers, in shards of ``per_shard`` rows."""
    source = RangeSource(rows, rows_per_split=per_shard)
    return hr.Dataset.from_source(source).with_options(shard_rows=per_shard)
