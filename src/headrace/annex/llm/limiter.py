"""One limiter for all workers of a machine that use the same key at the same server.

Its state is one small file, which is locked for each look at it; where another worker looks, ``BlockingIOError`` says
so at once, as an event loop must not wait. It holds: when the next request may be sent, by the requests
and by the tokens of a minute; until when the server wants to be left alone; how many requests may be under way. What
a worker reserved and did not use, as it was killed, is lost: at most a second of what the key may use.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import hashlib
import os
import random
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from headrace.core.process import lock, unlock

LEAST_SHARE = 1
WORKERS = 64
"""How many workers the file holds; further ones take part in the rates, and count as one."""
SILENT_SECONDS = 15.0
"""A worker that was not heard of for so long is gone, and others get its share."""
BURST_SECONDS = 0.5
"""What was not used for so long may be used at once; more would look like a burst to the server."""
LATE_SECONDS = 0.25
"""A turn that is missed by more is lost. A server that counts by the minute would see two turns in one."""
UTILISATION = 0.985
"""How much of a rate is used: a minute with ``BURST_SECONDS`` and ``LATE_SECONDS`` has no more than it may have."""
LONGEST = 3600.0
LONGEST_TOLD = 366 * 86_400.0
"""A server may say that it wants to be left alone for ever."""
LONGEST_PAUSE = 60.0
"""Headers of answers may ask for no longer pause: what is left is known then."""
MOMENT = 1e9
"""So many seconds are a moment since 1970, and no time to wait."""
DECREASE = 0.7

_SIZE = 4096


class State(msgspec.Struct):
    """What the file holds, as JSON; times are in seconds since 1970. ``limit`` 0: as many as the user allows."""

    requests_at: float = 0.0
    tokens_at: float = 0.0
    blocked_until: float = 0.0
    limit: float = 0.0
    lowered_at: float = 0.0
    workers: dict[int, float] = {}  # when each was heard of


_read = msgspec.json.Decoder(State).decode


class SharedState:
    """A ``State`` in a file, or, without one, in this object."""

    def __init__(self, path: str | None) -> None:
        self._fd = (
            None
            if path is None
            else os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        )
        self._own = State()

    @contextlib.contextmanager
    def locked(self) -> Iterator[State]:
        """Yield the state; what is changed of it is written back, and nobody else looks at it meanwhile."""
        if self._fd is None:
            yield self._own
            return
        if not lock(self._fd):
            raise BlockingIOError("another worker looks at the limits")
        try:
            try:
                state = _read(os.pread(self._fd, _SIZE, 0))
            except msgspec.DecodeError:  # nobody has written it, or something else
                state = State()
            yield state
            newest = sorted(state.workers.items(), key=lambda each: -each[1])[:WORKERS]
            state.workers = dict(newest)
            os.pwrite(self._fd, msgspec.json.encode(state).ljust(_SIZE), 0)
        finally:
            unlock(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def state_path(server: str, key: str | None) -> str | None:
    """Return the file of a key at a server; None if there can be none."""
    folder = own_folder("headrace-limits")
    return None if folder is None else os.path.join(folder, f"limiter-{key_name(server, key)}")


def key_name(server: str, key: str | None) -> str:
    """Return what a key at a server is called in files: nobody finds the key by it."""
    both = f"{server}\n{key or ''}".encode()
    return hashlib.blake2b(both, digest_size=16, person=b"headrace limiter").hexdigest()


def own_folder(name: str) -> str | None:
    """Return a folder on this machine that only this user can read; None if there can be none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_own(folder := os.path.join(runtime, name)):
        return folder
    folder = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    return folder if _is_own(folder) else None


def lasting_folder(name: str) -> str | None:
    """Return one that also outlives a restart of the machine; None if there can be none."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    with contextlib.suppress(OSError):
        os.makedirs(state, 0o700, exist_ok=True)
    folder = os.path.join(state, name)
    return folder if os.path.isabs(state) and _is_own(folder) else None


def _is_own(folder: str) -> bool:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


class Limiter:
    """Says when a request may be sent, and how many may be under way."""

    def __init__(
        self,
        state: SharedState,
        *,
        most: int,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._most = most
        self._requests = requests_per_minute and requests_per_minute * UTILISATION / 60
        self._tokens = tokens_per_minute and tokens_per_minute * UTILISATION / 60
        self._clock = clock
        self._worker = random.SystemRandom().randrange(1, 1 << 63)
        self.free = (
            False  # there are no rates, and when it was last looked, nobody had asked for fewer requests
        )

    def reserve(self, tokens: int) -> float:
        """Return at what time a request of about so many tokens may be sent. It counts from now on.

        Turns may be given long before they come. So what neither rate has used before that time is lost, too.
        """
        now = self._clock()
        with self._state.locked() as state:
            blocked = _within(state.blocked_until, now)
            first = max(now - BURST_SECONDS, blocked)
            by_requests = max(_within(state.requests_at, now), first) if self._requests else first
            by_tokens = max(_within(state.tokens_at, now), first) if self._tokens else first
            at = max(now, blocked, by_requests, by_tokens)
            if self._requests:
                state.requests_at = max(by_requests, at - BURST_SECONDS) + 1 / self._requests
            if self._tokens:
                state.tokens_at = max(by_tokens, at - BURST_SECONDS) + tokens / self._tokens
            state.workers[self._worker] = now
            self._look(state, now)
        return at

    def _look(self, state: State, now: float) -> None:
        paced = self._requests or self._tokens
        self.free = not paced and not state.limit and _within(state.blocked_until, now) <= now

    def used(self, estimated: int, tokens: int) -> None:
        """Correct what was reserved by the tokens that a request has really used."""
        if self._tokens and tokens != estimated:
            with self._state.locked() as state:
                state.tokens_at += (tokens - estimated) / self._tokens

    def blocked_until(self) -> float:
        """Return until when the server wants to be left alone."""
        with self._state.locked() as state:
            return _within(state.blocked_until, self._clock())

    def block(self, seconds: float) -> None:
        """Have no worker send anything for so long."""
        now = self._clock()
        with self._state.locked() as state:
            state.blocked_until = max(_within(state.blocked_until, now), now + min(seconds, LONGEST))
            self._look(state, now)

    def landed(self, sent_at: float, *, overloaded: bool) -> int:
        """Note how a request ended that was sent at a time; return how many this worker may have under way.

        Additive increase, multiplicative decrease, as in TCP: one more for each round of answers, 30 % fewer where
        the server is overloaded; at most once for the requests that were under way together.
        """
        now = self._clock()
        with self._state.locked() as state:
            live = self._live(state, now)
            ceiling = float(self._most)
            limit = min(state.limit or ceiling, ceiling)
            if not overloaded:
                state.limit = 0.0 if limit + 1 / limit >= ceiling else limit + 1 / limit
            elif sent_at > state.lowered_at:
                state.limit = max(1.0, limit * DECREASE)
                state.lowered_at = now
            self._look(state, now)
            return self._share(state, live)

    def share(self) -> int:
        """Return how many requests this worker may have under way; it is heard of by that, too."""
        with self._state.locked() as state:
            return self._share(state, self._live(state, self._clock()))

    def _live(self, state: State, now: float) -> list[int]:
        state.workers[self._worker] = now
        state.workers = {
            each: seen for each, seen in state.workers.items() if abs(now - seen) < SILENT_SECONDS
        }
        return sorted(state.workers)

    def _share(self, state: State, live: list[int]) -> int:
        limit = int(min(state.limit or self._most, self._most))
        place = live.index(self._worker) if self._worker in live else len(live)
        return max(LEAST_SHARE, limit // len(live) + (place < limit % len(live)))

    def close(self) -> None:
        """Leave the others what this worker had."""
        with contextlib.suppress(BlockingIOError), self._state.locked() as state:
            state.workers.pop(self._worker, None)  # or they miss it after SILENT_SECONDS
        self._state.close()


def _within(moment: float, now: float) -> float:
    """Return a moment that was written down, unless it makes no sense: clocks are set, and files grow old."""
    return moment if moment < now + LONGEST else 0.0


# ---------------------------------------------------------------- what a server asks for


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a server wants to be left alone; None if it does not say.

    A date is compared with the server's own, if it says that: clocks differ.

    >>> retry_after({"Retry-After": "2"}), retry_after({"retry-after-ms": "250"}), retry_after({})
    (2.0, 0.25, None)
    >>> retry_after({"Date": "Fri, 27 Nov 2026 04:00:00 GMT", "Retry-After": "Fri, 27 Nov 2026 04:00:07 GMT"})
    7.0
    """
    values = {name.lower(): value for name, value in headers.items()}
    text = values.get("retry-after", "")
    for value, unit in ((values.get("retry-after-ms", ""), 1000), (text, 1)):
        with contextlib.suppress(ValueError):
            seconds = float(value) / unit
            return min(max(0.0, seconds), LONGEST_TOLD) if seconds == seconds else None
    at = _date_of(text)
    if at is None:
        return None
    return min(max(0.0, at - (_date_of(values.get("date", "")) or time.time())), LONGEST_TOLD)


def _date_of(text: str) -> float | None:
    """Return the seconds since 1970 of a date as HTTP says it, or RFC 3339."""
    for read in (email.utils.parsedate_to_datetime, datetime.datetime.fromisoformat):
        with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
            found = read(text.strip().replace("Z", "+00:00") if "T" in text else text)
            return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
    return None


_SPAN = re.compile(r"([\d.]+)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time as ``x-ratelimit`` headers say it; None for what is none.

    >>> seconds_of("6m0s"), seconds_of("20ms"), seconds_of("12"), seconds_of("soon")
    (360.0, 0.02, 12.0, None)
    """
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    try:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    except ValueError:
        return None


def pause_of(headers: Mapping[str, str]) -> float | None:
    """Return for how long nothing is left of a rate, by the headers of an answer.

    They are ``x-ratelimit-remaining-tokens: 0`` with ``x-ratelimit-reset-tokens: 6m0s``,
    ``anthropic-ratelimit-requests-remaining`` with a date, and others of this form. A reset may also be a moment, in
    seconds or milliseconds since 1970.

    >>> pause_of({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"})
    1.0
    """
    pauses = []
    for name, remaining in headers.items():
        lower = name.lower()
        if "ratelimit" in lower and "remaining" in lower and remaining.strip() in ("0", "0.0"):
            reset = lower.replace("remaining", "reset")
            text = next((value for other, value in headers.items() if other.lower() == reset), "")
            seconds = seconds_of(text)
            if seconds is None or seconds > MOMENT:
                at = _date_of(text) if seconds is None else seconds / (1000 if seconds > 1000 * MOMENT else 1)
                seconds = None if at is None else at - time.time()
            if seconds is not None and seconds > 0:
                pauses.append(min(seconds, LONGEST_PAUSE))
    return max(pauses) if pauses else None
