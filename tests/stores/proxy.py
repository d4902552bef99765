"""A proxy in front of a store's server: counts requests, and spoils answers as a test wants it."""

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


Fault = Callable[[Asked], "int | str | None"]
"""What becomes of a request: None is passed on; a number is the answer's status; "cut" ends its body in the middle,
"drop" closes the connection without an answer, "lost" does so when the server has done what was asked; "late" waits
with the answer; "twice" has the server do it twice, and gives the second answer; "strip" takes the conditions away;
"stale" gives the answer that was first given to this request; "public" lets everybody do what this server lets its
owner do."""


def at_first(fault: int | str) -> Fault:
    """Each object meets it once: when it is asked for, or put, for the first time."""
    seen: set[tuple[str, str]] = set()

    def of(asked: Asked) -> int | str | None:
        key = asked.method, asked.path
        first = key not in seen and (asked.method == "PUT" or fault not in ("lost", 409))
        seen.add(key)
        return fault if first else None

    return of


class Proxy:
    def __init__(self, port: int, host: str = "127.0.0.1"):
        self.asked: list[Asked] = []
        self.fault: Fault = lambda asked: None
        self.late = 0.5  # seconds
        self.first: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms for the client's word on its headers

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
                proxy.asked.append(asked)
                fault = proxy.fault(asked)
                if fault == "drop":
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self.send_response(fault)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                headers = dict(self.headers.items())
                if fault == "strip":
                    headers = {k: v for k, v in headers.items() if not k.lower().startswith("if-")}
                if fault == "public":
                    headers["authorization"] = (
                        "AWS4-HMAC-SHA256 Credential=owner/20260101/us-east-1/s3/aws4_request"
                    )
                server = http.client.HTTPConnection("127.0.0.1", port)
                for _ in range(1 + (fault == "twice")):
                    server.request(self.command, self.path, body, headers)
                    answer = server.getresponse()
                    data = answer.read()
                if fault == "late":
                    threading.Event().wait(proxy.late)
                status, given = answer.status, answer.getheaders()
                first = proxy.first.setdefault(f"{self.command} {self.path}", (status, given, data))
                if fault == "stale":
                    status, given, data = first
                if fault == "lost":
                    self.close_connection = True
                    server.close()
                    return
                self.send_response(status)
                for name, value in given:
                    if name.lower() not in (
                        "connection",
                        "transfer-encoding",
                        "content-length",
                        "server",
                        "date",
                    ):
                        self.send_header(name, value)
                length = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
                self.send_header("content-length", length or "0")
                self.end_headers()
                server.close()
                if fault == "cut":
                    data = data[: len(data) // 2]
                    self.close_connection = True
                self.wfile.write(data)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass

        self.server = Server((host, 0), Handler)
        self.url = f"http://{host}:{self.server.server_address[1]}"
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
