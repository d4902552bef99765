"""What whatever is written to promises, as tests. A subclass says how rows are written, and how readers find them."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import HeadraceError, RequirementNotMet
from headrace.testing.expect import check, same
from headrace.testing.fakes import failpoints

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset
    from headrace.result import Result

FILES, ROWS = 4, 5
Row = tuple[int, int]

POINTS = (
    *("run.opened", "stage.closed", "journal.append", "journal.synced", "publish.rename", "publish.renamed"),
    *("finish.manifest", "finish.success", "finish.closed"),
)


class TargetContract:
    """Subclass it with ``write`` and ``read``.

    Rows have the columns ``id`` and ``value``, both int64; each of the four input files has five, and is a shard.
    """

    at_once: bool = False
    """Readers see none of the rows of a run, or all of them."""

    incremental: bool = True
    """Further runs of the output add the rows of new input files."""

    points: tuple[str, ...] = ()
    """Failpoints that only writing to this passes."""

    def write(self, data: Dataset, place: Path, **options: Any) -> Result:
        """Write rows to a target in the folder ``place``; ``options`` are some of ``mode`` and ``incremental``."""
        raise NotImplementedError

    def read(self, place: Path) -> list[dict[str, Any]]:
        """Return the rows that readers find now, in any order; none where there is nothing yet."""
        raise NotImplementedError

    def arrive(self, place: Path, number: int, factor: int = 3) -> list[Row]:
        """Add an input file, and return its rows."""
        rows = [(n, n * factor) for n in range(number * ROWS, (number + 1) * ROWS)]
        (place / "in").mkdir(parents=True, exist_ok=True)
        columns = {name: [row[k] for row in rows] for k, name in enumerate(("id", "value"))}
        pq.write_table(pa.table(columns), place / "in" / f"{number:03}.parquet")
        return rows

    def arrived(self, place: Path, factor: int = 3) -> list[Row]:
        return [row for number in range(FILES) for row in self.arrive(place, number, factor)]

    def publish(self, output: str, place: Path) -> Result:
        """Publish ``output``, which was kept back; with what ``hr.publish`` needs to reach a table in ``place``."""
        import headrace as hr

        return hr.publish(output, because="a test asks for it")

    def run(
        self, place: Path, faults: dict[str, str] | None = None, required: int = 0, **options: Any
    ) -> Result:
        """Write the rows of all input files; ``required``: only if there are so many."""
        import headrace as hr

        data = hr.read_parquet(str(place / "in"))
        data = data.require(rows=hr.at_least(required)) if required else data
        with failpoints(faults or {}):
            data = data.with_options(engine="inline", progress=False, shard_rows=ROWS)
            return self.write(data, place, **options)

    def found(self, place: Path) -> list[Row]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an output that is not finished
            return sorted((int(row["id"]), int(row["value"])) for row in self.read(place))

    def test_rows_are_there_once(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        first = self.run(tmp_path)
        same(first.rows, len(rows), "the rows of the result")
        same(self.found(tmp_path), rows, "the rows that readers find")
        again = self.run(tmp_path)
        same((again.run, again.resumed), (first.run, True), "the run that has nothing to do")
        same(self.found(tmp_path), rows, "the rows that readers find after a run that has nothing to do")

    @pytest.mark.parametrize("passage", [1, 3])
    def test_a_fault_at_any_moment_neither_loses_nor_doubles(self, tmp_path: Path, passage: int) -> None:
        for number, point in enumerate((*POINTS, *self.points)):
            place = tmp_path / str(number)
            rows = self.arrived(place)
            with contextlib.suppress(HeadraceError, OSError):
                self.run(place, {point: f"EIO@{passage}"})
            seen = Counter(self.found(place))
            check(
                seen <= Counter(rows),
                f"after a fault at {point}, readers find rows that are not there: {seen}",
            )
            if self.at_once:
                check(len(seen) in (0, len(rows)), f"after a fault at {point}, readers find {len(seen)} rows")
            if point == "run.opened" and passage == 1:
                check(not seen, f"before anything is committed, readers find {seen}")
            self.run(place)
            same(self.found(place), rows, f"the rows that readers find after a fault at {point}")

    def test_other_rows_take_their_place(self, tmp_path: Path) -> None:
        self.arrived(tmp_path)
        self.run(tmp_path)
        rows = self.arrived(tmp_path, factor=7)
        for point in ("journal.synced", "publish.renamed", "finish.manifest", *self.points, "finish.success"):
            with contextlib.suppress(HeadraceError, OSError):
                self.run(tmp_path, {point: "EIO"}, mode="overwrite")
        self.run(tmp_path, mode="overwrite")
        same(self.found(tmp_path), rows, "the rows that readers find")

    def test_new_input_is_added(self, tmp_path: Path) -> None:
        if not self.incremental:
            pytest.skip("its runs do not follow one another")
        rows = self.arrived(tmp_path)
        self.run(tmp_path, incremental=True)
        for number, point in enumerate(
            ("swap.recorded", "publish.rename", "swap.pointed", *self.points), FILES
        ):
            rows += self.arrive(tmp_path, number)
            with contextlib.suppress(HeadraceError, OSError):
                self.run(tmp_path, {point: "EIO"}, incremental=True)
            self.run(tmp_path, incremental=True)
            same(self.found(tmp_path), rows, f"the rows that readers find after a fault at {point}")

    def test_nothing_is_seen_of_what_is_not_as_required(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        for point in ("run.opened", "journal.synced", "finish.withheld"):
            with contextlib.suppress(HeadraceError, OSError):
                self.run(tmp_path, {point: "EIO"}, required=len(rows) + 1)
            same(self.found(tmp_path), [], f"the rows that readers find after a fault at {point}")
        for required in (len(rows) + 1, len(rows) + 2):
            with pytest.raises(RequirementNotMet) as raised:
                self.run(tmp_path, required=required)
            same(self.found(tmp_path), [], "the rows that readers find where a requirement is not met")
        for point in ("recover.opened", "swap.recorded", "publish.rename", *self.points, "finish.success"):
            with failpoints({point: "EIO"}), contextlib.suppress(HeadraceError, OSError):
                self.publish(raised.value.output, tmp_path)
            check(
                set(self.found(tmp_path)) <= set(rows), f"after a fault at {point}, readers find other rows"
            )
        same(self.publish(raised.value.output, tmp_path).rows, len(rows), "the rows that were published")
        same(self.found(tmp_path), rows, "the rows that readers find once they are published")
        same(self.run(tmp_path, required=len(rows) + 2).rows, len(rows), "the rows of the same run again")
        same(self.found(tmp_path), rows, "the rows that readers find in the end")

    def test_what_is_as_required_is_seen_at_the_end(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        with contextlib.suppress(HeadraceError, OSError):
            self.run(tmp_path, {"stage.closed": "EIO@3"}, required=len(rows))
        same(self.found(tmp_path), [], "the rows that readers find before the end")
        self.run(tmp_path, required=len(rows))
        same(self.found(tmp_path), rows, "the rows that readers find")

    def test_no_rows(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        pq.write_table(
            pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.int64())}),
            tmp_path / "in/a.parquet",
        )
        same(self.run(tmp_path).rows, 0, "the rows of the result")
        same(self.found(tmp_path), [], "the rows that readers find")
