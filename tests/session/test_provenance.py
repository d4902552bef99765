"""The commit that a run's record names is that of the user's program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import headrace
from headrace.session import invocation
from headrace.session.provenance import git_commit

OURS = Path(headrace.__file__).parents[2]
COMMITS = {"user": "a" * 40, "other": "b" * 40}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A repository of the user's, another one, and a folder in none."""
    found = {name: tmp_path / name for name in ("user", "other", "none", "site-packages")}
    for name, folder in found.items():
        folder.mkdir()
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
    places: dict[str, Path], program: str, cwd: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places[cwd])
    monkeypatch.setattr(sys, "argv", ["-c"] if program == "-c" else [str(places[program] / "job.py")])
    assert git_commit() == (COMMITS[named] if named else "")


@pytest.mark.parametrize(("cwd", "named"), [("user", "user"), ("none", None), ("ours", None)])
def test_the_command_line_belongs_to_the_working_directory(
    places: dict[str, Path], cwd: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for ``headrace predict module:function``, whose program is the installed command."""
    monkeypatch.chdir(places[cwd])
    monkeypatch.setattr(sys, "argv", [str(Path(sys.prefix) / "bin" / "headrace")])
    with invocation.running(["predict"]):
        assert git_commit() == (COMMITS[named] if named else "")
