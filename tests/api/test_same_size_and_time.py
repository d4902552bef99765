"""Input files with the size and time of then: others if written again, the same if touched or copied."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError, InputChanged
from headrace.output import inputs
from headrace.plan.physical import SavedPlan

FILES = 4


def put(path: Path, values: Any) -> None:
    pq.write_table(
        pa.table({"x": values}), path, use_dictionary=False, compression="none", write_statistics=False
    )


def rewritten(path: Path) -> None:
    """Change the content, and neither size nor time."""
    status = path.stat()
    values = pq.read_table(path)["x"].to_pylist()
    put(path, [*values[:-1], values[-1] + 1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


def replaced(path: Path) -> None:
    """Put another file of the same size and time in its place."""
    other = path.with_suffix(".new")
    shutil.copy2(path, other)
    rewritten(other)
    other.rename(path)


def touched(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def copied_back(path: Path) -> None:
    aside = path.with_suffix(".aside")
    subprocess.run(["cp", "-p", path, aside], check=True)
    path.unlink()
    subprocess.run(["cp", "-p", aside, path], check=True)
    aside.unlink()


def other_access(path: Path) -> None:
    path.chmod(0o640)


OTHERS: list[Callable[[Path], None]] = [rewritten, replaced]
THE_SAME: list[Callable[[Path], None]] = [touched, copied_back, other_access]


@pytest.fixture(params=[300])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(FILES):
        put(folder / f"{file}.parquet", range(file * 100_000, file * 100_000 + request.param))
    return folder


def write(source: Path, out: Path, **options: Any) -> hr.WriteResult:
    """Write each file as a shard, until one fails if ``stop`` is there."""
    stop = source.parent / "stop"

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        if stop.exists() and batch["x"][0] >= 200_000:
            raise RuntimeError("stop")
        return {"x": batch["x"]}

    made = hr.read_parquet(source).map_batches(step, version="1")
    made = made.with_options(engine="inline", progress=False, shard_rows=1, max_retries=0)
    return made.write_parquet(out, **options)


def values(out: Path) -> list[int]:
    return hr.read_parquet(out).to_arrow()["x"].to_pylist()


def content(source: Path) -> list[int]:
    return [x for path in sorted(source.glob("*.parquet")) for x in pq.read_table(path)["x"].to_pylist()]


def stopped(source: Path, out: Path) -> None:
    (source.parent / "stop").touch()
    with pytest.raises(HeadraceError, match="stop"):
        write(source, out)
    (source.parent / "stop").unlink()


both = pytest.mark.parametrize("source", [300, 40_000], indirect=True, ids=["whole", "samples"])
"""Of bigger files, only samples are compared."""


@both
@pytest.mark.parametrize("change", OTHERS)
def test_a_finished_run_refuses_a_file_that_is_another(
    source: Path, change: Callable[[Path], None], tmp_path: Path
) -> None:
    write(source, tmp_path / "out")
    change(source / "1.parquet")
    with pytest.raises(InputChanged, match=r"1\.parquet"):
        write(source, tmp_path / "out")
    with pytest.raises(InputChanged, match=r"1\.parquet"):
        write(source, tmp_path / "out", on_change="continue")
    write(source, tmp_path / "out", mode="overwrite")
    assert values(tmp_path / "out") == content(source)
    assert write(source, tmp_path / "out").resumed


@both
@pytest.mark.parametrize("change", THE_SAME)
def test_a_finished_run_takes_the_same_file(
    source: Path, change: Callable[[Path], None], tmp_path: Path
) -> None:
    write(source, tmp_path / "out")
    change(source / "1.parquet")
    assert write(source, tmp_path / "out").resumed
    assert values(tmp_path / "out") == content(source)


@pytest.mark.parametrize("change", OTHERS)
def test_an_unfinished_run_refuses_what_it_has_read_and_reads_the_rest_as_it_is_now(
    source: Path, change: Callable[[Path], None], tmp_path: Path
) -> None:
    stopped(source, tmp_path / "out")
    change(source / "3.parquet")
    assert write(source, tmp_path / "out").resumed
    assert values(tmp_path / "out") == content(source)
    assert write(source, tmp_path / "out").resumed
    change(source / "3.parquet")
    with pytest.raises(InputChanged, match=r"3\.parquet"):
        write(source, tmp_path / "out")

    stopped(source, tmp_path / "other")
    change(source / "0.parquet")
    with pytest.raises(InputChanged, match=r"0\.parquet"):
        write(source, tmp_path / "other")


@pytest.mark.parametrize("change", THE_SAME)
def test_an_unfinished_run_goes_on_with_the_same_files(
    source: Path, change: Callable[[Path], None], tmp_path: Path
) -> None:
    stopped(source, tmp_path / "out")
    for file in range(FILES):
        change(source / f"{file}.parquet")
    result = write(source, tmp_path / "out")
    assert result.resumed
    assert values(tmp_path / "out") == content(source)


@pytest.mark.parametrize("change", [*OTHERS, *THE_SAME])
def test_further_runs(source: Path, change: Callable[[Path], None], tmp_path: Path) -> None:
    out, further = tmp_path / "out", {"incremental": True}
    write(source, out, **further)
    for number in (5, 6):  # the files of the first run, and those of a later one
        shutil.copy2(source / "0.parquet", source / f"{number}.parquet")
        rewritten(source / f"{number}.parquet")
        os.utime(source / f"{number}.parquet")
        write(source, out, **further)
    assert values(out) == content(source)
    for name in ("1.parquet", "5.parquet"):
        before = values(out)
        change(source / name)
        if change in OTHERS:
            with pytest.raises(InputChanged, match=name):
                write(source, out, **further)
            with pytest.raises(InputChanged, match=name):
                write(source, out, refresh="changed", **further)
            break
        assert write(source, out, **further).rows == len(before)
        assert write(source, out, refresh="changed", **further).rows == len(before)


@pytest.mark.parametrize("change", [*OTHERS, *THE_SAME])
def test_a_worker_looks_before_it_reads(source: Path, change: Callable[[Path], None], tmp_path: Path) -> None:
    done: list[bool] = []

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        if not done:
            done.append(True)
            change(source / "3.parquet")
        return {"x": batch["x"]}

    data = hr.read_parquet([str(source / f"{n}.parquet") for n in (0, 1)]).union(
        hr.read_parquet([str(source / f"{n}.parquet") for n in (2, 3)])
    )
    made = data.map_batches(step).with_options(engine="inline", progress=False, shard_rows=1)
    if change in OTHERS:
        with pytest.raises(InputChanged, match=r"3\.parquet.*its content is another"):
            made.write_parquet(tmp_path / "out")
    else:
        made.write_parquet(tmp_path / "out")
        assert values(tmp_path / "out") == content(source)


def saved_plan(out: Path) -> Path:
    (path,) = out.glob("_headrace/*/plan")
    return path


def test_outputs_of_earlier_versions_open(source: Path, tmp_path: Path) -> None:
    import hashlib

    stopped(source, tmp_path / "out")
    path = saved_plan(tmp_path / "out")
    known = msgspec.msgpack.decode(path.read_bytes()[32:])
    assert len(known.pop("marks")) == FILES
    data = msgspec.msgpack.encode(known)
    path.write_bytes(hashlib.sha256(data).digest() + data)
    touched(source / "0.parquet")
    assert write(source, tmp_path / "out").resumed
    assert values(tmp_path / "out") == content(source)
    assert len(SavedPlan.decode(saved_plan(tmp_path / "out").read_bytes()[32:]).marks) == FILES


def test_many_files_are_not_compared_by_content_and_a_warning_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_DIGESTS", 3)
    write(source, tmp_path / "out")
    assert write(source, tmp_path / "out").resumed
    touched(source / "0.parquet")
    touched(source / "1.parquet")
    with pytest.warns(
        UserWarning, match=r"0\.parquet was touched, copied or written again .* and so 1 other file"
    ):
        assert write(source, tmp_path / "out").resumed
