"""Who works on an output in a store: an object that its driver renews, and that one driver takes from another.

The lease is politeness: it tells who is at work, and keeps a second driver from beginning. What makes two drivers
safe is that each object of the journal is put on the condition that there is none of its number, see below.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.core import failpoints
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken, Version
from headrace.core.work import HOME
from headrace.errors import HeadraceError, JournalDamaged, OutputWriteFailed, RunLocked, UnsafeStore
from headrace.output.journal import MAGIC
from headrace.output.publishing import HELD

LOCK = "_headrace/lock"
BEAT = 10.0  # seconds between two signs of life
SILENCE = 30.0  # seconds without one, after which a driver counts as gone
_SURE = 0.5  # of that time: a driver that was silent for longer gives a sign of life before it writes
_PATIENCE = 10.0  # seconds for a renewal that is under way when the run ends
_TRIES = 20  # against others who begin at the same time
_NOBODY = Version('"00000000000000000000000000000000"', "1")  # of no object

_log = logging.getLogger("headrace")
_held: set[str] = set()  # tokens of this process


class Watch:
    """Whether the holder of an output lives, by this machine's clock alone, as the clocks of two may differ.

    ``sign``: what the holder renews, see ``Place.sign``. It lives if it gives a new one.
    """

    def __init__(self, sign: Callable[[], str]) -> None:
        self._sign = sign
        self._known: str | None = None
        self._since = 0.0
        self._renewed = False

    def lives(self) -> bool | None:
        """Look once; None if its sign is not new, and has not been old for long enough to be sure."""
        began = time.monotonic()
        sign = self._sign()
        if sign != self._known:
            self._renewed = self._known is not None
            self._known, self._since = sign, time.monotonic()
        if sign in ("", HELD):
            return bool(sign)
        if began - self._since >= SILENCE:
            return False
        return True if self._renewed else None

    def wait(self) -> bool:
        """Look until it is sure."""
        while (found := self.lives()) is None:
            time.sleep(min(1.0, BEAT, SILENCE / 4))
        return found


class Lease:
    """Our hold on an output, renewed by a thread that does nothing else."""

    def __init__(self, store: StoreWriter) -> None:
        self._store = store
        self.token = os.urandom(8).hex()
        self._number = 1
        self._beats = 0
        self._version = ABSENT
        self._lost: str | None = None
        self._renewed = time.monotonic()  # when the last renewal that succeeded began
        self._renewing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="headrace-lease", daemon=True)

    @property
    def lost(self) -> bool:
        """True once it is known that another driver has the output."""
        return self._lost is not None

    def take(self) -> None:
        """Take the output, or raise ``RunLocked``; find out whether the store keeps its conditions."""
        _held.add(self.token)
        for _ in range(_TRIES):
            before, version = said_in(self._store)
            if before.get("held") and self._is_alive(str(before.get("who"))):
                raise RunLocked(
                    f"The output {self._store.address} is being written by {before.get('who', 'another driver')}. "
                    "Wait until it ends (or end it), then run again; two drivers never share an output. If its "
                    f"machine is gone, it is given up {SILENCE:.0f} seconds after its last sign of life."
                )
            self._number = int(before.get("number", 0)) + 1
            with contextlib.suppress(Taken):  # somebody else was first
                self._version = self._store.put_once(LOCK, self._body(), when=version)
                break
        else:
            raise RunLocked(
                f"Other runs write to {self._store.address} all the time. Run again when they are done."
            )
        self._check_conditions()
        self._renewed = time.monotonic()
        self._thread.start()

    def _check_conditions(self) -> None:
        """Ask for two things that the store has to refuse; put there what is there already, should it do them."""
        for condition in (ABSENT, _NOBODY):
            with contextlib.suppress(Taken):
                self._store.put(LOCK, self._body(), when=condition)
                self._store.remove([LOCK])
                self._version = ABSENT
                raise UnsafeStore(
                    f"The store of {self._store.address} ignores conditions: it replaced an object that was to be "
                    "written only if there is none. Two runs could mix their rows there, so nothing was written. Use "
                    "another store; or write to a folder, and copy that."
                )

    def _is_alive(self, who: str) -> bool:
        watch = Watch(lambda: sign_of(self._store))
        if watch.lives() is None:
            _log.warning(
                "headrace: %s was being written by %s; waiting for up to %d seconds to see whether it still is.",
                self._store.address,
                who,
                SILENCE,
            )
        return watch.wait()

    def check(self) -> None:
        if self._lost is None:
            self._compare(said_in(self._store)[0])
        if self._lost is not None:
            raise self.fenced()

    def ensure(self) -> None:
        """Raise ``RunLocked`` if another driver has the output; renew a lease first that is about to lapse."""
        if self._lost is None and time.monotonic() - self._renewed > _SURE * SILENCE:
            self._beat()
        if self._lost is not None:
            raise self.fenced()

    def fenced(self) -> RunLocked:
        """Return the error for a driver that goes on although another has its output."""
        who = self._lost or "another driver"
        return RunLocked(
            f"The output {self._store.address} was taken over by {who}, as this driver gave no sign of life for "
            f"{SILENCE:.0f} seconds. This run ends here; its finished work is kept, and the other goes on with it."
        )

    def release(self, *, forget: bool = False) -> None:
        """Let the output go; ``forget``: nothing of it is to be left."""
        self._over.set()
        _held.discard(self.token)
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        if self._version == ABSENT or self._lost is not None:
            return
        try:
            if forget:
                self._store.remove([LOCK])
            else:
                self._store.put(LOCK, self._body(held=False), when=self._version)
        except (Taken, OutputWriteFailed):  # the next driver sees that nobody renews it
            _log.warning("headrace: the lease on %s could not be given back.", self._store.address)

    def _renew(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(HeadraceError, OSError):  # tried again with the next
                self._beat()
                if self._lost is not None:
                    return

    def _beat(self) -> None:
        with self._renewing:
            began = time.monotonic()
            self._beats += 1
            try:
                self._version = self._store.put(LOCK, self._body(), when=self._version)
            except Taken:  # by us, if only the answer was lost
                now, version = said_in(self._store)
                self._compare(now)
                if self._lost is not None:
                    return
                self._version = version
            self._renewed = began

    def _compare(self, now: dict[str, Any]) -> None:
        """See whether the lease is still ours, by what it says."""
        if now.get("token") != self.token:
            self._lost = str(now.get("who") or "another driver")

    def _body(self, *, held: bool = True) -> bytes:
        machine, process = here_and_now()
        known = {
            "who": f"process {os.getpid()} on {os.uname().nodename}",
            "number": self._number,
            "token": self.token,
            "machine": machine,
            "process": process,
            "beats": self._beats,
            "held": held,
        }
        return json.dumps(known).encode() + b"\n"


def writer_of(store: StoreWriter) -> str | None:
    """Return who writes an output in a store now: its lease is held, and is renewed. That takes time to see."""
    lease = said_in(store)[0]
    alive = lease.get("held") and Watch(lambda: sign_of(store)).wait()
    return str(lease.get("who")) if alive else None


def sign_of(store: StoreWriter) -> str:
    """Return what ``Place.sign`` does."""
    lease = said_in(store)[0]
    here = is_here(lease) if lease.get("held") else False
    if here is None:
        return f"{lease.get('token')} {lease.get('beats')}"
    return HELD if here else ""


def said_in(store: StoreWriter) -> tuple[dict[str, Any], Version]:
    """Return what a lease says, and its version; nothing if it is none of ours.

    Where there is none, the version is ``ABSENT``.
    """
    found = store.get(LOCK)
    if found is None:
        return {}, ABSENT
    said: Any = None
    with contextlib.suppress(ValueError):
        said = json.loads(found[0])
    return said if isinstance(said, dict) else {}, found[1].version


@functools.cache
def _machine() -> str:
    """Return what tells this machine, as its processes number themselves, from any other; "" if that is unknown."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def here_and_now() -> tuple[str, str]:
    """Return this machine, and this process on it."""
    return _machine(), f"{os.getpid()} {_began(os.getpid())}"


def is_here(holder: dict[str, Any]) -> bool | None:
    """Say whether the holder of a lease lives on this machine; None if it is of another."""
    machine, process = here_and_now()
    if not machine or holder.get("machine") != machine:
        return None
    if holder.get("process") == process:
        return holder.get("token") in _held
    pid, _, began = str(holder.get("process", "")).partition(" ")
    return pid.isdigit() and bool(began) and _began(int(pid)) == began


def _began(pid: int) -> str:
    """Return when a process began; "" if there is none, or if it has ended and waits for its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


# The journal of a run in a store: objects with numbers, each put on the condition that there is none of it. An
# object holds ``MAGIC``, the token of the driver that wrote it, and frames of the journal; that of a driver that
# begins holds none. As every driver puts the number after the last that it knows, one that does not know that
# another has begun cannot append any more: the condition fails, and what stands there has another token.

_HEAD = b"headrlog"
_TOKEN = 16
_AT_ONCE = 16


class NumberedObjects:
    """The objects of one run's journal: a log, whose copy is a file of this machine."""

    def __init__(self, store: StoreWriter, run: str, lease: Lease) -> None:
        self._store = store
        self._folder = f"_headrace/{run}/journal/"
        self._lease = lease
        self._next = 1

    def read(self, *, listed: int = 0) -> bytes:
        """Return the frames of all objects from the next on. ``listed``: how many a listing has, maybe too few."""
        frames: list[bytes] = []
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-journal") as threads:
            known = range(self._next, listed + 1)
            for number, data in zip(known, threads.map(self._object, known), strict=True):
                if data is None:
                    raise JournalDamaged(
                        f"{self._store.url(self._name(number))} is gone, and later objects of the journal are there. "
                        "Without it, it is not known which work is finished: restore it from a copy, or write to "
                        "another place."
                    )
                frames.append(self._frames(number, data))
        self._next = max(self._next, listed + 1)
        while (data := self._object(self._next)) is not None:  # a listing may be old; this is not
            frames.append(self._frames(self._next, data))
            self._next += 1
        return b"".join(frames)

    def append(self, frames: bytes) -> None:
        """Put the next object; raises ``RunLocked`` if another driver has put one of this number."""
        data = _HEAD + self._lease.token.encode() + frames.removeprefix(MAGIC)
        failpoints.hit("store.append")
        self._lease.ensure()
        try:
            self._store.put_once(self._name(self._next), data, when=ABSENT)
        except Taken:
            self._lease.check()
            raise self._lease.fenced() from None
        self._next += 1
        failpoints.hit("store.appended")

    def claim(self) -> bytes:
        """Put an object without frames; return the frames that another driver has put since the journal was read.

        What that one put before ours counts; whatever it puts from then on fails.
        """
        late: list[bytes] = []
        for _ in range(_TRIES):
            try:
                self.append(b"")
            except RunLocked:
                self._lease.check()  # it is ours: the other one does not know that yet
                late.append(self.read())
            else:
                return b"".join(late)
        raise RunLocked(
            f"{self._store.url(self._folder)} is written by another run again and again. Run again when it is done."
        )

    def _object(self, number: int) -> bytes | None:
        return self._store.content(self._name(number))

    def _name(self, number: int) -> str:
        return f"{self._folder}{number:010}"

    def _frames(self, number: int, data: bytes) -> bytes:
        if data[: len(_HEAD)] != _HEAD or len(data) < len(_HEAD) + _TOKEN:
            raise JournalDamaged(
                f"{self._store.url(self._name(number))} is damaged: it is not a part of a journal. Restore it from a "
                "copy, or write to another place."
            )
        return data[len(_HEAD) + _TOKEN :]


class StoreNotes:
    """Objects, each put on the condition that there is none of its name."""

    def __init__(self, objects: StoreWriter, folder: str) -> None:
        self._objects = objects
        self._prefix = f"{HOME}/{folder}/"

    def add(self, name: str, data: bytes) -> bool:
        failpoints.hit("note.add")
        try:
            self._objects.put_once(self._prefix + name, data, when=ABSENT)
        except Taken:
            return False
        failpoints.hit("note.added")
        return True

    def read(self, name: str) -> bytes | None:
        return self._objects.content(self._prefix + name)

    def names(self) -> list[str]:
        return [name.removeprefix(self._prefix) for name, _ in self._objects.names(self._prefix)]
