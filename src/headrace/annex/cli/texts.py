"""Values that command lines give as text: names, values, metrics, lists of inputs. None is evaluated."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from headrace.annex.cli.answer import UsageMistake
from headrace.core.files.artifacts import from_json
from headrace.errors import nearest


def names(option: str, texts: Sequence[str] | None) -> list[str] | None:
    """Return names that were given apart by commas, or one by one; a name with a comma stands in quotes.

    >>> names("--inputs", ["km,hour", "day"]), names("--inputs", ['"a,b",c'])
    (['km', 'hour', 'day'], ['a,b', 'c'])
    """
    if not texts:
        return None
    found = [name.strip() for row in csv.reader(texts, skipinitialspace=True) for name in row]
    if not all(found) or not found:
        raise UsageMistake(f"{option} {' '.join(texts)}: there is an empty name. Write {option} a,b.")
    return found


def value_of(text: str) -> Any:
    """Return a value of Python's, such as a number, a list or None; what is none of that is text.

    >>> [value_of(text) for text in ("3", "0.5", "true", "none", "[1, 2]", "cuda:0", "'7'")]
    [3, 0.5, True, None, [1, 2], 'cuda:0', '7']
    """
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def in_shell(words: Sequence[str]) -> str:
    """Return words as one would type them; what a terminal would obey, not show, is spelled out.

    >>> print(in_shell(["-o", "my fares", "\x1b[2Jrm"]))
    -o 'my fares' $'\\x1b[2Jrm'
    """
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_spelled, word))}'" for word in words
    )


def _spelled(char: str) -> str:
    """Return a character as it stands in the shell's ``$'…'``."""
    code = ord(char)
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    if code < 0x80 or 0xDC80 <= code <= 0xDCFF:  # the latter stand for bytes that are not text
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def argument(name: str, help: str) -> Any:
    """Return an argument of a command: what its help calls it, and says of it."""
    return typer.Argument(metavar=name, help=help, show_default=False)


def flag(
    named: str,
    help: str,
    *,
    panel: str | None = None,
    one_of: str | Callable[[], Iterable[str]] = "",
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Return an option of a command, ``named`` as one types it: ``--workers -w N``; a switch takes nothing.

    ``panel``: the heading that it stands under. ``one_of``: the words that it may be, or a function that lists them,
    as a shell completes it. ``least`` and ``most``: of a number.
    """
    names = [word for word in named.split() if word.startswith("-")]
    takes = named.split()[len(names) :]

    def complete(incomplete: str) -> list[str]:
        words = one_of.split() if isinstance(one_of, str) else one_of()
        return [word for word in words if word.startswith(incomplete)]

    return typer.Option(
        *names,
        metavar=takes[0] if takes else None,
        help=help,
        rich_help_panel=panel,
        show_default=False,
        min=least,
        max=most,
        autocompletion=complete if one_of else None,
    )


def assignments(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Return what was given as ``name=value``.

    >>> assignments("-O", ["max-errors=3"])
    {'max_errors': '3'}
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise UsageMistake(f"{option} {text}: give {option} name=value.")
        found[name] = value.strip()
    return found


def options(option: str, texts: Iterable[str] | None) -> dict[str, Any]:
    """Return what was given as ``name=value``, as values of Python's."""
    return {name: value_of(text) for name, text in assignments(option, texts).items()}


def metric(text: str) -> tuple[str, Any]:
    """Return the name and the metric that a text such as ``auc=AUROC(label=y, score=s)`` has.

    >>> metric("auc=AUROC(label=y, score=fare)")
    ('auc', AUROC(label='y', score='fare', ...))
    >>> metric("by_city=By(city, Mean(fare))")
    ('by_city', By('city', Mean(column='fare')))
    """
    name, equals, call = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise _no_metric(text, "it takes a name and a metric")
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _no_metric(text, "it is not a metric") from None
    if not isinstance(tree, ast.Call):
        raise _no_metric(text, "it is not a metric with its columns in parentheses")
    return name.strip(), _made(tree, text)


def _made(call: ast.Call, text: str) -> Any:
    """Make a metric of ours; names that stand alone are names of columns."""
    from headrace.accumulators import METRICS

    kind = call.func.id if isinstance(call.func, ast.Name) else ast.unparse(call.func)
    metric = METRICS.get(kind) if kind != "TorchMetric" else None
    if metric is None:
        known = [each for each in METRICS.names() if each != "TorchMetric"]
        raise _no_metric(
            text, f"there is no metric {kind!r}.{nearest(kind, known)} There are {', '.join(known)}"
        )
    args = [_argument(each, text) for each in call.args]
    kwargs = {}
    for each in call.keywords:
        if each.arg is None:
            raise _no_metric(text, "** is not allowed here")
        kwargs[each.arg] = _argument(each.value, text)
    try:
        return metric(*args, **kwargs)
    except TypeError as error:
        raise _no_metric(text, str(error)) from None


def _argument(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return _made(node, text)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _no_metric(
            text, f"{ast.unparse(node)!r} is neither a column's name nor a plain value"
        ) from None


def _no_metric(text: str, why: str) -> UsageMistake:
    return UsageMistake(
        f"--metric {text!r}: {why.rstrip('.')}. Write, for example, --metric 'auc=AUROC(label=y, score=s)'."
    )


def output_of(path: Path) -> str:
    """Return an output as it was given: paths lose a slash of an address.

    >>> output_of(Path("s3://bucket/out")), output_of(Path("out"))
    ('s3://bucket/out', 'out')
    """
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])", r"\1://", os.fspath(path))


# ----------------------------------------------------------------
# A manifest: a file that lists the inputs, in the form of batch services. Its paths are relative to its folder. It is
# - text, one path per line; lines that begin with ``#`` are comments
# - or JSON, a list of paths; its first entry may be ``{"prefix": "folder/"}``, which stands before all others
# - or JSON lines, objects with one of the fields ``path``, ``file``, ``uri``, ``url`` or ``input``
# - or CSV with a header, one of whose columns has such a name; else the first column counts

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
