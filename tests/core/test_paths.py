"""Paths that no file can have, and a present folder that is gone: our errors, in every verb and command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError

VERBS: dict[str, Callable[[str], Any]] = {
    "write_csv": lambda path: hr.range(3).with_options(engine="inline", progress=False).write_csv(path),
    "verify": hr.verify,
    "read_parquet": lambda path: hr.read_parquet(path).schema(),
    "read_csv": lambda path: hr.read_csv(path).schema(),
    "read_json": lambda path: hr.read_json(path).schema(),
    "read_text": lambda path: hr.read_text(path).schema(),
    "read_binary_files": lambda path: hr.read_binary_files(path).schema(),
    "read_rejected": lambda path: hr.read_rejected(path).schema(),
    "load_model": lambda path: hr.load_model(f"{path}.onnx"),
}
ODD = {"nul": "a\0b", "long": "n" * 300, "surrogate": "a\ud800"}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ODD)
def test_a_path_that_no_file_has_is_our_error(tmp_path: Path, verb: str, name: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        VERBS[verb](f"{tmp_path}/{ODD[name]}")
    assert "\n" not in str(caught.value)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    hr.range(3).with_options(engine="inline", progress=False).write_csv(tmp_path / "good")
    return tmp_path / "good"


def test_an_output_whose_name_is_not_utf8_is_written_and_verified(tmp_path: Path, good: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    VERBS["write_csv"](odd)
    assert hr.verify(odd).good and VERBS["write_csv"](odd).resumed
    shutil.copytree(good, f"{odd}2")
    assert hr.verify(f"{odd}2").good


@pytest.mark.parametrize("verb", ["read_csv", "read_binary_files", "read_text"])
def test_an_input_whose_name_is_not_utf8_is_refused_by_its_name(tmp_path: Path, verb: str) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")
    Path(odd).write_text("a\n1\n")
    with pytest.raises(HeadraceError, match="is not UTF-8"):
        VERBS[verb](odd)


@pytest.mark.parametrize("verb", VERBS)
def test_in_a_folder_that_was_removed(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(HeadraceError, match="was removed"):
        VERBS[verb]("relative")
    assert hr.verify(good).good


@pytest.mark.annex
def test_commands(tmp_path: Path, good: Path) -> None:
    (tmp_path / "gone").mkdir()
    lines = "\n".join(
        f"{sys.executable} -m headrace {words}; echo code $?"
        for words in (
            f"verify {good}",
            "verify good",
            "status good",
            f"run {tmp_path}/job.py",
            f"inspect {tmp_path}/{'n' * 300}",
        )
    )
    script = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone\n{lines}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    codes = [line for line in done.stdout.splitlines() if line.startswith("code")]
    assert codes == ["code 0", "code 2", "code 2", "code 2", "code 2"], done
    assert "Traceback" not in done.stderr and "bug in Headrace" not in done.stderr, done.stderr
