"""What writing to addresses promises: every format, few requests, exact rows whatever the store answers."""

import dataclasses
import html
import json
import os
import re
import threading
import time

import numpy as np
import obstore
import pytest

import headrace as hr
from faults.job import FILES, ROWS, Job, make_input
from headrace.core.stores import addresses, writing
from headrace.errors import (
    ArgumentError,
    ForeignOutput,
    JournalDamaged,
    NothingMatched,
    OutputWriteFailed,
    RunLocked,
    StepError,
    UnsafeStore,
)
from headrace.output.layout import open_output
from headrace.output.places import lease, store_parts
from headrace.output.places import store as store_place
from headrace.output.places.lease import NumberedObjects
from headrace.output.places.place import place_at
from stores import outputs
from stores.conftest import KEY, SECRET
from stores.proxy import at_first


@pytest.fixture
def job(bucket, tmp_path):
    return Job(str(make_input(tmp_path / "in")), f"{bucket.url}/out", options={"engine": "inline"})


def inline(data):
    return data.with_options(engine="inline", progress=False)


def is_part(asked):
    return asked.method == "PUT" and "/out/part-" in asked.path


# ---------------------------------------------------------------- formats


def test_a_part_is_one_request_and_nothing_is_a_secret(job, bucket, proxy, monkeypatch, tmp_path):
    monkeypatch.setattr(
        store_parts.StorePublisher, "pause", 600.0
    )  # seconds; a busy machine takes long for few records
    job.here()
    puts = [asked for asked in proxy.asked if asked.method == "PUT"]
    assert len([asked for asked in puts if is_part(asked)]) == FILES
    assert all(asked.headers.get("if-none-match") == "*" for asked in puts if is_part(asked))
    journal = [asked for asked in puts if "/journal/" in asked.path]  # a slow server may be asked twice
    assert len({asked.path for asked in journal}) <= 4 and all(
        asked.headers.get("if-none-match") == "*" for asked in journal
    )
    assert len(proxy.asked) < FILES + 40
    outputs.check(bucket, job.expected(), job.here, tmp_path)
    for name in outputs.names(bucket):
        found = outputs.content(bucket, name)
        assert SECRET.encode() not in found and KEY.encode() not in found, name


def test_what_is_too_big_for_one_request_goes_up_in_pieces(job, bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(writing, "SINGLE", 1_000)
    job.here()
    assert not [name for name in outputs.names(bucket) if "uploads" in name]
    outputs.check(bucket, job.expected(), job.here, tmp_path)


# ---------------------------------------------------------------- refused before any work


def never(batch):
    raise AssertionError("work was begun")


def test_wrong_places_and_credentials_are_refused_before_any_work(bucket, proxy):
    data = inline(hr.range(3)).map_batches(never)
    with pytest.raises(OutputWriteFailed, match=r"s3://nobucket/.*no such bucket"):
        data.write_csv("s3://nobucket/out")
    proxy.fault = lambda asked: 403
    with pytest.raises(OutputWriteFailed, match="denies access") as caught:
        data.write_csv(f"{bucket.url}/out")
    assert SECRET not in str(caught.value)
    proxy.fault = lambda asked: None
    with pytest.raises(ArgumentError, match=r"http:// addresses.*conditional"):
        data.write_csv("http://host/out")
    with pytest.raises(ArgumentError, match="must not hold a name or a password"):
        data.write_csv("s3://id:secret@bucket/out")
    with pytest.raises(ArgumentError, match="must not hold 'secret_access_key'"):
        data.write_csv(f"{bucket.url}/out", storage_options={"secret_access_key": "x"})
    with pytest.raises(ArgumentError, match="for outputs in object stores"):
        data.write_csv("/tmp/out", storage_options={"region": "x"})
    bucket.put("out/mine.txt", b"1")
    with pytest.raises(ForeignOutput, match=r"mine\.txt"):
        data.write_csv(f"{bucket.url}/out")
    bucket.put("in/a.csv", b"x\n1\n")
    with pytest.raises(ForeignOutput, match="lies inside its own input"):
        inline(hr.read_csv(f"{bucket.url}/in")).write_csv(f"{bucket.url}/in/out")
    assert outputs.names(bucket) == {"mine.txt"}


def test_a_store_without_conditions_is_refused(bucket, proxy):
    proxy.fault = lambda asked: "strip"
    out = f"{bucket.url}/out"
    with pytest.raises(UnsafeStore, match="ignores conditions"):
        inline(hr.range(3)).map_batches(never).write_csv(out)
    assert outputs.names(bucket) == set()


def test_a_plan_that_is_refused_leaves_nothing(bucket):
    with pytest.raises(hr.errors.UnknownColumn):
        inline(hr.range(3)).select_columns(["none"]).write_csv(f"{bucket.url}/out")
    assert outputs.names(bucket) == set()


# ---------------------------------------------------------------- what a store may answer


@pytest.mark.parametrize(
    ("fault", "elsewhere"), [("lost", True), *((each, False) for each in ("lost", "drop", 503, 409, "cut"))]
)
def test_exact_whatever_the_store_answers(job, bucket, proxy, tmp_path, fault, elsewhere):
    """Each object is asked for with a fault first, and without one then; also by workers that upload themselves."""
    job = dataclasses.replace(job, elsewhere=elsewhere)
    proxy.fault = at_first(fault)
    assert job.here().rows == FILES * ROWS
    proxy.fault = lambda asked: None
    outputs.check(bucket, job.expected(), job.here, tmp_path)


def test_listings_that_are_old(job, bucket, proxy, tmp_path):
    with pytest.raises(OutputWriteFailed):
        job.here({"store.uploaded": "ENOSPC@5"})
    assert len([name for name in outputs.names(bucket) if name.startswith("part-")]) > 0
    proxy.fault = lambda asked: "stale" if "list-type" in asked.path else None
    assert job.here().rows == FILES * ROWS
    proxy.fault = lambda asked: None
    outputs.check(bucket, job.expected(), job.here, tmp_path)


def test_orphans_are_adopted_or_replaced(job, bucket, proxy, tmp_path):
    with pytest.raises(OutputWriteFailed):
        job.here({"store.uploaded": "ENOSPC@5"})
    *same, other = sorted(name for name in outputs.names(bucket) if name.startswith("part-"))
    tags = outputs.tags(bucket)
    run = re.search(r"-([a-z0-9]{8})\.", other)[1]
    notes = {"headracerun": run, "headracecrc32": "00000000"}
    obstore.put(bucket.store, f"{bucket.prefix}/out/{other}", b"another attempt", attributes=notes)
    proxy.asked.clear()
    assert job.here().rows == FILES * ROWS
    replaced = [
        asked.path.rpartition("/")[2]
        for asked in proxy.asked
        if is_part(asked) and "if-match" in asked.headers
    ]
    assert replaced == [other]
    now = outputs.tags(bucket)
    for name in same:
        assert now[f"{bucket.prefix}/out/{name}"] == tags[f"{bucket.prefix}/out/{name}"]
    outputs.check(bucket, job.expected(), job.here, tmp_path)


def test_an_object_of_somebody_else_is_not_replaced(job, bucket):
    with pytest.raises(OutputWriteFailed):
        job.here({"store.uploaded": "ENOSPC@5"})
    other = max(name for name in outputs.names(bucket) if name.startswith("part-"))
    bucket.put(f"out/{other}", b"mine")
    with pytest.raises(ForeignOutput, match=re.escape(other)):
        job.here()
    assert outputs.content(bucket, other) == b"mine"


# ---------------------------------------------------------------- two drivers


def test_a_driver_that_was_taken_for_dead_cannot_commit(bucket, monkeypatch, tmp_path):
    """The second begins, takes over and finishes while the first computes; the first must not add anything."""
    source = make_input(tmp_path / "in", files=4)
    monkeypatch.setattr(lease, "is_here", lambda holder: None)  # as if on two machines
    monkeypatch.setattr(lease, "SILENCE", 0.2)
    monkeypatch.setattr(lease, "BEAT", 100.0)
    depth, results = [0], []

    def work(batch):
        depth[0] += 1
        if depth[0] == 3:
            results.append(write())
        return {"id": batch["id"], "by": np.full(len(batch["id"]), 1 + (depth[0] > 3))}

    def write():
        data = hr.read_parquet(str(source)).map_batches(work, version="1", batch_size=100)
        return inline(data).with_options(shard_rows=100).write_parquet(f"{bucket.url}/out")

    with pytest.raises(RunLocked, match="was taken over by process"):
        write()
    assert results[0].rows == 400
    rows = inline(hr.read_parquet(f"{bucket.url}/out")).take_all()
    assert [row["id"] for row in rows] == list(range(400)) and hr.verify(f"{bucket.url}/out").good


def test_a_driver_that_lives_is_not_disturbed(bucket, monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 0.02)
    out = f"{bucket.url}/out"
    with pytest.raises(StepError, match="is being written by process"):
        inline(hr.range(3)).map_batches(lambda batch: inline(hr.range(3)).write_csv(out) and batch).write_csv(
            out
        )
    first = open_output(out)
    try:
        monkeypatch.setattr(lease, "is_here", lambda holder: None)
        with pytest.raises(RunLocked, match="is being written by process"):
            open_output(out)
        first.place.lease.check()
    finally:
        first.close()
    assert inline(hr.range(3)).write_csv(out).rows == 3


@pytest.mark.parametrize("hours", [-1, 1])
def test_who_writes_is_seen_by_signs_of_life_not_by_clocks(bucket, monkeypatch, hours):
    monkeypatch.setattr(lease, "BEAT", 0.02)
    out, clock = f"{bucket.url}/out", time.time
    held = open_output(out)
    try:
        monkeypatch.setattr(lease, "is_here", lambda holder: None)
        monkeypatch.setattr(time, "time", lambda: clock() + 3600 * hours)
        assert f"process {os.getpid()} on " in str(place_at(out).writer())
        held.place.lease._over.set()  # its machine is gone
        monkeypatch.setattr(lease, "SILENCE", 0.2)
        assert place_at(out).writer() is None
    finally:
        held.close()


def test_a_driver_whose_record_takes_long_to_upload_renews_its_lease(bucket, proxy, monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 0.02)
    monkeypatch.setattr(store_place, "_RECORDED", 0.02)
    uploading, renewed, beats = threading.Event(), threading.Event(), []

    def slow(asked):
        if asked.method == "PUT" and "events.jsonl" in asked.path:
            uploading.set()
            assert renewed.wait(60), "the upload of the record keeps the lease from being renewed"
        elif asked.method == "PUT" and asked.path.endswith("_headrace/lock") and uploading.is_set():
            beats.append(asked)
            if len(beats) == 3:
                renewed.set()

    proxy.fault = slow
    held = open_output(f"{bucket.url}/out")
    try:
        held.make("aaaaaaaa")
        (held.folder("aaaaaaaa") / "events.jsonl").write_text("{}")
        assert uploading.wait(60) and renewed.wait(60)
    finally:
        renewed.set()
        held.close()


def test_what_was_written_last_is_uploaded_last(bucket, proxy, monkeypatch):
    """A record that is uploaded while the output is closed must not replace the one that ``close`` has uploaded."""
    monkeypatch.setattr(store_place, "_RECORDED", 0.02)
    uploading, goes_on = threading.Event(), threading.Event()

    def slow(asked):
        if asked.method == "PUT" and "events.jsonl" in asked.path and not uploading.is_set():
            uploading.set()
            assert goes_on.wait(60)

    proxy.fault = slow
    held = open_output(f"{bucket.url}/out")
    held.make("aaaaaaaa")
    record = held.folder("aaaaaaaa") / "events.jsonl"
    record.write_text("old")
    assert uploading.wait(60)
    record.write_text("and the new one")
    closing = threading.Thread(target=held.close)
    closing.start()
    goes_on.set()
    closing.join(60)
    assert outputs.content(bucket, "_headrace/aaaaaaaa/events.jsonl") == b"and the new one"


def test_a_driver_that_was_silent_gives_a_sign_of_life_before_it_commits(bucket, proxy, monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 1_000.0)
    monkeypatch.setattr(lease, "SILENCE", 0.0)
    held = open_output(f"{bucket.url}/out")
    try:
        before = len([asked for asked in proxy.asked if asked.path.endswith("_headrace/lock")])
        held.place.lease.ensure()
        assert len([asked for asked in proxy.asked if asked.path.endswith("_headrace/lock")]) == before + 1
        bucket.put("out/_headrace/lock", b'{"token": "other", "who": "process 1 on another machine"}')
        with pytest.raises(RunLocked, match="was taken over by process 1 on another machine"):
            held.place.lease.ensure()
    finally:
        held.close()


def test_the_journal_has_one_writer(bucket):
    """What the first appends before the second has claimed the journal counts; what it tries then fails."""
    store = writing.StoreWriter(addresses.parse_output(f"{bucket.url}/out"), ())

    class Held:
        lost = False

        def __init__(self, token):
            self.token = token

        def check(self):
            pass

        def ensure(self):
            pass

        def fenced(self):
            return RunLocked("fenced")

    first, second, third = (NumberedObjects(store, "aaaaaaaa", Held(each * 16)) for each in "123")
    assert first.claim() == b""
    first.append(b"one")
    assert second.read() == b"one"
    first.append(b"two")
    assert second.claim() == b"two"
    with pytest.raises(RunLocked, match="fenced"):
        first.append(b"three")
    second.append(b"four")
    assert third.read(listed=2) == b"onetwofour"
    obstore.delete(bucket.store, f"{bucket.prefix}/out/_headrace/aaaaaaaa/journal/0000000002")
    with pytest.raises(JournalDamaged, match="0000000002 is gone"):
        NumberedObjects(store, "aaaaaaaa", Held("1" * 16)).read(listed=5)


def test_a_lease_that_this_process_lost_sight_of_is_taken_again(bucket):
    out = f"{bucket.url}/out"
    lost = open_output(out)
    lease._held.clear()  # as after an interrupt at the wrong moment
    assert inline(hr.range(3)).write_csv(out).rows == 3
    with pytest.raises(RunLocked, match="was taken over"):
        lost.place.lease.check()
    lost.close()
    assert hr.verify(out).good


# ---------------------------------------------------------------- looking at it


@pytest.fixture
def run_cli(capsys):
    def run(*words):
        from headrace.annex.cli import main

        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_commands_take_addresses(job, bucket, tmp_path, run_cli):
    out = f"{bucket.url}/out"
    with pytest.raises(OutputWriteFailed):
        job.here({"store.uploaded": "ENOSPC@5"})
    with pytest.warns(UserWarning, match="unfinished output"):
        hr.read_parquet(out).schema()
    assert run_cli("status", out)[1]["status"] == "failed"
    assert run_cli("verify", out)[1]["status"] == "unfinished"
    job.here()
    assert (
        run_cli("status", out)[1] | {"status": "complete", "rows_written": 800} == run_cli("status", out)[1]
    )
    assert run_cli("verify", out)[0] == 0
    assert run_cli("report", out, "--to", str(tmp_path / "r.html"))[0] == 0
    assert out in html.unescape((tmp_path / "r.html").read_text())
    part = max(name for name in outputs.names(bucket) if name.startswith("part-"))
    good = outputs.content(bucket, part)
    bucket.put(f"out/{part}", good[:-1] + b"x")
    bucket.put("out/other.parquet", b"x")
    found = run_cli("verify", out)[1]["findings"]
    assert [(each["kind"], each["file"]) for each in found] == [("damaged", part), ("extra", "other.parquet")]
    obstore.delete(bucket.store, f"{bucket.prefix}/out/other.parquet")
    assert run_cli("clean", out)[1]["status"] == "nothing to do"
    bucket.put("out/_headrace/aaaaaaaa/plan", b"x")
    bucket.put("out/part-00099-aaaaaaaa.parquet", b"x")
    left = ["_headrace/aaaaaaaa", "part-00099-aaaaaaaa.parquet"]
    assert [each["path"] for each in run_cli("clean", out)[1]["items"]] == left
    assert run_cli("clean", out, "--all", "--yes")[1]["removed"] is True
    assert outputs.names(bucket) == set()
    with pytest.raises(NothingMatched):
        hr.verify(out)


def test_rejected_rows_and_failed_functions(bucket):
    out = f"{bucket.url}/out"
    data = inline(hr.from_items(["1", "two", "3"])).map(lambda row: {"n": int(row["item"])})
    with pytest.raises(StepError):
        data.write_csv(out)
    result = data.with_options(on_error="reject").write_csv(f"{out}2")
    assert (result.rows, result.rejected) == (2, 1)
    assert inline(hr.read_rejected(f"{out}2")).select_columns(["item", "_row"]).take_all() == [
        {"item": "two", "_row": 1}
    ]


# ---------------------------------------------------------------- language models


def test_answers_of_language_models_are_committed_by_time_as_nothing_is_kept_there(
    bucket, tmp_path, monkeypatch
):
    from headrace.testing import FakeLLMServer

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with FakeLLMServer(lambda prompt: "1" if int(prompt) < 1_000 else 1 / 0) as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=8, max_retries=0)
        asked = inline(hr.range(1_100).prompt("{id}", model)).with_options(commit_every=0.02)
        with pytest.raises(hr.errors.HeadraceError, match=r"ServerFailed|does not answer any more"):
            asked.write_parquet(f"{bucket.url}/out")
    names = [each["path"] for chunk in obstore.list(bucket.store, f"{bucket.prefix}/out") for each in chunk]
    assert [name for name in names if "/part-" in name] and not [name for name in names if "/kept/" in name]
