"""Rejected rows that are tried again: the output is what it would be had they never failed, whatever is killed."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core import failpoints
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    NothingMatched,
    PlanChanged,
    RequirementNotMet,
    StepError,
)

from . import job as jobs
from .invariants import check, rows_of, stamps
from .job import Job

BAD, MOVED, STILL = 50, 1_000_001, 307


def repaired(job: Job, folder: Path | None = None) -> str:
    """Write the rejected rows, and repair all but one of them."""
    rows = hr.read_rejected(job.output).take_all()
    path = (folder or Path(job.output).parent) / "repaired.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["_file", "_row", "id"])
        writer.writerows([r["_file"], r["_row"], r["id"] + MOVED * (r["id"] != STILL)] for r in rows)
    return str(path)


def expected(job: Job) -> list[dict[str, int]]:
    """The rows of the output once they are."""
    ids = [i + MOVED if job.fails(i) else i for i in range(800) if i != STILL]
    return [{"id": i, "product": i * job.factor} for i in ids]


def retried(job: Job, fix: Any = None, **options: Any) -> hr.Result:
    return job.here(refresh="rejected", fix=fix, **options)


def complete(job: Job) -> None:
    if job.metrics:  # some of them are files
        assert rows_of(Path(job.output)) == expected(job)
    else:
        check(Path(job.output), expected(job), job.here, [STILL])


@pytest.fixture
def bad(job: Job) -> Job:
    job = replace(job, bad=BAD)
    job.here()
    return job


def passages(job: Job, fix: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The points that a retry passes, the first and the last time."""
    passed: Counter[str] = Counter()
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hit", lambda point: passed.update([point]))
        retried(job, fix)
    return [(point, n) for point, count in passed.items() for n in {1, count}]


@pytest.mark.parametrize("metrics", [False, True])
def test_killed_anywhere_and_given_again(job: Job, metrics: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see the old rows until the new ones are there. Withheld ones: annex/together/test_unseen.py."""
    job = replace(job, bad=BAD, metrics=metrics)
    before = rows_of(Path(job.here().path))
    fix = repaired(job)
    first = Path(job.output)
    copied = shutil.copytree(first, first.with_name("copied"))
    points = passages(job, fix, monkeypatch)
    assert {"attempt.started", "stage.closed", "journal.synced", "publish.rename", "swap.recorded"} <= {
        *dict(points)
    }
    done = json.loads((first / "_SUCCESS").read_text())
    complete(job)
    if job.metrics:
        points = [each for each in points if each[0] in ("state.written", "journal.synced", "swap.removed")]
    for point, number in points:
        shutil.rmtree(first)
        shutil.copytree(copied, first)
        code, _, err = job.start(
            {point: f"kill@{number}"}, engine="inline", refresh="rejected", fix=fix, workers=None
        ).wait()
        assert code in (-signal.SIGKILL, 0), err
        if (first / "_SUCCESS").exists():
            assert rows_of(first) in (before, expected(job)), point
        result = retried(job, fix)
        assert (result.rows, result.rejected) == (799, 1), (point, number)
        complete(job)
        again = json.loads((first / "_SUCCESS").read_text())
        assert (again["ledger"], again.get("metrics")) == (done["ledger"], done.get("metrics")), (
            point,
            number,
        )
        assert hr.verify(first).good, (point, number)


def doubled(batch: dict[str, Any]) -> Any:
    """Fails over texts that are no numbers, and alone over those that are too big."""
    numbers = np.array([float(text) for text in batch["text"]])
    if (numbers > 900).any():
        raise OverflowError("too big")
    return numbers * 2


TEXTS = st.lists(st.sampled_from(["1", "2.5", "x", "", "1000", "30"]), min_size=1, max_size=60)


@settings(max_examples=few(4), deadline=None, phases=[Phase.generate])
@given(texts=TEXTS, left=st.sets(st.integers(0, 59)), group=st.integers(1, 20), most=st.integers(1, 25))
def test_as_if_the_input_had_been_repaired(texts: list[str], left: set[int], group: int, most: int) -> None:
    """Rows, their order, counts and metrics are those of a run over the repaired input."""
    fixed = ["7" if text in ("x", "", "1000") and i not in left else text for i, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:

        def go(texts: list[str], out: str, **options: Any) -> hr.Result:
            table = pa.table({"id": pa.array(range(len(texts)), pa.int32()), "text": texts})
            source = Path(folder) / "in.parquet"
            if not options:
                pq.write_table(table, source, row_group_size=group)
            data = hr.read_parquet(str(source)).filter(lambda row: row["id"] % 7 != 3)
            data = data.predict(doubled, inputs=["text"], output="twice", batch_size=4)
            data = data.accumulate(mean=hr.Mean("twice"), rows=hr.Count()).with_options(
                engine="inline", on_error="reject", progress=False, shard_rows=most
            )
            return data.write_parquet(f"{folder}/{out}", **options)

        wanted = go(fixed, "wanted")
        go(texts, "out")

        def fix(batch: dict[str, Any]) -> dict[str, Any]:
            return {"text": [fixed[i] for i in batch["id"]]}

        for _ in range(2):  # the second time, nothing is another
            result = go(texts, "out", refresh="rejected", fix=fix)
            assert (result.rows, result.rejected) == (wanted.rows, wanted.rejected)
            assert result.ledger == wanted.ledger and result.metrics == wanted.metrics
            one, other = (hr.read_parquet(f"{folder}/{name}").to_arrow() for name in ("out", "wanted"))
            assert one.equals(other)
            aside, of_wanted = (hr.read_rejected(f"{folder}/{name}").to_arrow() for name in ("out", "wanted"))
            known = ["id", "_error_type", "_step", "_row", "_place"]
            assert aside.select(known).equals(of_wanted.select(known))
            assert hr.verify(f"{folder}/out").good


ODD = ["a", "x\ny", 'q"uo"te', "", None, "=1+1", "ü,;", "\r\n"]
FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("parquet", {"compression": "zstd"}),
    ("csv", {"delimiter": ";", "header": False}),
    ("csv", {"compression": "gzip", "max_rows_per_file": 4}),
    ("json", {"compression": "zstd"}),
    ("json", {}),
]


@pytest.mark.parametrize(("kind", "given_settings"), FORMATS, ids=lambda value: str(value))
def test_parts_are_those_of_the_repaired_input(
    kind: str, given_settings: dict[str, Any], tmp_path: Path
) -> None:
    """To the byte, but for where Parquet's row groups end."""

    def go(ids: list[int], out: str, **options: Any) -> hr.Result:
        table = pa.table(
            {
                "id": ids,
                "text": [ODD[i % len(ODD)] for i in range(40)],
                "at": pa.array(range(40), pa.timestamp("us", "UTC")),
                "part": [None if i % 9 == 0 else i / 3 for i in range(40)],
                "kind": pa.array(["x", "y"] * 20).dictionary_encode(),
            }
        )
        data = (
            hr.from_arrow(table)
            .map_batches(jobs.picky, fn_args=[10])
            .with_options(engine="inline", on_error="reject", progress=False)
        )
        result: hr.Result = getattr(data, f"write_{kind}")(str(tmp_path / out), **given_settings, **options)
        return result

    ids = list(range(40))
    go(ids, "out")
    go(ids, "out", refresh="rejected", fix=lambda batch: {"id": batch["id"] + 1001})
    go([i + 1001 * (i % 10 == 7) for i in ids], "wanted")
    assert hr.verify(tmp_path / "out").good and hr.read_rejected(tmp_path / "out").count() == 0
    found, wanted = (sorted((tmp_path / name).glob("part*")) for name in ("out", "wanted"))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if kind == "parquet":
            assert pq.read_table(one).equals(pq.read_table(other))
        else:
            assert one.read_bytes() == other.read_bytes()


def test_formats_that_are_not_read_back(bad: Job) -> None:
    data = bad.dataset(engine="inline").with_options(refresh="rejected")
    with pytest.raises(ArgumentError, match="cannot be read back as they were written"):
        data.write_numpy(f"{bad.output}-numpy")


def test_nothing_that_succeeded_is_computed_again(bad: Job) -> None:
    seen: list[int] = []

    def counting(batch: dict[str, Any], factor: int) -> dict[str, Any]:
        seen.extend(batch["id"].tolist())
        return jobs.times(batch, factor)

    data = hr.read_parquet(bad.source).map_batches(counting, fn_args=[3], version="1")
    data = data.map_batches(jobs.picky, fn_args=[BAD]).with_options(
        engine="inline", on_error="reject", progress=False, shard_rows=100
    )
    out = f"{bad.output}-counted"
    data.write_parquet(out)
    aside = {i for i in range(800) if i % BAD == 7}
    data.write_parquet(out, refresh="rejected")  # the reason says now that they failed together
    seen.clear()
    before = stamps(Path(out))
    assert data.write_parquet(out, refresh="rejected").rejected == len(aside)
    assert {*seen} == aside and stamps(Path(out)) == before
    seen.clear()
    fix = lambda batch: {"id": batch["id"] + 1}  # noqa: E731
    failpoints.activate({"journal.append": "EIO@4"})
    try:
        with pytest.raises(HeadraceError, match="could not be written"):
            data.write_parquet(out, refresh="rejected", fix=fix)
    finally:
        failpoints.activate({})
    data.write_parquet(out, refresh="rejected", fix=fix)  # what was done is found
    assert {*seen} == {i + 1 for i in aside} and len(seen) < 2 * len(aside)
    assert hr.read_rejected(out).count() == 0
    seen.clear()
    assert data.write_parquet(out, refresh="rejected").rows == 800 and not seen


def test_corrected_code_needs_a_word(bad: Job) -> None:
    """The function was corrected: its rows are told to be of an older one, as the others are."""
    better = replace(bad, bad=1000)
    with pytest.raises(PlanChanged):
        retried(better)
    result = retried(better, on_change="continue")
    assert result.rows == 799 and result.rejected == 1  # 7 % 1000 == 7
    assert "made by an older" in result.summary
    again = retried(better)  # it was said once, so it is known
    assert (again.rows, again.rejected) == (799, 1) and "made by an older" in again.summary
    with pytest.raises(PlanChanged):
        retried(bad)
    assert [row["id"] for row in rows_of(Path(bad.output))] == [i for i in range(800) if i != 7]


def test_a_corrected_function_has_another_name(tmp_path: Path) -> None:
    """What the old one had rejected does not count any more, in no step."""

    def careless(batch: dict[str, Any]) -> Any:
        if (batch["id"] % 7 == 3).any():
            raise ValueError("a bad row")
        return batch["id"] * 2

    def mended(batch: dict[str, Any]) -> Any:
        return batch["id"] * 2

    def written(function: Any, **options: Any) -> hr.Result:
        data = hr.range(100).with_column("one", hr.col("id"), version="1")
        data = data.predict(function, inputs=["id"], output="twice")
        data = data.with_options(engine="inline", on_error="reject", progress=False)
        return data.write_parquet(str(tmp_path / "out"), **options)

    assert written(careless).rejected == 14
    found = written(mended, refresh="rejected", on_change="continue").ledger
    assert (found.read, found.written, found.rejected) == (100, 100, 0)
    assert (found.steps, found.rejects) == (((100, 100), (100, 100)), (0, 0))


@pytest.mark.parametrize(
    ("lines", "about"),
    [
        (["_file,_row,id", "{file},7,7", "{file},7,8"], "twice"),
        (["_file,_row,id", "{file},8,8"], "none of the rejected rows"),
        (["_file,_row,id", "other.parquet,7,8"], "none of the rejected rows"),
        (["_file,_row,id", "{file},7,seven"], "is no int64: Failed to parse string: 'seven'"),
        (["_file,_row,id", "{file},7,7.5"], "is no int64"),
        (["_file,_row,id,more", "{file},7,8,9"], "has the column 'more'"),
        (["_file,id", "{file},8"], "lacks _file or _row"),
        (["_file,_row,id", "{file},7"], "its row 1 has 2 values"),
        (["_file,_row,id", '"{file},7,8'], "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_changes_nothing(bad: Job, lines: list[str] | None, about: str) -> None:
    file = hr.read_rejected(bad.output).take(1)[0]["_file"]
    path = Path(bad.output).parent / "wrong.csv"
    if lines is not None:
        path.write_text("\n".join(lines).replace("{file}", file) + "\n")
    before = stamps(Path(bad.output))
    with pytest.raises(ArgumentError) as raised:
        retried(bad, str(path))
    assert about in str(raised.value), raised.value
    assert stamps(Path(bad.output)) == before and hr.verify(bad.output).good


@pytest.mark.parametrize(
    ("fix", "about"),
    [
        (lambda batch: {"id": batch["id"][1:]}, "returned 15 rows"),
        (lambda batch: {"no": batch["id"]}, "the column no, which the input does not have"),
        (lambda batch: {"id": batch["id"] + 0.5}, "do not fit"),
        (lambda batch: None, "returned None"),
        (7, "is a function, or the path"),
        ("rows.txt", "is a .csv or .parquet"),
    ],
)
def test_a_wrong_function_changes_nothing(bad: Job, fix: Any, about: str) -> None:
    before = stamps(Path(bad.output))
    with pytest.raises(ArgumentError, match=about):
        retried(bad, fix)
    assert stamps(Path(bad.output)) == before
    assert hr.verify(bad.output).good


def test_a_function_that_raises_is_named(bad: Job) -> None:
    with pytest.raises(
        StepError, match=r"fix=<lambda> raised ZeroDivisionError: division by zero\."
    ) as raised:
        retried(bad, lambda batch: 1 / 0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_what_cannot_be_tried_again_alone(bad: Job, tmp_path: Path) -> None:
    data = bad.dataset(engine="inline")
    refused = [
        (data.limit(5), {}, "limit"),
        (data.flat_map(lambda row: [row]), {}, "flat_map"),
        (data, {"incremental": True}, "with incremental=True"),
        (data, {"mode": "overwrite"}, "with mode='overwrite'"),
        (data, {"on_change": "restart"}, "with on_change='restart'"),
    ]
    for plan, options, about in refused:
        with pytest.raises(ArgumentError, match=about):
            plan.write_parquet(bad.output, refresh="rejected", **options)
    with pytest.raises(ArgumentError, match="needs refresh='rejected'"):
        data.write_parquet(bad.output, fix="repaired.csv")
    with pytest.raises(NothingMatched, match="there is no run"):
        data.write_parquet(str(tmp_path / "none"), refresh="rejected")
    assert not (tmp_path / "none").exists()
    with pytest.raises(PlanChanged):
        replace(bad, factor=4, bad=0).dataset(engine="inline").write_parquet(bad.output, refresh="rejected")


def test_a_damaged_part_is_not_passed_on(bad: Job) -> None:
    part = sorted(Path(bad.output).glob("part-*"))[0]
    data = bytearray(part.read_bytes())
    data[40] ^= 1
    part.write_bytes(data)
    with pytest.raises(HeadraceError, match="is not what was written"):
        retried(bad, lambda batch: {"id": batch["id"] + 1})
    assert hr.verify(bad.output).findings


def test_rows_that_could_not_be_read(tmp_path: Path) -> None:
    """They are nulls among the rejected rows, which are not taken for their values."""
    (tmp_path / "in.csv").write_text("a,b\n1,2\nx,3\n4,5\n")

    def go(**options: Any) -> hr.Result:
        data = hr.read_csv(str(tmp_path / "in.csv"), column_types={"a": pa.int64()})
        data = data.with_column("sum", pc.add(pc.field("a"), pc.field("b")))
        data = data.with_options(engine="inline", on_error="reject", progress=False)
        return data.write_csv(str(tmp_path / "out"), **options)

    assert go().rejected == 1
    assert go(refresh="rejected").rejected == 1
    assert go(refresh="rejected", fix=lambda batch: {"a": batch["a"]}).rejected == 1
    (tmp_path / "fix.csv").write_text(f"_file,_row,a,b\n{tmp_path}/in.csv,1,7,3\n")
    assert go(refresh="rejected", fix=str(tmp_path / "fix.csv")).rows == 3
    (part,) = (tmp_path / "out").glob("part*")
    assert part.read_text() == '"a","b","sum"\n1,2,3\n7,3,10\n4,5,9\n'


@pytest.mark.parametrize("how", ["publish", "discard", "a plain run"])
def test_what_follows_a_retry_that_is_not_as_required(bad: Job, how: str) -> None:
    before, fix, asked = rows_of(Path(bad.output)), repaired(bad), replace(bad, required=800)
    with pytest.raises(RequirementNotMet, match="rows is 799"):
        retried(asked, fix)
    assert rows_of(Path(bad.output)) == before and hr.verify(bad.output).good
    if how == "publish":
        hr.publish(bad.output, because="one is lost")
    elif how == "discard":
        hr.discard(bad.output)
        assert rows_of(Path(bad.output)) == before and hr.verify(bad.output).good
        retried(bad, fix)
    else:
        bad.here()
    check(Path(bad.output), expected(bad), bad.here, [STILL])


def test_an_output_of_an_earlier_version(bad: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rejected rows do not say where they stood."""
    from headrace.session import retrying

    read = retrying.table_of
    monkeypatch.setattr(retrying, "table_of", lambda path: read(path).drop_columns(["_place"]))
    before = stamps(Path(bad.output))
    with pytest.raises(ArgumentError, match="it is not known where they stood"):
        retried(bad, lambda batch: {"id": batch["id"] + 1})
    assert stamps(Path(bad.output)) == before
