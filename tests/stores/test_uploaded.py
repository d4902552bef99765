"""Workers that do not see where the driver stages upload by themselves: aside, and the driver has the store copy."""

import contextlib
import dataclasses
import glob
import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import obstore
import pytest

import headrace as hr
from faults.job import FILES, ROWS, Job, make_input, workers_elsewhere
from headrace.core import failpoints
from headrace.core.stores import writing
from headrace.core.stores.writing import StoreWriter
from headrace.core.uploader import Uploader
from headrace.core.work import StagedFile
from headrace.errors import OutputWriteFailed, RunLocked
from headrace.output.clean import leftovers
from headrace.output.places import lease
from headrace.output.places.place import looked_at
from stores import outputs
from stores.conftest import KEY, SECRET
from stores.test_killed import killed


@pytest.fixture
def job(bucket, tmp_path):
    source = make_input(tmp_path / "in")
    return Job(str(source), f"{bucket.url}/out", elsewhere=True, options={"engine": "inline"})


def inline(data):
    return data.with_options(engine="inline", progress=False)


def aside(bucket):
    return {name for name in outputs.names(bucket) if "/parts/" in name}


def staged_here(names):
    """Return what is there of files with these names; other runs of this machine stage there, too."""
    folder = f"{tempfile.gettempdir()}/headrace-staging-{os.getuid()}"
    return [
        each for each in glob.glob(f"{folder}/*/out/**/*.staged", recursive=True) if Path(each).name in names
    ]


# ---------------------------------------------------------------- what goes where


@pytest.mark.annex
def test_only_the_store_gives_parts_their_names(job, bucket, proxy, tmp_path):
    job = dataclasses.replace(job, bad=50, shelves=True)
    rejected = [i for i in range(FILES * ROWS) if job.fails(i)]
    result = job.here()
    assert (result.rows, result.rejected) == (FILES * ROWS - len(rejected), len(rejected))
    puts = [asked for asked in proxy.asked if asked.method == "PUT" and re.search(r"/part-", asked.path)]
    copies = [asked for asked in puts if "x-amz-copy-source" in asked.headers]
    assert puts and copies == puts  # nobody uploads what readers would see before it is committed
    assert all("/parts/" in asked.headers["x-amz-copy-source"] for asked in copies)
    uploads = [asked for asked in proxy.asked if asked.method == "PUT" and ".staged" in asked.path]
    assert len(uploads) == len({asked.path for asked in uploads}) == len(copies)
    names = {asked.path.rpartition("/")[2].partition("-")[2] for asked in uploads}
    assert not staged_here(names) and not aside(bucket)
    outputs.check(bucket, job.expected(), job.here, tmp_path, rejected=rejected)
    for name in outputs.names(bucket):
        found = outputs.content(bucket, name)
        assert SECRET.encode() not in found and KEY.encode() not in found, name
    report = tmp_path / "report.html"
    report.write_bytes(outputs.content(bucket, next(n for n in outputs.names(bucket) if "report" in n)))
    assert "not this one" in report.read_text()  # of the rejected rows, which the driver has fetched


def test_workers_that_see_the_folder_leave_it_to_the_driver(bucket, tmp_path, monkeypatch):
    from headrace.session import write

    def uploads(job, _):
        seen = tmp_path / "seen"
        seen.touch()
        return msgspec.structs.replace(job.output.place.uploads(job.committer.plan.run), sees=str(seen))

    monkeypatch.setattr(write, "_uploads", uploads)
    result = inline(hr.range(3)).write_csv(f"{bucket.url}/out")
    assert result.rows == 3 and hr.verify(f"{bucket.url}/out").good
    assert not aside(bucket)


def test_big_parts_and_big_states_go_the_same_way(job, bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(writing, "SINGLE", 1_000)
    job = dataclasses.replace(job, metrics=True)
    with pytest.raises(OutputWriteFailed):
        job.here({"worker.uploaded": "ENOSPC@5"})
    assert job.here().metrics["ids"] == {"rows": FILES * ROWS, "total": sum(range(FILES * ROWS))}
    assert "states" in {name.split("/")[2] for name in outputs.names(bucket) if name.count("/") > 2}
    assert not aside(bucket) and not [name for name in outputs.names(bucket) if "uploads" in name]
    assert hr.verify(job.output).good


def test_uploads_that_nobody_needs_are_removed(job, bucket, tmp_path):
    """A limit ends the run while others have uploaded shards that are not needed any more."""
    job = dataclasses.replace(job, limit=130, options={"engine": "local", "workers": 2})
    assert job.here(engine="local").rows == 130
    assert not aside(bucket)
    outputs.check(bucket, job.expected(), job.here, tmp_path)


def test_a_copy_of_such_an_output_in_a_folder(job, bucket, tmp_path):
    """It is an output like any other; what was staged in the store is not looked for in a folder."""
    assert killed(job, "publish.rename", 3)
    there, theirs = tmp_path / "there", tmp_path / "theirs"
    theirs.mkdir()
    with looked_at(job.output) as looked:  # with the journal as it is in a folder
        shutil.copytree(looked.root, there)
    for name in outputs.names(bucket):
        if name.endswith(".staged"):
            (theirs / name.rpartition("/")[2]).write_bytes(outputs.content(bucket, name))
        elif name.startswith("part-"):
            (there / name).write_bytes(outputs.content(bucket, name))
    run = (there / "_headrace" / "current").read_text().strip()
    (there / "_headrace" / run / "staging").mkdir()
    (there / "_headrace" / run / "staging" / "parts").symlink_to(theirs)
    held = sorted(path.name for path in theirs.iterdir())
    assert held
    local = dataclasses.replace(job, output=str(there), elsewhere=False)
    assert local.here().rows == FILES * ROWS and hr.verify(there).good
    assert sorted(path.name for path in theirs.iterdir()) == held


# ---------------------------------------------------------------- killed


def test_what_a_record_names_is_there_whoever_goes_on(job, bucket, tmp_path):
    """Killed between the record and the copy; the next driver has workers that see its folder."""
    assert killed(job, "publish.rename", 3)
    there, journalled = outputs.names(bucket), hr.verify(job.output)
    assert journalled.state == "unfinished" and journalled.rows >= 2 * ROWS
    assert not [finding for finding in journalled.findings if finding.kind != "unfinished"]
    assert len([name for name in there if name.startswith("part-")]) < journalled.files
    again = dataclasses.replace(job, elsewhere=False)
    assert again.here().rows == FILES * ROWS
    outputs.check(bucket, job.expected(), again.here, tmp_path)


def test_a_worker_that_is_killed_when_it_has_uploaded(job, bucket, tmp_path):
    job = dataclasses.replace(job, options={"engine": "local", "workers": 2})
    result = job.here({"worker.uploaded": f"once:{tmp_path}/once:kill@2"}, engine="local")
    assert result.rows == FILES * ROWS and not aside(bucket)
    outputs.check(bucket, job.expected(), job.here, tmp_path)


# ---------------------------------------------------------------- others who write


def test_a_worker_that_was_taken_for_dead_changes_nothing(job, bucket, tmp_path):
    """It wakes up when all is committed, and uploads its part of a shard that another has done."""
    zombies = []

    class Sleeper(Uploader):
        def __init__(self, given):
            super().__init__(given)
            zombies.append(self)

        def close(self):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.core.uploader.Uploader", Sleeper)
        run = job.here().run
    before = outputs.tags(bucket)
    (zombie,) = zombies
    late = f"part-00003-{run}.parquet"
    path = os.path.join(zombie.staging, "late.staged")
    Path(path).write_bytes(b"other bytes")
    uploaded = zombie._upload(StagedFile("late.staged", late, 1, 11, 7))
    Uploader.close(zombie)
    assert outputs.tags(bucket) == before and hr.verify(job.output).good
    (left,) = leftovers(job.output)
    assert left.path == f"_headrace/{run}/parts" and uploaded.staged.startswith("parts/")
    assert job.here().rows == FILES * ROWS and not leftovers(job.output)
    obstore.delete(bucket.store, f"{bucket.prefix}/out/{late}")
    assert job.here().rows == FILES * ROWS  # the shard is done once more
    outputs.check(bucket, job.expected(), job.here, tmp_path)


def test_a_driver_that_was_taken_for_dead_may_copy_what_it_has_committed(bucket, monkeypatch, tmp_path):
    """It has journalled a shard and sleeps before the copy; another takes over, goes on and ends the run."""
    source = make_input(tmp_path / "in", files=4)
    monkeypatch.setattr(lease, "is_here", lambda holder: None)  # as if on two machines
    monkeypatch.setattr(lease, "SILENCE", 0.2)
    monkeypatch.setattr(lease, "BEAT", 100.0)
    copy, results, copied = StoreWriter.duplicate_if_there, [], []

    def write(by):
        data = hr.read_parquet(str(source)).map_batches(
            lambda batch: {"id": batch["id"], "by": np.full(len(batch["id"]), by)},
            version="1",
            batch_size=100,
        )
        with workers_elsewhere():
            return inline(data).with_options(shard_rows=100).write_parquet(f"{bucket.url}/out")

    def late(self, name, to):
        if not copied:
            copied.append(to)
            while not results:  # the first may give a sign of life before it writes elsewhere
                with contextlib.suppress(RunLocked):
                    results.append(write(by=2))
            found = copy(self, name, to)
            copied.append(found)
            return found
        return copy(self, name, to)

    monkeypatch.setattr(StoreWriter, "duplicate_if_there", late)
    with pytest.raises(RunLocked, match="was taken over by process"):
        write(by=1)
    assert results[0].rows == 400 and results[0].resumed and copied[1] is False
    rows = inline(hr.read_parquet(f"{bucket.url}/out")).take_all()
    assert [row["id"] for row in rows] == list(range(400)) and hr.verify(f"{bucket.url}/out").good
    first = int(copied[0].split("-")[1])  # the shard that both have copied: as the first had committed it
    by = [{row["by"] for row in rows if row["id"] // 100 == shard} for shard in range(4)]
    assert by[first] == {1} and all(len(each) == 1 for each in by)


def test_an_orphan_of_the_same_size_is_not_taken_for_the_part(job, bucket, tmp_path):
    """A driver that was replaced left other bytes under the name, and died; then a record names an upload."""
    with pytest.raises(OutputWriteFailed):
        job.here({"worker.uploaded": "ENOSPC@4"})
    assert killed(job, "publish.rename", 1)
    journalled = [name for name in aside(bucket) if name.endswith(".staged")]
    sizes = {name: len(outputs.content(bucket, name)) for name in journalled}
    run = next(iter(journalled)).split("/")[1]
    for name, size in sizes.items():
        shard = name.rpartition("/")[2].split("-")[1]
        key = f"{bucket.prefix}/out/part-{shard}-{run}.parquet"
        notes = {"headracerun": run, "headracecrc32": "00000000"}
        obstore.put(bucket.store, key, b"x" * size, attributes=notes)
    assert job.here().rows == FILES * ROWS
    outputs.check(bucket, job.expected(), job.here, tmp_path)


@pytest.mark.parametrize("how", ["gone", "other"])
def test_an_upload_that_is_not_what_it_says_is_not_committed(job, bucket, proxy, tmp_path, how):
    spoilt = []

    def spoil(asked):
        if asked.method == "HEAD" and asked.path.endswith(".staged") and not spoilt:
            key = asked.path.split("/", 2)[2]
            spoilt.append(key)
            obstore.delete(bucket.store, key)
            if how == "other":
                obstore.put(bucket.store, key, b"x")

    proxy.fault = spoil
    with pytest.raises(OutputWriteFailed, match=r"a worker has uploaded, (is gone|has other bytes)"):
        job.here()
    assert job.here().rows == FILES * ROWS
    outputs.check(bucket, job.expected(), job.here, tmp_path)


# ---------------------------------------------------------------- what the store answers


def test_a_machine_that_may_not_write_or_comes_to_another_store_is_refused_before_any_work(bucket, proxy):
    def never(batch):
        raise AssertionError("work was begun")

    data, out = inline(hr.range(3)).map_batches(never), f"{bucket.url}/out"

    def denied(asked):
        return 403 if re.search(r"/parts/seen-\w+-\w+$", asked.path) else None

    def other(asked):
        return 404 if asked.method == "HEAD" and "/parts/seen-" in asked.path else None

    host = re.escape(os.uname().nodename)
    for fault, words in ((denied, "denies access"), (other, "AWS_ENDPOINT_URL.*another store")):
        proxy.fault = fault
        with (
            workers_elsewhere(),
            pytest.raises(OutputWriteFailed, match=f"worker on {host}.*{words}") as error,
        ):
            data.write_csv(out)
        assert SECRET not in str(error.value) and KEY not in str(error.value)


def test_an_upload_that_fails_ends_the_run_and_a_further_one_goes_on(job, bucket, proxy, tmp_path):
    def denied(asked):
        return 403 if asked.method == "PUT" and re.search(r"/parts/\w+-00005-", asked.path) else None

    proxy.fault = denied
    with pytest.raises(OutputWriteFailed, match=r"by itself.*Cannot write 's3://bucket/.*denies access"):
        job.here()
    proxy.fault = lambda asked: None
    result = job.here()
    assert result.resumed and result.rows == FILES * ROWS
    outputs.check(bucket, job.expected(), job.here, tmp_path)


# ---------------------------------------------------------------- tables, and other formats


def test_other_sinks(bucket):
    rows = inline(hr.range(5)).map(lambda row: {"id": row["id"], "s": f"é{row['id']}"})
    images = inline(hr.from_items([{"image": np.full((2, 2, 3), i, np.uint8)} for i in range(3)]))
    with workers_elsewhere():
        assert rows.write_csv(f"{bucket.url}/csv", max_rows_per_file=2).files == 3
        images.write_images(f"{bucket.url}/images", column="image")
        if importlib.util.find_spec("deltalake"):
            failpoints.activate({"finish.success": "ENOSPC"})  # the table has the rows by then
            with pytest.raises(OSError, match="No space left"):
                rows.write_delta(f"{bucket.url}/table")
            failpoints.activate({})
            assert rows.write_delta(f"{bucket.url}/table").resumed
            assert not [name for name in outputs.names(bucket, "table") if "/parts/" in name]
            table = inline(hr.read_delta(f"{bucket.url}/table")).take_all()
            assert [row["id"] for row in table] == list(range(5))
    assert hr.verify(f"{bucket.url}/csv").good and hr.verify(f"{bucket.url}/images").files == 3
    back = inline(hr.read_csv(f"{bucket.url}/csv")).take_all()
    assert back == [{"id": i, "s": f"é{i}"} for i in range(5)]
