"""However a program is started, workers find its functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .data import numbers


@pytest.fixture
def script(script: Callable[..., Any]) -> Callable[..., Any]:
    """How programs start is looked at, so a script is a new interpreter."""
    return partial(script, fresh=True)


BODY = """
import headrace as hr
from headrace.sources.range import RangeSource

OFFSET = 5

def add(batch, more):
    import os
    return {"x": batch["id"] + OFFSET + more, "pid": [os.getpid()] * len(batch["id"])}

data = hr.Dataset.from_source(RangeSource(400, rows_per_split=100)).with_options(shard_rows=100)
many = 10
rows = data.map_batches(add, fn_args=[many]).map(lambda row: {**row, "y": row["x"] + many}).take_all()
import os
assert [row["y"] for row in rows] == [i + 25 for i in range(400)], rows[:3]
assert os.getpid() not in {row["pid"] for row in rows}
print("fine")
"""


@pytest.mark.parametrize("how", ["script", "stdin", "module", "other folder", "thread"])
def test_without_a_main_guard(script: Callable[..., Any], tmp_path: Path, how: str) -> None:
    if how == "script":
        ended = script(BODY)
    elif how == "stdin":
        ended = script("", command=["-"], stdin=BODY)
    elif how == "module":
        (tmp_path / "job.py").write_text(BODY)
        ended = script("", command=["-m", "job"])
    elif how == "other folder":
        (tmp_path / "else").mkdir()
        (tmp_path / "job.py").write_text(BODY)
        ended = script("", command=["../job.py"], cwd=tmp_path / "else")
    else:
        body = BODY.replace("\n", "\n    ")
        ended = script(
            f"import threading\ndef main():{body}\nt = threading.Thread(target=main)\nt.start()\nt.join()\n"
        )
    assert (ended.code, ended.out, ended.err) == (0, "fine\n", "")


def test_functions_of_the_users_own_modules(script: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "models.py").write_text(
        "import weights\nclass Model:\n"
        "    def __init__(self):\n        self.w = weights.W\n"
        "    def __call__(self, batch):\n        return {'x': batch['id'] * self.w}\n"
    )
    (tmp_path / "lib" / "weights.py").write_text("W = 3\n")
    ended = script(
        """
        import os, sys
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
        import headrace as hr
        from models import Model
        from headrace.sources.range import RangeSource

        data = hr.Dataset.from_source(RangeSource(400, rows_per_split=100)).with_options(shard_rows=100)
        print(data.map_batches(Model).take_all()[-1], data.map(lambda row: {"cwd": os.getcwd()}).take_all()[0])
        """
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{{'x': 1197}} {{'cwd': '{tmp_path}'}}\n"


def test_workers_see_the_environment_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "42")

    def secret(batch: Any) -> Any:
        import os

        return {"secret": [os.environ["A_SECRET"]], "executable": [sys.executable]}

    rows = numbers(200).map_batches(secret).with_options(engine="local").take_all()
    assert rows == [{"secret": "42", "executable": sys.executable}] * 2


def test_the_installed_interpreter_alone_is_enough(script: Callable[..., Any]) -> None:
    """No PYTHONPATH, no folder of the script, no site of the user: `python -I`."""
    ended = script("", command=["-I", "-c", BODY])
    assert (ended.code, ended.out, ended.err) == (0, "fine\n", "")
