"""What readers do with addresses: the same rows as from files, few requests, no secret anywhere."""

import gzip
import io
import pickle
import re
import sys
import tarfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import (
    ArgumentError,
    InputChanged,
    MissingLibrary,
    NothingMatched,
    StoreFailed,
    UnreadableFile,
)
from headrace.sources.lines import BinarySource
from headrace.sources.parquet.source import ParquetSource
from stores.conftest import KEY, SECRET


def parquet(table, **options):
    data = io.BytesIO()
    pq.write_table(table, data, **options)
    return data.getvalue()


def inline(data):
    return data.with_options(engine="inline", progress=False)


def names(data, bucket):
    return [path.removeprefix(f"{bucket.url}/") for path in data.input_files()]


# ---------------------------------------------------------------- which objects


def test_a_folder_gives_the_files_of_the_format_level_by_level(bucket, port):
    for key in (
        "b/x.bin",
        "b.bin",
        "a.bin",
        "_hidden/x.bin",
        ".x.bin",
        "_k=1/x.bin",
        "b/c/y.bin",
        "b-/x.bin",
        "b/_z.bin",
    ):
        bucket.put(key, b"1")
    at = f"http://127.0.0.1:{port}/bucket/{bucket.prefix}"
    for folder in ("", "b/", "folder/"):  # some tools mark folders so
        urllib.request.urlopen(urllib.request.Request(f"{at}/{folder}", method="PUT")).close()
    ours = ["_k=1/x.bin", "a.bin", "b/c/y.bin", "b/x.bin", "b-/x.bin", "b.bin"]
    assert names(hr.read_binary_files(bucket.url), bucket) == ours
    assert names(hr.read_binary_files(bucket.url + "/"), bucket) == ours


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.bin", ["a.bin", "x[1].bin"]),
        ("**/*.bin", ["a.bin", "x[1].bin", "b/x.bin", "b/c/y.bin"]),
        ("b/*", ["b/c/y.bin", "b/x.bin"]),
        ("b/**", ["b/c/y.bin", "b/x.bin"]),
        ("?/x.bin", ["b/x.bin"]),
        ("x[1].bin", ["x[1].bin"]),
        ("[ab].bin", ["a.bin"]),
        ("_h*/x.bin", ["_hidden/x.bin"]),
        ("b/x.bin", ["b/x.bin"]),
    ],
)
def test_patterns_are_those_of_files(bucket, tmp_path, pattern, found):
    for key in ("b/x.bin", "a.bin", "_hidden/x.bin", "b/c/y.bin", "x[1].bin"):
        bucket.put(key, b"1")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"1")
    assert names(hr.read_binary_files(f"{bucket.url}/{pattern}"), bucket) == found
    local = hr.read_binary_files(str(tmp_path / pattern)).input_files()
    assert [path.removeprefix(f"{tmp_path}/") for path in local] == found


def test_keys_are_taken_as_they_are(bucket):
    keys = ["a b.bin", "a%41.bin", "a+b.bin", "q?x#y.bin", "é.bin"]
    for key in keys:
        bucket.put(key, key.encode())
    read = inline(
        hr.read_binary_files([f"{bucket.url}/{key}" for key in keys], include_paths=True)
    ).take_all()
    assert [row["bytes"].decode() for row in read] == keys
    assert [row["path"] for row in read] == [f"{bucket.url}/{key}" for key in keys]


def test_nothing_there_is_said(bucket):
    bucket.put("a.csv", b"x\n1\n")
    with pytest.raises(NothingMatched, match=re.escape(f"{bucket.url}/none")):
        hr.read_parquet(f"{bucket.url}/none").schema()
    with pytest.raises(NothingMatched, match=r"a\.csv"):
        hr.read_parquet(bucket.url).schema()


def test_many_keys_are_listed_by_pages(bucket, proxy):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: bucket.put(f"{number:04}.bin", b"1"), range(1_005)))
    proxy.asked.clear()
    assert len(hr.read_binary_files(bucket.url).input_files()) == 1_005
    assert [asked.method for asked in proxy.asked] == ["HEAD", "GET", "GET"]


# ---------------------------------------------------------------- the same rows


def of(save, *given, **options):
    """What a library saves."""
    data = io.BytesIO()
    save(data, *given, **options)
    return data.getvalue()


def tar(data):
    with tarfile.open(fileobj=data, mode="w") as packed:
        for name, content in (("1.txt", b"one"), ("2.txt", b"two")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))


def video(data):
    import av

    with av.open(data, "w", "mp4") as made:
        stream = made.add_stream("mjpeg", rate=25, width=64, height=48)
        stream.pix_fmt = "yuvj420p"
        for number in range(9):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 9 * number, np.uint8))))
        made.mux(stream.encode())


def png(data):
    from PIL import Image as image

    image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(data, "PNG")


def sound(data):
    import soundfile

    soundfile.write(data, np.full((4, 2), 1 / 8), 8_000, format="WAV")


LINES = "".join(f'{{"n": {number}, "t": "text, {number}"}}\n' for number in range(60_000)).encode()
TABLE = "n,t\n" + "".join(f'{number},"a ""quoted""\n{number}"\n' for number in range(20_000))
FILES = {
    "parquet": lambda: {
        f"year={year}/a.parquet": parquet(pa.table({"x": [year, None], "y": ["a", "b"]}))
        for year in (2023, 2024)
    },
    "json": lambda: {"a.jsonl": LINES, "b.jsonl.gz": gzip.compress(LINES)},
    "csv": lambda: {"day=7/c.csv": TABLE.encode()},
    "text": lambda: {"d.txt": LINES},
    "binary_files": lambda: {"e.gz": gzip.compress(b"packed")},
    "numpy": lambda: {"a.npy": of(np.save, np.arange(6.0)), "b.npz": of(np.savez, data=[7.0])},
    "webdataset": lambda: {"c.tar": of(tar), "d.tar.gz": gzip.compress(of(tar))},
    "images": lambda: {"0.png": of(png), "1.png": of(png)},
    "audio": lambda: {"0.wav": of(sound), "1.wav": of(sound)},
    "video": lambda: {"0.mp4": of(video)},
}


@pytest.mark.parametrize("kind", FILES)
def test_rows_are_those_of_files(bucket, tmp_path, kind):
    pytest.importorskip({"images": "PIL", "audio": "soundfile", "video": "av"}.get(kind, "pyarrow"))
    for name, content in FILES[kind]().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        bucket.put(name, content)
    read = getattr(hr, f"read_{kind}")
    there, here = (inline(read(path, include_paths=True)).to_arrow() for path in (bucket.url, str(tmp_path)))
    paths = [path.replace(str(tmp_path), bucket.url) for path in here["path"].to_pylist()]
    assert there["path"].to_pylist() == paths and len(paths) > 0
    assert there.drop(["path"]).equals(here.drop(["path"]))


def test_an_object_that_was_cut_short(bucket):
    pytest.importorskip("soundfile")
    path = bucket.put("3.wav", of(sound)[:-1])
    with pytest.raises(UnreadableFile, match=re.escape(f"{path!r}: it was cut short: 1 byte")):
        inline(hr.read_audio(path)).take_all()


def test_text_in_several_splits(bucket):
    content = b"".join(b"%07d %s\n" % (number, b"x" * 1_000) for number in range(9_000))  # 9 MB
    bucket.put("a.txt", content)
    source = hr.read_text(bucket.url)
    assert len(source._plan.source.splits()) == 3
    assert (
        b"".join(text.encode() + b"\n" for text in inline(source).to_arrow()["text"].to_pylist()) == content
    )


def test_the_command_line_sees_the_format(bucket):
    from headrace.readers.by_name import dataset_of, format_of

    bucket.put("in/a.csv", b"x\n1\n")
    assert format_of([bucket.url]) == format_of([f"{bucket.url}/in/*"]) == "csv"
    assert dataset_of([f"{bucket.url}/in"], None, {}).columns() == ["x"]
    assert format_of([f"{bucket.url}/none"]) == "parquet"  # whose reader says that there is nothing


def test_workers_read_and_local_outputs_resume(bucket, tmp_path):
    for number in range(4):
        bucket.put(f"{number}.parquet", parquet(pa.table({"x": [number, number + 10]})))
    data = hr.read_parquet(bucket.url).with_options(progress=False, workers=1)
    assert data.write_parquet(tmp_path / "out").rows == 8
    assert data.write_parquet(tmp_path / "out").rows == 8  # recognised
    bucket.put("0.parquet", parquet(pa.table({"x": [5, 6]})))
    with pytest.raises(InputChanged, match=re.escape(f"{bucket.url}/0.parquet")):
        hr.read_parquet(bucket.url).with_options(progress=False, workers=1).write_parquet(tmp_path / "out")
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert SECRET.encode() not in content and KEY.encode() not in content, file


# ---------------------------------------------------------------- requests


def test_few_requests_for_a_large_file(bucket, proxy):
    columns = {
        f"c{number}": np.random.default_rng(number).integers(0, 1 << 62, 1 << 20) for number in range(4)
    }
    content = parquet(pa.table(columns), row_group_size=1 << 17, compression="none", use_dictionary=False)
    assert len(content) > 32 << 20
    bucket.put("a.parquet", content)
    proxy.asked.clear()
    data = inline(hr.read_parquet(bucket.url))
    assert data.to_arrow()["c3"].to_numpy().sum() == columns["c3"].sum()
    assert len(proxy.asked) <= 14  # look and list twice, plan, open; and 8 for 36 MB
    proxy.asked.clear()
    assert (
        inline(hr.read_parquet(bucket.url, columns=["c1"])).to_arrow()["c1"].to_numpy().sum()
        == columns["c1"].sum()
    )
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("range", "")) for asked in proxy.asked]
    assert sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found) < len(content) / 3


def test_small_objects_take_one_request_each(bucket, proxy):
    for number in range(20):
        bucket.put(f"{number:02}.bin", b"%d" % number)
    proxy.asked.clear()
    rows = inline(hr.read_binary_files(bucket.url)).take_all()
    assert [int(row["bytes"]) for row in rows] == list(range(20))
    assert len(proxy.asked) == 24
    assert all("if-match" in asked.headers for asked in proxy.asked if re.search(r"/\d\d\.bin", asked.path))


def test_small_objects_are_asked_for_once_to_plan_and_once_to_read(bucket, proxy):
    for number in range(20):
        table = pa.table({"a": [number], "left out": [0], "b": [[number]]})
        bucket.put(f"{number:02}.parquet", parquet(table, compression="none"))
    data = inline(hr.read_parquet(bucket.url, columns=["a", "b"]))
    data.schema()
    proxy.asked.clear()
    assert data.take_all() == [{"a": number, "b": [number]} for number in range(20)]
    assert sum(asked.path.endswith(".parquet") for asked in proxy.asked) == 20


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("fault", [429, 500, 503, "cut", "drop"])
def test_what_passes_is_tried_again(bucket, proxy, fault):
    path = bucket.put("a.bin", bytes(range(256)) * 1_000)
    seen = {}

    def twice(asked):
        seen[asked[:2]] = seen.get(asked[:2], 0) + 1
        return fault if seen[asked[:2]] <= 2 else None

    proxy.fault = twice
    assert inline(hr.read_binary_files(path)).take_all() == [{"bytes": bytes(range(256)) * 1_000}]


def test_a_changed_object_is_noticed(bucket):
    path = bucket.put("a.bin", b"old")
    source = BinarySource(path)
    (split,) = source.splits()
    bucket.put("a.bin", b"new")  # of the same size
    with pytest.raises(InputChanged, match=re.escape(path)):
        list(source.read(split, None, 10))
    assert pickle.loads(pickle.dumps(source)).files() == source.files()


def test_a_store_that_ignores_conditions_is_noticed(bucket, proxy, monkeypatch):
    table = pa.table({"x": range(10)})
    path = bucket.put("a.parquet", parquet(table))
    source = ParquetSource(path)
    (split,) = source.splits()
    bucket.put("a.parquet", parquet(pa.table({"x": range(10, 20)})))
    monkeypatch.setattr("headrace.core.stores.clients._condition", lambda version: {})
    with pytest.raises(InputChanged, match=re.escape(path)):
        list(source.read(split, None, 100))


def test_a_damaged_object_is_named(bucket):
    path = bucket.put("a.parquet", b"PAR1" + b"x" * 100)
    with pytest.raises(UnreadableFile, match=re.escape(path)):
        hr.read_parquet(path).schema()


@pytest.mark.parametrize(
    ("status", "what"),
    [(403, "denies access.*AWS_ACCESS_KEY_ID"), (301, "another region.*AWS_REGION")],
)
def test_refusals_name_the_object_and_no_secret(bucket, proxy, status, what):
    path = bucket.put("a.parquet", parquet(pa.table({"x": [1]})))
    proxy.fault = lambda asked: status
    with pytest.raises(StoreFailed, match=what) as caught:
        hr.read_parquet(path).schema()
    assert path in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__) and caught.value.__cause__ is None


def test_what_a_command_says_to_a_refusal(bucket, proxy, capsys):
    """Nothing was done, and trying again does not help: exit code 2, and what a shell understands."""
    from headrace.annex.cli import main

    path = bucket.put("a.parquet", parquet(pa.table({"x": [1]})))
    proxy.fault = lambda asked: 403
    assert main(["inspect", path]) == 2
    said = capsys.readouterr().err
    assert "s3://anonymous@bucket/" in said and "--read storage_options=\"{'anonymous': True}\"" in said
    proxy.fault = lambda asked: 503
    assert main(["inspect", path]) == 1


def test_a_bucket_that_is_not_there(bucket):
    with pytest.raises(StoreFailed, match=r"s3://nobucket/.*no such bucket"):
        hr.read_parquet("s3://nobucket/x/").schema()


def test_no_server(bucket, monkeypatch):
    with pytest.raises(StoreFailed, match=r"s3://bucket/x.*cannot be reached.*endpoint"):
        hr.read_parquet(
            "s3://bucket/x", storage_options={"endpoint": "http://127.0.0.1:1", "retries": 0}
        ).schema()


def test_a_refusal_is_no_bad_row(bucket, proxy, tmp_path):
    bucket.put("a.parquet", parquet(pa.table({"x": [1, 2]})))
    data = hr.read_parquet(bucket.url).with_options(engine="inline", progress=False, on_error="reject")
    data.schema()
    proxy.fault = lambda asked: 403
    with pytest.raises(StoreFailed):
        data.write_parquet(tmp_path / "out")
    proxy.fault = lambda asked: None
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (2, 0)


# ---------------------------------------------------------------- other places


def test_the_web(bucket, proxy, port):
    at = f"http://127.0.0.1:{port}/bucket/{bucket.prefix}/a%20b.csv"
    public = urllib.request.Request(
        at, b"x\n1\n2\n", {"x-amz-acl": "public-read", "content-type": "text/csv"}, method="PUT"
    )
    urllib.request.urlopen(public).close()
    url = f"{proxy.url}/bucket/{bucket.prefix}"
    assert inline(hr.read_csv(f"{url}/a%20b.csv")).take_all() == [{"x": 1}, {"x": 2}]
    assert inline(hr.read_csv(f"{bucket.url}/a b.csv", storage_options={"anon": True})).take_all() == [
        {"x": 1},
        {"x": 2},
    ]
    assert not any("authorization" in asked.headers for asked in proxy.asked)
    with pytest.raises(NothingMatched, match="no such file"):
        hr.read_csv(f"{url}/none.csv").schema()


def test_any_scheme_of_fsspec():
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({"/store/a/x.csv": b"x\n1\n", "/store/a/_y.csv": b"x\n5\n", "/store/a/b/z.csv": b"x\n2\n"})
    data = inline(hr.read_csv("memory://store/a"))
    assert data.input_files() == ["memory://store/a/b/z.csv", "memory://store/a/x.csv"]
    assert data.take_all() == [{"x": 2}, {"x": 1}]
    source = data._plan.source
    split = source.splits()[0]
    memory.pipe({"/store/a/b/z.csv": b"x\n3\n"})
    with pytest.raises(InputChanged, match=r"memory://store/a/b/z\.csv"):
        list(source.read(split, None, 10))
    with pytest.raises(ArgumentError, match=r"knows nosuch://"):
        hr.read_csv("nosuch://host/x").schema()


@pytest.mark.parametrize(
    "said", ["Install huggingface_hub to access HfFileSystem", "Unable to load EntryPoint(…)"]
)
def test_a_scheme_whose_package_is_missing(monkeypatch, said):
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(registry._registry, "hf", raising=False)
    made = {"class": "huggingface_hub.HfFileSystem", "err": said}
    monkeypatch.setitem(registry.known_implementations, "hf", made)
    with pytest.raises(
        MissingLibrary, match=r"^Cannot read 'hf://datasets': .*: pip install huggingface_hub\.$"
    ):
        hr.read_parquet("hf://datasets/a/b/x.parquet").schema()


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (f"s3://{KEY}:{SECRET}@bucket/x", "must not hold a name or a password"),
        (f"https://host/x.csv?X-Amz-Signature={SECRET}", "may be a signature"),
        (f"s3://{KEY}:a/{SECRET}@bucket/x", "must not hold a name or a password"),
        (f"az://box/x?sv=1&sig={SECRET}", "may be a signature"),
        ("s3:///x", "names no bucket"),
    ],
)
def test_addresses_that_are_refused(path, what):
    with pytest.raises(ArgumentError, match=what) as caught:
        hr.read_csv(path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"aws_secret_access_key": SECRET}, "must not hold 'aws_secret_access_key'"),
        ({"session_token": SECRET}, "must not hold"),
        ({"key": KEY}, "must not hold"),
        ({"endpoint": f"http://me:{SECRET}@host"}, "without a name"),
        ({"regoin": "x"}, "Did you mean 'region'"),
        ({"anonymous": "yes"}, "anonymous is a bool"),
    ],
)
def test_options_that_are_refused(options, what):
    with pytest.raises(ArgumentError, match=what) as caught:
        hr.read_csv("s3://bucket/x", storage_options=options)
    assert SECRET not in str(caught.value)
    with pytest.raises(ArgumentError, match="all paths are local"):
        hr.read_csv("/data/x.csv", storage_options={"region": "eu-west-1"})


def test_versions_are_the_same_in_listings_and_answers():
    """Azure lists ETags without quotes."""
    from headrace.core.stores.clients import _entry

    listed, answered = ({"path": "a", "size": 1, "e_tag": tag} for tag in ("0x8D", '"0x8D"'))
    assert _entry(listed) == _entry(answered)


# ---------------------------------------------------------------- anonymous@


def unsigned_only(proxy):
    """Let the store be open to everybody, and refuse what is signed: the credentials here are no good."""
    proxy.fault = lambda asked: 403 if "authorization" in asked.headers else "public"


def anonymous(address):
    return address.replace("s3://", "s3://anonymous@")


def test_public_data_are_read_by_the_address_that_ray_s_articles_use(bucket, proxy, capsys):
    for i in range(3):
        bucket.put(f"in/{i}.parquet", parquet(pa.table({"x": [i]})))
    bucket.put("texts/a.csv", b"x\n1\n")
    unsigned_only(proxy)
    with pytest.raises(StoreFailed):
        hr.read_parquet(f"{bucket.url}/in").schema()
    data = hr.read_parquet(anonymous(f"{bucket.url}/in"), include_paths=True)
    assert [row["path"] for row in inline(data).take_all()] == [
        f"{bucket.url}/in/{i}.parquet" for i in range(3)
    ]
    assert inline(hr.read_csv(anonymous(f"{bucket.url}/texts/*.csv"))).take_all() == [{"x": 1}]
    with pytest.raises(NothingMatched) as caught:
        hr.read_text(anonymous(f"{bucket.url}/none")).schema()
    assert "anonymous" not in str(caught.value)
    assert "anonymous" not in capsys.readouterr().err


def test_a_run_is_the_same_with_and_without_the_name(bucket, proxy, tmp_path):
    for i in range(3):
        bucket.put(f"in/{i}.parquet", parquet(pa.table({"x": [i]})))
    unsigned_only(proxy)
    out = str(tmp_path / "out")
    local = hr.read_parquet(anonymous(f"{bucket.url}/in")).with_options(engine="local", progress=False)
    assert local.write_parquet(out).rows == 3
    named = hr.read_parquet(f"{bucket.url}/in", storage_options={"anonymous": True})
    assert named.with_options(engine="local", progress=False).write_parquet(out).rows == 3
    with pytest.raises(hr.errors.HeadraceError):  # other rows would be another run
        named.limit(1).with_options(engine="local", progress=False).write_parquet(out)


def test_outputs_take_it_too_where_the_store_lets_everybody_write(bucket, proxy):
    unsigned_only(proxy)
    out = anonymous(f"{bucket.url}/out")
    data = hr.range(3).with_options(engine="local", progress=False)
    first = data.write_parquet(out)
    assert data.write_parquet(f"{bucket.url}/out", storage_options={"anon": True}).rows == first.rows == 3
    assert hr.verify(out).good and hr.read_rejected(out).count() == 0
    assert inline(hr.read_parquet(out)).count() == 3
    for library, write, read in (
        ("deltalake", hr.Dataset.write_delta, hr.read_delta),
        ("lance", hr.Dataset.write_lance, hr.read_lance),
    ):
        pytest.importorskip(library)
        table = anonymous(f"{bucket.url}/{library}")
        write(data, table)
        assert inline(read(table)).count() == 3


def test_what_else_stands_before_the_bucket_is_refused(bucket):
    for address in ("s3://ada@bucket/x", "s3://anonymous:pw@bucket/x", "https://anonymous@host/x"):
        with pytest.raises(ArgumentError, match="must not hold a name or a password"):
            hr.read_parquet(address)
    with pytest.raises(ArgumentError, match="two readers"):
        hr.read_parquet(["s3://anonymous@bucket/a", "s3://bucket/b"])
    with pytest.raises(ArgumentError, match="keep one"):
        hr.read_parquet("s3://anonymous@bucket/a", storage_options={"anonymous": False})
