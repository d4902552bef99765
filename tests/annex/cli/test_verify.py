"""`verify` finds what is wrong with an output, whatever its format, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.output.layout import open_output

FORMATS = ["parquet", "csv", "json"]
Headrace = Callable[..., Any]


def made(place: Path, kind: str = "parquet", **options: Any) -> Path:
    out = place / "out"
    data = hr.read_parquet("trips/").map(doubled).accumulate(mean=hr.Mean("km"), by=hr.By("city", hr.Count()))
    data = data.with_options(on_error="reject", shard_rows=100)
    getattr(data, f"write_{kind}")(out, **options)
    return out


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % 100 == 7:
        raise ValueError("not this one")
    return {**row, "twice": 2 * row["km"], "text": 'a "quoted"\nline'}


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def first_part(out: Path) -> Path:
    return sorted(out.glob("part-*"))[0]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in FORMATS),
        ("csv", {"compression": "gzip", "header": False}),
        ("json", {"compression": "zstd"}),
        ("csv", {"delimiter": ";", "compression": "zstd"}),
    ],
)
def test_an_output_as_it_was_written_is_good(
    place: Path, headrace: Headrace, kind: str, options: Any
) -> None:
    out = made(place, kind, **options)
    before = files_in(out)
    said = headrace("verify", out, "--json")
    assert said.code == 0, said.out
    found = said.json
    assert (found["status"], found["findings"], found["rows"], found["rejected"]) == ("good", [], 396, 4)
    success = json.loads((out / "_SUCCESS").read_text())
    assert found["metrics"] == success["metrics"] and found["unchecked_metrics"] == []
    assert files_in(out) == before
    assert headrace("verify", out).out.startswith(f"{out}: good (4 files, 396 rows")


def flip(out: Path) -> str:
    part = first_part(out)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    return "damaged"


def cut(out: Path) -> str:
    part = first_part(out)
    part.write_bytes(part.read_bytes()[:-1])
    return "size"


def drop(out: Path) -> str:
    first_part(out).unlink()
    return "missing"


def drop_rejected(out: Path) -> str:
    next((out / "_rejected").iterdir()).unlink()
    return "missing"


def add(out: Path) -> str:
    part = first_part(out)
    part.with_name(part.name.replace("part-00000", "part-00009")).write_bytes(part.read_bytes())
    return "extra"


def add_foreign(out: Path) -> str:
    (out / "notes.txt").write_text("mine")
    return "extra"


def cut_journal(out: Path) -> str:
    journal = next((out / "_headrace").glob("*/journal"))
    journal.write_bytes(journal.read_bytes()[:-10])
    return "journal"


def damage_journal(out: Path) -> str:
    journal = next((out / "_headrace").glob("*/journal"))
    data = bytearray(journal.read_bytes())
    data[60] ^= 1
    journal.write_bytes(data)
    return "journal"


def damage_plan(out: Path) -> str:
    plan = next((out / "_headrace").glob("*/plan"))
    plan.write_bytes(plan.read_bytes()[:-1] + b"x")
    return "plan"


def damage_manifest(out: Path) -> str:
    manifest = next((out / "_headrace").glob("*/manifest"))
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows":99', b'"rows":98', 1))
    return "manifest"


def change_success(name: str, value: Any) -> Callable[[Path], str]:
    def change(out: Path) -> str:
        success = json.loads((out / "_SUCCESS").read_text())
        success[name] = value
        (out / "_SUCCESS").write_text(json.dumps(success))
        return "metrics" if name == "metrics" else "totals"

    change.__name__ = f"wrong_{name}"
    return change


def drop_success(out: Path) -> str:
    (out / "_SUCCESS").unlink()
    return "success"


def strange_manifest(out: Path) -> str:
    manifest = next((out / "_headrace").glob("*/manifest"))
    manifest.write_bytes(b'5\n{"size": 3}\n')
    success = json.loads((out / "_SUCCESS").read_text())
    success["manifest_sha256"] = hashlib.sha256(manifest.read_bytes()).hexdigest()
    (out / "_SUCCESS").write_text(json.dumps(success))
    return "manifest"


def pipe(out: Path) -> str:
    part = first_part(out)
    part.unlink()
    os.mkfifo(part)
    return "damaged"


EVERYWHERE = [flip, cut, drop, add]
ONCE = [
    drop_rejected, add_foreign, cut_journal, damage_journal, damage_plan, damage_manifest, drop_success,
    change_success("rows", 397), change_success("bytes", 1), change_success("metrics", {"mean": 1.0}),
    change_success("metrics", 5), change_success("ledger", 4), strange_manifest, pipe,
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "damage"),
    [*((kind, each) for kind in FORMATS for each in EVERYWHERE), *(("parquet", each) for each in ONCE)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_damage_is_found(place: Path, headrace: Headrace, kind: str, damage: Callable[[Path], str]) -> None:
    out = made(place, kind)
    expected = damage(out)
    before = files_in(out)
    said = headrace("verify", out, "--json")
    assert (said.code, said.json["status"]) == (1, "damaged"), said.out
    assert expected in {finding["kind"] for finding in said.json["findings"]}
    assert files_in(out) == before
    for finding in said.json["findings"]:
        assert finding["message"].endswith((".", "…")) and finding["file"]


@pytest.mark.parametrize(("kind", "options"), [
    ("parquet", {}), ("csv", {}), ("csv", {"header": False, "compression": "gzip"}),
    ("json", {"compression": "zstd"}),
])  # fmt: skip
def test_rows_are_counted_from_the_files(
    place: Path, kind: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part with fewer rows would be found even if its bytes were the recorded ones."""
    from headrace.output import verify as verifying

    out = made(place, kind, **options)
    first, second = sorted(out.glob("part-*"))[:2]
    few = hr.read_parquet("trips/").limit(98).map(doubled).with_options(on_error="reject")
    getattr(few, f"write_{kind}")(place / "few", **options)
    first.write_bytes(first_part(place / "few").read_bytes())
    listed = [
        json.loads(line) for line in next((out / "_headrace").glob("*/manifest")).read_text().splitlines()
    ]
    recorded = {each["name"]: (each["size"], each["crc32"]) for each in listed}
    monkeypatch.setattr(verifying, "bytes_of", lambda path: recorded[str(path.relative_to(out))])
    found = {(finding.kind, finding.file) for finding in hr.verify(out).findings}
    assert found == {("rows", first.name)} and second.exists()


def test_ends_of_lines_in_quotes_are_no_rows(place: Path) -> None:
    from headrace.output.verification import rows_of
    from headrace.sinks.text import count_lines

    out = made(place, "csv")
    assert rows_of(first_part(out), "x.csv", {"kind": "csv", "header": True}) == 99
    text = first_part(out).read_bytes()
    for size in (1, 2, 3, 7):
        assert count_lines(text[at : at + size] for at in range(0, len(text), size)) == 100


def test_a_run_that_is_not_finished(place: Path, headrace: Headrace) -> None:
    def dies(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 250:
            raise RuntimeError("here it ends")
        return row

    data = hr.read_parquet("trips/").map(dies).with_options(shard_rows=100)
    with pytest.raises(hr.errors.StepError):
        data.write_parquet("out")
    said = headrace("verify", "out", "--json")
    assert (said.code, said.json["status"]) == (1, "unfinished")
    assert [finding["kind"] for finding in said.json["findings"]] == ["unfinished"]
    assert "2 of 4 parts of the input are still to do" in said.out
    flip(place / "out")
    assert headrace("verify", "out", "--json").json["status"] == "damaged"


def test_a_run_that_is_going_on(place: Path, headrace: Headrace) -> None:
    out = made(place)
    folder = open_output(out)
    try:
        said = headrace("verify", out, "--json")
        assert (said.code, said.json["status"]) == (1, "running")
        assert f"being written by process {os.getpid()}" in headrace("verify", out).out
    finally:
        folder.close()


def test_metrics_of_ones_own_are_not_merged(place: Path) -> None:
    class Rows:
        columns = ()

        def __init__(self, rows: int = 0) -> None:
            self.rows = rows

        def empty(self) -> Rows:
            return Rows()

        def update(self, batch: Any) -> None:
            self.rows += batch.num_rows

        def merge(self, other: Rows) -> None:
            self.rows += other.rows

        def result(self) -> int:
            return self.rows

        def to_bytes(self) -> bytes:
            return str(self.rows).encode()

        def from_bytes(self, data: bytes) -> Rows:
            return Rows(int(data))

    hr.read_parquet("trips/").accumulate(mine=Rows(), theirs=hr.Count()).write_parquet("out")
    found = hr.verify("out")
    assert found.good and found.unchecked == ("mine",) and found.metrics == {"theirs": 400}


METRICS = [
    hr.AUROC("late", "km", range=(0.0, 200.0)), hr.LogLoss("late", "share"), hr.BrierScore("late", "share"),
    hr.Calibration("late", "share"), hr.Quantiles("km"), hr.Histogram("km", [0, 50, 200]), hr.TopK("km", 3),
    hr.DistinctCount("city"), hr.Variance("km", ddof=1), hr.MinMax("km"), hr.Sum("id"), hr.R2("km", "id"),
    hr.ConfusionMatrix("late", "late"), hr.Accuracy("late", "late"), hr.PrecisionRecallF1("late", "late"),
    hr.By("city", hr.By("late", hr.Mean("km"))), hr.AveragePrecision("late", "share"), hr.MAE("km", "id"),
    hr.CohenKappa("late", "late"), hr.TokenF1("city", "city"), hr.ExactMatch("city", "city", normalize=None),
]  # fmt: skip


def test_every_metric_of_ours_is_merged_again(place: Path) -> None:
    data = hr.read_parquet("trips/").map(
        lambda row: {**row, "late": row["id"] % 3 == 0, "share": row["id"] / 400}
    )
    metrics = {type(each).__name__: each for each in METRICS}
    data.with_options(shard_rows=100).accumulate(**metrics).write_parquet("out")
    found = hr.verify("out")
    assert found.good and not found.unchecked and found.metrics.keys() == metrics.keys(), found


def test_what_is_no_output(place: Path, headrace: Headrace) -> None:
    said = headrace("verify", "trips")
    assert (said.code, said.out) == (2, "") and "is not an output of Headrace" in said.err
    assert "There is no folder" in headrace("verify", "trip").err
