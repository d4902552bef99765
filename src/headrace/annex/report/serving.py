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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.events import Event, RunStarted
from headrace.core.process import importing
from headrace.core.terminal import say, warn
from headrace.output.places.folder import Folder

if TYPE_CHECKING:
    from headrace.annex.report.live import Pages

HOST = "127.0.0.1"

_FAREWELL = 2.0  # seconds in which an open page is to fetch how the run has ended
_AGAIN = 1.0  # seconds in which an open page asks for the next one
_TIMEOUT = 10.0  # seconds


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
        self._answering: set[int] = set()  # threads with a request that is not answered yet
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
        while time.monotonic() < until and (self._answering or time.monotonic() - self._asked < _AGAIN):
            time.sleep(0.01)
        self._open = False
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), _TIMEOUT):
            pass  # which wakes the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        """Serve until it is closed, which takes no time: nobody looks now and then whether it is."""
        while True:
            with contextlib.suppress(OSError, RuntimeError):  # it went away, or there are no more threads
                connection, client = self._socket.accept()
                if not self._open:
                    connection.close()
                    return
                threading.Thread(target=self._answer, args=(connection, client), daemon=True).start()

    def _answer(self, connection: socket.socket, client: Any) -> None:
        """Answer what is asked by a connection, and end it."""
        with connection, contextlib.suppress(OSError):  # the page was closed
            with importing():
                from headrace.annex.report.requests import Request
            Request(connection, client, self)  # type: ignore[arg-type]  # it is a server to itself

    def next_page(self) -> bytes:
        """Return the next page, when it is time."""
        page, ended = self.pages.page(anew=self.ended.wait(self.pages.pause))
        self._asked = 0.0 if ended else time.monotonic()  # this page asks again
        return page

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Have the end wait until a request is answered: threads that still send go with the process."""
        self._answering.add(threading.get_ident())
        try:
            yield
        finally:
            self._answering.discard(threading.get_ident())


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
