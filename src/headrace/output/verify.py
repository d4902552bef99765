"""Checking an output: every file against the journal, the journal against the totals, metrics merged again.

Nothing is changed, and nothing that an output holds is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.arguments import known_arguments
from headrace.core.asked import RequirementsAsked
from headrace.core.files import safe_files
from headrace.core.human import plural
from headrace.core.stores.addresses import Options, checked
from headrace.core.work import REJECTED, StagedFile
from headrace.errors import JournalDamaged
from headrace.output.journal_state import manifest_entry
from headrace.output.names import is_part
from headrace.output.places.place import Place, looked_at
from headrace.output.runs import (
    SavedRun,
    check_is_output,
    current_run,
    named_run,
    next_run,
    pointer,
    success_of,
    waiting_run,
)
from headrace.output.verification import (
    Finding,
    Reached,
    Remeasured,
    Verdict,
    Verification,
    bytes_of,
    in_table,
    remeasured,
    rows_of,
    steps_of,
    verbs,
)
from headrace.plan.accounts import is_counted, wrong_in_record
from headrace.plan.parameters import given_folder

if TYPE_CHECKING:
    from headrace.core.work import CommitRecord

OnFile = Callable[[int, int, int], None]


@known_arguments
def verify(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    on_file: OnFile = lambda files, of, size: None,
    storage_options: Mapping[str, Any] | None = None,
    catalog: str | Mapping[str, Any] | None = None,
    uri: str | None = None,
) -> Verification:
    """Check an output again: files by size, checksum and rows, the journal, the manifest, totals and metrics.

    Parameters
    ----------
    path
        The folder, or the address, that was written to.
    threads
        How many files are read at a time; default: 4.
    on_file
        Called with the numbers of files done and of all, and the bytes done, as it goes on.
    storage_options
        As in ``read_parquet``.
    catalog
        As in ``read_iceberg``: the catalogue of the Iceberg table that the output is in. Without it, the note says
        that the table was not looked at.
    uri
        As in ``read_sql``: the database of PostgreSQL that the output is in; likewise. Files of SQLite and DuckDB are
        found without it.

    Raises
    ------
    NothingMatched
        No run has written to the folder. Whatever is wrong with an output is no error, but a finding.

    Examples
    --------
    >>> import tempfile, headrace as hr
    >>> folder = f"{tempfile.mkdtemp()}/out"
    >>> _ = hr.range(3).with_options(engine="inline", progress=False).write_csv(folder)
    >>> hr.verify(folder).good
    True
    >>> part = next(hr.verify(folder).path.glob("part-*"))
    >>> _ = part.write_bytes(part.read_bytes().replace(b"2", b"3"))
    >>> print(*hr.verify(folder).findings)
    part-...csv: its bytes are not those that were written: the checksum is ..., not ....
    """
    try:
        options = checked(storage_options)
        with looked_at(given_folder(path), options) as output:
            return _verified(output, options, threads or 4, on_file, Reached(catalog, uri))
    except JournalDamaged as error:  # in a store: its journal cannot be put together
        finding = Finding("journal", "_headrace", str(error))
        return Verification(given_folder(path), "", "damaged", (finding,))


def _verified(
    output: Place, options: Options, threads: int, on_file: OnFile, reached: Reached
) -> Verification:
    root, place = output.root, output.at()
    check_is_output(root)
    writer = output.writer()
    if writer is not None:
        return Verification(place, named_run(root), "running", note=writer)
    try:
        name = pointer(root, "current")
        pointer(root, "next")
    except JournalDamaged as error:
        return Verification(place, "", "damaged", (Finding("pointer", "_headrace/current", str(error)),))
    try:
        run = current_run(root) or next_run(root)
        if run is None:
            what = (
                "though there are parts: it was removed" if output.visible() else "so nothing was written yet"
            )
            unfinished = Finding("unfinished", "_headrace/current", f"it is not there, {what}.")
            return Verification(place, "", "unfinished", (unfinished,))
        name, withheld = run.name, _withheld(root)
    except JournalDamaged as error:
        name = name or pointer(root, "next") or ""
        kind = "plan" if str(error).startswith("The saved plan") else "journal"
        file = f"_headrace/{name}/{kind}"
        return Verification(place, name, "damaged", (Finding(kind, file, str(error)),))
    further = run.state.hidden and run.standing
    whole = further or 0 not in run.state.done
    if whole and success_of(root, name, len(run.state.runs)) is not None:  # all is said but to the journal
        further, run.state.finished = False, True
    run = run.before_further_run() if further else run
    further = further and withheld is None
    return _Verifier(output, run, options, reached).verification(
        threads, on_file, further=further, withheld=withheld
    )


def _withheld(root: Path) -> RequirementsAsked | None:
    """Return what was asked of the run that waits to be published; None: none waits."""
    with contextlib.suppress(JournalDamaged):
        run = waiting_run(root)
        if run is not None and run.state.withheld is not None:
            return RequirementsAsked.of(run.state.withheld.summary)
    return None


class _Verifier:
    """One verification, step by step."""

    def __init__(self, output: Place, run: SavedRun, options: Options, reached: Reached) -> None:
        self._output = output
        self._reached = reached
        self._options = options
        self._root = output.root
        self._run = run
        self._findings: list[Finding] = []
        self._shape = run.plan.described
        self._files = {file.name: file for record in run.records for file in record.files}

    def verification(
        self, threads: int, on_file: OnFile, *, further: bool, withheld: RequirementsAsked | None
    ) -> Verification:
        run, state = self._run, self._run.state
        success = self._success()
        self._check_files(threads, on_file)
        missing = [self._files[each.file] for each in self._findings if each.kind == "missing"]
        about, place = self._shape.get("sink") or {}, str(self._output.at())
        lost, notes, elsewhere = in_table(about, place, self._options, run, self._reached, missing)
        self._findings = [each for each in self._findings if each.file not in elsewhere] + lost
        self._check_extra()
        self._check_journal(success)
        again = Remeasured()
        if success is not None:
            self._check_manifest(success)
            self._check_totals(success)
            again = remeasured(run, success.get("metrics") or {})
            self._findings += again.findings
        kinds = {finding.kind for finding in self._findings}
        verdict: Verdict = "unfinished" if "unfinished" in kinds else "good"
        verdict = "unpublished" if "unpublished" in kinds else verdict
        verdict = "damaged" if kinds - {"unfinished", "unpublished"} else verdict
        overwrite = pointer(self._root, "next") is not None and not run.hidden
        begun = "an overwrite" if overwrite else "a further run"
        begun = f"{begun} has started and is not complete; until it is, this output is valid"
        if withheld is not None and verdict != "unpublished":
            begun, further = f"a run behind it is not published ({withheld}); this output is valid", True
        return Verification(
            self._output.at(),
            run.name,
            verdict,
            tuple(self._findings),
            state.files,
            state.ledger.written,
            state.bytes,
            state.ledger.rejected,
            again.results,
            again.unchecked,
            "; ".join(filter(None, [*notes, begun if overwrite or further else ""])),
        )

    @property
    def _limited(self) -> bool:
        """Whether a step ends the reading when enough rows have passed: ``limit``, or one of the user's own."""
        return "limit" in verbs(self._shape) or any(record.passed for record in self._run.records)

    def _find(self, kind: str, file: str, message: str) -> None:
        self._findings.append(Finding(kind, file, message))

    # ------------------------------------------------------------ files

    def _check_files(self, threads: int, on_file: OnFile) -> None:
        files, size = list(self._files.values()), 0
        with ThreadPoolExecutor(threads) as pool:
            for done, (file, found) in enumerate(
                zip(files, pool.map(self._check_file, files), strict=True), 1
            ):
                size += file.size
                on_file(done, len(files), size)
                if found is not None:
                    self._findings.append(found)

    def _check_file(self, file: StagedFile) -> Finding | None:
        with self._output.opened(self._run.place_of(file, self._output)) as path:
            return self._checked(file, path)

    def _checked(self, file: StagedFile, path: Path) -> Finding | None:
        try:
            size, crc = bytes_of(path)
        except FileNotFoundError:
            return Finding("missing", file.name, f"it is not there; it had {plural(file.rows, 'row')}.")
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
        rows = rows_of(path, file.name, self._shape.get("sink") or {})
        if rows is not None and rows != file.rows:
            return Finding("rows", file.name, f"it has {plural(rows, 'row')}, not {file.rows:,}.")
        return None

    def _check_extra(self) -> None:
        output, rejected = self._output, self._root / REJECTED
        if os.path.lexists(rejected) and not safe_files.is_folder(rejected):
            self._find("extra", REJECTED, "it is not a folder, and no run puts anything else there.")
        aside = [name for name in output.listed(REJECTED) if not name.startswith(f"{REJECTED}/.")]
        # Where parts are put before their record, one may be about to come.
        to_come = set() if self._run.finished or output.renames else {self._run.name}
        there = {name for name in (*output.visible(), *aside) if not is_part(name, to_come)}
        for name in sorted(there - self._files.keys() - self._run.leaving):
            self._find(
                "extra", name, "no record names it, and a reader of the folder would take it for output."
            )

    # ------------------------------------------------------------ records

    def _success(self) -> dict[str, Any] | None:
        path = self._root / "_SUCCESS"
        try:
            found = msgspec.json.decode(safe_files.content(path))
            if isinstance(found, dict):
                return found
            raise ValueError("it is not an object")
        except FileNotFoundError:
            if self._run.finished:
                self._find("success", "_SUCCESS", "it is not there, though the run is finished.")
        except (OSError, ValueError) as error:
            self._find("success", "_SUCCESS", f"it cannot be read: {error}.")
        return None

    def _check_journal(self, success: dict[str, Any] | None) -> None:
        run, file = self._run, f"_headrace/{self._run.name}/journal"
        marked = success is not None
        if run.torn and (run.finished or marked):
            self._find(
                "journal", file, f"after its last whole record there are {run.torn:,} bytes of another."
            )
        if not run.finished and marked:
            self._find("journal", file, "it has no record that the run is finished: its end is missing.")
        elif not run.finished and run.state.withheld is not None:
            asked = RequirementsAsked.of(run.state.withheld.summary)
            self._find("unpublished", "_SUCCESS", f"the run is complete, and no reader sees it; {asked}.")
        elif not run.finished:
            left = run.state.done.count(0)
            words = (
                f"{left:,} of {len(run.state.done):,} parts of the input are still to do"
                if left
                else "it was not closed"
            )
            how = "the same command, given again," if self._output.copied else "`headrace resume`"
            self._find("unfinished", "_SUCCESS", f"the run is not finished: {words}. {how} resumes it.")
        if run.finished and 0 in run.state.done and not self._limited:
            self._find("shards", file, f"{run.state.done.count(0):,} parts of the input have no record.")
        for record in run.records:
            self._check_record(record)

    def _check_record(self, record: CommitRecord) -> None:
        wrong = wrong_in_record(record, [f"step {i}" for i in range(1, len(record.ledger.steps) + 1)])
        if wrong:
            name = next((file.name for file in record.files if file.is_part), f"part {record.shard}")
            self._find("rows", name, f"its counts of rows do not agree: {wrong}.")
        shards, read = self._run.plan.shards, record.ledger.read
        planned = shards[record.shard].rows if record.shard < len(shards) else read
        more = read > planned or not self._limited
        if planned >= 0 and read != planned and more:
            self._find(
                "rows",
                f"part {record.shard} of the input",
                f"it has {planned:,} rows, and {read:,} were read.",
            )

    def _check_manifest(self, success: dict[str, Any]) -> None:
        file = f"_headrace/{self._run.name}/manifest"
        try:
            data = safe_files.content(self._run.folder / "manifest")
        except OSError as error:
            self._find("manifest", file, f"it cannot be read: {error.strerror}.")
            return
        if hashlib.sha256(data).hexdigest() != success.get("manifest_sha256"):
            self._find("manifest", file, "its hash is not the one in _SUCCESS.")
            return
        try:
            listed = {str(each["name"]): each for each in map(msgspec.json.decode, data.splitlines())}
        except (ValueError, KeyError, TypeError):
            self._find("manifest", file, "it has a line that is not a file's name, rows, size and checksum.")
            return
        ours = {file.name: file for file in self._files.values()}
        for name in sorted(listed.keys() ^ ours.keys()):
            where = (
                "the manifest and not in the journal"
                if name in listed
                else "the journal and not in the manifest"
            )
            self._find("manifest", file, f"{name} is in {where}.")
        for name in sorted(listed.keys() & ours.keys()):
            if listed[name] != manifest_entry(ours[name]):
                self._find("manifest", file, f"what it says of {name} differs from the journal.")

    def _check_totals(self, success: dict[str, Any]) -> None:
        ledger = self._run.state.ledger
        expected: dict[str, Any] = {"run": self._run.name, **self._run.state.totals()}
        recorded = {name: success.get(name) for name in expected}
        whole = success.get("ledger")
        if not isinstance(whole, dict):
            self._find("totals", "_SUCCESS", "it has no ledger of rows.")
        else:
            for name in ("read", "written", "rejected", "nulled"):
                expected[f"ledger.{name}"] = getattr(ledger, name)
                recorded[f"ledger.{name}"] = whole.get(name)
            steps = whole.get("steps")
            names = ("rows_in", "rows_out", "rejected", "dropped", "added", "unused")
            if isinstance(steps, list) and all(isinstance(step, dict) for step in steps):
                steps = [tuple(step.get(name) for name in names) for step in steps]
            expected["ledger.steps"] = list(steps_of(ledger)) if is_counted(ledger) else steps
            recorded["ledger.steps"] = steps
        for name, value in expected.items():
            if recorded[name] != value:
                self._find(
                    "totals",
                    "_SUCCESS",
                    f"{name} is {recorded[name]!r}, and the journal adds up to {value!r}.",
                )
