"""A relay before a PostgreSQL server, which delays what is said, and loses connections as a test wants it."""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

_SOCKET = ".s.PGSQL.5432"
_CHUNK = 1 << 16


class Relay:
    """Listens in a folder of its own. ``faults`` is how many of a hundred requests meet a fault.

    A request is delayed, or its connection ends: before the server has it, or before its answer is passed on.
    """

    def __init__(self, uri: str, dice: random.Random) -> None:
        before, _, self._server = uri.rpartition("host=")
        self._folder = tempfile.TemporaryDirectory(prefix="pg")  # a socket has a short path
        self.uri = f"{before}host={self._folder.name}"
        self.faults = 0.0
        self._dice = dice
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._folder.name) / _SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(Path(self._server) / _SOCKET))
                for ends in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_CHUNK):
                fault = requests and self._dice.random() * 100 < self.faults
                how = self._dice.choice(["late", "unheard", "unanswered"]) if fault else ""
                if how == "late":
                    time.sleep(self._dice.random() * 0.3)
                if how == "unanswered":
                    one.shutdown(socket.SHUT_WR)
                if how != "unheard":
                    other.sendall(data)
                if how in ("unheard", "unanswered"):
                    break
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
