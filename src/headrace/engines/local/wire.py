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

import msgspec

from headrace.engines.references import OutOfBandPickle
from headrace.errors import EngineError

_LENGTH = struct.Struct("<Q")
_CHUNK = 64 << 10  # bytes to read at a time: for more, room is taken from the system and given back each time
_CUT = int(socket.MSG_CTRUNC)  # a plain number: looking at a flag takes longer than reading the message


def send(sock: socket.socket, message: Any, *fds: int) -> None:
    """Send one message, with descriptors; blocks until all of it is on its way.

    What is packed is the last of a message, and its descriptor goes along.
    """
    body = pickle.dumps(message, protocol=5)
    header = _LENGTH.pack(len(body))
    if _filed(message):
        fds = (message[-1].fd,)
    if fds:
        socket.send_fds(sock, [header], fds)
        sock.sendall(body)
    elif len(body) < 1 << 16:
        sock.sendall(header + body)
    else:
        sock.sendall(header)
        sock.sendall(body)


def _filed(message: Any) -> bool:
    """Say whether the last of a message is packed, and its buffers are in a file."""
    return isinstance(message, tuple) and isinstance(message[-1], OutOfBandPickle) and message[-1].fd >= 0


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


def _take(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Read some bytes and the descriptors that come with them, or raise: none of those may be missing unnoticed,
    or the next one would pass for it."""
    data, fds, flags, _ = socket.recv_fds(sock, _CHUNK, 16)
    for fd in fds:
        os.set_inheritable(fd, False)
    if flags & _CUT:
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, "a descriptor was lost, as too many files are open")
    return data, fds


class Inbox:
    """Puts frames together from a socket that is read as bytes come.

    ``fds`` holds descriptors that came along and that nobody has taken yet, in their order; what is packed has its
    own already.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._complete: deque[Any] = deque()
        self.fds: deque[int] = deque()

    def receive(self, sock: socket.socket) -> Any:
        """Wait for the next message. Raises ``EOFError`` or ``ConnectionError`` when the other side is gone."""
        while not self._complete:
            data, fds = _take(sock)
            if not data:
                raise EOFError
            self.fds.extend(fds)
            self._complete.extend(self.feed(data))
        return self._complete.popleft()

    def read(self, sock: socket.socket) -> tuple[bool, list[Any]]:
        """Read what has come; return whether there was anything, and the messages that are complete now.

        Raises ``OSError`` if the system denies what is needed for that.
        """
        try:
            data, fds = _take(sock)
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
            message = pickle.loads(memoryview(self._buffer)[at + _LENGTH.size : end])
            if _filed(message):
                message = (*message[:-1], msgspec.structs.replace(message[-1], fd=self.fds.popleft()))
            messages.append(message)
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
