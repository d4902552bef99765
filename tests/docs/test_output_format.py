"""The page about the format of outputs, and what is beside it, have each file and field of outputs of all kinds."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest

from headrace.core import answered, work
from headrace.core.files.input_files import Mark
from headrace.output import journal_state
from headrace.output.journal import HEAD, frames
from headrace.plan.physical import InputVersion
from museum.make import made

from .pages import ROOT

PAGE = (ROOT / "docs/reference/output-format.md").read_text() + (ROOT / "tests/museum/format.md").read_text()
FILES = ("Files: file", "Files of ours: file", "Objects of ours: object")
NAMES = {
    "run": "[a-km-z2-9]{8}",
    "shard": r"\d{5,}(?:\.\d+)*",
    "suffix": "parquet|arrow",
    "sha256": "[0-9a-f]{64}",
    "n": r"\d+",
    "number": r"\d{10}",
    "column": "[a-z]+",
    "value": r"\d+",
    "any": r"[^/]+(?:/[^/]+)*",
}
NOT_MADE = {  # by these exhibits
    "_headrace/<run>/comparison.html",
    "_headrace/<run>/kept/<any>",
    "_headrace/<run>/retried",
    "_headrace/queries/<any>",
    "_headrace/fleet/notes/<any>",
    "_headrace/fleet/<machine>/<any>",
    "_headrace/fleet/command.json",
    "_headrace/spent-<machine>.sqlite",
    "_headrace/uploads/<any>",
    "part-<shard>-<item>-<run>.<suffix>",
}
KINDS = (
    *(
        "divided",
        "rejects",
        "short of memory",
        "a part lost",
        "no rejects",
        "folders by value",
        "an older function",
    ),
    *(
        "made again",
        "withheld",
        "published all the same",
        "keys",
        "overwrite",
        "from a table",
        "store",
        "store, overwrite",
        "delta",
        "sqlite",
    ),
)
VALUES: dict[str, Any] = {
    "shard": work.Shard,
    "split": work.Split,
    "file": work.StagedFile,
    "counts": work.Ledger,
    "answers": answered.Answered,
    "timings": work.Timings,
    "faults": work.Faults,
    "fault": work.Fault,
    "state": work.SideFile,
    "version": InputVersion,
    "mark": Mark,
}


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """The tables of the page: the words above, as their first column has it, and the names in each cell."""
    for part in re.split(r"^(?=#+ )", PAGE, flags=re.M):
        heading = part.split("\n")[0].strip("# ")
        for table in re.findall(r"(?:^\|.*\n)+", part, re.M):
            first, _, *rows = [
                [cell.strip() for cell in line[1:-2].split(" | ")] for line in table.splitlines()
            ]
            yield f"{heading}: {first[0]}", rows


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def listed(title: str) -> set[str]:
    """What a table names: in the cells of its first column, and where there are some, behind ``if``."""
    rows = dict(tables())[title]
    names = [name for row in rows for name in named(row[0])]
    assert len(names) == len({*names}), f"{title} has a name twice"
    return {*names}


def lists(title: str) -> dict[str, list[str]]:
    """Kinds of lists, and the fields of each in their order."""
    return {named(row[0])[0]: named(row[1]) for row in dict(tables())[title]}


@pytest.fixture
def exhibits(tmp_path: Path) -> Iterator[dict[str, Path]]:
    for library in ("obstore", "deltalake", "moto"):
        pytest.importorskip(library)
    with made(tmp_path, KINDS) as places:
        yield places


@pytest.fixture
def outputs(exhibits: dict[str, Path]) -> list[Path]:
    """The files of each output."""
    inside = [place / each for place in exhibits.values() for each in ("out", "t/out", "bucket")]
    return [folder for folder in inside if folder.exists()]


@pytest.fixture
def found(outputs: list[Path]) -> dict[str, list[tuple[str, Path]]]:
    """The files of all outputs by the pattern of the page that they fit: their names, and where they are."""
    patterns = {each: pattern(each) for title in FILES for each in listed(title)}
    fitting: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for output in outputs:
        for path in output.rglob("*"):
            name = path.relative_to(output).as_posix()
            if path.is_file() and not path.name.endswith(".tmp"):
                fits = [each for each, known in patterns.items() if known.fullmatch(name)]
                assert len(fits) == 1, f"the page has {name} as {fits}"
                fitting[fits[0]].append((name, path))
    return fitting


def pattern(name: str) -> re.Pattern[str]:
    kinds = re.split(r"<(\w+)>", name)
    text = "".join(
        f"(?:{NAMES.get(each, 'x')})" if i % 2 else re.escape(each) for i, each in enumerate(kinds)
    )
    also = r"(?:-\d+)?" if name.startswith("_rejected") else ""
    head, dot, suffix = text.rpartition(r"\.")
    return re.compile(f"{head}{also}{dot}{suffix}")


def check_files(found: dict[str, list[tuple[str, Path]]]) -> None:
    assert {*found} == {each for title in FILES for each in listed(title)} - NOT_MADE


def keys(values: Any) -> set[str]:
    return {key for value in values for key in value}


@pytest.fixture
def marks(found: dict[str, list[tuple[str, Path]]]) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for _, path in found["_SUCCESS"]]


def check_success(marks: list[dict[str, Any]]) -> None:
    assert keys(marks) == listed("`_SUCCESS`: field") - {"cost", "queries"}
    assert {mark["format"] for mark in marks} == {journal_state.FORMAT}
    assert "This is format 1." in PAGE and journal_state.FORMAT == 1
    assert keys(run for mark in marks for run in mark["runs"]) == listed("An entry of `runs`: field")
    ledgers = [mark["ledger"] for mark in marks]
    assert keys(ledgers) == listed("The `ledger`: field") - {"answered", "gathered"}
    steps = next(row for row in dict(tables())["The `ledger`: field"] if row[0] == "`steps`")
    assert keys(step for ledger in ledgers for step in ledger["steps"]) == {*named(steps[1])}
    for title, name in (("What is `older`: field", "older"), ("What was `published`: field", "published")):
        assert keys(mark.get(name, {}) for mark in marks) == listed(title)
    required = [each for mark in marks for each in mark.get("requirements", ())]
    assert keys(required) == listed("An entry of `requirements`: field")


def check_small_files(found: dict[str, list[tuple[str, Path]]]) -> None:
    manifests = [path for _, path in found["_headrace/<run>/manifest"]]
    lines = [json.loads(line) for path in manifests for line in path.read_bytes().splitlines()]
    assert keys(lines) == listed("The manifest: field")
    for title, name in (
        ("Keys: field", "_headrace/<run>/keys/<n>-<n>/about"),
        ("The command line: field", "_headrace/<run>/command.json"),
    ):
        assert keys(json.loads(path.read_bytes()) for _, path in found[name]) == listed(title)
    leases = [path for _, path in found["_headrace/lock"] if "bucket" in path.parts]
    assert keys(json.loads(path.read_bytes()) for path in leases) == listed("The lease: field")
    plans = [path.read_bytes()[32:] for _, path in found["_headrace/<run>/plan"]]
    earlier = {"unchanged_metrics"}  # which no version writes any more
    assert keys(map(msgspec.msgpack.decode, plans)) == listed("The plan: field") - earlier


def check_rejected_rows(found: dict[str, list[tuple[str, Path]]]) -> None:
    for _, path in found["_rejected/part-<shard>-<run>.arrow"]:
        with pa.ipc.open_file(path) as file:
            assert {*file.schema.names} == {"id", *listed("Rejected rows: field")}


def check_journal(found: dict[str, list[tuple[str, Path]]]) -> None:
    known = lists("The journal: record")
    kinds = {each.__struct_config__.tag: each for each in get_args(journal_state.Record)}
    assert known == {tag: [*kind.__struct_fields__] for tag, kind in kinds.items()}
    seen: dict[str, set[int]] = defaultdict(set)
    files = [path.read_bytes() for _, path in found["_headrace/<run>/journal"]]
    files += [b"HEADRJ1\n" + path.read_bytes()[24:] for _, path in found["_headrace/<run>/journal/<number>"]]
    for data in files:
        for start, end in frames(memoryview(data)):
            kind, *fields = msgspec.msgpack.decode(data[start + HEAD.size : end])
            seen[kind].add(len(fields))
    assert seen == {kind: {len(fields)} for kind, fields in known.items()}


def test_the_page_has_what_outputs_have(
    exhibits: dict[str, Path], found: dict[str, list[tuple[str, Path]]], marks: list[dict[str, Any]]
) -> None:
    check_files(found)
    check_success(marks)
    check_small_files(found)
    check_rejected_rows(found)
    check_journal(found)
    check_marks_in_tables(exhibits)


def test_values() -> None:
    fields = {
        name: [*(kind._fields if kind is Mark else kind.__struct_fields__)] for name, kind in VALUES.items()
    }
    assert lists("The journal: value") == fields


def check_marks_in_tables(exhibits: dict[str, Path]) -> None:
    notes = [json.loads(path.read_text()) for place in exhibits.values() for path in place.glob("notes.json")]
    ours = {name for name in keys(note for each in notes for note in each.values()) if "headrace" in name}
    assert ours == listed("In a store: note")
    database = sqlite3.connect(exhibits["sqlite"] / "a.db")
    columns = {name for _, name, *_ in database.execute("PRAGMA table_info(headrace_commits)")}
    database.close()
    assert columns == listed("In a table: field")
    table, run = exhibits["delta"] / "t", json.loads((exhibits["delta"] / "about.json").read_text())["run"]
    log = "".join(path.read_text() for path in (table / "_delta_log").glob("*.json"))
    assert f'"appId":"headrace-{run}"' in log and f'"headrace":{{"run":"{run}"}}' in log.replace(" ", "")
