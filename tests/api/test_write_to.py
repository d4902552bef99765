"""A sink of one's own: committed, resumed and refused as those that are here."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.door import loaded
from headrace.core.files.formats import FORMATS, WRITTEN
from headrace.core.target_ports import Format
from headrace.errors import ArgumentError, PlanChanged, SinkError
from headrace.plan.verb_options import OF_RUNS, FolderOptions, OutputOptions
from headrace.sinks.files import ArrowEncoder, FileSink
from headrace.sinks.parquet import Parquet


@dataclass(frozen=True)
class Arrow(Format):
    kind = "Arrow"
    suffix = "arrow"

    def open(self, stream: Any, schema: pa.Schema) -> ArrowEncoder:
        return ArrowEncoder(stream, schema)


def rows_of(folder: Path) -> list[int]:
    return [
        value
        for part in sorted(folder.glob("part-*.arrow"))
        for value in pa.ipc.open_file(part).read_all()["id"].to_pylist()
    ]


def test_rows_are_written_in_order_and_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = hr.range(1000).with_options(shard_rows=100, progress=False)
    assert data.write_to(FileSink(str(out), Arrow())).rows == 1000
    assert rows_of(out) == list(range(1000))
    again = data.write_to(FileSink(str(out), Arrow()))
    assert again.resumed and again.rows == 1000
    assert hr.verify(str(out)).state == "good"


def test_another_format_is_another_run(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    data = hr.range(10).with_options(engine="inline", progress=False)
    data.write_to(FileSink(out, Arrow()))
    with pytest.raises(PlanChanged, match="Arrow"):
        data.write_to(FileSink(out, Parquet()))


@pytest.mark.parametrize("sink", ["out", None, FileSink, Arrow()], ids=["text", "none", "class", "format"])
def test_what_is_no_sink_is_refused(sink: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"^write_to\(.*FileSink.*write_parquet"):
        hr.range(3).write_to(sink)
    assert list(tmp_path.iterdir()) == []


def test_a_suffix_with_a_sign_in_it_is_known_again(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Signed(Arrow):
        suffix = "My_rows-2.bz2"

    data = hr.range(10).with_options(engine="inline", progress=False)
    assert data.write_to(FileSink(str(tmp_path / "out"), Signed())).rows == 10
    assert data.write_to(FileSink(str(tmp_path / "out"), Signed())).resumed
    assert hr.verify(str(tmp_path / "out")).state == "good"


@pytest.mark.parametrize("suffix", ["", ".csv", "a/b", "a b", "a.b.c", "x\n"])
def test_a_suffix_that_no_part_can_have_is_refused(tmp_path: Path, suffix: str) -> None:
    sink = FileSink(str(tmp_path / "out"), type("Odd", (Arrow,), {"suffix": suffix})())
    with pytest.raises(SinkError, match="cannot use to recognise its parts"):
        hr.range(10).with_options(engine="inline", progress=False).write_to(sink)
    assert not list(tmp_path.rglob("part-*"))


def test_addresses_of_stores_are_taken_as_they_are() -> None:
    assert FileSink("s3a://bucket/x/", Arrow()).root == "s3://bucket/x"
    with pytest.raises(ArgumentError, match="conditional"):
        FileSink("http://host/x", Arrow())


@pytest.mark.parametrize("name", WRITTEN)
def test_verbs_have_the_settings_of_their_formats(name: str) -> None:
    format = FORMATS.get(name)
    assert format is not None
    settings = {each.name: each.default for each in dataclasses.fields(loaded(format.writer))}
    shared = {"self", "path", *FolderOptions.__annotations__}
    taken = inspect.signature(getattr(hr.Dataset, f"write_{name}")).parameters.values()
    own = {
        each.name: each.default
        for each in taken
        if each.name not in shared and each.kind is not each.VAR_KEYWORD
    }
    others = {"numpy": {"column"}}.get(name, set())
    assert {*own} - {*settings} == others
    assert {each for each in {*own} & {*settings} if own[each] != settings[each]} <= {"column"}


def test_whatever_takes_new_input_takes_a_key() -> None:
    verbs = [getattr(hr.Dataset, name) for name in dir(hr.Dataset) if name.startswith("write_")]
    taken = {verb.__name__: set(inspect.signature(verb).parameters) for verb in verbs}
    assert [name for name, names in taken.items() if "incremental" in names and "key" not in names] == []


def test_each_option_of_runs_has_its_sentence() -> None:
    assert set(OF_RUNS) == set(OutputOptions.__annotations__) - {"schema", "provenance"}
