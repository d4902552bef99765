"""The server of live pages: for this machine alone, and for whoever has the address with its token.

A run that is watched begins with it. So it imports nothing that is needed only once somebody opens the page.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.core.events import Event, RunStarted
from headrace.core.process import importing
from headrace.core.terminal import say, warn
from headrace.errors import HeadraceError
from headrace.output.places.folder import Folder

if TYPE_CHECKING:
    from headrace.annex.report.live import Pages

HOST = "127.0.0.1"

_NAMES = ("127.0.0.1", "localhost", "[::1]")  # by which a browser on this machine, or behind a tunnel, asks
_FAREWELL = 2.0  # seconds in which an open page is to fetch how the run has ended
_AGAIN = 1.0  # seconds in which an open page asks for the next one
_TIMEOUT = 10.0  # seconds for a request to arrive
_MOST_HEAD = 32_768  # bytes of a request before its body
_MOST_BODY = 10_000

_HEADERS = """\
Cache-Control: no-store
Content-Security-Policy: frame-ancestors 'none'
Cross-Origin-Resource-Policy: same-origin
Referrer-Policy: no-referrer
X-Content-Type-Options: nosniff
Connection: close
"""
_WORDS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    409: "Conflict",
    503: "Not Now",
}

Answer = tuple[int, Literal["html", "plain"], bytes]  # status, kind of text, text


class Request(msgspec.Struct, frozen=True):
    """What a browser asks. Names of headers are in small letters."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def is_ours(self) -> bool:
        """True if it was made to this machine by its own name.

        A page of somebody else, whose name leads to this machine, has that name in its requests.
        """
        origin = self.headers.get("origin")
        return _is_here(self.headers.get("host", "")) and (
            origin is None or _is_here(origin.removeprefix("http://"))
        )


class Server:
    """Serves pages at an address that nobody can guess; refuses whoever comes by another name.

    A page that is open asks for the next one with ``?next``, and gets it when it is time, or the run has ended.
    ``made`` makes the pages, once somebody asks for one.
    """

    def __init__(self, made: Callable[[], Pages], port: int = 0) -> None:
        self.token = base64.urlsafe_b64encode(os.urandom(24)).decode()
        self.ended = threading.Event()
        self._made = made
        self._pages: Pages | None = None
        self._lock = threading.Lock()
        self._waiting = 0  # pages that wait for the next
        self._asked = 0.0  # when one did last
        self._open = True
        self._socket = socket.create_server((HOST, port))
        self._thread = threading.Thread(target=self._serve, name="headrace-watch", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port."""
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    @property
    def pages(self) -> Pages:
        """The pages."""
        with self._lock:
            if self._pages is None:
                with importing():
                    self._pages = self._made()
            return self._pages

    def close(self) -> None:
        """Let pages that are open show how the run has ended; then stop."""
        self.ended.set()
        until = time.monotonic() + _FAREWELL
        while time.monotonic() < until and (self._waiting or time.monotonic() - self._asked < _AGAIN):
            time.sleep(0.01)
        self._open = False
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), _TIMEOUT):
            pass  # which wakes the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        """Serve until it is closed, which takes no time: nobody looks now and then whether it is."""
        while self._open:
            with contextlib.suppress(OSError, RuntimeError):  # it went away, or there are no more threads
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answer what is asked by a connection, and end it."""
        connection.settimeout(_TIMEOUT)
        with connection, contextlib.suppress(OSError):  # the page was closed
            request = _read(connection)
            code, kind, body = self._answered(request) if request is not None else (400, "plain", b"")
            head = f"HTTP/1.1 {code} {_WORDS[code]}\nContent-Type: text/{kind}; charset=utf-8\n{_HEADERS}"
            head += f"Content-Length: {len(body)}\n\n"
            connection.sendall(head.replace("\n", "\r\n").encode() + body)

    def _answered(self, request: Request) -> Answer:
        """Return the answer to a request. Without the token it says nothing of the run."""
        token, _, rest = request.path.removeprefix("/").partition("/")
        if not request.is_ours:
            return 403, "plain", b""
        asks = {"GET": "", "POST": "ask"}.get(request.method)
        if not compare_digest(token.encode(), self.token.encode()) or asks not in (None, rest):
            return 403, "plain", b"The address is not complete: it ends with a token.\n"
        if asks is None:
            return 405, "plain", b""
        try:
            if not asks:
                return 200, "html", self._next() if request.query == "next" else self.pages.page()[0]
            if request.headers.get("content-type") != "application/json":
                return 400, "plain", b""
            refused = self.pages.ask(request.body)
            return (409 if refused else 200), "plain", refused.encode()
        except HeadraceError as error:  # the output is gone, or has not begun
            return 503, "plain", f"{error}\n".encode()

    def _next(self) -> bytes:
        """Return the next page, when it is time."""
        self._waiting += 1
        try:
            page, ended = self.pages.page(anew=self.ended.wait(self.pages.pause))
            self._asked = 0.0 if ended else time.monotonic()  # this page asks again
            return page
        finally:
            self._waiting -= 1


def _read(connection: socket.socket) -> Request | None:
    """Read a request; None if it is none that a browser makes."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(_MOST_HEAD)
        data += more
        if not more or len(data) > _MOST_HEAD + _MOST_BODY:
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    names = [line.partition(":") for line in lines]
    headers = {name.lower(): value.strip() for name, _, value in names}
    method, _, place = first.partition(" ")
    place, _, version = place.partition(" ")
    path, _, query = place.partition("?")
    size = headers.get("content-length", "0")
    told_once = len(headers) == len(names)  # two hosts, or two lengths, are nobody's browser
    if not (version.startswith("HTTP/1.") and told_once and size.isdecimal() and size.isascii()):
        return None
    if "transfer-encoding" in headers or len(size) > 6 or int(size) > _MOST_BODY:
        return None
    while len(body) < int(size):
        more = connection.recv(_MOST_BODY)
        body += more
        if not more:
            return None
    return Request(method, path, query, headers, body[: int(size)])


def _is_here(host: str) -> bool:
    """Say whether a host is this machine by its own name; the port may be that of a tunnel.

    >>> _is_here("localhost:8900"), _is_here("[::1]"), _is_here("localhost.example.com"), _is_here("")
    (True, True, False, False)
    """
    name, _, port = host.lower().rpartition(":")
    return (name if port.isdigit() else host.lower()) in _NAMES


class Watch:
    """An observer that serves the page of this process's run, and prints the address."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of the run."""
        self._place = _Held(folder.parent.parent)
        self._server: Server | None = None

    def attach(self, state: Any) -> None:
        """Begin to serve."""
        try:
            self._server = Server(self._pages)
        except OSError as error:
            warn(
                f"watch=True: no page can be served ({error.strerror or error}). The run goes on without it."
            )
            return
        say(f"watch: {self._server.address}", sys.stderr)

    def on_event(self, event: Event) -> None:
        """Note what the output is called; the page reads the record."""
        if isinstance(event, RunStarted):
            self._place.name = event.output

    def close(self) -> None:
        """The run is over."""
        self._place.held = False
        served, self._server = self._server, None
        if served is not None:
            served.close()

    def _pages(self) -> Pages:
        from headrace.annex.report.facts import History
        from headrace.annex.report.follow import Follower
        from headrace.annex.report.live import Pages

        return Pages(Follower(self._place.root, opened=lambda: nullcontext(self._place), kind=History))


class _Held(Folder):
    """An output that this process writes; of one in a store, the small files that are here."""

    held = True

    def writer(self) -> str | None:
        """Say who holds it."""
        return "this process" if self.held else None
