import os
import re
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("obstore")

from stores.proxy import Proxy

KEY, SECRET = "AKIDCANARY4711", "secret-canary-0815"


@pytest.fixture(scope="session")
def port():
    """A port at which an S3 server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, **quiet) as server:
        try:
            for _ in range(600):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None, "the S3 server ended"
                    time.sleep(0.1)
            yield port
        finally:
            server.kill()


@pytest.fixture(scope="session")
def _proxy(port):
    proxy = Proxy(port)
    yield proxy
    proxy.close()


@pytest.fixture
def proxy(_proxy):
    yield _proxy
    _proxy.fault = lambda asked: None


@pytest.fixture(scope="session")
def raw(port):
    """A client that goes past the proxy, with the bucket "bucket"."""
    import urllib.request

    from obstore.store import S3Store

    url = f"http://127.0.0.1:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
    given = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
    return S3Store("bucket", endpoint=url, client_options={"allow_http": True}, **given)


@pytest.fixture
def bucket(raw, proxy, monkeypatch, request):
    """A prefix of its own in a bucket; the environment says where the store is."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    proxy.asked.clear()
    return Bucket(raw, re.sub(r"\W+", "-", request.node.name))


class Bucket:
    def __init__(self, store, prefix):
        self.store = store
        self.prefix = prefix
        self.url = f"s3://bucket/{prefix}"

    def put(self, key, data):
        import obstore

        obstore.put(self.store, f"{self.prefix}/{key}", data)
        return f"{self.url}/{key}"

    def content(self, key):
        import obstore

        return bytes(obstore.get(self.store, f"{self.prefix}/{key}").bytes())
