"""`headrace rejected`: rows that were set aside, on the terminal and as a file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

from .conftest import Said

Headrace = Callable[..., Said]


@pytest.fixture
def rejects(headrace: Headrace) -> Headrace:
    said = headrace("predict", "fares:picky", "trips", "-o", "out", "-i", "id,km", "--on-error", "reject")
    assert said.code == 3
    return headrace


def test_they_are_shown(rejects: Headrace) -> None:
    said = rejects("rejected", "out", "--rows", "1")
    first = hr.read_rejected("out").take(1)[0]
    assert (
        said.code == 0
        and "4 rejected rows" in said.out
        and "4 rows: ValueError in predict(picky)" in said.out
    )
    lines = [line.split() for line in said.out.splitlines()]
    heading = next(i for i, line in enumerate(lines) if line[:3] == ["from", "rejected", "for"])
    assert lines[heading][3:] == ["id", "km", "city"] and lines[heading + 1][:4] == [
        "string",
        "string",
        "int64",
        "float64",
    ]
    folder, _, name = first["_file"].rpartition("/")
    assert " ".join(lines[heading + 3]).startswith(f"{name}, row 7 ValueError: not this one 7 ")
    assert f"files are in {folder}\n" in said.out
    assert "3 more rows" in said.out
    found = rejects("rejected", "out", "--json", "--rows", "2").json
    assert found["rejected"] == 4 and [row["id"] for row in found["sample"]] == [7, 107]
    assert found["reasons"] == [{"error_type": "ValueError", "step": "predict(picky)", "rows": 4}]


def test_all_of_them_in_a_file(rejects: Headrace) -> None:
    assert rejects("rejected", "out", "--to", "rows.csv").code == 0
    with open("rows.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["7", "107", "207", "307"] and rows[0]["_row"] == "7"
    assert list(rows[0])[:5] == ["_file", "_row", "_error_type", "_error", "_step"]
    assert rejects("rejected", "out", "--to", "rows.parquet").code == 0
    rejected = hr.read_rejected("out").to_arrow()
    assert pq.read_table("rows.parquet").equals(rejected.select(pq.read_schema("rows.parquet").names))


def test_what_has_no_text_form_is_left_out_and_named(headrace: Headrace) -> None:
    def fails(row: dict[str, object]) -> dict[str, object]:
        raise ValueError("no")

    data = hr.from_arrow(pa.table({"n": [1, None], "of": [[1], None], "raw": [b"\0", b""]})).map(fails)
    data.with_options(engine="inline", on_error="reject", progress=False).write_parquet("out")
    said = headrace("rejected", "out", "--to", "rows.csv")
    assert "CSV has no place for them: of, raw" in said.out
    assert Path("rows.csv").read_text().splitlines()[2].endswith(",")


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("out", "--to", "rows.json"), "as .csv or as .parquet"),
        (("out", "--to", "there.csv"), "is there already, and was not touched"),
        (("trips",), "is not an output of Headrace"),
        (("out", "--to", "no/folder/rows.csv"), "cannot be written"),
    ],
)
def test_what_is_refused(rejects: Headrace, words: tuple[str, ...], about: str) -> None:
    Path("there.csv").write_text("mine")
    said = rejects("rejected", *words)
    assert said.code in (1, 2) and about in said.err
    assert Path("there.csv").read_text() == "mine" and not list(Path().glob(".*tmp"))
