"""The commands on the page about the command line run, in their order, and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
_BLOCK = re.compile(r"^```(python|text|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def plain(line: str, place: Path) -> str:
    """Without what differs from one machine, or run, to the next."""
    line = line.replace(f"{place}/", "")
    line = re.sub(r"\brun [a-z0-9]{8}\b", "run …", line)
    return re.sub(r"\b[\d.]+ (B|[KMG]iB)\b", "some bytes", line).rstrip()


def test_the_page(script: Callable[..., Any], tmp_path: Path) -> None:
    found = _BLOCK.findall(PAGE.read_text())
    made = script("\n".join(text for kind, text in found if kind == "python"))
    assert made.code == 0, made.err
    commands = "\n".join(text for kind, text in found if kind == "sh")
    shell = f'set -e\nmillrace() {{ "{sys.executable}" -m millrace "$@"; }}\n{commands}'
    env = {**os.environ, "MILLRACE_WORKERS": "2", "MILLRACE_PROGRESS": "1"}
    done = subprocess.run(
        ["bash", "-c", shell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=env,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    printed = {plain(line, tmp_path) for line in done.stdout.splitlines()}
    for line in "".join(text for kind, text in found if kind == "text").splitlines():
        assert plain(line, tmp_path) in printed, f"{line}\n\n{done.stdout}"
