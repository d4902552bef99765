"""Tables as the input of an output that takes in what is new: random histories, and each promise by itself.

A history is rows that are appended, files that are compacted, runs, and runs that are killed at any point. In the end
the output has each row of the table once.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.report.follow import Follower
from headrace.errors import ArgumentError, HeadraceError, InputChanged

from .growing import TABLES

SOAK_SEEDS = 60
POINTS = (
    *("journal.append", "journal.sync", "journal.synced", "attempt.started", "stage.closed", "swap.recorded"),
    *(
        "swap.removed",
        "publish.rename",
        "publish.renamed",
        "finish.manifest",
        "finish.success",
        "finish.closed",
    ),
)
KEYED = ["Sqlite", "InFiles"]  # their rows are known by keys only
every_table = pytest.mark.parametrize("kind", ["Delta", "Iceberg", "Lance"])


def of(kind: str, folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return TABLES[kind](folder)


def play(kind: str, folder: Path, seed: int, steps: int = 12, key: str = "", kills: int = 1) -> None:
    """Play one history, with so many processes that are killed.

    With a key, rows that were read are deleted from the table, too, and stay in the output.
    """
    dice, table, killed = random.Random(seed), of(kind, folder), 0
    table.append()
    for _ in range(steps):
        step = dice.choice(["append", "append", "append", "delete", "compact", "kill", "kill", "run"])
        if step == "append":
            table.append(dice.randint(1, 4))
        elif step == "delete":
            table.append(3)  # one of them is gone before anybody reads it
            which = dice.choice(table.ids()) if key else table.next - 2
            table.delete(f"id = {which}")
        elif step == "compact":
            table.compact()
        elif step == "kill":
            point, how = dice.choice(POINTS), dice.choice([1, 1, 2, 3, 5])
            if killed < kills:
                table.killed(f"{point}@{how}", key)
                killed += 1
            else:  # an error leaves what a kill leaves, but for the lock
                with contextlib.suppress(HeadraceError, OSError):
                    table.run({point: f"EIO@{how}"}, key=key or None)
            if (table.output / "_SUCCESS").exists():
                assert hr.verify(table.output).good
        else:
            check(table, key)
    check(table, key)


def check(table: Any, key: str) -> None:
    """Run until nothing is new: the output has each row of the table once, and verifies."""
    result = table.run(key=key or None)
    while result.left_out:
        result = table.run(key=key or None)
    written, there = table.written(), table.ids()
    assert len({*written}) == len(written) == result.rows
    if key:
        assert {*there} <= {*written} <= {*range(table.next)}
    else:
        assert written == there
    assert hr.verify(table.output).good
    before = stamps(table.output)
    assert table.run(key=key or None).rows == result.rows and stamps(table.output) == before


def stamps(folder: Path) -> dict[Path, int]:
    """When each file was changed, but for the lock."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.stat().st_mtime_ns for path in found}


@pytest.mark.parametrize("key", ["", "id"])
@every_table
def test_histories(tmp_path: Path, kind: str, key: str) -> None:
    play(kind, tmp_path, 5, key=key)


@pytest.mark.parametrize("kind", KEYED)
def test_history_of_keys(tmp_path: Path, kind: str) -> None:
    play(kind, tmp_path, 3, steps=16, key="id")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind in TABLES for key in ("", "id") if key or kind not in KEYED]
)
def test_many_histories(tmp_path: Path, kind: str, key: str) -> None:
    for seed in range(SOAK_SEEDS):
        print(f"seed {seed}")
        play(kind, tmp_path / "one", seed, steps=30, key=key, kills=30)
        shutil.rmtree(tmp_path / "one")


# ---------------------------------------------------------------- one promise each


@every_table
def test_what_was_compacted_is_not_read_again(tmp_path: Path, kind: str) -> None:
    """Neither is it if the files are gone since; rows that came right before are read where they still lie."""
    table = of(kind, tmp_path)
    table.append()
    table.run()
    table.append()
    table.append()
    table.compact()
    table.append()
    result = table.run()
    assert table.written() == table.ids() == [*range(8)]
    assert [(run["input_files"], run["rows"]) for run in result.runs] == [(1, 2), (3, 6)]
    table.compact()
    assert table.run().rows == 8
    table.clean()
    table.append()
    result = table.run()
    assert table.written() == table.ids() == [*range(10)]
    (version,) = {"version", "snapshot"} & {*result.runs[-1]["input"]}
    assert result.runs[-1]["input"][version] == table.version()
    assert not result.left_out and "gone since" not in result.summary
    assert hr.verify(table.output).good


@every_table
def test_rows_that_were_changed(tmp_path: Path, kind: str) -> None:
    """They are refused with the version by name, and by keys they are left out; nothing is touched before."""
    table = of(kind, tmp_path)
    table.append(4)
    table.run()
    table.append(4)
    table.delete("id = 7")  # nobody has read it
    table.run()
    assert table.written() == table.ids() == [*range(7)]
    table.delete("id = 0")
    which = f"{'snapshot' if kind == 'Iceberg' else 'version'} {table.version()}"
    before = stamps(table.output)
    for _ in range(2):
        with pytest.raises(InputChanged, match=rf"its {which} \(\w+\) replaced.*mode='overwrite'") as said:
            table.run()
        assert "\n" not in str(said.value) and "key=" in str(said.value)
        table.append()
    assert stamps(table.output) == before
    table.run(incremental=False, mode="overwrite")
    assert table.written() == table.ids()
    table.append()
    assert len(table.run().runs) == 2  # from there on
    assert table.written() == table.ids()
    keyed, table.output = table.output, tmp_path / "keyed"
    table.run(key="id")
    table.append(2)
    table.delete("id = 5")
    result = table.run(key="id")
    assert table.written() == [1, 2, 3, 4, 5, 6, *range(8, table.next)]
    assert result.runs[-1]["rows"] == 2
    table.compact()
    assert table.run(key="id").runs == result.runs
    table.output = keyed


@every_table
def test_other_versions_and_other_tables(tmp_path: Path, kind: str) -> None:
    table = of(kind, tmp_path)
    table.append()
    first = table.version()
    table.run(version=first)
    table.append()
    second = table.version()
    table.append()
    assert table.run(version=second).rows == 4 and table.written() == [0, 1, 2, 3]
    with pytest.raises(InputChanged, match="which is older than"):
        table.run(version=first)
    with pytest.warns(UserWarning, match="a newer version than .*incremental=True adds them"):
        result = table.run(incremental=False)
    assert result.rows == 4 and result.left_out
    assert table.run().rows == 6
    shutil.rmtree(tmp_path / ("shop" if kind == "Iceberg" else "t"))
    (tmp_path / "lake.db").unlink(missing_ok=True)
    for rows in range(1, 9):
        table.append(rows)
    with pytest.raises(InputChanged, match="is another table than the one"):
        table.run()
    assert table.written() == [*range(6)]


@every_table
def test_a_run_that_goes_on_reads_the_version_that_it_began_with(tmp_path: Path, kind: str) -> None:
    table = of(kind, tmp_path)
    table.append()
    table.append()
    with pytest.raises((HeadraceError, OSError)):
        table.run({"attempt.started": "EIO@2"}, incremental=False)
    table.append()
    with pytest.warns(UserWarning, match="a newer (version|snapshot), .*; this run began with"):
        assert table.run(incremental=False).rows == 4
    assert table.written() == [*range(4)]
    assert table.run(incremental=False, mode="overwrite").rows == 6


@every_table
def test_history_that_is_gone(tmp_path: Path, kind: str) -> None:
    """Then it cannot be told what is new, but for keys."""
    table = of(kind, tmp_path)
    table.append()
    table.run()
    keyed, table.output = table.output, tmp_path / "keyed"
    table.run(key="id")
    table.append()
    table.append()
    if kind == "Delta":
        table.table().create_checkpoint()
        for version in (0, 1):
            (tmp_path / f"t/_delta_log/{version:020}.json").unlink()
    elif kind == "Iceberg":
        snapshots = [each.snapshot_id for each in table.table().metadata.snapshots]
        table.table().maintenance.expire_snapshots().by_ids(snapshots[:-1]).commit()
    else:
        table.clean()
    assert table.run(key="id").rows == 6
    table.output = keyed
    with pytest.raises(InputChanged, match="does not say any more what has changed"):
        table.run()
    assert table.written() == [0, 1]


@every_table
def test_what_a_killed_run_still_reads(tmp_path: Path, kind: str) -> None:
    """It is read where it was, though the table was changed since; if that was cleaned up, it is refused."""
    table = of(kind, tmp_path)
    for _ in range(4):
        table.append()
    with pytest.raises((HeadraceError, OSError)):
        table.run({"attempt.started": "EIO@2"})
    assert len(table.written()) == 2
    shutil.copytree(table.output, tmp_path / "copy")
    table.compact()
    table.append()
    result = table.run()
    assert table.written() == table.ids() == [*range(10)] and len(result.runs) == 1
    shutil.rmtree(table.output)
    (tmp_path / "copy").rename(table.output)
    table.clean()
    before = stamps(table.output)
    with pytest.raises(InputChanged, match=r"does not (have|say).* any more.*mode=.overwrite."):
        table.run()
    assert {path.name for path in before} == {path.name for path in stamps(table.output)}


@every_table
def test_a_version_that_was_not_saved(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power left only the files: they are found in the version that nobody named, whatever came after."""
    table = of(kind, tmp_path)
    table.append()
    table.run()
    table.append()
    with monkeypatch.context() as torn, pytest.raises((HeadraceError, OSError)):
        torn.setattr("headrace.output.input_changes.further_version", lambda *given: None)
        torn.setattr("headrace.output.inputs.reach", lambda *given: None)
        table.run({"attempt.started": "EIO"})
    table.append()
    table.compact()
    result = table.run()
    assert table.written() == table.ids() == [*range(6)]
    assert [(run["input_files"], run["rows"]) for run in result.runs] == [(1, 2), (2, 4)]
    assert result.runs[-1]["input"]["snapshot" if kind == "Iceberg" else "version"] == table.version()


def test_columns_that_came(tmp_path: Path) -> None:
    """They are refused as those of files are, unless they are not read."""
    import deltalake

    table = of("Delta", tmp_path)
    table.append()
    table.run()
    more = pa.table({"id": pa.array([2], pa.int64()), "new": ["x"]})
    deltalake.write_deltalake(tmp_path / "t", more, mode="append", schema_mode="merge")
    with pytest.raises(InputChanged, match=r"'new' \(string\) came.*columns="):
        table.run()
    table.output = tmp_path / "other"
    table.run(version=0, columns=["id"])
    table.run(columns=["id"])
    assert table.written() == [0, 1, 2]


def test_partitions_of_files_in_older_versions(tmp_path: Path) -> None:
    """Values that only the log has are those of the version in which a file still was; a filter leaves files out."""
    import deltalake

    def append(*rows: tuple[int, str | None]) -> None:
        columns = {
            "id": [number for number, _ in rows],
            "day": pa.array([day for _, day in rows], pa.string()),
        }
        deltalake.write_deltalake(tmp_path / "t", pa.table(columns), mode="append", partition_by=["day"])

    def run(out: str, **reading: Any) -> list[tuple[int, str | None]]:
        data = hr.read_delta(tmp_path / "t", **reading).with_options(engine="inline", progress=False)
        data.write_parquet(tmp_path / out, incremental=True)
        return sorted((row["id"], row["day"]) for row in hr.read_parquet(tmp_path / out).take_all())

    append((1, "a/b"), (2, None))
    chosen = {"filter": hr.col("day") == "a/b"}
    assert (run("all"), run("some", **chosen)) == ([(1, "a/b"), (2, None)], [(1, "a/b")])
    append((3, "a/b"), (4, None))
    deltalake.DeltaTable(tmp_path / "t").optimize.compact()
    append((5, "c"))
    assert run("all") == [(1, "a/b"), (2, None), (3, "a/b"), (4, None), (5, "c")]
    assert run("some", **chosen) == [(1, "a/b"), (3, "a/b")]


def test_from_table_to_table(tmp_path: Path) -> None:
    """Each night is one commit; a table is not its own input."""
    table = of("Delta", tmp_path)

    def run(into: str, **options: Any) -> hr.Result:
        return (
            table.read()
            .with_options(engine="inline", progress=False)
            .write_delta(into, incremental=True, **options)
        )

    target = str(tmp_path / "copy")
    for version in range(3):
        table.append()
        run(target)
        assert hr.read_delta(target, version).count() == table.next
    assert run(target).resumed and hr.read_delta(target).count() == 6
    with pytest.raises(ArgumentError, match="into itself"):
        run(str(tmp_path / "t"))
    two = hr.read_delta(target).union(table.read()).with_options(engine="inline", progress=False)
    with pytest.raises(ArgumentError, match="a union or zip of several"):
        two.write_parquet(tmp_path / "two", incremental=True)


def test_rows_of_an_older_function(tmp_path: Path) -> None:
    """They are made again from files that are still there, though the table has others by now."""
    table = of("Delta", tmp_path)

    def run(factor: int) -> list[int]:
        data = table.read().map_batches(lambda batch: {"x": batch["id"] * factor})
        data = data.with_options(engine="inline", progress=False)
        data.write_parquet(table.output, incremental=True, refresh="changed")
        return sorted(row["x"] for row in hr.read_parquet(table.output).take_all())

    table.append()
    assert run(2) == [0, 2]
    table.compact()
    table.append()
    table.compact()
    assert run(3) == [0, 3, 6, 9]
    table.clean()
    assert run(5) == [0, 3, 6, 9]  # nothing of them can be made again
    table.append()
    assert run(5) == [0, 3, 6, 9, 20, 25]


def test_a_query_whose_rows_changed_while_a_run_was_killed(tmp_path: Path) -> None:
    """Its shards are made again from what the query gives now; a finished run, and one to be closed only, are not."""
    table = of("Sqlite", tmp_path)

    def failed(point: str) -> None:
        with pytest.raises((HeadraceError, OSError)):
            table.run({point: "EIO@2" if point == "attempt.started" else "EIO"}, key="id")

    table.append(30)
    failed("attempt.started")
    assert len(table.written()) == 6
    table.delete("id = 0")
    table.append(1)
    with pytest.warns(
        UserWarning, match=r"other rows now than when run 1 of .*: 1 part of it will be made again"
    ):
        table.run(key="id")
    assert table.written() == table.ids() == [*range(1, 31)]
    table.append(30)
    failed("attempt.started")
    table.append(1)
    assert table.written() == [*range(1, 31)] and hr.verify(table.output).good
    with pytest.warns(UserWarning, match=r"run 2 of .*: 1 part of it will be made again"):
        result = table.run(key="id")
    assert table.written() == table.ids() == [*range(1, 62)]
    assert [run["rows"] for run in result.runs] == [30, 31]
    assert [run["input"]["rows"] for run in result.runs] == [30, 61]
    table.append(3)
    failed("swap.recorded")
    table.append(3)
    result = table.run(key="id")
    if result.left_out:
        result = table.run(key="id")
    assert table.written() == table.ids() and [run["rows"] for run in result.runs] == [30, 31, 3, 3]


def test_what_is_refused_of_a_query(tmp_path: Path) -> None:
    table = of("Sqlite", tmp_path)
    table.append(2)
    with pytest.raises(ArgumentError, match=r"database does not say which of its rows are new.*key='id'"):
        table.run()
    data = hr.read_sql("SELECT id FROM t", f"sqlite:///{tmp_path}/t.db", checksum=False)
    with pytest.raises(ArgumentError, match=r"checksum=False\): without checksums"):
        data.with_options(engine="inline").write_parquet(table.output, incremental=True, key="id")
    assert not table.output.exists()


@pytest.mark.parametrize("kind", ["Delta", "Iceberg", "Lance", "Sqlite"])
def test_what_is_said_of_versions(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The result, the status and the report of a run name what it has read of its input."""
    table = of(kind, tmp_path)
    for _ in range(2):
        table.append()
        result = table.run(key="id", progress=True)
    if kind == "Sqlite":
        text = "4 rows"
    else:
        text = f"{'snapshot' if kind == 'Iceberg' else 'version'} {table.version()}"
    new = f"an answer of {text}" if kind == "Sqlite" else f"1 new input file, up to {text}"
    assert f"run 2 of this output, of {new}\n" in capsys.readouterr().err
    run = Follower(table.output).poll().data()["runs"][1]
    assert (run["input"], run["rows"]) == (text, 2)
    assert text in result.report.read_text() and "Input, up to" in result.report.read_text()


# ---------------------------------------------------------------- rows that nobody has read yet: none is passed over


@pytest.mark.parametrize("kind", ["Delta", "Iceberg"])
def test_refresh_does_not_pass_over_rows_that_are_gone(tmp_path: Path, kind: str) -> None:
    """Rows of files that were read may be gone; those that nobody has read may not."""
    table = of(kind, tmp_path)
    table.append()
    table.run(refresh="changed")
    table.append()
    table.compact()
    table.clean()
    with pytest.raises(InputChanged, match=r"does not have the file .* a clean-up has removed it"):
        table.run(refresh="changed")
    assert table.written() == [0, 1] and hr.verify(table.output).good


def test_rows_whose_version_cannot_be_read(tmp_path: Path) -> None:
    """They are not taken for rows that a filter leaves out."""
    table = of("Delta", tmp_path)
    table.append()
    table.run()
    table.append()
    table.compact()
    table.table().create_checkpoint()
    (tmp_path / f"t/_delta_log/{0:020}.json").unlink()
    with pytest.raises(InputChanged, match="whose rows are to be added: version 1"):
        table.run()
    assert table.written() == [0, 1]


def with_rows_of_two_versions(folder: Path) -> Any:
    """Return a Lance table of which a run has read two rows; files with the others are in no common version."""
    table = of("Lance", folder)
    table.append(2)
    table.run()
    table.append(2)
    table.append(20)
    table.table().optimize.compact_files(target_rows_per_fragment=5)  # the first two
    table.delete("id = 5")
    table.compact()
    return table


def test_rows_are_those_of_the_last_version_that_has_them(tmp_path: Path) -> None:
    """A fragment keeps its file when rows of it are deleted, so each is looked up in a version of its own."""
    table = with_rows_of_two_versions(tmp_path)
    table.run()
    assert table.written() == table.ids()


def test_a_killed_run_reads_them_in_the_version_in_which_it_found_them(tmp_path: Path) -> None:
    table = with_rows_of_two_versions(tmp_path)
    with pytest.raises((HeadraceError, OSError)):
        table.run({"attempt.started": "EIO"})
    table.append(2)
    table.run()
    assert table.written() == table.ids()
