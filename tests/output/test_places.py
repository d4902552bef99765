"""The places of outputs: a folder, and a place in an object store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.work import HOME, SUCCESS
from headrace.errors import OutputWriteFailed
from headrace.output import publishing
from headrace.output.places.place import Place, place_at
from headrace.testing import failpoints
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

    def test_a_file_that_is_cut_or_gone_is_not_published(self, place: Place, run: str) -> None:
        publisher, record = self.publisher(place, run), self.record(place, run, 0)
        (file,) = record.files
        staged = place.root / "_headrace" / run / "staging" / file.staged
        os.truncate(staged, file.size - 1)
        assert publisher.state(file) == "missing"
        os.rename(staged, place.root / file.name)
        assert publisher.state(file) == "missing"
        with pytest.raises(OutputWriteFailed, match=f"publish .*{file.name}"):
            publisher.publish([record])

    @pytest.mark.parametrize("point", ["publish.rename", "publish.renamed"])
    def test_a_fault_in_publishing_can_be_repeated(self, place: Place, run: str, point: str) -> None:
        publisher, record = self.publisher(place, run), self.record(place, run, 0)
        with failpoints({point: "EROFS"}), pytest.raises(OutputWriteFailed, match="read-only"):
            publisher.publish([record])
        publisher.publish([record])
        assert self.where(publisher, record) == ["published"]

    def test_small_files_last_by_their_names(
        self, place: Place, run: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[Path] = []
        monkeypatch.setattr(publishing.safe_files, "sync_folder", synced.append)
        place.write(f"{HOME}/{run}/plan", b"x")
        assert synced == [place.root / HOME / run]

    def test_the_name_of_success_lasts(self, place: Place, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[tuple[Path, bool]] = []
        there = place.root / SUCCESS
        monkeypatch.setattr(publishing, "sync_folder", lambda path: synced.append((path, there.exists())))
        self.publisher(place, run).finish(b"{}")
        assert synced == [(place.root, True)]

    def test_a_mark_of_what_was_not_synced_is_not_synced(
        self, place: Place, run: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publisher, synced = self.publisher(place, run), list[int]()
        monkeypatch.setattr(os, "fsync", synced.append)
        publisher.finish(b"{}", lasting=False)
        assert (place.root / SUCCESS).read_bytes() == b"{}" and not synced
