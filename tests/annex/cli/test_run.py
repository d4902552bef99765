"""`headrace run`, `explain` and `inspect`: scripts as Python would run them, and what is told without running."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .test_predict import rows_of

Headrace = Callable[..., Any]

READ = """
import sys
import headrace as hr

OFFSET = 5


def add(row):
    if row["id"] == 7 and "picky" in sys.argv:
        raise ValueError("not this one")
    return {**row, "more": row["id"] + OFFSET}


data = hr.read_parquet("trips/").map(add).with_options(shard_rows=100)
"""


@pytest.fixture
def job(place: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (place / "jobs").mkdir(exist_ok=True)
        (place / "jobs" / "job.py").write_text(READ + textwrap.dedent(text))
        return "jobs/job.py"

    return write


def test_a_dataset_is_written(program: Headrace, job: Any, place: Path) -> None:
    """In processes of its own: functions of a script travel to workers by value."""
    said = program("run", job("dataset = data"), "-o", "out", env={"HEADRACE_ENGINE": "local"})
    assert (said.code, said.out) == (0, ""), said.err
    assert [row["more"] for row in rows_of(place / "out")] == [i + 5 for i in range(400)]
    assert (place / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("text", "args", "code", "told"),
    [
        ("def main():\n    return data.write_parquet('out')", [], 0, ""),
        ("def main():\n    data.write_parquet('out')\nif __name__ == '__main__':\n    main()", [], 0, ""),
        ("data.write_parquet('out')", [], 0, ""),
        ("def main():\n    return data", ["-o", "out"], 0, ""),
        ("dataset = data", ["-o", "out", "--on-error", "reject", "--", "picky"], 3, ""),
        ("def main():\n    data.write_parquet('out')", ["--on-error", "reject", "--", "picky"], 3, ""),
        ("dataset = data", ["-o", "out", "--", "picky"], 1, "ValueError: not this one"),
        ("dataset = data", [], 2, "give the folder for it: -o OUT"),
        ("dataset = 3", ["-o", "out"], 2, "not one of Headrace"),
        ("x = 1", ["-o", "out"], 2, "sets no variable `dataset`"),
        ("raise SystemError('it ran')", ["-o", "out"], 2, "The script was not run"),
        ("dataset = data.write_parquet('mine')", ["-o", "out"], 1, "leave -o out"),
        ("def main():\n    data.write_parquet('mine')", ["-o", "out"], 1, "leave -o out"),
        ("import sys\nsys.exit(7)", [], 7, ""),
        ("import sys\nsys.exit('no data today')", [], 1, "no data today"),
        ("def main():\n    return 4", [], 4, ""),
        ("1/0", [], 1, "ZeroDivisionError"),
        ("def main():\n    raise KeyError('x')", [], 1, "KeyError: 'x'"),
        ("def (", [], 1, "SyntaxError"),
        ("raise KeyboardInterrupt", [], 130, ""),
        ("data.map(print, fn_arg=3)", [], 1, "UnknownArgument"),
    ],
)  # fmt: skip
def test_how_a_script_ends(
    headrace: Headrace, job: Any, place: Path, text: str, args: list[str], code: int, told: str
) -> None:
    said = headrace("run", job(text), *args)
    assert (said.code, said.out) == (code, ""), said.err
    assert told in said.err and "headrace/cli" not in said.err
    assert (place / "out" / "_SUCCESS").exists() == (
        code in (0, 3) and "write" in text + str("-o" in args and "write")
    )


def test_the_script_sees_what_python_would_give_it(headrace: Headrace, job: Any, place: Path) -> None:
    said = headrace(
        "run", job("import os\nprint([__name__, __file__, sys.path[0], *sys.argv])"), "--", "a", "-b"
    )
    assert said.out == f"{['__main__', 'jobs/job.py', str(place / 'jobs'), 'jobs/job.py', 'a', '-b']}\n"


def test_json_is_one_object_whatever_a_script_prints(program: Headrace, job: Any) -> None:
    text = "import os\nprint('chatter')\nos.system('echo more')\ndef main():\n    return data.write_parquet('out')"
    said = program("run", job(text), "--json", env={"HEADRACE_ENGINE": "local"})
    assert said.json["command"] == "run" and said.json["rows"]["written"] == 400
    assert "chatter" in said.err and "more" in said.err


def test_flags_are_defaults_for_what_a_script_makes(headrace: Headrace, job: Any) -> None:
    text = "print(hr.range(1)._options.max_errors, data._options.shard_rows)"
    said = headrace("run", job(text), "--max-errors", "3", "-O", "shard-rows=7")
    assert said.out == "3 100\n"


def test_explain_runs_nothing(headrace: Headrace, job: Any, place: Path) -> None:
    said = headrace(
        "explain", job("dataset = data\nif __name__ == '__main__':\n    data.write_parquet('out')")
    )
    assert said.code == 0 and "read → map(add) → write" in said.out and not (place / "out").exists()
    assert (
        "4 files, 400 rows"
        in headrace("explain", "fares:Fare", "trips/", "--inputs", "km", "--json").json["text"]
    )
    said = headrace("explain", job("data.write_parquet('out')\ndataset = data"))
    assert said.code == 1 and "only to get its dataset" in said.err and not (place / "out").exists()
    assert headrace("explain", job("x = 1")).code == 2


def test_inspect_tells_schema_rows_and_cuts(headrace: Headrace, place: Path) -> None:
    found = headrace("inspect", "trips/", "--json", "--rows", "2").json
    assert (found["files"], found["rows"], found["format"], len(found["sample"])) == (4, 400, "parquet", 2)
    assert [(each["name"], each["type"]) for each in found["schema"]] == [
        ("id", "int64"), ("km", "double"), ("city", "string")
    ]  # fmt: skip
    assert "rows not counted" in headrace("inspect", "csv/*.csv").out
    assert "text  string" in headrace("inspect", "json", "--format", "text").out
    assert headrace("predict", "fares:Fare", "trips", "-i", "km", "-o", "out").code == 0
    assert "prediction" in headrace("inspect", "out").out
    assert headrace("inspect", "fares.py").code == 2


def test_the_environment_is_the_same_afterwards(headrace: Headrace, job: Any) -> None:
    before = dict(os.environ)
    headrace("predict", "fares:Fare", "trips", "-o", "out", "--workers", "3")
    assert dict(os.environ) == before and sys.modules["__main__"] is not None
