"""Values that command lines give as text: names, assignments, values, metrics. Nothing is ever evaluated."""

from __future__ import annotations

import ast
import csv
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.annex.cli.answer import UsageMistake
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


_FLAGS = tuple(
    name
    for line in (
        "batch_format batch_size batch_size_bytes batch_timeout concurrency durability engine incremental inputs",
        "keep limit max_errors max_in_flight max_retries memory memory_limit mode num_cpus num_gpus on_change",
        "on on_error output progress refresh replace retry_on shard_rows show_data trust_pickle workers",
    )
    for name in line.split()
)
_KEYWORDS = re.compile(  # not those of a call, which is for a script, nor those after -O, which are as typed
    rf"(?<![\w(])(?<!-O )({'|'.join(_FLAGS)})=('[^']*'|\[[^]]*\]|-?\w+(?:\.\w+)*|…)?"
)
_NAMES = re.compile(rf"(?<![-\w.(=])(?<!-O )({'|'.join(name for name in _FLAGS if '_' in name)})\b(?!=)")
_REJECTED = re.compile(r"(?:hr\.)?read_rejected\((['\"])(.*?)\1\)")
_STORAGE = re.compile(r"storage_options=(\{[^}]*\})")
_SWITCHES = {"True": "", "False": "no-"}


def in_flags(message: str) -> str:
    """Return a message with what one would write in a script as the flags of the command line.

    >>> in_flags("fix it, and run again with on_change='continue'.")
    'fix it, and run again with --on-change continue.'
    >>> in_flags("batch_size=0: it takes a number; lower num_gpus, or give replace=True.")
    '--batch-size 0: it takes a number; lower --num-gpus, or give --replace.'
    >>> in_flags("rejected rows: hr.read_rejected('/my fares')")
    "rejected rows: headrace rejected '/my fares'"
    """
    message = _REJECTED.sub(lambda found: f"headrace rejected {shlex.quote(found[2])}", message)
    message = _STORAGE.sub(r'--read storage_options="\1"', message)
    text = _NAMES.sub(lambda found: f"--{_dashed(found[1])}", _KEYWORDS.sub(_as_flag, message))
    for python, shell in (
        ("neither True nor False", "neither true nor false"),
        ("True or False", "true or false"),
    ):
        text = text.replace(python, shell)
    return text


def _as_flag(found: re.Match[str]) -> str:
    name, value = _dashed(found[1]), found[2] or ""
    if value in _SWITCHES:
        return f"--{_SWITCHES[value]}{name}"
    if value.startswith("["):
        value = ",".join(part.strip(" '") for part in value[1:-1].split(","))
    return f"--{name} {shlex.quote(value.strip(chr(39))) if value not in ('', '…') else value}".rstrip()


def _dashed(name: str) -> str:
    return name.replace("_", "-")


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


def choices(*words: str) -> Callable[[], list[str]]:
    """Return the completion of an option that is one of these words.

    >>> choices("resume", "overwrite")()
    ['resume', 'overwrite']
    """

    def listed() -> list[str]:
        return list(words)

    return listed


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
