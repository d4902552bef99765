"""Names that an output holds, read back: what comes from a file is only followed if it stays in the output."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from headrace.core.files import hive, safe_files
from headrace.core.files.formats import PART_SUFFIX
from headrace.core.files.staged import PARTS, is_uploaded, uploaded_name
from headrace.core.work import HOME, REJECTED, CommitRecord, StagedFile
from headrace.errors import ForeignOutput, JournalDamaged
from headrace.version import __version__

REPORT = "report.html"  # files of a run, beside its record
ASKED = "asked.json"
AHEAD = "ahead"
"""A file in the folder for what models keep: before the run, they have begun what must not be lost."""


class Listed(Protocol):
    """What tells the names of an output, as a ``Place`` does."""

    def visible(self) -> list[str]: ...
    def listed(self, folder: str) -> Mapping[str, int]: ...
    def size_of(self, name: str) -> int: ...


_RUN = re.compile(r"[a-z0-9]{8}")
_PART = re.compile(rf"part-\d+(?:\.\d+)*(?:-\d{{5}})?-([a-z0-9]{{8}})(?:-\d+)?\.{PART_SUFFIX}")
_SIDE = re.compile(r"[0-9a-f]{64}")


def run_of(part: str) -> str | None:
    """Return the run whose part, or rejected rows, a file of this name would be, also in folders ``key=value``.

    >>> run_of("part-00007-k3f9a2xq.parquet"), run_of("part-00007-k3f9a2xq.repr_txt.bz2"), run_of("photo-1.jpg")
    ('k3f9a2xq', 'k3f9a2xq', None)
    >>> run_of("day=1/part-00007-k3f9a2xq.csv"), run_of("day=1/../part-00007-k3f9a2xq.csv")
    ('k3f9a2xq', None)
    >>> run_of("part-00007-k3f9a2xq-2.parquet")  # of the second run of that output
    'k3f9a2xq'
    """
    match = _PART.fullmatch(hive.file_name(part))
    return match[1] if match is not None else None


def is_part(name: str, runs: Collection[str]) -> bool:
    """Say whether a file name is that of a part of one of ``runs``, or of rows that one has rejected."""
    return run_of(name.removeprefix(f"{REJECTED}/")) in runs


def is_of(name: str, run: str) -> bool:
    """Say whether a file has the name of one of the runs of an output, the first or a further one.

    >>> is_of("part-00007-k3f9a2xq-2.parquet", "k3f9a2xq-2"), is_of("part-00007-k3f9a2xq-2.parquet", "k3f9a2xq")
    (True, False)
    """
    return f"-{run}." in hive.file_name(name)


def other_version(file: str, version: str | None) -> str:
    """Say that this version does not know what a file has, and which one has written it, as far as that is known.

    >>> other_version("The journal j holds a record", "9.9").partition(":")[2]
    ' Headrace 9.9 has written it. Nothing was changed: go on with that version, or a newer one, or ... new folder.'
    """
    who = f"Headrace {version}" if version not in (None, "", __version__) else "another version of Headrace"
    return (
        f"{file} that this version, {__version__}, does not know: {who} has written it. Nothing was changed: go on "
        "with that version, or a newer one, or write to a new folder."
    )


def parts_there(place: Listed, runs: Collection[str], *, but: Container[str] = ()) -> list[str]:
    """Return the parts of some runs that an output has, also those with rejected rows; without those in ``but``."""
    found = (*place.visible(), *place.listed(REJECTED))
    return sorted(name for name in found if name not in but and is_part(name, runs))


def place_of(run: str, file: StagedFile, output: Listed) -> str:
    """Return the name under which a committed file of a run lies: its own, or that under which it waits to get it."""
    aside = [f"{HOME}/{run}/staging/{file.staged}", f"{HOME}/{run}/{PARTS}/{file.name}"]
    names = [uploaded_name(run, file)] if is_uploaded(file) else aside
    return next((name for name in names if output.size_of(name) >= 0), file.name)


def first_names(names: Sequence[str]) -> str:
    """Return some of these names, for a message.

    >>> first_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_foreign(output: str, found: Iterable[str]) -> None:
    """Refuse a place where these files are, and none of them is ours; names that begin with a dot do not disturb.

    >>> check_foreign("out", [".keep"]), check_foreign("out", ["a.csv", "_headrace"])
    (None, None)
    """
    others = sorted(name for name in found if not name.startswith("."))
    if others and HOME not in {name.split("/")[0] for name in others}:
        raise ForeignOutput(
            f"The output {output} holds files that Headrace did not write ({first_names(others)}). Nothing was "
            "touched: choose an empty or a new place."
        )


def check_run(run: str, where: Path) -> str:
    """Return the name of a run as it is; refuse what is none, such as a path that leads out of the output.

    >>> check_run("../..", Path("out/_headrace/current"))
    Traceback (most recent call last):
    headrace.errors.JournalDamaged: out/_headrace/current is damaged: it says '../..', ...
    """
    if _RUN.fullmatch(run) is None:
        raise JournalDamaged(
            f"{where} is damaged: it says {run[:60]!r}, which is not the name of a run. Nothing was touched: write "
            "the name of the folder next to it that holds the run's journal into this file, or remove the whole "
            "output."
        )
    return run


def read_pointer(path: Path) -> str | None:
    """Return the run that a small file names; None if there is no such file, or nothing in it."""
    try:
        run = safe_files.content(path, 200).decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise JournalDamaged(
            f"{path}, which names the current run, cannot be read: {error.strerror}. Nothing was touched: fix that, "
            "then run again."
        ) from error
    return check_run(run, path) if run else None


def check_names(records: Iterable[CommitRecord], run: str, folder: Path) -> Iterable[CommitRecord]:
    """Yield a run's records; refuse one whose files would not lie where those of the run lie."""
    for record in records:
        for file in record.files:
            staged = file.staged.removeprefix(f"{PARTS}/")
            plain = staged not in ("", ".", "..") and "/" not in staged and "\0" not in staged
            aside = file.name.removeprefix(f"{REJECTED}/")
            if not plain or run_of(aside) != run or (aside != file.name and "/" in aside):
                raise _foreign_name(folder, file.name if plain else file.staged)
        for state in record.states:
            if not isinstance(state, bytes) and _SIDE.fullmatch(state.sha256) is None:
                raise _foreign_name(folder, state.sha256)
        yield record


def _foreign_name(folder: Path, name: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal {folder / 'journal'} names a file {name[:100]!r}, which is not a name that Headrace gives to a "
        "file. So Headrace did not write this journal, and nothing was touched: restore it from a copy, or write to "
        "a new folder."
    )
