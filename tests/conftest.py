from __future__ import annotations

import doctest
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from msgspec.structs import replace

import forked
from crossed import TIMES, few
from headrace.engines.local import forks, spawner
from headrace.engines.local.spawner import Spawner, Starting
from headrace.errors import NotOffered
from headrace.session.engines import _PRELOAD
from night import at_night

pytest.register_assert_rewrite("headrace.testing")

# A shared machine has slow moments. Examples are the same in each run, and many more, and others, in the soak.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=TIMES == 1,
    max_examples=few(20),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")


# What is started in the background of a shell, by nohup or by some CI ignores signals, and so do its children.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGCHLD, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

if importlib.util.find_spec("tensorflow") is None:  # as on the newest Python for a while
    os.environ.setdefault("KERAS_BACKEND", "torch")

forks._ANSWERS_WITHIN = 300.0  # a busy machine may give it a tenth of a core
# Tests of stores and models have their own: a fork is given them, and needs no new template.
_OWN = ("AWS_", "AZURE_", "COLUMNS", "MLFLOW_", "OPENLINEAGE_", "OTEL_", "TRACEPARENT", "XDG_")
forks._FREE = (*forks._FREE, *_OWN)

# Files are in memory by day, as nothing is then waited for that is synced. Power is lost in faults/test_power.py;
# `make soak` is on the disk.
if "TMPDIR" not in os.environ and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = f"/dev/shm/tests-{os.getuid()}"
    os.makedirs(tempfile.tempdir, exist_ok=True)

# What budgets of days count lasts, and is the user's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="headrace-state-")

_USUAL = {"HEADRACE_ENGINE": "local", "HEADRACE_WORKERS": "2", "HEADRACE_PROGRESS": "0"}


ENGINE = os.environ.get("HEADRACE_TEST_ENGINE", "")  # "ray": tests that can be are carried out there


def pytest_unconfigure() -> None:
    """Remove what tests have left in the state of the user."""
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


# Where the annexes are deleted (`make core`), a test that asks for one is skipped: it imports it, or uses a name or
# a verb that it brings. One in which the core itself needs an annex fails.
ANNEXES = importlib.util.find_spec("headrace.annex") is not None
_ASKED = ("tests/", "headrace/__init__.py", "headrace/readers/__init__.py", "headrace/core/door.py")
_VERBS = re.compile(
    r"\b(write_(delta|iceberg|lance|sql|tfrecords|webdataset)|prompt|embed|join|sort|groupby|aggregate|top_k|"
    r"drop_duplicates|random_shuffle|split\w*|train_test_split|repartition)\b"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        return (yield)
    except (ModuleNotFoundError, NotOffered, doctest.UnexpectedException) as raised:
        error = raised.exc_info[1] if isinstance(raised, doctest.UnexpectedException) else raised
        if ANNEXES or not _asks_for_annex(error):
            raise
        pytest.skip(f"of an annex: {error}")


def _asks_for_annex(error: BaseException) -> bool:
    if isinstance(error, NotOffered):
        return _VERBS.search(str(error)) is not None
    named = error.name if isinstance(error, ModuleNotFoundError) else None
    if not (named or "").startswith(
        ("headrace.aggregate", "headrace.annex", "headrace.compat", "headrace.llm")
    ):
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(part in [name for name in files if "importlib" not in name][-1] for part in _ASKED)


_EXAMPLES = {"headrace.annex.queries": "duckdb"}  # modules whose examples need a library


def pytest_runtest_setup(item: pytest.Item) -> None:
    for module, library in _EXAMPLES.items():
        if isinstance(item, pytest.DoctestItem) and item.name.startswith(f"{module}."):
            pytest.importorskip(library)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Any:
    """Look for examples in docstrings only where there are some: that goes through all that a module has."""
    found = yield
    if b">>> " in file_path.read_bytes():
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect ten thousand tests without looking for garbage among them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        leave_out_of_garbage()
        gc.enable()


def leave_out_of_garbage() -> None:
    """Leave what tests and their libraries are made of out of later collections of garbage."""
    global _modules
    gc.freeze()
    _modules = len(sys.modules)


_modules = 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A test may have imported a large library: a second of each collection, of which others ask for many."""
    if len(sys.modules) > _modules + 100:
        gc.collect()
        leave_out_of_garbage()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Pass over what waits for the night, what only workers of this machine have, and annexes that are deleted."""
    unknown = at_night(items)
    if unknown and not any("::" in each for each in config.args):
        raise pytest.UsageError(f"tests/night.py names what there is not any more: {'; '.join(unknown)}")
    for item in items:
        if not ANNEXES and item.get_closest_marker("annex"):
            item.add_marker(pytest.mark.skip(reason="asks an annex"))
        if ENGINE and item.get_closest_marker("local"):
            item.add_marker(pytest.mark.skip(reason="looks at processes or memory of the engine 'local'"))


_IN_PROCESS = {
    *("accumulators", "api", "compat", "core", "formats", "interop", "media", "models"),
    *("observers", "output", "plan", "predictors", "report", "sinks", "sources", "worker"),
}


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are carried out in this process, unless a test asks for workers with ``engine="local"``.

    That is so in the rooms whose promises are the same wherever a step runs.
    """
    if _IN_PROCESS & set(request.path.relative_to(request.config.rootpath).parts):
        monkeypatch.setenv("HEADRACE_ENGINE", ENGINE or "inline")
        monkeypatch.setenv("HEADRACE_PROGRESS", "0")
        monkeypatch.setenv("HEADRACE_WORKERS", "2")


@pytest.fixture(params=[ENGINE] if ENGINE else ["inline", "local"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def template_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run finds what workers of the runs before were forked from, unless its test looks at processes.

    See ``no_template`` for files that do. One template is for all, as one alone is kept: it has imported what workers
    need whatever the plan, and what most files of tests import, in which their functions lie.
    """
    kept = spawner._kept
    if kept is not None and not kept._is_current():
        Spawner.end_kept()  # the variables were other ones, of one test or before some library was imported
    monkeypatch.setattr(spawner, "KEEP", 3600.0)
    monkeypatch.setattr(Spawner, "kept_or_new", _kept_or_new)


_OF_TESTS = (
    *("asyncio", "hypothesis.strategies", "pandas", "unittest.mock"),
    *("headrace.dataset.dataset", "headrace.testing.engines"),
)
_usual_kept_or_new = Spawner.kept_or_new


def _kept_or_new(how: Starting) -> Spawner:
    if spawner._kept is None or spawner._kept._is_current():
        how = replace(how, modules=tuple(dict.fromkeys((*how.modules, *_PRELOAD, *_OF_TESTS))))
    return _usual_kept_or_new(how)


@pytest.fixture
def no_template(template_of_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is there before a test, and none is left by a run."""
    monkeypatch.setattr(spawner, "KEEP", 0.0)
    monkeypatch.setattr(Spawner, "kept_or_new", _usual_kept_or_new)
    Spawner.end_kept()


@pytest.fixture(scope="session", autouse=ENGINE == "ray")
def ray_of_this_machine() -> Iterator[None]:
    """One for all tests. It has more cores than there may be: what is tested waits more than it works."""
    import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it showed."""

    code: int
    out: str
    err: str


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Ended]:
    """Run Python text as a script of its own, in ``tmp_path``.

    It is a fork of a process that has imported the library, and so are its workers. ``fresh``: it is a new
    interpreter, as for a test of imports or of how programs start.
    """

    def run(
        text: str, *, command: list[str] | None = None, stdin: str = "", fresh: bool = False, **where: Any
    ) -> Ended:
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(text))
        usual: dict[str, Any] = {"capture_output": True, "text": True} if fresh else {"workers": True}
        done = (subprocess.run if fresh else forked.run)(
            [sys.executable, *(command or [str(file)])],
            input=stdin,
            cwd=where.get("cwd", tmp_path),
            env={**os.environ, **_USUAL, **where.get("env", {})},
            **usual,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
