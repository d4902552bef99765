"""Outputs in a store are compared as folders are, also one that waits to be published."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import RequirementNotMet


@pytest.mark.annex
@pytest.mark.parametrize("on", [None, "id"])
def test_outputs_in_a_store(bucket, tmp_path, on):
    pytest.importorskip("duckdb")

    def made(factor):
        data = hr.range(900).with_column("x", hr.col("id") * factor)
        return data.with_options(engine="inline", progress=False, shard_rows=200)

    old, new = f"{bucket.url}/old", f"{bucket.url}/new"
    made(1).write_parquet(old)
    with pytest.raises(RequirementNotMet, match=r"changed is 0\.9988"):
        made(2).require(changed=hr.at_most(0.5), against=old, on=on).write_parquet(new)
    assert hr.compare(old, new, on=on).columns["x"]["changed"] == 899
    hr.publish(new, because="a test")
    made(2).write_parquet(str(tmp_path / "here"))
    assert hr.compare(old, new, on=on).different == 899
    assert hr.compare(new, str(tmp_path / "here"), on=on).changed == 0
