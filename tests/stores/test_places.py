"""An output in an object store: its place, and what is promised of whatever is written to."""

import pytest

import headrace as hr
from headrace.errors import RunLocked
from headrace.output.places.place import place_at
from headrace.testing import TargetContract
from headrace.testing.places import PlaceContract


class TestStore(PlaceContract):
    @pytest.fixture(autouse=True)
    def at(self, bucket):
        self.bucket = bucket

    def again(self):
        return place_at(f"{self.bucket.url}/out")

    def put(self, name, data):
        self.bucket.put(f"out/{name}", data)

    def test_what_another_has_changed_is_not_replaced(self, place):
        place.write("_headrace/current", b"aaaaaaaa")
        self.put("_headrace/current", b"bbbbbbbb")
        with pytest.raises(RunLocked, match="current was changed by another program"):
            place.write("_headrace/current", b"cccccccc")

    def test_who_was_replaced_changes_nothing(self, place):
        place.write("_headrace/current", b"aaaaaaaa")
        self.put("_headrace/lock", b'{"token": "other", "held": true, "who": "process 1 on another machine"}')
        for change in (
            lambda: place.write("_headrace/current", b"bbbbbbbb"),
            lambda: place.remove(["_headrace/current"]),
            lambda: place.remove_below("_headrace"),
        ):
            with pytest.raises(RunLocked, match="was taken over by process 1"):
                change()
        assert self.bucket.content("out/_headrace/current") == b"aaaaaaaa"


class InAStore(TargetContract):
    @pytest.mark.parametrize("passage", [1, pytest.param(3, marks=pytest.mark.soak)])
    def test_a_fault_at_any_moment_neither_loses_nor_doubles(self, tmp_path, passage):
        """Each request takes the server of these tests 30 ms, and there are a thousand."""
        super().test_a_fault_at_any_moment_neither_loses_nor_doubles(tmp_path, passage)


class TestFilesInAStore(InAStore):
    points = ("store.upload", "store.uploaded", "store.append", "store.appended")

    @pytest.fixture(autouse=True)
    def at(self, bucket):
        self.bucket = bucket

    def output(self, place):
        return f"{self.bucket.url}/{place.name}/out"

    def write(self, data, place, **options):
        return data.write_parquet(self.output(place), **options)

    def read(self, place):
        try:
            found = hr.read_parquet(self.output(place)).with_options(engine="inline", progress=False)
            return found.take_all()
        except hr.errors.NothingMatched:
            return []


class TestDeltaInAStore(InAStore):
    at_once, points = True, ("table.filled", "store.uploaded", "store.append")

    @pytest.fixture(autouse=True)
    def at(self, bucket, port, monkeypatch):
        """Without the proxy, which is a thread here: the library holds the interpreter while it asks."""
        self.lib = pytest.importorskip("deltalake")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        self.bucket = bucket

    def write(self, data, place, **options):
        return data.write_delta(f"{self.bucket.url}/{place.name}", **options)

    def read(self, place):
        options = {"allow_http": "true"}
        if not self.lib.DeltaTable.is_deltatable(f"{self.bucket.url}/{place.name}", options):
            return []
        table = self.lib.DeltaTable(f"{self.bucket.url}/{place.name}", storage_options=options)
        return table.to_pyarrow_table().to_pylist()
