"""A server of a language model on this machine, for as long as a ``with`` block: started, watched, and ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Self

from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.settings import given_amount, given_count
from headrace.core.arguments import known_arguments
from headrace.core.failures import shortened
from headrace.errors import ArgumentError, EndpointUnavailable

_GUARD = """
import os, signal, sys
guarded = []
for word in sys.stdin.readline().split():
    try:
        guarded.append((int(word), os.pidfd_open(int(word)) if hasattr(os, "pidfd_open") else None))
    except OSError:
        pass
print("on guard", flush=True)
sys.stdin.read()
for pid, fd in guarded:
    try:
        if sys.argv[1:]:
            os.killpg(pid, signal.SIGKILL)
        elif fd is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass
"""


class ChildGuard:
    """A small process that waits for the end of this one, and then kills ``pids``; ``close`` has it do so at once.

    ``groups``: each is the number of a group of processes, and all of these are killed.
    """

    def __init__(self, pids: Sequence[int], *, groups: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, *["groups"] * groups],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, pids)) + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()  # it has hold of them: whoever gets their numbers later is safe
        self._process.stdout.close()

    def close(self) -> None:
        """Kill those that are left, and wait for the guard's end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


LOOK_SECONDS = 0.2
END_SECONDS = 15.0
"""So long a server may take to end when it is asked to."""
MAX_RETRIES = 14
"""A server that starts again takes minutes; so long are requests sent again, a minute between them."""


class Server:
    """A server of a language model, started by a command on this machine, as long as its ``with`` block.

    Parameters
    ----------
    command
        What starts it, with ``{port}`` where the port belongs: ``"vllm serve qwen3-8b/ --port {port}"``. No shell
        reads it.
    model
        The name by which the server knows the model.
    port
        Default: one that is free.
    start_timeout
        Seconds until it has to answer.
    restarts
        How often it is started again when it ends by itself.
    log
        The file for what it prints. Default: one for temporary files.
    max_in_flight, timeout
        As in ``Endpoint``.

    ``endpoint`` is what ``prompt`` and ``embed`` take, ``log`` the path of the file, ``starts`` how often it was
    started. It ends with the block, and with this program even if that is killed. While it starts again, requests are
    sent again until it answers.

    Raises ``EndpointUnavailable`` with the end of its log if it ends, or does not answer in time.

    Examples
    --------
    >>> import sys
    >>> import headrace as hr
    >>> command = f"{sys.executable} -m headrace.testing.llm_server {{port}}"
    >>> with hr.llm.Server(command, "fake") as server:
    ...     asked = hr.from_items([{"word": "mill"}]).prompt("Say {word}", server.endpoint)
    ...     asked.select_columns(["answer"]).with_options(engine="inline").take_all()
    [{'answer': 'Say mill'}]
    """

    @known_arguments
    def __init__(
        self,
        command: str | Sequence[str],
        model: str,
        *,
        port: int | None = None,
        start_timeout: float = 900.0,
        restarts: int = 3,
        log: str | os.PathLike[str] | None = None,
        max_in_flight: int = 256,
        timeout: float = 300.0,
    ) -> None:
        self._command = _given_command(command)
        if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536):
            raise ArgumentError(f"port={port!r}: it takes a whole number from 1 to 65535.")
        given_count("restarts", restarts)
        given_amount("start_timeout", start_timeout)
        self._port, self._start_timeout, self._restarts = port or _free_port(), start_timeout, restarts
        self._given_log = os.fspath(log) if log is not None else ""
        self.log = self._given_log
        self.starts = 0
        self.endpoint = Endpoint(
            f"http://127.0.0.1:{self._port}/v1",
            model,
            max_in_flight=max_in_flight,
            timeout=timeout,
            max_retries=MAX_RETRIES,
        )
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: ChildGuard | None = None
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self._watcher is not None:
            raise ArgumentError("Server: it has been started already; make another one for another block.")
        if not self.log:
            fd, self.log = tempfile.mkstemp(prefix="headrace-server-", suffix=".log")
            os.close(fd)
        try:
            self._start()
            self._wait_until_it_answers()
        except BaseException:
            self._end()
            raise
        self._watcher = threading.Thread(target=self._watch, name="headrace-llm-server", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        if self._watcher is not None:
            self._watcher.join()
        if not self._given_log:
            with contextlib.suppress(OSError):
                os.unlink(self.log)

    def _start(self) -> None:
        command = [part.replace("{port}", str(self._port)) for part in self._command]
        with self._lock, open(self.log, "ab") as log:
            if self._ending.is_set():
                return
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise ArgumentError(
                    f"Server: {command[0]!r} cannot be started: {error.strerror or error}. Give its whole path, or "
                    "install it."
                ) from error
            self._guard = ChildGuard([self._process.pid], groups=True)
            self.starts += 1

    def _wait_until_it_answers(self) -> None:
        began = time.monotonic()
        process = self._process
        while process is not None and not self._ending.is_set():
            if process.poll() is not None:
                raise EndpointUnavailable(
                    f"The server {self._command[0]!r} ended with {process.returncode} before it answered. The end of "
                    f"what it said: {self._said()}"
                )
            if _answers(self.endpoint.base_url):
                return
            if time.monotonic() - began > self._start_timeout:
                raise EndpointUnavailable(
                    f"The server {self._command[0]!r} does not answer at {self.endpoint.base_url} after "
                    f"{self._start_timeout:g} seconds (start_timeout=). The end of what it said: {self._said()}"
                )
            self._ending.wait(LOOK_SECONDS)

    def _watch(self) -> None:
        """Start it again when it ends by itself."""
        while self._process is not None:
            self._process.wait()
            self._end_group()
            if self._ending.is_set() or self.starts > self._restarts:
                return
            self._start()

    def _end(self) -> None:
        """End it, and what it has started."""
        with self._lock:
            self._ending.set()
            process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        self._end_group()

    def _end_group(self) -> None:
        with self._lock:
            guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()  # kills what is left
        if self._process is not None:
            self._process.wait()

    def _said(self) -> str:
        with open(self.log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
            text = log.read().decode("utf-8", "replace")
        return shortened(" ".join(text.split())[-500:], 500) or "nothing"


def _given_command(command: Any) -> list[str]:
    try:
        parts = shlex.split(command) if isinstance(command, str) else [os.fspath(each) for each in command]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"Server({command!r:.80}, …): it is not a command: {error}.") from None
    if not parts or not any("{port}" in part for part in parts):
        raise ArgumentError(
            f"Server({command!r:.80}, …): the command has to say where the port belongs: "
            "'vllm serve qwen3-8b/ --port {port}'."
        )
    return parts


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _answers(base_url: str) -> bool:
    """Say whether a server lists its models."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base_url}/models", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return error.code in (401, 403, 404, 405)  # it answers; who may ask for what is another matter
    except (OSError, ValueError):
        return False
