"""A model of losing power: what a disk may hold at any moment of a run.

Between two syncs a file system may bring what was asked of it to the disk in any order, or not at all. Here each
folder and each file is a thing of its own: a sync of a folder makes its names last, a sync of a file its bytes; every
other change since then may be there or not, whatever became of those before and after it. Renaming within a folder
is one change; from one folder to another it is two, which need not both be there. A file that was not synced holds
what it held at its last sync, all that was written since, or half of it.

``Recorder`` watches a run in this process; ``Moment.worlds`` are the trees that may be found after a loss of power.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

Thing = tuple[int, int]  # a file or folder, whatever its name
Names = dict[str, Thing]
Change = dict[str, "Thing | None"]
World = dict[str, "bytes | None"]  # paths below the top; None for a folder

CALLS = ("open", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")
MANY = 5  # changes: of more not every subset is tried


@dataclass
class Moment:
    """What is for good at one moment, and what may be."""

    top: Thing
    before: str  # what was about to be done
    names: dict[Thing, Names]
    data: dict[Thing, bytes]
    changes: dict[Thing, list[Change]]
    written: dict[Thing, bytes]

    def worlds(self, dice: random.Random, samples: int) -> Iterator[World]:
        """Yield trees: the two extremes, each change alone, all but one, some of all subsets."""
        there = [(folder, i) for folder, changes in self.changes.items() for i in range(len(changes))]
        there += [(thing, -1) for thing in self.written]
        if len(there) <= MANY:
            chosen = [
                {one for i, one in enumerate(there) if bits >> i & 1} for bits in range(2 ** len(there))
            ]
        else:
            chosen = [set(), set(there)]
            chosen += [{one} for one in there] + [set(there) - {one} for one in there]
            chosen += [
                {one for one in there if one[0] == folder} for folder in chain(self.changes, self.written)
            ]
            chosen += [{one for one in there if dice.random() < 0.5} for _ in range(samples)]
        for some in chosen:
            yield self._world(some, half=False)
            if any(i < 0 for _, i in some):
                yield self._world(some, half=True)

    def _world(self, some: set[tuple[Thing, int]], *, half: bool) -> World:
        found: World = {}

        def walk(folder: Thing, path: str) -> None:
            names = dict(self.names.get(folder, {}))
            for i, change in enumerate(self.changes.get(folder, [])):
                if (folder, i) in some:
                    for name, thing in change.items():
                        names.pop(name, None)
                        if thing is not None:
                            names[name] = thing
            for name, thing in names.items():
                if thing in self.names:
                    found[path + name] = None
                    walk(thing, f"{path}{name}/")
                elif (thing, -1) in some:
                    data = self.written[thing]
                    found[path + name] = data[: len(data) // 2] if half else data
                else:
                    found[path + name] = self.data.get(thing, b"")

        walk(self.top, "")
        return found


@dataclass
class Recorder:
    """Watches what a run does below ``top``; what is there when it begins is on the disk."""

    top: Path
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._held: list[int] = []  # so that no number of a thing is given to another one
        self._things: dict[tuple[int, int], Thing] = {}
        self._names, self._bytes = self._seen()
        self._durable_names = {folder: dict(names) for folder, names in self._names.items()}
        self._durable_data = dict(self._bytes)
        self._changes: dict[Thing, list[Change]] = {}
        self._busy = False

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on."""
        for name in CALLS:
            monkeypatch.setattr(os, name, self._before(name, getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self._sync)

    def close(self) -> None:
        self.look("the end")
        for fd in self._held:
            os.close(fd)

    def _before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            if not self._busy:
                self.look(f"{name} {args}")
            return call(*args, **more)

        return watched

    def _sync(self, fd: int) -> None:
        self.look(f"fsync of {os.readlink(f'/proc/self/fd/{fd}')}")
        status = os.fstat(fd)
        thing = status.st_dev, status.st_ino
        if thing in self._names:
            self._durable_names[thing] = dict(self._names[thing])
            self._changes.pop(thing, None)
        elif thing in self._bytes:
            self._durable_data[thing] = self._bytes[thing]

    def look(self, before: str) -> None:
        """See what has changed, and remember this moment."""
        self._busy = True
        try:
            names, data = self._seen()
        finally:
            self._busy = False
        for folder, now in names.items():
            was = self._names.get(folder, {})
            change: Change = {
                name: now.get(name) for name in was.keys() | now.keys() if was.get(name) != now.get(name)
            }
            if change:
                self._changes.setdefault(folder, []).append(change)
        self._names |= names  # of folders that were removed, too: their removal may be undone
        self._bytes |= data
        for folder in names:
            self._durable_names.setdefault(folder, {})
        written = {
            thing: now for thing, now in self._bytes.items() if self._durable_data.get(thing, b"") != now
        }
        status = os.stat(self.top)
        self.moments.append(
            Moment(
                (status.st_dev, status.st_ino),
                before,
                {folder: dict(each) for folder, each in self._durable_names.items()},
                dict(self._durable_data),
                {folder: list(each) for folder, each in self._changes.items()},
                written,
            )
        )

    def _seen(self) -> tuple[dict[Thing, Names], dict[Thing, bytes]]:
        names: dict[Thing, Names] = {}
        data: dict[Thing, bytes] = {}

        def walk(path: Path) -> None:
            status = path.stat()
            found = names[status.st_dev, status.st_ino] = {}
            for entry in os.scandir(path):
                thing = found[entry.name] = self._known(entry)
                if entry.is_dir():
                    walk(Path(entry.path))
                else:
                    data[thing] = Path(entry.path).read_bytes()

        self._busy = True
        walk(self.top)
        self._busy = False
        return names, data

    def _known(self, entry: os.DirEntry[str]) -> Thing:
        status = entry.stat()
        thing = status.st_dev, status.st_ino
        if thing not in self._things:
            self._things[thing] = thing
            self._held.append(os.open(entry.path, os.O_RDONLY))
        return thing


def build(world: World, top: Path) -> None:
    """Make a tree of files."""
    top.mkdir()
    for path, data in world.items():
        if data is None:
            (top / path).mkdir()
        else:
            (top / path).write_bytes(data)


def distinct(recorder: Recorder, dice: random.Random, samples: int = 8) -> Iterator[tuple[str, World]]:
    """Yield each tree once, with what was about to be done when it was first possible."""
    seen = set()
    for moment in recorder.moments:
        for world in moment.worlds(dice, samples):
            key = frozenset(world.items())
            if key not in seen:
                seen.add(key)
                yield moment.before, world
