"""Where a table of a lake lies: what a user gave, brought into the form of a place, and files below it.

Apart from ``tables``, as verbs need it while nothing has imported pyarrow yet.
"""

from __future__ import annotations

import os
import re
from typing import Any

from headrace.core.files.storage import given
from headrace.core.stores.addresses import parse_output, scheme_of, with_anonymous
from headrace.errors import ArgumentError, SourceError

_OUTPUT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def given_table(uri: Any, verb: str, options: Any) -> tuple[str, Any]:
    """Return the full path, or the address, of a table, and its ``storage_options`` with what the address says.

    >>> given_table("/data/../sales/", "read_delta", None)
    ('/sales', None)
    >>> given_table("s3a://anonymous@lake/sales/", "read_delta", None)
    ('s3://lake/sales', {'anonymous': True})
    """
    if not isinstance(uri, (str, os.PathLike)) or not str(os.fspath(uri)):
        raise ArgumentError(f"{verb}: a table is given by its folder or its address, not by {uri!r}.")
    table = given(str(os.fspath(uri)), "The folder of a table", parse_output)
    return table.path.rstrip("/") or "/", with_anonymous(options) if table.options else options


def given_output(output: Any, verb: str) -> str:
    """Return the name of the folder that a run has in a table."""
    if not isinstance(output, str) or _OUTPUT.fullmatch(output) is None:
        raise ArgumentError(
            f"{verb}: output= is the name of the folder that the run has in the table, of letters, digits, '.', '_' "
            f"and '-', such as '2026-11-22', not {output!r}."
        )
    return output


def within(table: str, name: str) -> str:
    """Return the path or address of what lies in a table.

    >>> within("s3://lake/sales", "run/part"), within("/", "run")
    ('s3://lake/sales/run/part', '/run')
    """
    return f"{table.rstrip('/')}/{name}"


def inside(table: str, path: str, what: str) -> str:
    """Return where a file lies that a table names by a path from its own folder on, which may have marks (``%20``).

    Raises ``SourceError`` for a file outside of the table, such as ``../x`` or ``/x``: a table is read that somebody
    else may have made, and what it names is read with the rights of whoever reads it.

    >>> inside("s3://lake/sales", "day=a%20b/1.parquet", "The table t")
    's3://lake/sales/day=a b/1.parquet'
    >>> inside("/sales", "%2e%2e/x", "The table t")
    Traceback (most recent call last):
    headrace.errors.SourceError: The table t names a file outside its own folder, '%2e%2e/x', ...
    """
    from urllib.parse import unquote

    name = unquote(path)
    if scheme_of(name) or name.startswith(("/", "file:")) or os.pardir in name.split("/"):
        raise SourceError(
            f"{what} names a file outside its own folder, {path!r}, as shallow clones do. Headrace does not read "
            "that: make a copy of the table with all its files (a deep clone), and read that."
        )
    return within(table, name)


def place_of(location: str) -> str:
    """Return the path or the address that a catalogue's location means.

    >>> place_of("file:///lake/shop/sales/"), place_of("s3a://lake/sales")
    ('/lake/shop/sales', 's3://lake/sales')
    """
    text = location.rstrip("/")
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    scheme = scheme_of(text)
    if not scheme:
        return os.path.abspath(text)
    try:
        return str(parse_output(text)).rstrip("/")
    except ArgumentError as error:
        raise SourceError(
            f"The table lies at {text}, and Headrace reads tables in folders and in s3://, gs:// and abfs://."
        ) from error
