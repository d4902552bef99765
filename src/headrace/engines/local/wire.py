"""What a pool and its workers say: frames of ``<u64 length>`` and a pickle, and what workers print."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import struct
import sys
import threading
from collections import deque
from typing import IO, Any, Literal

from headrace.errors import EngineError

_LENGTH = struct.Struct("<Q")
_CHUNK = 64 << 10  # bytes to read at a time: for more, room is taken from the system and given back each time
_CUT = int(socket.MSG_CTRUNC)  # a plain number: looking at a flag takes longer than reading the message


def send(sock: socket.socket, message: Any, *fds: int) -> None:
    """Send one message, with descriptors; blocks until all of it is on its way. One of -1 is none."""
    body = pickle.dumps(message, protocol=5)
    header = _LENGTH.pack(len(body))
    if fds and fds[0] >= 0:
        socket.send_fds(sock, [header], fds)
        sock.sendall(body)
    elif len(body) < 1 << 16:
        sock.sendall(header + body)
    else:
        sock.sendall(header)
        sock.sendall(body)


def receive(sock: socket.socket) -> tuple[Any, int]:
    """Wait for one message; returns it with the descriptor that came along, or -1.

    Raises ``EOFError`` or ``ConnectionError`` when the other side is gone.
    """
    message, fds = receive_with(sock, 1)
    return message, fds[0] if fds else -1


def receive_with(sock: socket.socket, most: int) -> tuple[Any, list[int]]:
    """Wait for one message, as ``receive``; returns it with the descriptors that came along, ``most`` at most."""
    header, fds = _take(sock, _LENGTH.size, most)
    while 0 < len(header) < _LENGTH.size:
        more = sock.recv(_LENGTH.size - len(header))
        if not more:
            raise EOFError
        header += more
    if not header:
        raise EOFError
    body = bytearray(_LENGTH.unpack(header)[0])
    view, at = memoryview(body), 0
    while at < len(body):
        count = sock.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return pickle.loads(body), fds


NO_MORE = (
    "As many processes and threads run as are allowed: raise that limit (ulimit -u, or pids.max of the "
    "container), or let fewer workers run (workers=, concurrency=)."
)


def start(thread: threading.Thread) -> None:
    """Start a thread, or say why there can be no more of them."""
    try:
        thread.start()
    except RuntimeError as error:
        raise EngineError(f"A thread could not be started: {error}. {NO_MORE}") from error


def advice(error: OSError) -> str:
    """Say what to do about an error of the system, if it is one of those that have a remedy."""
    if error.errno == errno.EAGAIN:
        return f" {NO_MORE}"
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f" It may have {most:,} files open: raise that limit (ulimit -n), or keep fewer open."


def _take(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Read some bytes and the descriptors that come with them, or raise: none of those may be missing unnoticed,
    or the next one would pass for it."""
    data, fds, flags, _ = socket.recv_fds(sock, size, most)
    for fd in fds:
        os.set_inheritable(fd, False)
    if flags & _CUT:
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, "a descriptor was lost, as too many files are open")
    return data, fds


class Inbox:
    """Puts frames together from a socket that is read as bytes come, without waiting.

    ``fds`` holds descriptors that came along and that nobody has taken yet, in their order.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.fds: deque[int] = deque()

    def read(self, sock: socket.socket) -> tuple[bool, list[Any]]:
        """Read what has come; return whether there was anything, and the messages that are complete now.

        Raises ``OSError`` if the system denies what is needed for that.
        """
        try:
            data, fds = _take(sock, _CHUNK, 16)
        except (BlockingIOError, ConnectionError):
            return False, []
        self.fds.extend(fds)
        return bool(data), self.feed(data) if data else []

    def feed(self, data: bytes) -> list[Any]:
        """Take some bytes; return the messages that are complete now."""
        self._buffer += data
        messages = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            length = _LENGTH.unpack_from(self._buffer, at)[0]
            end = at + _LENGTH.size + length
            if end > len(self._buffer):
                break
            messages.append(pickle.loads(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        if at:
            del self._buffer[:at]
        return messages


# ---------------------------------------------------------------- printed lines


class Relay:
    """Passes on one stream of one worker, whole lines at a time, and remembers the last few.

    A line that is redrawn (it ends in a carriage return) and one longer than 64 KiB are passed on as they are.
    """

    def __init__(self, pipe: IO[bytes] | None, name: Literal["stdout", "stderr"]) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._name = name
        self._rest = b""
        self._last: deque[str] = deque(maxlen=40)
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._pipe.fileno()

    def pump(self) -> bool:
        """Pass on some of what is there; False when the worker closed its end."""
        if self._pipe.closed:
            return False
        try:
            data = os.read(self._pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) >= _CHUNK:
            end = len(data)
        self._rest = data[end:]
        self._emit(data[:end])
        return True

    def finish(self) -> None:
        """Pass on the rest, half a line included, and close."""
        if self._pipe.closed:
            return
        self._drain()
        self._emit(self._rest)
        self._rest = b""
        self._pipe.close()

    def tail(self) -> str:
        """The last lines, for an error message."""
        self._drain()
        lines = [line.strip() for line in self._last if line.strip() and not _is_noise(line)]
        crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
        return " / ".join(lines[-6:] if crash is None else lines[max(0, crash - 2) : crash + 6])[:600]

    def _drain(self) -> None:
        """Pass on what the pipe still holds; it holds 64 KiB, unless something goes on writing."""
        for _ in range(16):
            before = self._rest
            with contextlib.suppress(ValueError, OSError):
                if not self.pump():
                    return
            if self._rest == before and not self._waiting():
                return

    def _waiting(self) -> bool:
        import select

        return bool(select.select([self._pipe.fileno()], [], [], 0)[0])

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        text = data.decode(errors="replace")
        self._last.extend(text.splitlines()[-40:])
        stream = getattr(sys, self._name)
        with contextlib.suppress(Exception):  # a closed terminal must not take the run down
            stream.write(text)
            stream.flush()


def _is_noise(line: str) -> bool:
    """Of the stack that a crash leaves behind, our own frames and the list of modules do not help."""
    return (
        line.startswith(("Extension modules:", "Current thread"))
        or "/headrace/" in line
        or "<string>" in line
    )
