"""Whatever is written to keeps the promises of a target: files of each format, tables of lakes, databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import TargetContract, sinks
from servers import server  # noqa: F401 - fixtures
from stores.conftest import _proxy, bucket, port, proxy, raw  # noqa: F401 - fixtures
from targets import TARGETS, Target

KINDS = [kind for kind in TARGETS if kind == "sqlite, upsert" or not kind.endswith(("upsert", "overwrite"))]
AT_ONCE = ("delta", "delta, s3", "iceberg", "lance", "sqlite, upsert")
ALIKE = ("duckdb", "postgresql", "s3", "delta, s3")
"""What a driver does is the same for every database, place and table, and cheaper ones have a fault at each point."""


def needed(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server and the library of a target."""
    made = TARGETS[kind]
    if kind.startswith("postgresql"):
        monkeypatch.setenv("HEADRACE_TEST_POSTGRESQL", request.getfixturevalue("server"))
    if made("").needs == "s3":
        request.getfixturevalue("bucket")
    if (
        kind == "delta, s3"
    ):  # without the proxy, a thread here: the library holds the interpreter while it asks
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{request.getfixturevalue('port')}")
    pytest.importorskip(made("").imports or "pyarrow")


class TestTargets(TargetContract):
    @pytest.fixture(autouse=True, params=KINDS)
    def target(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.prepared = request.param, set[Path]()
        needed(self.kind, request, monkeypatch)
        self.at_once, self.points = self.kind in AT_ONCE, self.at("").points
        if self.kind in ALIKE:
            monkeypatch.setattr(sinks, "POINTS", ("journal.synced", "finish.success"))

    def at(self, place: Path | str) -> Target:
        return TARGETS[self.kind](place)

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> hr.Result:
        if place not in self.prepared:
            self.at(place).prepare()
            self.prepared.add(place)
        return self.at(place).write(data, **options)

    def read(self, place: Path) -> list[dict[str, Any]]:
        return [{"id": i, "value": value} for i, value in self.at(place).pairs()]

    def publish(self, output: str, place: Path) -> hr.Result:
        return hr.publish(output, because="a test", **self.at(place).told)

    def test_rows_whose_keys_were_seen_are_left_out(self, tmp_path: Path) -> None:
        if self.points:
            pytest.skip("tests/output/test_asked.py has keys of tables")
        rows = self.arrived(tmp_path)
        self.run(tmp_path, incremental=True, key="id")
        self.arrive(tmp_path, 0, factor=7)  # written again
        rows += self.arrive(tmp_path, 9)
        self.run(tmp_path, incremental=True, key="id")
        assert self.found(tmp_path) == rows
