"""An output in Azure, by Azurite (``npm install azurite``), Microsoft's own emulator; passed over where it is not."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from faults.job import workers_elsewhere
from headrace.core import failpoints
from headrace.core.stores import writing
from headrace.sources.range import RangeSource

ACCOUNT = "devstoreaccount1"
KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    program = os.environ.get("HEADRACE_TEST_AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on the path")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--disableTelemetry", "--skipApiVersionCheck", "--blobPort", str(port), "--location"]
    with subprocess.Popen([*command, str(tmp_path / "azure")], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "successfully listen" in line:
                break
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        made = f"http://127.0.0.1:{port}/{ACCOUNT}"
        make_container(made, "box")
        yield made
        server.kill()


def make_container(endpoint: str, name: str) -> None:
    date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    signed = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest())
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signed.decode()}"
    url = f"{endpoint}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_output_is_written_once_and_replaced(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool
) -> None:
    options, out = {"endpoint": endpoint}, "az://box/deep/out"

    def write(factor: int, **more: Any) -> hr.Result:
        data = hr.Dataset.from_source(RangeSource(100, rows_per_split=25))
        data = data.map_batches(
            lambda batch: {"id": batch["id"], "y": batch["id"] * factor}, version=str(factor)
        )
        data = data.with_options(engine="inline", shard_rows=25, progress=False)
        with workers_elsewhere() if elsewhere else contextlib.nullcontext():
            return data.write_parquet(out, storage_options=options, **more)

    def rows() -> list[tuple[int, int]]:
        data = hr.read_parquet(out, storage_options=options).with_options(engine="inline", progress=False)
        return sorted((row["id"], row["y"]) for row in data.take_all())

    for point in ("store.uploaded", "store.appended", "finish.success"):
        failpoints.activate({point: "ENOSPC@2" if point != "finish.success" else "ENOSPC"})
        try:
            with pytest.raises((hr.errors.HeadraceError, OSError), match="No space left"):
                write(2)
        finally:
            failpoints.activate({})
    result = write(2)
    assert (result.rows, result.resumed, rows()) == (100, True, [(i, 2 * i) for i in range(100)])
    assert write(2).run == result.run
    monkeypatch.setattr(writing, "SINGLE", 100)  # so that parts go up in pieces
    assert write(5, mode="overwrite").rows == 100
    assert rows() == [(i, 5 * i) for i in range(100)]
