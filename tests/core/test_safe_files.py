"""Whatever stands in an output folder: nothing but regular files is opened, and by one module alone."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from headrace.core.files import safe_files

PACKAGE = Path(headrace.__file__).parent
IN_OUTPUTS = ["driver", "worker", "output", "session", "sinks", "observers"]
IN_OUTPUTS += ["annex/formats", "annex/lakes", "annex/report"]
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


def opening(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that open something by its name."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
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


def test_nothing_in_an_output_is_opened_but_by_one_module() -> None:
    found = set()
    files = [path for folder in IN_OUTPUTS for path in (PACKAGE / folder).rglob("*.py")]
    for path in filter(Path.exists, [*files, *(PACKAGE / name for name in AND)]):
        for call in opening(ast.parse(path.read_text())):
            found.add(f"{path.relative_to(PACKAGE)}: {ast.unparse(call)}")
    assert found - ELSEWHERE == set(), "open it by headrace.core.files.safe_files"
    assert {each for each in ELSEWHERE - found if (PACKAGE / each.partition(":")[0]).exists()} == set()


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
    assert [call.lineno for call in opening(ast.parse(text))] == [2, 3, 4, 5, 6, 7, 8]


def a_link(path: Path) -> None:
    (path.parent / "letter").write_text("dear")
    path.symlink_to(path.parent / "letter")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def a_second_name(path: Path) -> None:
    (path.parent / "letter").write_text("dear")
    path.hardlink_to(path.parent / "letter")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


STRANGE = [a_link, a_link_to_nowhere, os.mkfifo, Path.mkdir, a_socket]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("put", STRANGE)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_only_regular_files_are_opened(tmp_path: Path, put: Callable[[Path], None], flags: int) -> None:
    put(tmp_path / "it")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        safe_files.opened(tmp_path / "it", flags)
    assert safe_files.size(tmp_path / "it") == -1
    assert safe_files.read(tmp_path / "it") == b""
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_file_with_a_second_name_is_read_and_not_written_to(tmp_path: Path) -> None:
    a_second_name(tmp_path / "it")
    assert safe_files.content(tmp_path / "it") == b"dear"
    with pytest.raises(safe_files.NotOurs, match="second name"):
        safe_files.opened(tmp_path / "it", os.O_RDWR)
    safe_files.write(tmp_path / "it", b"new")
    assert (tmp_path / "letter").read_text() == "dear" and (tmp_path / "it").read_text() == "new"


def test_what_stands_where_a_small_file_is_made_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / f"it.{os.getpid()}.tmp").symlink_to(tmp_path / "letter")
    (tmp_path / "it").symlink_to(tmp_path / "letter")
    safe_files.write(tmp_path / "it", b"new")
    assert (tmp_path / "letter").read_text() == "dear" and (tmp_path / "it").read_text() == "new"
    assert not (tmp_path / "it").is_symlink()


def test_folders_that_are_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(safe_files.NotOurs, match="a link"):
        safe_files.make_folder(tmp_path / "link")
    safe_files.make_folder(tmp_path / "there")
    safe_files.make_folder(tmp_path / "new")
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("behind", [b"", b"more"])
def test_gigabytes_of_holes_are_not_read(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"some lines")
    with path.open("r+b") as file:
        file.seek(3 << 30)
        file.write(behind) if behind else file.truncate()
    assert safe_files.read(path).rstrip(b"\0") == b"some lines"
    with pytest.raises(safe_files.NotOurs, match="a big hole"):
        safe_files.content(path)
    assert safe_files.content(path, 4) == b"some"
