"""Every block of code on the pages for users runs, in order, and prints what the page shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import forked
import headrace as hr

from .given import GIVEN, Given
from .pages import ROOT, RUN, Block, blocks, pages

PAGES = [page for page in pages() if any(blocks(page))]
AT_MOST_NOT_RUN = 13
HOME = "/home/you"
_ONLY_SHOWN = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}

_CONSOLE = """
import os, re, subprocess

def console(text):
    for command in re.findall(r"^\\$ (.*?)(?:  +#.*)?$", text, re.M):
        if not re.match(r"(pip|make|cd|git) ", command):
            subprocess.run(command, shell=True, executable="/bin/bash", check=True)

def shell(text):
    subprocess.run(["/bin/bash", "-ec", text], check=True)

def file(name, text):
    with open(name, "w") as to:
        to.write(text)
"""


def program(page: Path, *, for_ray: bool = False, for_spark: bool = False) -> str:
    """Return the program of a page, each block on the lines on which the page has it."""
    given = GIVEN.get(page.name, Given())
    lines = ["from the_console import console, file, shell; from given import *"]
    for block in blocks(page):
        if block.why_not or block.kind not in ("python", "sh", "console"):
            continue
        if block.for_ray != for_ray or block.for_spark != for_spark:
            continue
        text = block.text
        for word, other in given.instead.items():
            text = text.replace(word, other)
        if block.kind == "console":
            text = f"console({text!r})"
        elif block.kind == "sh":
            text = f"shell({text!r})"
        elif block.file:
            text = f"file({block.file!r}, {text!r})"
        elif for_ray:
            text = with_our_words(text)
        lines += [""] * (block.line - len(lines))
        lines += text.rstrip("\n").split("\n")
    return "\n".join(lines)


def with_our_words(text: str) -> str:
    """Return a program for Ray with the one change that makes it ours: another import."""
    text = re.sub(r"^import ray.data$", "import headrace as hr", text, flags=re.MULTILINE).replace(
        "ray.data.", "hr."
    )
    text = re.sub(r"^import ray$", "from headrace.compat import ray", text, flags=re.MULTILINE)
    return re.sub(r"^from ray\.", "from headrace.compat.ray.", text, flags=re.MULTILINE)


def ended(folder: Path, given: Given, text: str, names: str) -> list[str]:
    """Run a program in ``folder`` and return the lines that it and its commands printed, in order."""
    (folder / "given.py").write_text(names)
    (folder / "the_console.py").write_text(_CONSOLE)
    (folder / "page.py").write_text(text)
    tools, workers = folder / ".bin", given.engine == "local"
    tools.mkdir(exist_ok=True)
    for name, arguments in {"python": "", "python3": "", "headrace": "-m headrace"}.items():
        line = forked.command(tools, arguments, also=given.imports, workers=workers)
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    env = {
        **os.environ,
        "HEADRACE_ENGINE": given.engine,
        "HEADRACE_PROGRESS": "1",
        "HEADRACE_WORKERS": str(given.workers),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
    }
    done = forked.run(
        [sys.executable, "page.py"],
        also=given.imports,
        workers=workers,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def on_any_machine(line: str) -> str:
    """Return a line without what depends on the machine, on its speed, and on chance."""
    line = line.replace(" (more workers than cores)", "")
    line = re.sub(r"^workers: \d+ % .*", "workers: what they did", line)
    line = re.sub(r"^\d+ files?, ", "some files, ", line)  # an idle worker makes one of what another has left
    line = re.sub(r"^memory +[\d.]+ [MGT]iB", "memory", line)
    # A driver that is killed at once may have committed nothing; then nothing is said of an earlier run.
    line = re.sub(r" \([\d,]+ of them read before, by an earlier run\); [\d,]+ now\b", "", line)
    line = re.sub(r"\b[\d.]+ (worker|thread|core)s?\b", r"some \1", line)
    line = re.sub(r"\b[\d.,]+ ([kM] )?rows/s", "some rows/s", line)
    line = re.sub(r"\b[\d.,]+ (s|ms|min|%|[KMG]iB)(?!\w)", r"some \1", line)
    line = re.sub(r"\bbatches of [\d,]+( to [\d,]+)? rows\b", "batches", line)
    line = re.sub(r"\brun ([a-km-z2-9]{8}|…)", "run RUN", line.replace(f"{HOME}/", ""))
    line = re.sub(r"(part-[\d.]+-|_headrace/)[a-km-z2-9]{8}\b", r"\1RUN", line)
    return " ".join(line.split())


def shown(block: Block) -> list[str]:
    """Return the lines that a block says are printed."""
    lines = block.text.splitlines()
    return [
        line for line in lines if line.strip() and not (block.kind == "console" and line.startswith("$ "))
    ]


@pytest.mark.site
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_run(page: Path, tmp_path: Path) -> None:
    text = program(page)
    if len(text.splitlines()) < 2:
        return
    given = GIVEN.get(page.name, Given())
    given.files(tmp_path)
    text = f"{text}\n{given.last}"
    printed = [
        on_any_machine(line.replace(str(tmp_path), HOME))
        for line in ended(tmp_path, given, text, given.names)
    ]
    at = 0
    for block in blocks(page):
        if block.why_not or block.kind not in ("text", "console"):
            continue
        for line in shown(block):
            wanted = on_any_machine(line)
            assert wanted in printed[at:], "\n".join(
                [f"{page.name}: line {block.line}: {line!r} is not printed after line {at} of:", *printed]
            )
            at = printed.index(wanted, at) + 1


@pytest.mark.site
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.for_ray for block in blocks(page))],
    ids=lambda page: page.name,
)
def test_programs_for_ray_run_with_our_words(page: Path, tmp_path: Path) -> None:
    given = GIVEN[page.name]
    given.files(tmp_path)
    printed = ended(tmp_path, given, program(page, for_ray=True), given.for_ray)
    first = next(block for block in blocks(page) if block.kind == "text")
    assert set(first.text.splitlines()) <= set(printed)


def test_programs_for_spark_run_with_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    page = ROOT / "docs" / "coming-from-spark.md"
    given = GIVEN[page.name]
    given.files(tmp_path)
    printed = ended(tmp_path, given, program(page, for_spark=True), given.names)
    first = next(block for block in blocks(page) if block.kind == "text")
    assert any(first.text.strip() in line for line in printed), printed
    assert printed[-1].endswith("4000")


def test_few_blocks_are_not_run_and_say_why() -> None:
    left_out = [(page, block) for page in PAGES for block in blocks(page) if block.why_not]
    assert len(left_out) <= AT_MOST_NOT_RUN
    for page, block in left_out:
        if block.kind == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_has_a_kind(page: Path) -> None:
    assert page.read_text().count("\n```") == 2 * len(list(blocks(page))), "a fence that nothing closes"
    for block in blocks(page):
        if block.kind in _ONLY_SHOWN:
            _ONLY_SHOWN[block.kind](block.text)
        else:
            assert block.why_not or block.kind in RUN, f"line {block.line}: what is this?"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples/kubernetes").glob("*.yaml")), ids=lambda path: path.name
)
def test_an_example_for_kubernetes_is_one(path: Path) -> None:
    assert {"apiVersion", "kind", "spec"} <= yaml.safe_load(path.read_text()).keys()


def test_commands_are_there() -> None:
    """Targets of make, and extras of the package, that the pages name."""
    project = (ROOT / "pyproject.toml").read_text()
    extras = set(re.findall(r"^([a-z-]+) = \[", project, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        for named in re.findall(r"(?:headrace|\.)\[([a-z,-]+)\]", text):
            assert set(named.split(",")) <= extras, page
        for named in re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE):
            assert named in targets, page


def test_the_table_of_verbs_has_them_all() -> None:
    table = (ROOT / "docs/reference/index.md").read_text().partition("at a glance")[2]
    shown = set(re.findall(r"`(\w+)`", table))
    verbs = {name for name in dir(hr.Dataset) if not name.startswith("_")}
    makers = {name for name in dir(hr) if name.startswith(("read_", "from_", "range"))}
    assert shown >= verbs | makers, sorted((verbs | makers) - shown)
    known = verbs | makers | {"load_model"}
    assert shown <= known, sorted(shown - known)
