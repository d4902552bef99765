"""Checking an output again: every file against the journal, the journal against the totals, the metrics anew.

Nothing is changed, and nothing that an output holds is ever executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millrace.core.arguments import known_arguments
from millrace.core.work import REJECTED, StagedFile
from millrace.errors import JournalDamaged, MillraceError
from millrace.outputs import Run, check_is_output, current_run, holder, pointer
from millrace.parameters import given_folder

if TYPE_CHECKING:
    from millrace.core.work import CommitRecord

State = Literal["good", "damaged", "unfinished", "running"]
OnFile = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    ``kind`` is one of ``missing``, ``size``, ``damaged``, ``rows``, ``extra``, ``journal``, ``plan``, ``manifest``,
    ``success``, ``totals``, ``shards``, ``metrics`` and ``unfinished``.
    """

    kind: str
    file: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


@dataclass(frozen=True)
class Verification:
    """What ``verify`` found; ``print(verification)`` shows it.

    Attributes
    ----------
    path, run
        The folder, and the name of the run whose parts are in it.
    state
        ``"good"``; ``"damaged"``; ``"unfinished"``: the run can be resumed, and what is there is as it should be;
        ``"running"``: somebody is writing, and nothing was looked at.
    findings
        What is wrong.
    files, rows, bytes, rejected
        Parts, rows and bytes that were looked at, and rows that were set aside.
    metrics
        Results of metrics, merged again from the journal.
    unchecked
        Metrics that could not be merged, as they are not Millrace's own.
    note
        Who is writing, or that an overwrite is under way; else an empty string.

    >>> import pathlib
    >>> Verification(pathlib.Path("out"), "k3f9a2xq", "unfinished").good
    False
    """

    path: Path
    run: str
    state: State
    findings: tuple[Finding, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0
    rejected: int = 0
    metrics: dict[str, Any] | None = None
    unchecked: tuple[str, ...] = ()
    note: str = ""

    @property
    def good(self) -> bool:
        """True if the output is complete and as it was written."""
        return self.state == "good"

    def __str__(self) -> str:
        from millrace.observers.human import plural, size

        if self.state == "running":
            return f"{self.path} is being written by {self.note}. Nothing was checked: verify it when that is done."
        words = f"{plural(self.files, 'file')}, {plural(self.rows, 'row')}, {size(self.bytes)}"
        aside = f", {plural(self.rejected, 'rejected row')}" if self.rejected else ""
        lines = [f"{self.path}: {self.state} ({words}{aside}; run {self.run})"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.metrics:
            lines.append(f"  metrics merged again: {', '.join(self.metrics)}")
        if self.unchecked:
            lines.append(f"  metrics that only their own code can merge: {', '.join(self.unchecked)}")
        return "\n".join([*lines, f"  {self.note}"] if self.note else lines)


def _nobody(files: int, of: int, size: int) -> None:
    """Nobody watches."""


@known_arguments
def verify(
    path: str | os.PathLike[str], *, threads: int | None = None, on_file: OnFile = _nobody
) -> Verification:
    """Check an output again: files by size, checksum and rows, the journal, the manifest, totals and metrics.

    Parameters
    ----------
    path
        The folder that was written to.
    threads
        How many files are read at a time; default: 4.
    on_file
        Called with the numbers of files done and of all, and the bytes done, as it goes on.

    Raises
    ------
    NothingMatched
        No run has written to the folder. Whatever is wrong with an output is no error, but a finding.

    Examples
    --------
    >>> import tempfile, millrace as mr
    >>> folder = f"{tempfile.mkdtemp()}/out"
    >>> _ = mr.range(3).with_options(engine="inline", progress=False).write_csv(folder)
    >>> mr.verify(folder).good
    True
    >>> part = next(mr.verify(folder).path.glob("part-*"))
    >>> _ = part.write_bytes(part.read_bytes().replace(b"2", b"3"))
    >>> print(*mr.verify(folder).findings)
    part-...csv: its bytes are not those that were written: the checksum is ..., not ....
    """
    root = Path(os.path.abspath(os.path.expanduser(given_folder(path))))
    check_is_output(root)
    somebody = holder(root)
    if somebody is not None:
        return Verification(root, pointer(root, "current") or "", "running", note=somebody)
    name = pointer(root, "current")
    if name is None:
        return Verification(root, "", "unfinished", _lost_pointer(root))
    try:
        run = current_run(root)
        assert run is not None
    except JournalDamaged as error:
        kind = "plan" if str(error).startswith("The saved plan") else "journal"
        file = f"_millrace/{name}/{kind}"
        return Verification(root, name, "damaged", (Finding(kind, file, str(error)),))
    return _Check(root, run).verification(threads or 4, on_file)


def _lost_pointer(root: Path) -> tuple[Finding, ...]:
    """Say what it means that no run is in force: nothing was written yet, or the pointer is gone."""
    parts = [name for name in os.listdir(root) if not name.startswith(("_", "."))]
    what = "though there are parts: it was removed" if parts else "so nothing was written yet"
    return (Finding("unfinished", "_millrace/current", f"it is not there, {what}."),)


class _Check:
    """One verification, step by step."""

    def __init__(self, root: Path, run: Run) -> None:
        self._root = root
        self._run = run
        self._findings: list[Finding] = []
        self._shape = msgspec.json.decode(run.plan.shape)
        self._files = {file.name: file for record in run.records for file in record.files}
        self._unchecked: list[str] = []

    def verification(self, threads: int, on_file: OnFile) -> Verification:
        run, state = self._run, self._run.state
        success = self._success()
        self._check_files(threads, on_file)
        self._check_extra()
        self._check_journal(success)
        metrics = None
        if success is not None:
            self._check_manifest(success)
            self._check_totals(success)
            metrics = self._check_metrics(success)
        damaged = any(finding.kind != "unfinished" for finding in self._findings)
        unfinished = any(finding.kind == "unfinished" for finding in self._findings)
        overwrite = pointer(self._root, "next") is not None
        return Verification(
            self._root,
            run.name,
            "damaged" if damaged else "unfinished" if unfinished else "good",
            tuple(self._findings),
            state.files,
            state.ledger.written,
            state.bytes,
            state.ledger.rejected,
            metrics,
            tuple(self._unchecked),
            "an overwrite was begun and is not complete; until it is, this output stands"
            if overwrite
            else "",
        )

    def _find(self, kind: str, file: str, message: str) -> None:
        self._findings.append(Finding(kind, file, message))

    # ------------------------------------------------------------ files

    def _check_files(self, threads: int, on_file: OnFile) -> None:
        files, size = list(self._files.values()), 0
        with ThreadPoolExecutor(threads) as pool:
            for done, (file, found) in enumerate(zip(files, pool.map(self._look_at, files), strict=True), 1):
                size += file.size
                on_file(done, len(files), size)
                if found is not None:
                    self._findings.append(found)

    def _look_at(self, file: StagedFile) -> Finding | None:
        path = self._root / file.name
        staged = self._run.folder / "staging" / file.staged
        if not self._run.finished and not path.exists() and staged.exists():
            path = staged
        try:
            size, crc = _read(path)
        except FileNotFoundError:
            return Finding("missing", file.name, f"it is not there; it had {file.rows:,} rows.")
        except OSError as error:
            return Finding("damaged", file.name, f"it cannot be read: {error.strerror}.")
        if size != file.size:
            return Finding("size", file.name, f"it has {size:,} bytes, not {file.size:,}.")
        if crc != file.crc32:
            return Finding(
                "damaged",
                file.name,
                "its bytes are not those that were written: the checksum is "
                f"{crc:08x}, not {file.crc32:08x}.",
            )
        rows = _rows(path, file.name, self._shape.get("sink") or {})
        if rows is not None and rows != file.rows:
            return Finding("rows", file.name, f"it has {rows:,} rows, not {file.rows:,}.")
        return None

    def _check_extra(self) -> None:
        there = [name for name in os.listdir(self._root) if not name.startswith(("_", "."))]
        rejected = self._root / REJECTED
        if rejected.is_dir():
            there += [f"{REJECTED}/{name}" for name in os.listdir(rejected) if not name.startswith(".")]
        for name in sorted(set(there) - self._files.keys()):
            self._find(
                "extra", name, "no record names it, and a reader of the folder would take it for output."
            )

    # ------------------------------------------------------------ records

    def _success(self) -> dict[str, Any] | None:
        path = self._root / "_SUCCESS"
        try:
            found = msgspec.json.decode(path.read_bytes())
            if isinstance(found, dict):
                return found
            raise ValueError("it is no object")
        except FileNotFoundError:
            if self._run.finished:
                self._find("success", "_SUCCESS", "it is not there, though the run is finished.")
        except (OSError, ValueError) as error:
            self._find("success", "_SUCCESS", f"it cannot be read: {error}.")
        return None

    def _check_journal(self, success: dict[str, Any] | None) -> None:
        run, file = self._run, f"_millrace/{self._run.name}/journal"
        marked = success is not None
        if run.torn and (run.finished or marked):
            self._find("journal", file, f"behind its last whole record are {run.torn:,} bytes of another.")
        if not run.finished and marked:
            self._find("journal", file, "it ends before the record that the run is finished: it was cut.")
        elif not run.finished:
            left = run.state.done.count(0)
            words = (
                f"{left:,} of {len(run.state.done):,} shards are still to do" if left else "it was not closed"
            )
            self._find(
                "unfinished", "_SUCCESS", f"the run is not finished: {words}. `millrace resume` goes on."
            )
        if run.finished and 0 in run.state.done and "limit" not in _verbs(self._shape):
            self._find("shards", file, f"{run.state.done.count(0):,} shards have no record.")
        for record in run.records:
            self._check_record(record)

    def _check_record(self, record: CommitRecord) -> None:
        written = sum(file.rows for file in record.files if file.is_part)
        if written != record.ledger.written:
            name = next((file.name for file in record.files if file.is_part), f"shard {record.shard}")
            self._find(
                "rows", name, f"its files have {written:,} rows, and {record.ledger.written:,} were written."
            )

    def _check_manifest(self, success: dict[str, Any]) -> None:
        file = f"_millrace/{self._run.name}/manifest"
        try:
            data = (self._run.folder / "manifest").read_bytes()
        except OSError as error:
            self._find("manifest", file, f"it cannot be read: {error.strerror}.")
            return
        if hashlib.sha256(data).hexdigest() != success.get("manifest_sha256"):
            self._find("manifest", file, "its hash is not the one in _SUCCESS.")
            return
        listed = {each["name"]: each for each in map(msgspec.json.decode, data.splitlines())}
        ours = {file.name: file for file in self._files.values()}
        for name in sorted(listed.keys() ^ ours.keys()):
            where = (
                "the manifest and not in the journal"
                if name in listed
                else "the journal and not in the manifest"
            )
            self._find("manifest", file, f"{name} is in {where}.")
        for name in sorted(listed.keys() & ours.keys()):
            now = {"name": name, "rows": ours[name].rows, "size": ours[name].size, "crc32": ours[name].crc32}
            if listed[name] != now:
                self._find("manifest", file, f"it says other things of {name} than the journal.")

    def _check_totals(self, success: dict[str, Any]) -> None:
        state = self._run.state
        ledger = state.ledger
        expected = {
            "run": self._run.name,
            "rows": ledger.written,
            "files": state.files,
            "bytes": state.bytes,
            "shards": sum(state.done),
        }
        said = {name: success.get(name) for name in expected}
        whole = success.get("ledger")
        if isinstance(whole, dict):
            for name in ("read", "written", "rejected", "nulled"):
                expected[f"ledger.{name}"] = getattr(ledger, name)
                said[f"ledger.{name}"] = whole.get(name)
        for name, value in expected.items():
            if said[name] != value:
                self._find(
                    "totals", "_SUCCESS", f"{name} is {said[name]!r}, and the journal adds up to {value!r}."
                )

    # ------------------------------------------------------------ metrics

    def _check_metrics(self, success: dict[str, Any]) -> dict[str, Any] | None:
        """Merge what the metrics of all shards counted once more, and compare."""
        from millrace.metrics import collected, plain
        from millrace.run.counting import merged

        said = success.get("metrics") or {}
        shapes: dict[str, Any] = {}
        for step in self._shape.get("steps", ()):
            shapes |= step.get("metrics") or {}
        if not shapes:
            return None
        if said.keys() != shapes.keys():
            self._find(
                "metrics", "_SUCCESS", f"it has metrics {sorted(said)}, and the plan {sorted(shapes)}."
            )
            return None
        made = [(name, _metric_of(shapes[name])) for name in said]  # the plan's order: the shape's is by name
        places = [shard.place for shard in self._run.plan.shards]
        records = sorted(
            (record for record in self._run.records if record.states),
            key=lambda each: places[each.shard] if each.shard < len(places) else (each.shard,),
        )
        results: dict[str, Any] = {}
        for i, (name, metric) in enumerate(made):
            if metric is None:
                self._unchecked.append(name)
                continue
            one = [(name, metric)]
            try:
                totals = merged(one, ((record.states[i],) for record in records), self._run.folder)
                results[name] = plain(collected(one, totals)[name])
            except (MillraceError, IndexError, ValueError, msgspec.MsgspecError) as error:
                self._find("metrics", "_SUCCESS", f"{name} cannot be merged again: {error}")
                continue
            again = msgspec.json.decode(msgspec.json.encode(results[name]))
            if name not in said or said[name] != again:
                self._find(
                    "metrics",
                    "_SUCCESS",
                    f"{name} is {said.get(name)!r}, and the journal's states give {again!r}.",
                )
        return results


def _verbs(shape: dict[str, Any]) -> set[str]:
    return {step.get("verb", "") for step in shape.get("steps", ())}


def _metric_of(shape: Any) -> Any:
    """Make a metric of ours again from its description; None for what is not ours."""
    from millrace import accumulators
    from millrace.accumulators.base import Metric

    kind = shape.get("kind") if isinstance(shape, dict) else None
    if kind not in accumulators.__all__ or kind in ("Estimate", "TorchMetric"):
        return None
    cls = getattr(accumulators, kind)
    settings = {name: value for name, value in shape.items() if name != "kind"}
    if kind == "By":
        settings["metric"] = _metric_of(settings.get("metric"))
        if settings["metric"] is None:
            return None
    import inspect

    taken = inspect.signature(cls.__init__).parameters
    try:
        made = cls(**{name: value for name, value in settings.items() if name in taken})
    except (MillraceError, TypeError):
        return None
    described = msgspec.json.decode(msgspec.json.encode(made.describe(), enc_hook=str))
    return made if isinstance(made, Metric) and described == shape else None


# ---------------------------------------------------------------- reading files

_CHUNK = 1 << 20


def _read(path: Path) -> tuple[int, int]:
    """Return a file's size and checksum, by reading all of it."""
    import zlib

    size = crc = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def _rows(path: Path, name: str, sink: dict[str, Any]) -> int | None:
    """Count the rows of a file that is whole: by its own metadata, or by its lines."""
    import pyarrow as pa

    if name.endswith(".arrow"):
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            return int(sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches)))
    kind = sink.get("kind")
    if kind == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    if kind == "json":
        return sum(chunk.count(b"\n") for chunk in _unpacked(path, name))
    if kind == "csv":
        return _csv_rows(_unpacked(path, name)) - bool(sink.get("header", True))
    return None


def _csv_rows(chunks: Iterator[bytes]) -> int:
    """Count the ends of lines that no quotes are around.

    >>> _csv_rows(iter([b'"a","b"\\n1,"x\\n', b'""y"\\n']))
    2
    """
    rows, quoted = 0, False
    for chunk in chunks:
        for piece in _pieces(chunk):
            if piece is None:
                quoted = not quoted
            elif not quoted:
                rows += piece.count(b"\n")
    return rows


def _pieces(chunk: bytes) -> Iterator[bytes | None]:
    """Yield what lies between quotation marks, and None for each of these."""
    parts: Sequence[bytes] = chunk.split(b'"')
    for i, part in enumerate(parts):
        if i:
            yield None
        yield part


def _unpacked(path: Path, name: str) -> Iterator[bytes]:
    import pyarrow as pa

    packing = {".gz": "gzip", ".zst": "zstd"}.get(Path(name).suffix)
    with pa.input_stream(str(path), compression=packing) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
