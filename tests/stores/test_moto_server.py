"""The S3 server of these tests keeps its conditions, as all else here stands on them."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest

from stores.conftest import client_of


def test_of_two_who_put_an_object_at_once_one_is_first(monkeypatch):
    pytest.importorskip("moto")
    from moto.server import ThreadedMotoServer

    from stores.moto_server import S3Response

    meet, checked = threading.Barrier(2), S3Response._get_checksum

    def look_and_wait(self, headers):
        """Between the look and the put, let the other look as well, if it may."""
        if self.headers.get("If-None-Match"):
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(0.3)
        return checked(self, headers)

    monkeypatch.setattr(S3Response, "_get_checksum", look_and_wait)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        store = client_of(server.get_host_and_port()[1])

        def put(who):
            try:
                obstore.put(store, "claim", who, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return None
            return who

        with ThreadPoolExecutor(2) as threads:
            first = [who for who in threads.map(put, [b"one", b"other"]) if who is not None]
        assert first == [bytes(obstore.get(store, "claim").bytes())]
    finally:
        server.stop()
        server._server.server_close()
