"""Tables in an S3 server: a run's parts, journal and commit are all in the bucket."""

import os

import deltalake
import pyarrow as pa
import pytest

import headrace as hr
from annex.lakes.growing import Iceberg, hundred
from headrace.annex.report.follow import Follower
from headrace.errors import NothingMatched, SinkError

HTTP = {"allow_http": "true"}


def ids(url):
    return sorted(deltalake.DeltaTable(url, storage_options=HTTP).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize("what", ["rows deleted", "overwritten", "a file removed", "table removed"])
def test_a_finished_run_looks_whether_the_table_has_its_rows(bucket, what, port, monkeypatch):
    """Without the proxy, which is a thread here: the library holds the interpreter while it asks for a history."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    url = f"{bucket.url}/t"
    assert hundred().write_delta(url, output="run").rows == 100
    assert hundred().write_delta(url, output="run").resumed and hr.verify(f"{url}/run").good
    table = deltalake.DeltaTable(url, storage_options=HTTP)
    if what == "rows deleted":
        table.delete("id < 10")
        with pytest.warns(UserWarning, match=r"has not all of the 100 rows .*\(DELETE\)"):
            assert hundred().write_delta(url, output="run").resumed
    else:
        import obstore

        listed = [found for batch in bucket.store.list(f"{bucket.prefix}/t/") for found in batch]
        if what == "overwritten":
            deltalake.write_deltalake(url, pa.table({"id": [-1]}), mode="overwrite", storage_options=HTTP)
        for name in (found["path"] for found in listed):
            if ("/_delta_log/" in name and what == "table removed") or (
                "/run/part-" in name and what == "a file removed"
            ):
                obstore.delete(bucket.store, name)
        with pytest.raises(
            SinkError, match=r"has none of the 100 rows|is gone, and with it|cannot be read: "
        ):
            hundred().write_delta(url, output="run")
        assert Follower(f"{url}/run").poll().gone
    assert not hr.verify(f"{url}/run").good


@pytest.mark.parametrize("fault", ["lost", 503])
def test_the_answer_to_the_commit_is_lost(bucket, proxy, fault):
    url = f"{bucket.url}/t"
    spoilt = []

    def once(asked):
        if asked.method == "PUT" and "_delta_log/" in asked.path and "json" in asked.path and not spoilt:
            spoilt.append(asked.path)
            return fault
        return None

    proxy.fault = once
    assert hundred().write_delta(url).rows == 100
    assert len(spoilt) == 1 and ids(url) == [*range(100)]
    assert deltalake.DeltaTable(url, storage_options=HTTP).version() == 0


def test_secrets_and_wrong_places(bucket, monkeypatch):
    from stores.conftest import SECRET

    with pytest.raises(hr.errors.NothingMatched, match="no Delta table"):
        hr.read_delta(f"{bucket.url}/nope").count()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(hr.errors.StoreFailed) as raised:
        hr.read_delta(f"{bucket.url}/t", storage_options={"retries": 0}).count()
    assert SECRET not in str(raised.value)


def test_an_iceberg_table(bucket, tmp_path, port):
    server = {"s3.endpoint": f"http://127.0.0.1:{port}", "s3.region": "us-east-1"}
    shop = Iceberg(tmp_path, warehouse=bucket.url, **server)
    assert hundred().write_iceberg("shop.t", catalog=shop.lake).rows == 100
    assert shop.ids() == [*range(100)] and shop.commits() == 1
    assert hundred().write_iceberg("shop.t", catalog=shop.lake).resumed
    hundred().limit(3).write_iceberg("shop.t", catalog=shop.lake, mode="overwrite")
    assert shop.ids() == [0, 1, 2] and shop.commits() == 2
    found = hr.read_iceberg("shop.t", catalog=shop.lake, row_filter="id > 0").with_options(engine="inline")
    assert found.take_all() == [{"id": 1}, {"id": 2}]
    with shop.table().update_spec() as update:
        update.add_field("id", "bucket[4]", "a/b")
    hundred().write_iceberg("shop.t", catalog=shop.lake, output="divided")
    scan = shop.table().scan("id = 77")
    assert scan.to_arrow()["id"].to_pylist() == [77] and len(list(scan.plan_files())) == 1
    assert "/data/divided/a-b=" in next(iter(scan.plan_files())).file.file_path


def test_lance_is_read_from_a_store(bucket):
    lance = pytest.importorskip("lance")
    url, http = f"{bucket.url}/t.lance", {**HTTP, "endpoint": os.environ["AWS_ENDPOINT_URL"]}
    lance.write_dataset(pa.table({"id": range(6)}), url, storage_options=http, max_rows_per_file=2)
    lance.dataset(url, storage_options=http).delete("id = 3")
    data = hr.read_lance(url, filter="id > 1").with_options(progress=False, workers=1)
    assert [row["id"] for row in data.map_batches(lambda batch: batch).take_all()] == [2, 4, 5]
    with pytest.raises(NothingMatched, match="There is no Lance table at"):
        hr.read_lance(f"{bucket.url}/none").schema()


def test_a_table_of_a_store_does_not_lead_out_of_its_folder(bucket, tmp_path):
    """Neither to objects beside it, nor to files of this machine."""
    made = tmp_path / "t"
    deltalake.write_deltalake(made, pa.table({"id": [1]}))
    (data,) = made.glob("*.parquet")
    log = made / "_delta_log/00000000000000000000.json"
    for i, name in enumerate(["../x.parquet", "%2e%2e/x.parquet", f"file://{tmp_path}/x.parquet"]):
        bucket.put("x.parquet", data.read_bytes())
        bucket.put(f"t{i}/_delta_log/{log.name}", log.read_bytes().replace(data.name.encode(), name.encode()))
        with pytest.raises(hr.errors.SourceError, match="outside its own folder"):
            hr.read_delta(f"{bucket.url}/t{i}").with_options(engine="inline", progress=False).take_all()


def test_new_columns(bucket, port, monkeypatch):
    """In a store, too."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    lance = pytest.importorskip("lance")
    table = pa.table({"id": pa.array(range(20), pa.int64())})
    delta, fragments = f"{bucket.url}/d", f"{bucket.url}/l.lance"
    options = {**HTTP, "aws_endpoint": f"http://127.0.0.1:{port}"}
    deltalake.write_deltalake(delta, table, storage_options=options)
    lance.write_dataset(table, fragments, storage_options=options, max_rows_per_file=8)
    lance.dataset(fragments, storage_options=options).delete("id = 3")

    def double(batch):
        return batch["id"] * 2

    for read, write, place in (
        (hr.read_delta, "write_delta", delta),
        (hr.read_lance, "write_lance", fragments),
    ):
        data = read(place).with_options(engine="inline", progress=False)
        data = data.predict(double, inputs=["id"], output="double")
        getattr(data, write)(place, mode="add_columns")
        assert all(row["double"] == row["id"] * 2 for row in read(place).take_all())
        assert getattr(data, write)(place, mode="add_columns").resumed
        data = read(place).with_options(engine="inline", progress=False)
        data = data.predict(lambda batch: -batch["id"], inputs=["id"], output="double", replace=True)
        result = getattr(data, write)(place, mode="add_columns", where="id >= 15", output="b")
        assert result.rows == 5
        found = {row["id"]: row["double"] for row in read(place).take_all()}
        assert all(value == (-i if i >= 15 else 2 * i) for i, value in found.items())
