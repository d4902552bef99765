import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from stores.proxy import Proxy

KEY, SECRET = "AKIDCANARY4711", "secret-canary-0815"


@contextlib.contextmanager
def serving():
    """Have an S3 server listen at the port that this yields."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).with_name("moto_server.py")),
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
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


def client_of(port):
    """A client of a server, with the bucket "bucket"."""
    import urllib.request

    from obstore.store import S3Store

    url = f"http://127.0.0.1:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
    given = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
    return S3Store("bucket", endpoint=url, client_options={"allow_http": True}, **given)


def environment_of(url):
    """What says where a store is, and who we are there."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }


@pytest.fixture(scope="session")
def port():
    """A port at which an S3 server listens."""
    with serving() as port:
        yield port


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
    """A client that goes past the proxy."""
    return client_of(port)


@pytest.fixture
def bucket(raw, proxy, monkeypatch, request):
    """A prefix of its own in a bucket; the environment says where the store is."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment_of(proxy.url).items():
        monkeypatch.setenv(name, value)
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
