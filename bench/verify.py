"""Whether contenders wrote the same rows, in whatever order and however many files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

TOLERANCE = 1e-4  # relative: a network's last bits depend on where its batches end


@dataclass(frozen=True, slots=True)
class Digest:
    """What is compared. Each sum is Σ|term| beside Σ term, to have a scale for the tolerance."""

    rows: int
    columns: tuple[str, ...]
    sums: tuple[tuple[float, float], ...]


def digest(out: Path, checked: tuple[str, ...], prediction: str = "prediction") -> Digest:
    """Sums of the column `prediction`, alone and times each `checked` column of the same row.

    The products notice predictions that sit beside the wrong row.
    """
    files = [p for p in sorted(out.glob("*.parquet")) if not p.name.startswith((".", "_"))]
    rows, names = 0, tuple[str, ...]()
    sums = np.zeros((1 + len(checked), 2))
    for path in files:
        with pq.ParquetFile(path) as file:
            names = tuple(sorted(file.schema_arrow.names))
            for batch in file.iter_batches(columns=[prediction, *checked]):
                values = [
                    batch[name].to_numpy(zero_copy_only=False).astype(float)
                    for name in (prediction, *checked)
                ]
                terms = [values[0], *(values[0] * other for other in values[1:])]
                sums += [(term.sum(), np.abs(term).sum()) for term in terms]
                rows += batch.num_rows
    return Digest(rows, names, tuple((float(a), float(b)) for a, b in sums))


def difference(expected: Digest, actual: Digest) -> str | None:
    """What differs, in words, or None."""
    if expected.rows != actual.rows:
        return f"{actual.rows:,} rows instead of {expected.rows:,}"
    if expected.columns != actual.columns:
        odd = sorted(set(expected.columns) ^ set(actual.columns))
        return f"other columns: {', '.join(odd[:5])}"
    for (wanted, scale), (found, _) in zip(expected.sums, actual.sums, strict=True):
        if not math.isclose(wanted, found, rel_tol=0, abs_tol=TOLERANCE * scale):
            return f"a checksum of {found:.9g} instead of {wanted:.9g}"
    return None
