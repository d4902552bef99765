"""A pseudo-terminal and a screen, just enough of one to see what a person would see."""

from __future__ import annotations

import os
import re
import tty
from typing import TextIO

_ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
_MARK = "\x05mark\x05"


class Terminal:
    """``stream`` is what a program writes to; ``lines()`` what then stands on the screen."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        tty.setraw(slave)
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.raw = ""

    def lines(self) -> list[str]:
        """Return the lines of the screen, without blank ones at the end."""
        self.stream.write(_MARK)
        self.stream.flush()
        while not self.raw.endswith(_MARK):
            self.raw += os.read(self._master, 65536).decode()
        self.raw = self.raw.removesuffix(_MARK)
        return screen_of(self.raw)

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


def screen_of(text: str) -> list[str]:
    """Return the lines that stand on a screen of any size after so much was written."""
    rows, y, x, at = [""], 0, 0, 0
    while at < len(text):
        found = _ESCAPE.match(text, at)
        if found:
            number, what = found.groups()
            if what == "A":
                y = max(0, y - int(number or 1))
            elif what == "J":
                rows[y] = rows[y][:x]
                del rows[y + 1 :]
            elif what == "K":
                rows[y] = "" if number == "2" else rows[y][:x]
            at = found.end()
            continue
        char, at = text[at], at + 1
        if char == "\r":
            x = 0
        elif char == "\n":
            y, x = y + 1, 0
            rows += [""] * (y + 1 - len(rows))
        else:
            rows[y] = rows[y][:x].ljust(x) + char + rows[y][x + 1 :]
            x += 1
    while rows and not rows[-1].strip():
        rows.pop()
    return [row.rstrip() for row in rows]
