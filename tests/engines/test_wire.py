"""What crosses the sockets between a driver and its workers, also where the system denies descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Iterator

import numpy as np
import pytest

import headrace as hr
from headrace.engines.local import wire
from headrace.engines.local.spawner import Spawner, Starting
from headrace.errors import HeadraceError


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    use_up()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def use_up() -> None:
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_descriptor_that_is_lost_is_an_error_and_not_one_less(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    inbox = wire.Inbox()
    wire.send(pair[0], ("slot", 1), 0)
    wire.send(pair[0], ("slot", 2), 0)
    with no_more_files(), pytest.raises(OSError, match="too many files are open"):
        inbox.read(pair[1])
    assert not inbox.fds
    with no_more_files(), pytest.raises(OSError, match="too many files are open"):
        inbox.receive(pair[1])


def test_the_end_of_the_other_side_is_no_error_of_the_system(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[0].close()
    assert wire.Inbox().read(pair[1]) == (False, [])
    with pytest.raises(EOFError):
        wire.Inbox().receive(pair[1])


def test_a_worker_with_too_few_descriptors_says_so_and_another_one_does_its_work(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with hr.connect(workers=1) as executor:
        executor.submit(use_up).result()
        big = executor.put(np.ones(1 << 20))
        assert executor.submit(np.sum, big).result() == 1 << 20
    assert "could not read a message from its driver" in (said := capfd.readouterr().err)
    assert "ulimit -n" in said


def test_a_driver_with_too_few_descriptors_says_so() -> None:
    with hr.connect(workers=1) as executor:
        executor.submit(int, "1").result()
        answer = executor.submit(np.ones, 1 << 20)
        with no_more_files(), pytest.raises(HeadraceError, match=r"too many files are open.*ulimit -n"):
            answer.result()


def test_a_message_that_could_not_be_sent_ends_its_worker() -> None:
    """Nobody would hear of it otherwise, and who waits for the answer would wait for ever."""
    spawner = Spawner(Starting())
    worker = spawner.worker(1)
    try:
        worker.send(("value", 1), 987_654)  # the system knows no such descriptor
        assert worker.death().code == -signal.SIGKILL
    finally:
        worker.end()
        worker.release()
        spawner.close()
