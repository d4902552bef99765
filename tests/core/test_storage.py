"""Where files lie: the same questions to a disk and to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.files.storage import InStore, given, output_at, signed_alike, storage_at
from headrace.errors import ArgumentError, SourceError, StoreFailed
from headrace.output.places.place import place_at
from headrace.sinks.files import Arrow, FileSink

ADDRESS = "s3://bucket/in/x.csv"


def test_what_is_told_without_a_request(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"abc")
    file, folder, store = storage_at(f"{tmp_path}/x.csv"), storage_at(str(tmp_path)), storage_at(ADDRESS)
    assert (file.known_size(), storage_at("/none").known_size(), store.known_size()) == (3, -1, None)
    assert (file.may_hold(), folder.may_hold(), store.may_hold()) == (False, True, True)
    assert not storage_at("s3://bucket/*.csv").may_hold()
    assert file.may_match() and store.may_match() and storage_at("/none/*").may_match()
    assert not storage_at("/none").may_match()
    assert folder.may_name(ADDRESS) and folder.may_name("/x") and store.may_name(ADDRESS)
    assert not store.may_name("/etc/passwd")
    assert file.syncs("power") and not file.syncs("process") and not store.syncs("power")
    assert folder.size_of("x.csv") == 3 and folder.size_of("none") is None


def test_what_needs_a_disk_refuses_a_store() -> None:
    assert storage_at("/data").on_disk("no stores") == "/data"
    with pytest.raises(ArgumentError, match="no stores"):
        storage_at(ADDRESS).on_disk("no stores")


def test_errors_of_libraries_are_told_in_words_that_hold_no_secret() -> None:
    error = OSError("status code: 403 Forbidden for AKIA1234")
    of_disk = storage_at("/data").failed("open the table t", error, "it is not there")
    assert isinstance(of_disk, SourceError) and str(of_disk) == "Cannot open the table t: it is not there."
    of_store = storage_at(ADDRESS).failed("open the table t", error, str(error))
    assert isinstance(of_store, StoreFailed) and "AKIA" not in str(of_store)
    assert "AKIA" not in storage_at(ADDRESS).words(error, str(error))


def test_requests_of_one_reader_are_all_signed_or_none() -> None:
    signed, unsigned, file = (given(text, "It") for text in (ADDRESS, "s3://anonymous@bucket/y", "file:///z"))
    assert isinstance(unsigned, InStore) and unsigned.path == "s3://bucket/y"
    assert signed_alike([unsigned, file]) == (("anonymous", True),)
    assert signed_alike([signed, file]) == () == signed_alike([file])
    with pytest.raises(ArgumentError, match="two readers"):
        signed_alike([signed, unsigned])


def test_an_output_takes_options_in_a_store_only(tmp_path: Path) -> None:
    made = output_at("s3a://anonymous@bucket/out/", {"region": "eu-west-1"})
    assert (made.path, dict(made.options)) == ("s3://bucket/out", {"region": "eu-west-1", "anonymous": True})
    assert output_at(tmp_path / "a" / "..").path == str(tmp_path)
    assert output_at(tmp_path, {"region": "eu-west-1"}).options == ()
    assert (
        place_at(tmp_path, (("region", "eu-west-1"),)).root == tmp_path
    )  # who looks may compare it with a store
    with pytest.raises(ArgumentError, match="for outputs in object stores"):
        FileSink(str(tmp_path), Arrow(), storage_options={"region": "eu-west-1"})
    with pytest.raises(ArgumentError, match="without the scheme"):
        output_at("file:///data")
    with pytest.raises(ArgumentError, match="Cannot write to https"):
        output_at("https://host/x")
