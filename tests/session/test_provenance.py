"""The commit that a run's record names is that of the user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace

OURS = Path(headrace.__file__).parents[2]
SAY = "from headrace.session.provenance import git_commit; print(git_commit())"
COMMITS = {"user": "a" * 40, "other": "b" * 40}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A repository of the user's, another one, and a folder in none; each holds the same program."""
    found = {name: tmp_path / name for name in ("user", "other", "none", "site-packages")}
    for name, folder in found.items():
        folder.mkdir()
        (folder / "job.py").write_text(SAY)
        if name in COMMITS:
            (folder / ".git").mkdir()
            (folder / ".git" / "HEAD").write_text(COMMITS[name])
    found["ours"] = OURS
    return found


@pytest.mark.parametrize(
    ("program", "cwd", "named"),
    [
        ("user", "other", "user"),
        ("user", "ours", "user"),
        ("none", "ours", None),
        ("none", "other", None),  # a program in no repository is of none
        ("site-packages", "other", None),
        ("-c", "user", "user"),
        ("-c", "none", None),
        ("-c", "ours", None),
    ],
)
def test_the_commit_is_of_the_program(
    places: dict[str, Path], program: str, cwd: str, named: str | None
) -> None:
    words = ["-c", SAY] if program == "-c" else [str(places[program] / "job.py")]
    done = subprocess.run(
        [sys.executable, *words], cwd=places[cwd], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (COMMITS[named] if named else "")


@pytest.mark.parametrize(("cwd", "named"), [("user", "user"), ("none", None), ("ours", None)])
def test_the_command_line_belongs_to_the_working_directory(
    places: dict[str, Path], cwd: str, named: str | None
) -> None:
    """As for ``headrace predict module:function``, whose program is the installed command."""
    code = (
        "import sys; from pathlib import Path; from headrace.session import invocation\n"
        "sys.argv[0] = str(Path(sys.prefix) / 'bin' / 'headrace')\n"
        f"with invocation.running(['predict']): {SAY}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=places[cwd], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (COMMITS[named] if named else "")
