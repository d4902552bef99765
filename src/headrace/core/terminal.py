"""What people read: the one place that writes to terminals and logs, warns, and shows control characters.

A terminal obeys what is printed: some characters move its cursor, set its title, use its clipboard or turn text
around. Rows, names of columns and files, and the words of exceptions may hold them, so they are shown as Python
writes them in a literal, such as ``\\x1b``. What the user's own functions print is passed on as it is.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
import warnings
from itertools import count
from typing import TextIO

_UNSEEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tab and newline
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # without width
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # without width, ends of lines, directions of writing
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff"  # surrogates, which no encoding has
    "]"
)
_BREAKS = re.compile(r"[\t\n]")
_ADDRESS = re.compile(r"(?<=[^ ]) ([^ ]*/(?!s\b).*)")  # but for that of a speed
_GOES_ON = re.compile(r"[.,:;)] |\.$")  # a sentence behind an address
_NAMED = re.compile(r" *[^ ]+(?: [^ ]+)? {2,}(?=[^ ])")  # of a list of names and what belongs to each
_USUAL = (80, 24)  # columns and lines


def visible(text: str) -> str:
    r"""Return text without characters that a terminal obeys or hides; lines and tabs stay.

    >>> print(visible("a\x1b[2Jb\u202ec\td"))
    a\x1b[2Jb\u202ec	d
    >>> visible(visible("\x07")) == visible("\x07")
    True
    """
    return _UNSEEN.sub(_literal, text)


def one_line(text: str) -> str:
    r"""Return a name or a value from the data, fit for a line of ours: without ends of lines, too.

    >>> print(one_line("fare\nreport: /tmp/x\x9b"))
    fare\nreport: /tmp/x\x9b
    """
    return _BREAKS.sub(_literal, visible(text))


def json_visible(text: str) -> str:
    """Return JSON that means the same, in characters that show."""
    return _UNSEEN.sub(_json_literal, text)


def encodable(text: str) -> str:
    r"""Return text that every UTF-8 file takes: surrogates, which come alone, are written out.

    >>> encodable("caf\xe9 \udcff") == "caf\xe9 \\udcff"
    True
    """
    return str.encode(text, "utf-8", "backslashreplace").decode()


def say(text: str, stream: TextIO | None, *, lead: str = "", end: str = "\n") -> None:
    """Write to a stream what people read; ``lead`` goes before it as it is. None is a stream that is not there.

    Raises what the stream raises but for ``UnicodeEncodeError``: what its encoding lacks is written out.
    """
    if stream is None:
        return
    whole = f"{lead}{visible(text)}{end}"
    try:
        stream.write(whole)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(whole.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def wrapped(text: str, columns: int) -> str:
    r"""Return lines of ours that fit a terminal: a longer one goes on in the next, behind a comma if there is one.

    One that ends with an address is broken only before that, so that people can copy it as a whole. What belongs to
    a name before it stays behind that.

    >>> print(wrapped("workers: 63 % predict(Fare), 16 % loading models, 14 % starting", 40))
    workers: 63 % predict(Fare),
      16 % loading models, 14 % starting
    >>> print(wrapped("1 file, 79.3 KiB in /home/you/predictions of May", 30))
    1 file, 79.3 KiB in
      /home/you/predictions of May
    >>> print(wrapped("  time     31 % starting workers, 27 % waiting", 40))
      time     31 % starting workers,
               27 % waiting
    >>> print(wrapped("The output /home/you/predictions is unfinished. Run the same command again.", 40))
    The output /home/you/predictions is
      unfinished. Run the same command
      again.
    """
    return "\n".join(part for line in text.split("\n") for part in _wrapped(line, columns))


def _wrapped(line: str, columns: int) -> list[str]:
    found, rest = list[str](), line
    if len(rest) <= columns:
        return [rest]
    named = _NAMED.match(rest)
    first = named.end() if named else 0
    behind = " " * first or "  "
    address = _ADDRESS.search(rest, first)
    if address and not _GOES_ON.search(address[1]):
        return [*_wrapped(rest[: address.start()], columns), f"{behind}{address[1]}"]
    while len(rest) > columns:
        ends = [match.start() for match in re.finditer(r"(?<=[^ ]) ", rest) if match.start() >= first]
        fitting = [end for end in ends if end <= columns]
        commas = [end for end in fitting if rest[end - 1] in ",;:)" and end > columns // 2]
        if not ends:
            break
        end = max(commas or fitting or ends[:1])
        found.append(rest[:end])
        rest = f"{behind}{rest[end + 1 :]}"
        first = len(behind)
    return [*found, rest]


def fitting(text: str, stream: TextIO | None, *, lead: int = 0) -> str:
    """Return lines of ours as a stream gets them: wrapped, if it is a terminal. ``lead``: columns before them."""
    try:
        is_terminal = stream is not None and stream.isatty()
    except (ValueError, AttributeError):
        is_terminal = False
    return wrapped(" " * lead + text, size_of(stream)[0])[lead:] if is_terminal else text


def width(text: str) -> int:
    """Return how many columns a terminal needs for a line: Chinese and emoji take two, combining marks none.

    >>> width("fare"), width("東京"), width("e\u0301")
    (4, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(map(_width_of_one, text))


def _width_of_one(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Return a line that is not wider than that: what does not fit is left out, and an ellipsis stands for it.

    >>> cut("a long name", 7), cut("東京都", 5)
    ('a long…', '東京…')
    """
    if width(text) <= columns:
        return text
    taken = 0
    for i, char in enumerate(text):
        taken += _width_of_one(char)
        if taken > columns - 1:
            return text[:i] + "…" * min(columns, 1)
    return text


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Return a line of that width: cut, or with spaces behind it, or before it if it is to the ``right``."""
    text = cut(text, columns)
    space = " " * (columns - width(text))
    return space + text if right else text + space


def size_of(stream: TextIO | None) -> tuple[int, int]:
    """Return the columns and lines of a terminal; where it does not tell, or is none, those of COLUMNS and LINES."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno()) if stream is not None else (0, 0)
    except (OSError, ValueError):
        columns, lines = 0, 0
    given = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    columns, lines = (
        found or (int(text) if text.isdecimal() else 0) or usual
        for found, text, usual in zip((columns, lines), given, _USUAL, strict=True)
    )
    return columns, lines


def in_notebook() -> bool:
    """Say whether this process is the kernel of a notebook; IPython is not imported for that."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel") and hasattr(shell, "display_pub")


def _literal(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _json_literal(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")  # JSON writes characters as UTF-16 does
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# ---------------------------------------------------------------- warnings


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost frame that is not ours."""
    for level in count(1):
        try:
            name = str(sys._getframe(level).f_globals.get("__name__", ""))
        except ValueError:  # there is none
            break
        if name != "headrace" and not name.startswith("headrace."):
            break
    warnings.warn(visible(message), category, stacklevel=level + 1)


def warn_of_pickling(column: str, kinds: str) -> None:
    """Warn that a column of Python objects leaves its process; ``kinds`` names their types."""
    warn(
        f"Column {column!r} holds Python objects ({kinds}), which are pickled where they go from one process to "
        "another. It is faster to make arrays or plain values of them in the step that makes them."
    )
