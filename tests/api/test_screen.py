"""What a user sees on the screen: their own traceback first, then where; prints and warnings; last words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RAISES = """
    import headrace as hr
    from headrace.sources.range import RangeSource

    def clean(batch):
        return helper(batch["id"])

    def helper(ids):
        if ids[0] == 500:
            raise ValueError("the model is sad")
        return {"id": ids}

    data = hr.Dataset.from_source(RangeSource(1000, rows_per_split=100)).with_options(shard_rows=100)
    data = data.map_batches(clean)
    %s
"""


@pytest.mark.parametrize(
    "verb",
    [
        'data.write_parquet("out")',
        "list(data.iter_batches())",
        "data.filter(lambda row: True).count()",
        "data.take(800)",
    ],
)
def test_an_exception_shows_the_users_code_and_little_else(script: Callable[..., Any], verb: str) -> None:
    ended = script(RAISES % verb)
    assert ended.code == 1 and ended.out == ""
    theirs, _, ours = ended.err.partition("direct cause of the following exception")
    assert "in clean" in theirs and "in helper" in theirs and "ValueError: the model is sad" in theirs
    assert "headrace/" not in theirs
    assert ours.count("  File ") <= 2 and verb in ours
    (last,) = ended.err.strip().splitlines()[-1:]
    assert last.startswith(
        "headrace.errors.StepError: map_batches(clean) raised ValueError: the model is sad. "
    )
    place, _, kept = last.partition("It was working on range, rows 500 to 599.")
    assert place and (verb.startswith("data.write") or not kept)
    if kept:
        assert "What was finished before is kept in" in kept and "on_change='continue'" in kept


def test_a_wrong_argument_shows_the_line_and_one_paragraph(script: Callable[..., Any]) -> None:
    ended = script("import headrace as hr\nhr.range(3).map_batches(print, batchsize=3)\n", fresh=True)
    assert ended.code == 1
    assert "hr.range(3).map_batches(print, batchsize=3)" in ended.err
    assert ended.err.count("  File ") == 1 and len(ended.err.splitlines()) <= 7
    assert ended.err.rstrip().endswith("has no argument 'batchsize'. Did you mean 'batch_size'?")


def test_prints_and_warnings_reach_their_streams(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import sys, warnings
        import headrace as hr
        from headrace.sources.range import RangeSource

        print("the driver speaks")

        def talk(batch):
            print("to stdout", batch["id"][0])
            print("to stderr", batch["id"][0], file=sys.stderr)
            warnings.warn("be careful")
            print("without an end", end="")
            return batch

        data = hr.Dataset.from_source(RangeSource(300, rows_per_split=100)).with_options(shard_rows=100)
        assert data.map_batches(talk).count() == 300
        """
    )
    assert ended.code == 0
    assert sorted(line for line in ended.out.splitlines() if "to stdout" in line)
    assert all(
        f"to stdout {first}" in ended.out and f"to stderr {first}" in ended.err for first in (0, 100, 200)
    )
    assert ended.out.count("without an end") == 3 and "the driver speaks" in ended.out
    assert "UserWarning: be careful" in ended.err and "to stdout" not in ended.err


DIES = """
    import os, sys, ctypes
    import headrace as hr
    from headrace.sources.range import RangeSource

    def die(batch):
        if batch["id"][0] == 300:
            with open("deaths", "a") as file:
                file.write("x")
            print("the last words", file=sys.stderr)
            %s
        return batch

    data = hr.Dataset.from_source(RangeSource(1000, rows_per_split=100)).with_options(shard_rows=100)
    data.map_batches(die).write_parquet("out")
"""


@pytest.mark.parametrize(
    ("death", "words"),
    [("os._exit(3)", "exited with status 3"), ("ctypes.string_at(0)", "was killed by SIGSEGV")],
)
def test_a_row_over_which_workers_die_is_named(
    script: Callable[..., Any], tmp_path: Any, death: str, words: str
) -> None:
    ended = script(DIES % death)
    assert ended.code == 1
    assert 4 <= len((tmp_path / "deaths").read_text()) <= 6
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("headrace.errors.StepError: map_batches(die) cannot process range, row 3")
    assert words in last and "its last words: the last words" in last and "run again" in last
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert script((DIES % "pass").replace('"out"', '"out", on_change="continue"')).code == 0
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_a_constructor_that_takes_the_process_down(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import os
        import headrace as hr
        from headrace.sources.range import RangeSource

        class Model:
            def __init__(self):
                os._exit(7)
            def __call__(self, batch):
                return batch

        data = hr.Dataset.from_source(RangeSource(1000, rows_per_split=100)).with_options(shard_rows=100)
        data.map_batches(Model).count()
        """
    )
    assert ended.code == 1
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith(
        "headrace.errors.WorkerDied: 3 workers of stage 1 in a row ended before they could work: exited with "
        "status 7 while constructing Model for map_batches(Model) (3 times). Something there takes the process down"
    ), last


def test_models_that_memory_does_not_suffice_for(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import os, signal
        import headrace as hr
        from headrace.sources.range import RangeSource

        class Model:
            def load(self):
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel would
            def predict(self, batch):
                return batch["id"]
            def close(self):
                pass

        data = hr.Dataset.from_source(RangeSource(1000, rows_per_split=100)).with_options(shard_rows=100)
        data.predict(Model(), inputs=["id"]).map_batches(lambda batch: batch, concurrency=1).write_parquet("out")
        """
    )
    assert ended.code == 1
    last = ended.err.strip().splitlines()[-1]
    assert "killed by SIGKILL while loading Model for predict(Model) (3 times)" in last, last
    assert "see `dmesg`" in last and "fewer workers" in last and "Shard" not in last


def test_modules_that_end_the_process(script: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text(
        "import os, sys\n"
        "if 'headrace.engines.local.host' in sys.modules:\n"
        "    print('no licence', file=sys.stderr)\n"
        "    os._exit(4)\n"
        "def score(batch):\n"
        "    return batch\n"
    )
    ended = script(
        """
        import headrace as hr
        import fatal
        from headrace.sources.range import RangeSource

        data = hr.Dataset.from_source(RangeSource(1000, rows_per_split=100)).with_options(shard_rows=100)
        data.map_batches(fatal.score).count()
        """,
        fresh=True,  # a worker that is a fork has imported nothing anew
    )
    assert ended.code == 1
    last = ended.err.strip().splitlines()[-1]
    assert "exited with status 4 while importing what the plan's functions need (3 times)" in last, last
    assert "The last one's last words: no licence." in last
