"""The releases of other libraries that are tested: the table of docs/stability.md, and what the nightly job needs.

python tools/versions.py                                 write the table anew
python tools/versions.py --legs                          the nightly job's matrix, as JSON
python tools/versions.py --pins onnxruntime oldest       constraints: the library's oldest release, others as pinned
python tools/versions.py --packages onnxruntime          what to install for its tests
python tools/versions.py --tests onnxruntime             which tests
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "stability.md"
LIBRARIES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "versions.toml").read_text())
BY_NAME = {name: library for group in LIBRARIES.values() for name, library in group.items()}
_NAME = re.compile(r"[\w-]+")
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
PYTHONS = {"oldest": "3.11", "latest": "3.13"}  # old releases have no wheels for new versions of Python


def table() -> str:
    """Return the table of the page."""
    lines = ["| | library | extra | oldest | newest |", "|---|---|---|---|---|"]
    for group, libraries in LIBRARIES.items():
        for name, it in libraries.items():
            extra = f"`{it['extra']}`" if "extra" in it else "none: it is always there"
            lines.append(f"| {group} | {name} | {extra} | {it['oldest']} | {it['newest']} |")
            group = ""
    return "\n".join(lines)


def page_with(text: str) -> str:
    """Return the text of the page with the table of today."""
    return re.sub(r"^\| \| library \|.*?\n(?!\|)", lambda _: table() + "\n", text, count=1, flags=re.M | re.S)


def oldest_of(name: str) -> str:
    """Return the oldest minor release of a library as pip writes it: its last correction is tried.

    >>> oldest_of("pyarrow"), oldest_of("keras")
    ('20.0.*', '3.12.1')
    """
    oldest: str = BY_NAME[name]["oldest"]
    return {0: f"{oldest}.0.*", 1: f"{oldest}.*"}.get(oldest.count("."), oldest)


def pins(name: str, release: str) -> str:
    """Return constraints.txt with the library's oldest release, or without its pin if the latest is wanted."""
    asked = {name: f"{name}=={oldest_of(name)}" if release == "oldest" else ""}
    if release == "oldest":
        older = BY_NAME[name].get("older", "").split()
        asked |= {_NAME.match(pin)[0]: pin for pin in older}  # type: ignore[index]
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in pinned if line.partition("==")[0] not in asked]
    return "\n".join([*kept, *filter(None, asked.values())]) + "\n"


def packages(name: str) -> list[str]:
    """Return what to install for the tests of a library: Headrace with its extra, and what they need besides."""
    it = BY_NAME[name]
    extras = ",".join(each for each in (it.get("extra"), it.get("extras")) if each)
    return ["-e", f".[{extras}]" if extras else ".", *it.get("also", "").split(), *TOOLS]


def legs() -> list[dict[str, str]]:
    """Return the nightly job's matrix: each library with its oldest release, and with the latest on the index."""
    return [
        {"library": name, "release": release, "python": PYTHONS[release]}
        for name in BY_NAME
        for release in PYTHONS
    ]


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            PAGE.write_text(page_with(PAGE.read_text()))
        case ["--legs"]:
            print(json.dumps(legs()))
        case ["--pins", name, release]:
            print(pins(name, release), end="")
        case ["--packages", name]:
            print(*packages(name))
        case ["--tests", name]:
            print(BY_NAME[name]["tests"])
        case _:
            sys.exit(__doc__)
