"""Who reads which block: the same for objects of a store and for slots."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace.core.work import BlockRef
from headrace.engines.local.pool import SlotRegistry
from headrace.engines.pool import BlockRegistry

MAKER, READER, OTHER = 1, 2, 3


def of_objects() -> tuple[BlockRegistry, Callable[[int], BlockRef]]:
    registry = BlockRegistry()

    def add(number: int) -> BlockRef:
        ref = BlockRef(MAKER, 0, 100, number)
        registry.add(ref, f"object {number}")
        return ref

    return registry, add


def of_slots() -> tuple[BlockRegistry, Callable[[int], BlockRef]]:
    registry = SlotRegistry()

    def add(number: int) -> BlockRef:
        registry.add_slot(MAKER, number, os.open(os.devnull, os.O_RDONLY))
        ref = BlockRef(MAKER, number, 100, number)
        registry.add(ref)
        return ref

    return registry, add


@pytest.mark.parametrize("make", [of_objects, of_slots])
def test_blocks_and_their_readers(
    make: Callable[[], tuple[BlockRegistry, Callable[[int], BlockRef]]],
) -> None:
    registry, add = make()
    once, twice, unread, shared = (add(number) for number in range(4))

    assert registry.add_reader(once, READER)
    assert registry.drop(once) == [], "somebody reads it"
    assert registry.release([once.number], OTHER) == [], "that is not its reader"
    assert registry.release([once.number], READER) == [once]
    assert registry.release([once.number], READER) == registry.drop(once) == []
    assert registry.add_reader(once, READER) is None, "it is gone"

    registry.hold(twice)
    assert registry.add_reader(twice, READER)
    assert registry.release([twice.number], READER) == [], "another reader is to come"
    assert registry.skip_reader(twice) == [twice], "who will not come"

    assert registry.drop(unread) == [unread]

    for _ in range(2):
        assert registry.add_reader(shared, READER)
    assert registry.add_reader(shared, OTHER)
    assert registry.remove_dead(READER) == []
    assert registry.add_reader(shared, READER) is None, "the reader is gone"
    assert registry.release([shared.number], OTHER) == [shared]
    registry.close()


def test_what_a_dead_worker_wrote_stays_until_it_is_read() -> None:
    registry = SlotRegistry()
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    for slot, fd in enumerate(fds):
        registry.add_slot(MAKER, slot, fd)
    ref = BlockRef(MAKER, 0, 100, 7)
    registry.add(ref)
    assert registry.add_reader(ref, READER) and registry.fd_to_send(ref, READER) == fds[0]
    assert registry.remove_dead(MAKER) == []
    with pytest.raises(OSError):
        os.fstat(fds[1])
    assert os.fstat(fds[0]) and registry.fd_to_send(ref, READER) is None, "it was sent already"
    assert registry.release([7], READER) == [ref]
    with pytest.raises(OSError):
        os.fstat(fds[0])
    assert registry.retired() == [(READER, MAKER, 0)]
    registry.close()
