"""Rules that the source keeps, each seen in all modules: what only one of them does, and what nobody asks."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core import engine_ports, model_ports

SOURCE = Path(headrace.__file__).parent


Modules = dict[str, list[Any]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Modules]:
    """Return what these tests look at of all modules, by the modules' paths; kept no longer than they are."""
    kinds = (ast.Call, ast.ClassDef, ast.ImportFrom, ast.Attribute)
    gc.disable()  # or it looks at all of them again and again
    found = {
        path.relative_to(SOURCE).as_posix(): [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)
        ]
        for path in SOURCE.rglob("*.py")
    }
    gc.enable()
    yield found
    found.clear()


@pytest.fixture(scope="module")
def calls(nodes: Modules) -> Modules:
    return {name: [node for node in every if isinstance(node, ast.Call)] for name, every in nodes.items()}


# ------------------------------------------------------------ nobody asks what kind of thing fills a port

PORTS = {
    *("Source", "Format", "Target", "Sink", "Writer", "Encoder", "Predictor", "Accumulator", "Observer"),
    *("PredictorParts", "ObserverParts", "AccumulatorParts", "Engine", "Pool", "Place", "Publisher", "Log"),
    *("Storage", "ObjectPath"),
}
PARTS = (
    model_ports.PredictorParts,
    model_ports.ObserverParts,
    model_ports.AccumulatorParts,
    engine_ports.EngineParts,
)
PLAIN = {"close", "collect", "columns", "batch_format"}  # also of files, frames and Ray's preprocessors
OPTIONAL = {name for parts in PARTS for name in vars(parts) if not name.startswith("_")} - PLAIN
ALLOWED = {"core/stores/objects.py": {"isinstance(path, ObjectPath)"}}
"""``object_of`` tells an object from a file, and all others ask it."""


def words(node: ast.AST) -> set[str]:
    """Return the last word of each name in an expression."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def called(calls: Modules, *names: str) -> Iterator[tuple[str, ast.Call]]:
    for path, every in calls.items():
        yield from (
            (path, call) for call in every if isinstance(call.func, ast.Name) and call.func.id in names
        )


def filling(nodes: Modules) -> set[str]:
    """Return the names of ports, and of all classes that inherit from one, however far above."""
    every = [node for each in nodes.values() for node in each if isinstance(node, ast.ClassDef)]
    bases = {node.name: set().union(*map(words, node.bases)) for node in every}
    found = set(PORTS)
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def test_nobody_asks_what_fills_a_port(nodes: Modules, calls: Modules) -> None:
    kinds = filling(nodes)
    assert {"ParquetSource", "InStore", "FolderPublisher", "DeltaTable"} <= kinds
    asked = {
        f"{name}: {ast.unparse(call)}"
        for name, call in called(calls, "isinstance", "issubclass")
        if words(call.args[1]) & kinds and ast.unparse(call) not in ALLOWED.get(name, ())
    }
    assert not asked, "Give the port a method, with a default where most need none."


def test_nobody_looks_whether_something_has_what_a_port_leaves_open(calls: Modules) -> None:
    """``completed`` gives what fills a port the defaults that it lacks."""
    looked = {
        f"{name}: {ast.unparse(call)}"
        for name, call in called(calls, "hasattr", "getattr")
        if isinstance(call.args[1], ast.Constant) and call.args[1].value in OPTIONAL
    }
    assert not looked


def test_one_file_asks_whether_something_is_an_address(nodes: Modules) -> None:
    asking = {name for name in nodes if "is_address(" in (SOURCE / name).read_text()}
    assert asking == {"core/files/storage.py", "core/stores/addresses.py"}, "make it a Storage at the edge"


# ------------------------------------------------------------ what one module does for all

IN_OUTPUTS = (
    *("driver/", "worker/", "output/", "session/", "sinks/", "observers/"),
    *("annex/formats/", "annex/lakes/", "annex/report/"),
)
AND = ["sources/memory.py", "core/metric_states.py", "annex/databases/sink.py"]

# What these open lies in no output.
ELSEWHERE = {
    "observers/record.py: os.open(self._path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 384)",  # log=
    "annex/report/template.py: (ASSETS / name).read_bytes()",
    "output/places/folder.py: Path('/proc/locks').read_text()",
    "output/places/folder.py: self.root.mkdir(parents=True, exist_ok=True)",  # which may well be a link
    "output/publishing.py: root.mkdir(parents=True, exist_ok=True)",  # the same
    "output/places/lease.py: Path('/proc/sys/kernel/random/boot_id').read_text()",
    "output/places/lease.py: Path(f'/proc/{pid}/stat').read_text()",
    "annex/formats/webdataset/members.py: tarfile.open(fileobj=stream, mode='w', format=tarfile.PAX_FORMAT)",
    "worker/fast_road.py: value.copy()",  # an array
    "session/rejected_file.py: open(whole, 'w', encoding='utf-8', newline='')",  # the user's own file
    "session/rejected_file.py: open(path, encoding='utf-8-sig', newline='')",
    "annex/lakes/iceberg/source.py: pq.read_schema(file.path)",  # an input
    "annex/lakes/iceberg/source.py: pq.ParquetFile(file.path)",  # likewise
    "annex/formats/webdataset/members.py: "
    "tarfile.open(fileobj=file, mode='r|' if stream else 'r:', tarinfo=StrictHeader)",
    "worker/batching.py: _WAITS.read_text()",
}

OPENS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "makedirs", "mkfifo"}
OPENS |= {"memory_map", "input_stream", "output_stream", "OSFile", "copyfile", "copy", "copy2", "truncate"}
OPENS |= {"ParquetFile", "read_metadata", "read_table", "read_schema"}
TAKES_FILES = {"input_stream", "ParquetFile", "read_metadata", "read_table", "read_schema"}


def opening(calls: Iterable[ast.Call]) -> Iterator[ast.Call]:
    """Yield the calls that open something by its name."""
    for call in calls:
        first = call.args[0] if call.args else None
        if isinstance(call.func, ast.Name) and call.func.id == "open":
            yield call
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "open":
            module = ast.unparse(call.func.value)
            if module in ("os", "io", "gzip", "zipfile") or first is None or isinstance(first, ast.Constant):
                yield call
        elif isinstance(call.func, ast.Attribute) and call.func.attr in OPENS:
            is_path = first is None or "path" in ast.unparse(first) or call.func.attr not in TAKES_FILES
            if is_path and not ast.unparse(call.func).startswith("safe_files."):
                yield call


def test_nothing_in_an_output_is_opened_but_by_one_module(nodes: Modules, calls: Modules) -> None:
    found = {
        f"{name}: {ast.unparse(call)}"
        for name, every in calls.items()
        if name in AND or name.startswith(IN_OUTPUTS)
        for call in opening(every)
    }
    assert found - ELSEWHERE == set(), "open it by headrace.core.files.safe_files"
    assert {each for each in ELSEWHERE - found if each.partition(":")[0] in nodes} == set()


def test_the_rule_finds_what_it_is_for() -> None:
    text = """
open(path)
os.open(path, 0)
path.open("rb")
path.open()
path.read_bytes()
pa.memory_map(str(path))
pq.ParquetFile(path)
sink.open(task, schema)
safe_files.opened(path, 0)
pa.input_stream(opened, compression=None)
"""
    assert [
        call.lineno
        for call in opening(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    ] == [2, 3, 4, 5, 6, 7, 8]


def test_batches_are_shown_by_one_module_alone(nodes: Modules) -> None:
    """Whoever makes a view of a batch by himself goes past the question whether its memory is read again."""
    makers = {"to_format", "to_frame", "rows_of", "python_columns", "to_pandas"}
    allowed = {
        "core/arrow/batch_formats.py",
        "core/arrow/input_view.py",
        "core/arrow/views.py",
        "core/arrow/widening.py",  # which makes new columns of the values
    }
    theirs = {
        "annex/formats/webdataset/members.py",  # samples, which are only written
        "annex/formats/images.py",  # likewise images
        "annex/compare/measure.py",  # rows that changed, which belong to whoever asked
        "compat/ray/data/block.py",  # blocks of a user's own datasource, which belong to it
        "compat/air/batch_predictor.py",  # a result, which belongs to whoever asked
        "dataset/consumption.py",  # to_pandas, likewise
        "predictors/__init__.py",  # what a model gave, which is nobody's input
    }
    found = {
        name
        for name, every in nodes.items()
        for node in every
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "headrace.core.arrow.batch_formats"
            and any(each.name in makers for each in node.names)
        )
        or (isinstance(node, ast.Attribute) and node.attr == "to_pandas")
    }
    assert {name for name in found if not name.startswith("sinks/") and not name.endswith("/sink.py")} == {
        name for name in allowed | theirs if name in nodes
    }  # sinks only write


PASSES_ON = {
    "engines/local/wire.py",  # what the user's functions print
    "annex/models/keras.py",  # what a library printed
    "core/terminal.py",
    "core/process.py",  # what a forked child of the user's gives to sys.exit
    "annex/cli/app.py",  # a command without arguments: its help
    "annex/cli/help.py",  # help, which is ours
    "sinks/text.py",  # writes files
}


def writes(calls: Iterable[ast.Call]) -> Iterator[int]:
    """Yield the lines on which something is written for people."""
    for node in calls:
        called = ast.unparse(node.func)
        if called in ("print", "warnings.warn", "typer.echo", "typer.secho", "click.echo", "sys.excepthook"):
            yield node.lineno
        if called.startswith(
            ("sys.stdout.write", "sys.stderr.write", "sys.__std", "traceback.print_", "stream.write")
        ):
            yield node.lineno
        if called == "os.write" and ast.unparse(node.args[0]) in ("1", "2"):
            yield node.lineno


def test_only_one_place_writes_to_terminals(calls: Modules) -> None:
    assert list(writes(calls["core/terminal.py"])), "this test finds what it looks for"
    others = {
        f"{name}:{line}" for name, every in calls.items() if name not in PASSES_ON for line in writes(every)
    }
    assert not others
