"""Input files that change while they are read: nothing of them is committed, whatever was done to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from PIL import Image

import headrace as hr
from headrace.errors import InputChanged
from headrace.sources.lines import BinarySource
from headrace.worker.reading import InputCheck

ROWS = 500


def _parquet(path: Path) -> hr.Dataset:
    pq.write_table(pa.table({"x": range(ROWS)}), path, row_group_size=100)
    return hr.read_parquet(path)


def _csv(path: Path) -> hr.Dataset:
    pacsv.write_csv(pa.table({"x": range(ROWS)}), path)
    return hr.read_csv(path)


def _json(path: Path) -> hr.Dataset:
    path.write_text("".join(json.dumps({"x": x}) + "\n" for x in range(ROWS)))
    return hr.read_json(path)


def _text(path: Path) -> hr.Dataset:
    path.write_text("".join(f"{x}\n" for x in range(ROWS)))
    return hr.read_text(path)


def _binary(path: Path) -> hr.Dataset:
    path.write_bytes(b"content")
    return hr.read_binary_files(path)


def _images(path: Path) -> hr.Dataset:
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(path, "png")
    return hr.read_images(path)


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replaced_by_its_like(path: Path) -> None:
    status, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


def rewritten_with_its_old_time(path: Path) -> None:
    status = path.stat()
    with path.open("r+b") as file:
        file.write(path.read_bytes()[:1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def removed(path: Path) -> None:
    path.unlink()


WRITERS: list[Callable[[Path], hr.Dataset]] = [_parquet, _csv, _json, _text, _binary, _images]
CHANGES: list[Callable[[Path], None]] = [
    appended,
    cut_short,
    replaced_by_its_like,
    rewritten_with_its_old_time,
    removed,
]


def meanwhile(change: Callable[[Path], None], path: Path) -> Callable[[Any], Any]:
    """Return a step that changes the file once, when it sees its first batch."""
    done: list[bool] = []

    def step(batch: Any) -> Any:
        if not done:
            done.append(True)
            change(path)
        return {"rows": np.zeros(len(next(iter(batch.values()))))}

    return step


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("write", WRITERS)
def test_nothing_is_committed_of_a_file_that_changed(
    tmp_path: Path, write: Callable[[Path], hr.Dataset], change: Callable[[Path], None]
) -> None:
    path = tmp_path / "input"
    dataset = write(path).with_options(engine="inline", progress=False, on_error="reject")
    with pytest.raises(InputChanged, match=r"input'.* (changed|gone) .*Run again"):
        dataset.map_batches(meanwhile(change, path), batch_size=50).write_parquet(tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize("verb", ["take", "limit", "iterate", "raise"])
def test_every_road_notices(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "input"
    dataset = _parquet(path).with_options(engine="inline", progress=False)
    changing = dataset.map_batches(meanwhile(rewritten_with_its_old_time, path), batch_size=50)
    with pytest.raises(InputChanged, match="it was written to"):
        if verb == "take":
            changing.take_all()
        elif verb == "iterate":
            list(changing.iter_batches())
        elif verb == "limit":
            changing.limit(60).write_parquet(tmp_path / "out")
        else:
            dataset.map_batches(_raising(path), batch_size=50).write_parquet(tmp_path / "out")


def _raising(path: Path) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        rewritten_with_its_old_time(path)
        raise ValueError("which the change of the file may have caused")

    return step


class Change:
    """Changes the file, in a stage of its own."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if batch["x"][0] == 0:
            rewritten_with_its_old_time(self._path)
        return batch


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_stage_before_the_last_notices(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "input"
    staged = (
        _parquet(path)
        .with_options(engine=engine, progress=False)  # type: ignore[arg-type]
        .map_batches(Change, fn_constructor_args=[str(path)], num_cpus=1, batch_size=50)
        .map_batches(lambda batch: batch, concurrency=1)
    )
    with pytest.raises(InputChanged, match="it was written to"):
        staged.write_parquet(tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-*"))


def test_other_permissions_or_one_more_link_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / "input"

    def shared(path: Path) -> None:
        path.chmod(0o600)
        os.link(path, path.with_suffix(".link"))

    dataset = _csv(path).with_options(engine="inline", progress=False)
    result = dataset.map_batches(meanwhile(shared, path), batch_size=50).write_parquet(tmp_path / "out")
    assert result.rows == ROWS


def test_each_split_is_checked_when_the_next_one_begins(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_bytes(b"x" * (9 << 20))
    source = BinarySource(tmp_path / "in")
    check = InputCheck(source)
    for split in source.splits()[:2]:
        check.begin(split)
        list(source.read(split, None, 1))
    appended(tmp_path / "in" / "c")
    check.check()
    appended(tmp_path / "in" / "b")
    with pytest.raises(InputChanged, match="in/b'"):
        check.begin(source.splits()[0])
