"""Outputs in the S3 server, looked at past the proxy."""

import dataclasses

import obstore

from faults import invariants


def names(bucket, folder="out"):
    """The keys of an output, from it on."""
    prefix = f"{bucket.prefix}/{folder}/"
    return {each["path"].removeprefix(prefix) for page in obstore.list(bucket.store, prefix) for each in page}


def content(bucket, name, folder="out"):
    return bytes(obstore.get(bucket.store, f"{bucket.prefix}/{folder}/{name}").bytes())


def copied(bucket, to, folder="out"):
    """A copy of an output as files."""
    for name in names(bucket, folder):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content(bucket, name, folder))
    return to


def tags(bucket, folder="out"):
    prefix = f"{bucket.prefix}/{folder}/"
    return {
        each["path"]: each["e_tag"]
        for page in obstore.list(bucket.store, prefix)
        for each in page
        if "/_headrace/" not in each["path"]
    }


def check(bucket, expected, again, tmp_path, folder="out", rejected=()):
    """Assert that an output is complete, exact and clean, and that running ``again`` changes nothing."""
    import json

    output = copied(bucket, tmp_path / f"copy-{len(list(tmp_path.iterdir()))}", folder)
    success = json.loads((output / "_SUCCESS").read_text())
    listed = invariants.manifest(output, success)
    invariants.check_files(output, listed)
    files = [file for file in listed if not file["name"].startswith("_rejected/")]
    assert invariants.rows_of(output) == expected
    invariants.check_rejected(output, rejected, [file["name"] for file in listed if file not in files])
    assert (success["rows"], success["files"]) == (len(expected), len(files))
    invariants.check_listing(output, success["run"], {file["name"] for file in files})
    assert not json.loads((output / "_headrace/lock").read_text())["held"]
    before = tags(bucket, folder)
    result = again()
    assert (result.rows, result.files, result.run) == (len(expected), len(files), success["run"])
    assert result.resumed and tags(bucket, folder) == before


def at(job, bucket, folder="out"):
    """The same job, into the bucket."""
    return dataclasses.replace(job, output=f"{bucket.url}/{folder}")
