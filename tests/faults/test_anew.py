"""Which version of the function made which rows: every end of a run, taken up by every word, once and twice."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import HeadraceError, PlanChanged

from .invariants import check, rows_of
from .job import FILES, ROWS, Job

V1, V2 = 3, 5
WORDS = {
    "continue": {"on_change": "continue"},
    "restart": {"on_change": "restart"},
    "overwrite": {"mode": "overwrite"},
}


@pytest.fixture(scope="module")
def ends(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs of a run of the first version that failed halfway, was killed, has finished."""
    root = tmp_path_factory.mktemp("ends")
    with pytest.raises(HeadraceError):
        Job(str(source), str(root / "fail"), V1).here({"attempt.started": "EIO@4"})
    killed = Job(str(source), str(root / "kill"), V1).start({"publish.renamed": "kill@3"}, workers=1)
    assert killed.wait()[0] == -signal.SIGKILL
    Job(str(source), str(root / "finish"), V1).here()
    return {name: root / name for name in ("fail", "kill", "finish")}


def versions(output: str) -> list[int]:
    """The version that made each shard that is in the folder; each shard is of one."""
    found: dict[int, set[int]] = {}
    for row in rows_of(Path(output)):
        found.setdefault(row["id"] // ROWS, set()).add(row["product"] // row["id"] if row["id"] else 0)
    return [next(iter(found[shard] - {0})) for shard in sorted(found) if len(found[shard] - {0}) == 1]


def after(word: str, code: int, before: list[int]) -> list[int]:
    """What a finished output holds, if this was there: one version for each shard."""
    if word == "continue":
        return before + [code] * (FILES - len(before))
    return [code] * FILES


@pytest.mark.parametrize(
    ("end", "code", "word"), [*product(["fail", "finish"], [V1, V2], WORDS), *product(["kill"], [V2], WORDS)]
)
def test_the_first_time(ends: dict[str, Path], job: Job, end: str, code: int, word: str) -> None:
    shutil.copytree(ends[end], job.output)
    before = versions(job.output)
    assert len(before) == FILES if end == "finish" else 0 < len(before) < FILES
    new = replace(job, factor=code)
    new.here(**WORDS[word])
    made = versions(job.output)
    if end == "kill" and word == "continue":  # one that was committed had not yet been published
        before += [V1] * (made.count(V1) - len(before))
    assert made == after(word, code, before)
    if word != "continue":
        check(Path(job.output), new.expected(), new.here)


@pytest.mark.parametrize(
    ("end", "code", "first", "second"),
    [
        *product(["fail"], [V2], WORDS, WORDS),
        *product(["fail"], [V1], ["overwrite"], WORDS),
        *product(["finish"], [V2], ["restart", "overwrite"], WORDS),
    ],
)
def test_the_second_time(
    ends: dict[str, Path], job: Job, end: str, code: int, first: str, second: str
) -> None:
    """The first word's run, of either version, fails before its end; the second's has the second version."""
    shutil.copytree(ends[end], job.output)
    again, last = replace(job, factor=code), replace(job, factor=V2)
    with pytest.raises(HeadraceError):
        again.here({"attempt.started": "EIO@3"}, **WORDS[first])
    before = versions(job.output)  # an overwrite of other code has left what was there
    if first == "restart":
        assert set(before) == {code} and len(before) < FILES
    last.here(**WORDS[second])
    assert versions(job.output) == after(second, V2, before)
    if second != "continue":
        check(Path(job.output), last.expected(), last.here)


def test_restart_after_a_finished_continue_makes_all_rows_anew_and_then_has_nothing_to_do(
    ends: dict[str, Path], job: Job
) -> None:
    shutil.copytree(ends["fail"], job.output)
    new = replace(job, factor=V2)
    mixed = new.here(on_change="continue")
    assert set(versions(job.output)) == {V1, V2}
    assert new.here().run == mixed.run  # who kept them gets them
    result = new.here(on_change="restart")
    assert result.run != mixed.run
    check(Path(job.output), new.expected(), lambda: new.here(on_change="restart"))


def test_a_killed_restart_goes_on_with_its_own_shards(ends: dict[str, Path], job: Job) -> None:
    shutil.copytree(ends["fail"], job.output)
    new = replace(job, factor=V2)
    with pytest.raises(HeadraceError):
        new.here({"attempt.started": "EIO@5"}, on_change="restart")
    made = versions(job.output)
    assert set(made) == {V2}
    left = FILES - len(made)
    assert new.here({"attempt.started": f"EIO@{left + 1}"}, on_change="restart").resumed
    check(Path(job.output), new.expected(), new.here)


# ---------------------------------------------------------------- schema=

WIDE = pa.schema([("id", pa.int64()), ("product", pa.float64())])


def write(job: Job, schema: pa.Schema | None = WIDE, **options: str) -> None:
    job.dataset(engine="inline", **options).write_parquet(job.output, schema=schema)


def types_in(output: str) -> set[str]:
    return {str(pq.read_schema(path).field("product").type) for path in Path(output).glob("*.parquet")}


@pytest.mark.parametrize("words", [{}, *WORDS.values()], ids=["", *WORDS])
def test_a_schema_that_is_given_later_makes_an_unfinished_output_anew(
    ends: dict[str, Path], job: Job, words: dict[str, str]
) -> None:
    shutil.copytree(ends["fail"], job.output)
    if words in ({}, WORDS["continue"]):
        with pytest.warns(UserWarning, match="'product' is int64, not double.*done again"):
            write(job, **words)
    else:
        write(job, **words)
    assert types_in(job.output) == {"double"}
    assert [row["id"] for row in rows_of(Path(job.output))] == list(range(FILES * ROWS))


def test_a_schema_that_says_what_is_settled_changes_nothing(ends: dict[str, Path], job: Job) -> None:
    shutil.copytree(ends["finish"], job.output)
    run = job.here().run
    same = WIDE.set(1, pa.field("product", pa.int64()))
    result = job.dataset(engine="inline").write_parquet(job.output, schema=same)
    assert result.run == run and result.resumed


def test_a_finished_output_of_another_schema_is_refused_with_words_that_work(
    ends: dict[str, Path], job: Job
) -> None:
    shutil.copytree(ends["finish"], job.output)
    with pytest.raises(PlanChanged, match=r"on_change='restart'.*mode='overwrite'") as caught:
        write(job)
    assert "\n" not in str(caught.value) and types_in(job.output) == {"int64"}
    write(job, mode="overwrite")
    assert types_in(job.output) == {"double"}
    write(job, schema=None)  # it was settled so
    assert types_in(job.output) == {"double"}
    with pytest.raises(PlanChanged):
        write(job, WIDE.set(1, pa.field("product", pa.int32())))
    write(job, WIDE.set(1, pa.field("product", pa.int32())), on_change="restart")
    assert types_in(job.output) == {"int32"}


def test_a_schema_that_was_given_stays_when_it_is_not_given_again(job: Job) -> None:
    from headrace.core import failpoints

    failpoints.activate({"attempt.started": "EIO@4"})
    with pytest.raises(HeadraceError):
        write(job)
    failpoints.activate({})
    write(job, schema=None)
    assert types_in(job.output) == {"double"}
