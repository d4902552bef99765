"""A metric of the museum's own. It is recognised by what it describes, as code differs between versions of Python."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class Big:
    """A metric of one's own: counts rows, and has a state that no record of the journal holds."""

    columns = ("id",)

    def __init__(self, rows: int = 0, total: int = 0) -> None:
        self.rows, self.total = rows, total

    def __repr__(self) -> str:  # the name of a test that is given one, the same in every process
        return "Big()"

    def describe(self) -> dict[str, int]:
        return {"version": 1}

    def empty(self) -> Big:
        return Big()

    def update(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.total += pc.sum(batch.column("id")).as_py() or 0

    def merge(self, other: Big) -> None:
        self.rows, self.total = self.rows + other.rows, self.total + other.total

    def result(self) -> dict[str, int]:
        return {"rows": self.rows, "total": self.total}

    def to_bytes(self) -> bytes:
        return f"{self.rows} {self.total}".encode().ljust(70_000)

    def from_bytes(self, data: bytes) -> Big:
        return Big(*map(int, data.split()))
