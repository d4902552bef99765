"""A manifest: a file that lists the inputs, in the form of batch services.

Paths in it are relative to the folder in which it lies. It is one of:

- text, one path per line; lines that begin with ``#`` are comments
- JSON, a list of paths; its first entry may be ``{"prefix": "folder/"}``, which stands before all others
- JSON lines, objects with one of the fields ``path``, ``file``, ``uri``, ``url`` or ``input``
- CSV with a header, one of whose columns has such a name; else the first column counts
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.annex.cli.answer import UsageMistake
from headrace.core.files.model_files import from_json

_FIELDS = ("path", "file", "uri", "url", "input")


def paths_in(manifest: Path) -> list[str]:
    """Return the paths that a manifest lists, absolute, in its order."""
    try:
        text = manifest.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageMistake(f"The manifest {manifest} cannot be read: {why}.") from error
    found = list(_listed(manifest, text))
    if not found:
        raise UsageMistake(f"The manifest {manifest} lists no input.")
    folder = manifest.resolve().parent
    return [path if "://" in path else os.path.join(folder, os.path.expanduser(path)) for path in found]


def _listed(manifest: Path, text: str) -> Iterator[str]:
    if manifest.suffix.lower() == ".csv":
        yield from _of_csv(manifest, text)
    elif text.lstrip()[:1] == "[":
        yield from _of_list(manifest, text)
    elif text.lstrip()[:1] == "{":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield _of_entry(_parsed(line, f"The manifest {manifest}, line {number},"), manifest)
    else:
        lines = (line.strip() for line in text.splitlines())
        yield from (line for line in lines if line and not line.startswith("#"))


def _of_list(manifest: Path, text: str) -> Iterator[str]:
    prefix = ""
    for number, entry in enumerate(_parsed(text, f"The manifest {manifest}")):
        if number == 0 and isinstance(entry, dict) and set(entry) == {"prefix"}:
            prefix = str(entry["prefix"])
        else:
            yield prefix + _of_entry(entry, manifest)


def _of_entry(entry: Any, manifest: Path) -> str:
    if isinstance(entry, str) and entry:
        return entry
    if isinstance(entry, dict):
        for field in _FIELDS:
            if isinstance(entry.get(field), str) and entry[field]:
                return str(entry[field])
    raise UsageMistake(
        f"The manifest {manifest} has an entry that names no file: {json.dumps(entry)[:80]}. An entry is a path, or "
        f"an object with a field {' or '.join(map(repr, _FIELDS[:2]))}."
    )


def _of_csv(manifest: Path, text: str) -> Iterator[str]:
    rows = csv.reader(text.splitlines())
    header = next(rows, [])
    chosen = next(
        (i for name in _FIELDS for i, each in enumerate(header) if each.strip().lower() == name), None
    )
    if chosen is None and header and header[0].strip():
        yield header[0].strip()  # no header, then
    for row in rows:
        if len(row) > (chosen or 0) and row[chosen or 0].strip():
            yield row[chosen or 0].strip()


def _parsed(text: str, where: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise UsageMistake(f"{where} is no JSON: {error}.") from error
