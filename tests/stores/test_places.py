"""An output in an object store: its place."""

import pytest

from headrace.errors import RunLocked
from headrace.output.places.place import place_at
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
