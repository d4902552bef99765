"""What a browser asks of the server of live pages, and the answers."""

from __future__ import annotations

from hmac import compare_digest
from http.server import BaseHTTPRequestHandler
from typing import Any

from headrace.errors import HeadraceError

_NAMES = ("127.0.0.1", "localhost", "[::1]")  # by which a browser on this machine, or behind a tunnel, asks
_MOST_BODY = 10_000  # bytes

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Request(BaseHTTPRequestHandler):
    """A request, answered as it is made. Without the token, nothing is said of the run."""

    timeout = 10.0  # seconds for it to arrive
    server: Any  # of ``serving``
    error_message_format, error_content_type = "", "text/plain"  # of what is no request

    def answer(self) -> None:
        """Answer it."""
        with self.server.answering():
            self._answer()

    def _answer(self) -> None:
        try:
            code, body = self._answered()
        except HeadraceError as error:  # the output is gone, or has not begun
            code, body = 503, f"{error}\n".encode()
        kind = "html" if self.command == "GET" and code == 200 else "plain"
        self.send_response(code)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def _answered(self) -> tuple[int, bytes]:
        """Return the status and the text of the answer."""
        server = self.server
        names = [name.lower() for name in self.headers]
        told_once = len({*names}) == len(names)  # two hosts, or two lengths, are nobody's browser
        if not told_once or "transfer-encoding" in names or self.request_version == "HTTP/0.9":
            return 400, b""
        if not self._is_ours:
            return 403, b""
        path, _, query = self.path.partition("?")
        token, _, rest = path.removeprefix("/").partition("/")
        is_asking = self.command == "POST"
        if not compare_digest(token.encode(), server.token.encode()) or rest != "ask" * is_asking:
            return 403, b"The address is not complete: it ends with a token.\n"
        if is_asking:
            return self._asked()
        return 200, server.next_page() if query == "next" else server.pages.page()[0]

    @property
    def _is_ours(self) -> bool:
        """True if it was made to this machine by its own name.

        A page of somebody else, whose name leads to this machine, has that name in its requests.
        """
        origin = self.headers.get("Origin")
        return _is_here(self.headers.get("Host", "")) and (
            origin is None or _is_here(origin.removeprefix("http://"))
        )

    def _asked(self) -> tuple[int, bytes]:
        """Pass on what is asked of the run."""
        size = self.headers.get("Content-Length", "")
        is_json = self.headers.get("Content-Type") == "application/json"
        if not (is_json and size.isdecimal() and len(size) < 6 and int(size) <= _MOST_BODY):
            return 400, b""
        refused = self.server.pages.ask(self.rfile.read(int(size)))
        return (409 if refused else 200), refused.encode()

    def version_string(self) -> str:
        """Return nothing: it is nobody's business what serves."""
        return ""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _is_here(host: str) -> bool:
    """Say whether a host is this machine by its own name; the port may be that of a tunnel.

    >>> _is_here("localhost:8900"), _is_here("[::1]"), _is_here("localhost.example.com"), _is_here("")
    (True, True, False, False)
    """
    name, _, port = host.lower().rpartition(":")
    return (name if port.isdigit() else host.lower()) in _NAMES
