"""Two drivers never share an output, and workers hold no part of the lock."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from headrace.errors import RunLocked
from headrace.output.layout import open_output
from headrace.output.places.place import place_at

from .invariants import check, parts
from .job import Job


def test_a_second_driver_is_refused_and_told_by_whom(job: Job) -> None:
    driver = job.start({"publish.renamed": "stop@2"})
    driver.until(lambda: psutil.Process(driver.process.pid).status() == psutil.STATUS_STOPPED)
    published = parts(Path(job.output))
    with pytest.raises(RunLocked, match=f"process {driver.process.pid} on "):
        job.here()
    with pytest.raises(RunLocked):
        Job(job.source, job.output, factor=7).here(mode="overwrite")
    assert parts(Path(job.output)) == published
    held = str(Path(job.output) / "_headrace" / "lock")
    for worker in driver.workers():
        assert held not in {file.path for file in worker.open_files()}
    driver.process.send_signal(18)
    assert driver.wait()[0] == 0
    check(Path(job.output), job.expected(), job.here)


def test_workers_that_outlive_their_driver_do_not_hold_the_lock(job: Job) -> None:
    driver = job.start({"stage.write": "stop@2"})
    driver.until(lambda: any(worker.status() == psutil.STATUS_STOPPED for worker in driver.workers()))
    driver.kill()
    job.here()
    driver.wait()
    check(Path(job.output), job.expected(), job.here)


def test_one_of_many_that_come_and_go_holds_it(tmp_path: Path) -> None:
    holders: list[int] = []
    most = 0
    door = threading.Lock()

    def visit(number: int) -> int:
        nonlocal most
        try:
            folder = open_output(tmp_path / "out")
        except RunLocked:
            return 0
        with door:
            holders.append(number)
            most = max(most, len(holders))
        os.sched_yield()
        assert folder.home.exists()
        with door:
            holders.remove(number)
        folder.close(forget=True)  # removes the folder, lock file included
        return 1

    with ThreadPoolExecutor(8) as threads:
        entered = sum(threads.map(visit, range(400)))
    assert most == 1 and entered > 0
    open_output(tmp_path / "out").close(forget=True)


def test_who_only_looks_keeps_no_driver_out(tmp_path: Path) -> None:
    """`headrace status --watch` in another terminal asks again and again whether the lock is free."""
    open_output(tmp_path / "out").close()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            place_at(tmp_path / "out").writer()

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        try:
            for _ in range(300):
                open_output(tmp_path / "out").close()
        finally:
            done.set()
        looking.result()
