"""Whatever is written to keeps the promises of a target: files of each format, tables of lakes, databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import headrace as hr
from headrace.result import Result
from headrace.testing import TargetContract, sinks
from servers import server  # noqa: F401 - fixtures


class OfFiles(TargetContract):
    verb: ClassVar[str]
    reader: ClassVar[str]

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        result: Result = getattr(data, self.verb)(place / "out", **options)
        return result

    def read(self, place: Path) -> list[dict[str, Any]]:
        if not list((place / "out").glob("part-*")):
            return []
        return (
            getattr(hr, self.reader)(str(place / "out"))
            .with_options(engine="inline", progress=False)
            .take_all()
        )

    def test_rows_whose_keys_were_seen_are_left_out(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        self.run(tmp_path, incremental=True, key="id")
        self.arrive(tmp_path, 0, factor=7)  # written again
        rows += self.arrive(tmp_path, 9)
        self.run(tmp_path, incremental=True, key="id")
        assert self.found(tmp_path) == rows


class TestParquet(OfFiles):
    verb, reader = "write_parquet", "read_parquet"


class TestCsv(OfFiles):
    verb, reader = "write_csv", "read_csv"


class TestJson(OfFiles):
    verb, reader = "write_json", "read_json"


class TestNumpy(OfFiles):
    verb, reader = "write_numpy", "read_numpy"


class TestTfrecords(OfFiles):
    verb, reader = "write_tfrecords", "read_tfrecords"


class TestWebdataset(OfFiles):
    verb, reader = "write_webdataset", "read_webdataset"

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        named = data.with_column("__key__", lambda batch: [f"{i:04}" for i in batch["id"]], version="1")
        return super().write(named, place, **options)


class TestImages(OfFiles):
    """The first pixel of each has the values of its row."""

    reader = "read_images"

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        pytest.importorskip("PIL")
        return data.map_batches(drawn, version="1").write_images(place / "out", "image", **options)

    def read(self, place: Path) -> list[dict[str, Any]]:
        pixels = [row["image"][0, 0] for row in super().read(place)]
        return [{"id": pixel[0], "value": pixel[1]} for pixel in pixels]


def drawn(batch: dict[str, Any]) -> dict[str, Any]:
    pixels = np.zeros((len(batch["id"]), 1, 1, 3), np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = batch["id"], batch["value"]
    return {"image": pixels}


class TestPartitioned(OfFiles):
    reader = "read_parquet"

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        made = data.with_column("odd", lambda batch: batch["id"] % 2, version="1")
        return made.write_parquet(place / "out", partition_by="odd", **options)

    def read(self, place: Path) -> list[dict[str, Any]]:
        found = list((place / "out").glob("odd=*/part-*"))
        return (
            hr.read_parquet(str(place / "out")).with_options(engine="inline", progress=False).take_all()
            if found
            else []
        )


class TestDelta(TargetContract):
    at_once, points = True, ("table.filled",)

    @pytest.fixture(autouse=True)
    def library(self) -> None:
        self.lib = pytest.importorskip("deltalake")

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        return data.write_delta(place / "t", **options)

    def read(self, place: Path) -> list[dict[str, Any]]:
        if not self.lib.DeltaTable.is_deltatable(str(place / "t")):
            return []
        return self.lib.DeltaTable(place / "t").to_pyarrow_table().to_pylist()


class TestIceberg(TargetContract):
    at_once, points = True, ("table.filled",)

    @pytest.fixture(autouse=True)
    def library(self) -> None:
        self.lib = pytest.importorskip("pyiceberg.catalog")

    def lake(self, place: Path) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{place}/lake.db", "warehouse": str(place)}

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        return data.write_iceberg("shop.t", catalog=self.lake(place), **options)

    def publish(self, output: str, place: Path) -> Result:
        return hr.publish(output, because="a test", catalog=self.lake(place))

    def read(self, place: Path) -> list[dict[str, Any]]:
        catalog = self.lib.load_catalog("default", **self.lake(place))
        if not catalog.table_exists("shop.t"):
            return []
        return catalog.load_table("shop.t").scan().to_arrow().to_pylist()


class TestLance(TargetContract):
    at_once, points = True, ("table.filled",)

    @pytest.fixture(autouse=True)
    def library(self) -> None:
        self.lib = pytest.importorskip("lance")

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        return data.write_lance(place / "t", **options)

    def read(self, place: Path) -> list[dict[str, Any]]:
        there = (place / "t" / "_versions").exists()
        return self.lib.dataset(place / "t").to_table().to_pylist() if there else []


class OfDatabase(TargetContract):
    points = ("table.filled",)

    def uri(self, place: Path) -> str:
        raise NotImplementedError

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        return data.write_sql("t", self.uri(place), output=place / "out", **options)

    def read(self, place: Path) -> list[dict[str, Any]]:
        try:
            found = hr.read_sql("SELECT * FROM t", self.uri(place))
            return found.with_options(engine="inline", progress=False).take_all()
        except hr.errors.HeadraceError:  # there is no table
            return []


class TestSqlite(OfDatabase):
    def uri(self, place: Path) -> str:
        return f"sqlite:///{place}/a.db"


class OfOtherDatabase(OfDatabase):
    """What a driver does is the same for every database, and SQLite's tests have a fault at each point of that."""

    @pytest.fixture(autouse=True)
    def fewer_points(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sinks, "POINTS", ("journal.synced", "finish.success"))


class TestDuckdb(OfOtherDatabase):
    def uri(self, place: Path) -> str:
        pytest.importorskip("duckdb")
        return f"duckdb:///{place}/a.db"


class TestUpsert(TestSqlite):
    at_once = True

    def write(self, data: hr.Dataset, place: Path, **options: Any) -> Result:
        return super().write(
            data, place, **({} if "mode" in options else {"mode": "upsert", "key": "id"}), **options
        )


class TestPostgresql(OfOtherDatabase):
    @pytest.fixture(autouse=True)
    def started(self, server: str) -> None:  # noqa: F811
        self.server = server

    def uri(self, place: Path) -> str:
        from adbc_driver_postgresql import dbapi

        schema = f"t{abs(hash(str(place)))}"
        with dbapi.connect(self.server) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.commit()
        return f"{self.server}&options=-csearch_path%3D{schema}"

    def publish(self, output: str, place: Path) -> Result:
        return hr.publish(output, because="a test", uri=self.uri(place))
