"""The places of outputs: a folder, and a place in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.output.places.place import Place, place_at
from headrace.testing.places import PlaceContract


class TestFolder(PlaceContract):
    @pytest.fixture(autouse=True)
    def at(self, tmp_path: Path) -> None:
        self.path = tmp_path / "deep" / "out"

    def again(self) -> Place:
        return place_at(self.path)

    def put(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)

    def test_the_folders_that_it_made_are_removed(self) -> None:
        place = self.again()
        place.take()
        place.close(forget=True)
        assert not self.path.parent.exists()
