"""The page of a run while it goes on: served to this machine alone, to whoever has the address with its token."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.annex.report.facts import History
from headrace.annex.report.follow import Follower, RunStatus
from headrace.annex.report.page import page
from headrace.annex.report.writing import rejected_samples
from headrace.core.asked import EVERY_ROW, RunAsked
from headrace.core.events import Event, RunStarted
from headrace.core.files import hive, safe_files
from headrace.core.process import importing
from headrace.core.terminal import say, warn
from headrace.output.names import ASKED, run_of
from headrace.output.places.folder import Folder
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.annex.report.template import Value
    from headrace.core.tables import Table

HOST = "127.0.0.1"

_NAMES = ("127.0.0.1", "localhost", "[::1]")  # by which a browser on this machine, or behind a tunnel, asks
_LEAST = 1.0  # seconds between two pages
_SHARE = 0.01  # of the time that making pages may take, by one core
_SAMPLE_EVERY = 10.0  # seconds between two looks at parts
_SAMPLE = 5  # rows
_FAREWELL = 2.0  # seconds in which an open page is to fetch how the run has ended
_TIMEOUT = 10.0  # seconds for a request to arrive

_MOST_BYTES = 10_000  # of what is asked for
_NOT_YET = "The run has not begun yet: ask again in a moment."
_ELSEWHERE = "This run can be changed only from a machine that sees its folder."

_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Pages:
    """Makes the page of an output's run, again and again, as cheaply as the run deserves."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._page = b""
        self._made = self._cost = self._sampled = 0.0
        self._samples: tuple[str, Table | None] = "", None  # of the part that has them
        self._ended = False
        self._file: Path | None = None  # by which the run can be asked
        self._why = ""  # it cannot be
        self._every_row = False

    @property
    def pause(self) -> float:
        """The seconds between two pages: as many as keep the share of time that making them takes."""
        return max(_LEAST, self._cost / _SHARE)

    def page(self, *, anew: bool = False) -> tuple[bytes, bool]:
        """Return the page as it is now, or was a moment ago, and whether the run has ended."""
        with self._lock:
            is_due = time.monotonic() - self._made >= self.pause or (anew and not self._ended)
            if is_due or not self._page:
                began, is_first = time.thread_time(), not self._page
                with importing():  # what is first looked at brings modules
                    status = self._follower.poll()
                    self._page, self._ended = self._of(status), status.ended
                self._made = time.monotonic()
                if not is_first:  # that one imports what later ones have
                    self._cost = time.thread_time() - began
            return self._page, self._ended

    def ask(self, wanted: bytes) -> str:
        """Ask the run for a change, given as JSON; return why that cannot be, "" if it can."""
        with self._lock:
            if self._file is None:
                return self._why or _ELSEWHERE
            try:
                changes = msgspec.json.decode(wanted, type=dict[str, Any])
                if unknown := [name for name in changes if name not in RunAsked.__struct_fields__]:
                    return f"There is no {unknown[0]!r} to change."
                asked = msgspec.convert({**msgspec.to_builtins(self._asked()), **changes}, RunAsked)
                if self._every_row and asked.on_error == "reject":
                    return EVERY_ROW
                safe_files.write(self._file, msgspec.json.encode(asked), lasting=False)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return f"That cannot be asked for: {error}"
            except OSError as error:
                return f"The run cannot be asked: {error.strerror}"
            self._made = 0.0
            return ""

    def _asked(self) -> RunAsked:
        """Return what was asked of the run, whether it has heard it or not."""
        if self._file is not None:
            with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                return msgspec.json.decode(safe_files.content(self._file, _MOST_BYTES), type=RunAsked)
        return RunAsked()

    def _of(self, status: RunStatus) -> bytes:
        history = status.state
        assert isinstance(history, History)
        described = history.described
        shown = described is not None and described.options.get("show_data") != "False"
        self._every_row = described is not None and described.every_row
        known, predictions = status.facts, None
        self._file = None
        if (root := self._follower.root) is not None:
            folder = root / "_headrace" / known.run
            samples = rejected_samples(root, folder, values=shown, words=shown)
            known = msgspec.structs.replace(known, samples=samples)
            predictions = self._predictions(root, known.run) if shown else None
            self._file = folder / ASKED if known.run and not status.ended else None
            self._why = "" if known.run else _NOT_YET
        else:
            self._why = _ELSEWHERE
        history.at = max(history.at, status.now)  # it is later than its last event
        live: Value = {
            "state": "ended" if status.ended else "under way",
            "controls": None if status.ended else self._controls(history),
        }
        return page(history, known, made=time.time(), version=__version__, live=live, written=predictions)

    def _controls(self, history: History) -> Value:
        """Return what one may ask of the run, and what was asked."""
        asked, heard = self._asked(), msgspec.structs.replace(history.asked, held=False)
        options = history.described.options if history.described is not None else {}
        heard_now = asked == heard or self._file is None
        return {
            "paused": asked.paused,
            "ends": asked.ends,
            "workers": str(heard.workers or max(history.stage_workers, default=1)),
            "on_error": heard.on_error or options.get("on_error", "raise"),
            "choices": ["raise", "null"] if self._every_row else ["raise", "reject", "null"],
            "max_errors": f"{heard.max_errors:g}" if heard.max_errors else options.get("max_errors", ""),
            "why": self._why,
            "told": (f"Asked: {history.asked}." if heard != RunAsked() else "")
            if heard_now
            else "Asked. The run has not heard it yet.",
        }

    def _predictions(self, root: Path, run: str) -> Table | None:
        """Return some rows of the part that was written last."""
        if time.monotonic() - self._sampled >= _SAMPLE_EVERY:
            with contextlib.suppress(Exception):  # it is gone, or half copied: there are others
                part = max(_parts(root, run), key=lambda path: path.stat().st_mtime)
                self._sampled = time.monotonic()
                if str(part) != self._samples[0]:
                    self._samples = str(part), _first_rows(part)
        return self._samples[1]


def _parts(root: Path, run: str) -> Iterator[Path]:
    return (root / name for name in hive.entries(root) if run_of(name) == run)


def _first_rows(part: Path) -> Table:
    """Return the first rows of a part, as its source reads them: a run of them would take ten times as long."""
    from headrace.core.arrow.views import output_rows
    from headrace.core.tables import rows_table
    from headrace.readers.by_name import dataset_of

    with contextlib.closing(dataset_of([str(part)], None, {})._plan.source) as source:
        read = (batch for split in source.splits() for batch in source.read(split, None, _SAMPLE))
        batch = next(read).slice(0, _SAMPLE)
        return rows_table(list(output_rows(batch, live=source.shares_memory)), [batch.schema])


class Server:
    """Serves pages at an address that nobody can guess; refuses whoever comes by another name.

    A page that is open asks for the next one with ``?next``, and gets it when it is time, or the run has ended.
    """

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.pages = pages
        self.token = secrets.token_urlsafe(24)
        self.ended = threading.Event()
        self.waiting = 0  # pages that wait for the next
        self.asked = 0.0  # when one did last
        self._http = _Http((HOST, port), _Handler)
        self._http.server = self
        self._thread = threading.Thread(target=self._http.serve, name="headrace-watch", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port."""
        return int(self._http.server_address[1])

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def close(self) -> None:
        """Let pages that are open show how the run has ended; then stop."""
        self.ended.set()
        until = time.monotonic() + _FAREWELL
        while time.monotonic() < until and (self.waiting or time.monotonic() - self.asked < _LEAST):
            time.sleep(0.01)
        self._http.open = False
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), _TIMEOUT):
            pass  # which wakes the thread
        self._thread.join()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    server: Server
    open = True

    def serve(self) -> None:
        """Serve until it is closed, which takes no time: nobody looks now and then whether it is."""
        while self.open:
            self.handle_request()


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT
    server: Any
    server_version, sys_version = "Headrace", ""

    def do_GET(self) -> None:
        """Answer with the page."""
        server: Server = self.server.server
        if not self._is_known(""):
            return
        if self.path.endswith("?next"):
            server.waiting += 1
            try:
                made, ended = server.pages.page(anew=server.ended.wait(server.pages.pause))
                server.asked = 0.0 if ended else time.monotonic()  # this page asks again
                self._answer(200, made)
            finally:
                server.waiting -= 1
            return
        self._answer(200, server.pages.page()[0])

    def do_POST(self) -> None:
        """Pass on what is asked of the run."""
        if not self._is_known("ask"):
            return
        size = self.headers.get("Content-Length", "")
        if (
            self.headers.get("Content-Type") != "application/json"
            or not size.isdigit()
            or int(size) > _MOST_BYTES
        ):
            self._answer(400, b"")
            return
        refused = self.server.server.pages.ask(self.rfile.read(int(size)))
        self._answer(409 if refused else 200, refused.encode())

    def _is_known(self, rest: str) -> bool:
        """Say whether a request may be answered: it has the token, and was made to this machine by its own name.

        A page of somebody else, whose name leads to this machine, has that name in its requests.
        """
        token, _, file = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.server.token.encode()) and file == rest
        named = _is_here(self.headers.get("Host", ""))
        if (origin := self.headers.get("Origin")) is not None:
            named = named and _is_here(origin.removeprefix("http://"))
        if not (known and named):
            self._answer(403, b"The address is not complete: it ends with a token.\n" if named else b"")
        return known and named

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # the page was closed
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


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
            self._server = Server(
                Pages(Follower(self._place.root, opened=lambda: nullcontext(self._place), kind=History))
            )
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


class _Held(Folder):
    """An output that this process writes; of one in a store, the small files that are here."""

    held = True

    def writer(self) -> str | None:
        """Say who holds it."""
        return "this process" if self.held else None
