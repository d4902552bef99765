"""Ways of Ray Data that programs rely on: batches to write to, errors by the class of Ray's, names taken twice."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs
import pyarrow.json
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.compat import ray
from headrace.errors import ArgumentError, BadReturn, UnknownArgument, UnreadableFile


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "inline")


# ---------------------------------------------------------------- batches to write to


def table() -> pa.Table:
    return pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int16()),
            "gaps": pa.array([1, None, 3], pa.int64()),
            "day": pa.array([0, 1, 2], pa.date32()),
            "word": ["a", "b", "c"],
            "vector": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6.0).reshape(3, 2)),
        }
    )


def test_a_batch_may_be_written_to_where_it_is_a_copy() -> None:
    given = table()

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["n"] += 10
        batch["vector"][:, 0] = -1
        batch["word"][-1] = "other"
        return batch

    changed = hr.from_arrow(given).map_batches(change, batch_size=2, zero_copy_batch=False).to_arrow()
    assert changed["n"].to_pylist() == [11, 12, 13]
    assert changed["word"].to_pylist() == ["a", "other", "other"]
    assert [each.tolist() for each in hr.from_arrow(changed).take_batch()["vector"]] == [
        [-1, 1],
        [-1, 3],
        [-1, 5],
    ]
    # what was not written to is what it was, and so is the user's table
    assert changed.schema.field("n").type == pa.int16() and changed["gaps"].type == pa.int64()
    assert changed["gaps"].to_pylist() == [1, None, 3] and changed["day"].type == pa.date32()
    assert given.equals(table())


def test_rows_that_fail_begin_anew_with_a_copy() -> None:
    calls: list[int] = []

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["id"] += 100
        calls.append(len(batch["id"]))
        if 102 in batch["id"] and len(calls) < 2:
            raise TimeoutError
        return batch

    data = hr.range(4).map_batches(change, batch_size=4, zero_copy_batch=False)
    found = data.with_options(retry_on=TimeoutError, max_retries=3).take_all()
    assert [row["id"] for row in found] == [100, 101, 102, 103] and len(calls) == 2


def test_frames_are_copies_too_and_others_are_read_only() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})

    def change(batch: Any) -> Any:
        batch.loc[0, "x"] = 9.0
        return batch

    data = hr.from_pandas(frame)
    assert data.map_batches(change, batch_format="pandas", zero_copy_batch=False).to_pandas()[
        "x"
    ].tolist() == [9, 2]
    assert frame["x"].tolist() == [1, 2]

    def write(batch: Any) -> Any:
        batch["x"] += 1
        return batch

    with pytest.raises(hr.errors.StepError, match="zero_copy_batch=False"):
        data.map_batches(write).take_all()
    with pytest.raises(UnknownArgument, match="zero_copy_batch=False"):
        data.predict(lambda batch: batch["x"], inputs=["x"], output="y", zero_copy_batch=False)  # type: ignore[call-arg]


# ---------------------------------------------------------------- names, sizes, errors


def test_an_async_function_has_max_concurrency_and_a_plain_one_has_one_batch() -> None:
    async def one(batch: Any) -> Any:
        return batch

    steps = [
        hr.range(3).map_batches(fn, max_concurrency=5)._plan.steps[0] for fn in (one, lambda batch: batch)
    ]
    assert [step.max_in_flight for step in steps] == [5, None]  # type: ignore[attr-defined]
    assert hr.range(3).map(lambda row: row, max_concurrency=5).count() == 3
    with pytest.raises(ArgumentError, match="mean the same"):
        hr.range(3).map_batches(one, max_concurrency=5, max_in_flight=5)
    with pytest.raises(ArgumentError, match="at least 1"):
        hr.range(3).map_batches(one, max_concurrency=0)


def test_compute_and_concurrency_may_say_the_same() -> None:
    two = hr.ActorPoolStrategy(size=2, max_tasks_in_flight_per_actor=4)
    assert hr.range(3).map_batches(lambda b: b, compute=two, concurrency=2).count() == 3
    with pytest.raises(ArgumentError, match="not both"):
        hr.range(3).map_batches(lambda b: b, compute=two, concurrency=3)
    with pytest.raises(ArgumentError, match="above zero"):
        hr.ActorPoolStrategy(max_tasks_in_flight_per_actor=0)


def test_columns_that_are_named_wrongly() -> None:
    data = hr.from_items([{"a": 1, "b": 2}])
    assert data.drop_columns(["a", "a"]).columns() == ["b"]
    for wrong in (lambda: data.select_columns(5), lambda: data.rename_columns("a")):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="two columns"):
        data.rename_columns({"a": "x", "b": "x"})


def test_what_is_no_batch_and_what_is_no_file_are_value_errors(tmp_path: Path) -> None:
    assert issubclass(BadReturn, ValueError) and issubclass(UnreadableFile, ValueError)
    with pytest.raises(ValueError, match="not a batch"):
        hr.range(2).map_batches(lambda batch: 1).take()
    pq.write_table(table().select(["n"]), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="Parquet file"):
        hr.read_csv(tmp_path / "x.parquet").take()


def test_json_takes_options_of_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "rows.json.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join(json.dumps({"one": i, "two": str(i)}) for i in range(3)))
    read = pyarrow.json.ReadOptions(block_size=1)
    assert hr.read_json(path, read_options=read, arrow_open_stream_args={"compression": "gzip"}).count() == 3
    two = pa.schema([("two", pa.string())])
    only = pyarrow.json.ParseOptions(explicit_schema=two, unexpected_field_behavior="ignore")
    assert hr.read_json(path, parse_options=only).take(1) == [{"two": "0"}]
    assert hr.read_json(path, parse_options=pyarrow.json.ParseOptions()).columns() == ["one", "two"]
    more = pyarrow.json.ParseOptions(explicit_schema=two, unexpected_field_behavior="infer")
    with pytest.raises(ArgumentError, match="unexpected_field_behavior='infer'"):
        hr.read_json(path, parse_options=more)
    with pytest.raises(UnknownArgument, match="plain or unpacked"):
        hr.read_json(path, arrow_open_stream_args={"compression": "snappy"})


def test_a_local_file_system_says_nothing_new(tmp_path: Path) -> None:
    local = pyarrow.fs.LocalFileSystem()
    hr.range(3).write_parquet(tmp_path / "out", filesystem=local)
    assert hr.read_parquet(tmp_path / "out", filesystem=local).count() == 3


# ---------------------------------------------------------------- ray.data


def test_a_schema_is_shown_as_ray_shows_it() -> None:
    data = ray.data.from_items([{"long_column_name": "spam", "n": 1}])
    schema = data.schema()
    assert repr(schema).splitlines()[2:] == ["long_column_name  string", "n                 int64"]
    assert schema.names == ["long_column_name", "n"] and schema.types == [pa.string(), pa.int64()]
    assert schema == ray.data.Schema(pa.schema([("long_column_name", pa.string()), ("n", pa.int64())]))
    assert schema == schema.base_schema and schema.field("n").type == pa.int64()


def test_what_is_not_known_is_not_found_out() -> None:
    calls: list[int] = []

    def same(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return row

    data = ray.data.range(1).map(same)
    assert data.columns(fetch_if_missing=False) is None and data.schema(fetch_if_missing=False) is None
    assert not calls and data.columns() == ["id"] and calls
    assert data.columns(fetch_if_missing=False) == ["id"]
    assert ray.data.range(1).columns(fetch_if_missing=False) == ["id"]


def test_rows_in_memory_are_a_materialized_dataset() -> None:
    lazy = ray.data.range(3).map(lambda row: row)
    assert not isinstance(lazy, ray.data.MaterializedDataset)
    assert isinstance(lazy.materialize(), ray.data.MaterializedDataset)
    assert isinstance(lazy.materialize(), ray.data.Dataset)
    assert lazy.materialize().stats()
    assert isinstance(ray.data.from_items([1]), ray.data.MaterializedDataset)
    assert not isinstance(ray.data.from_items([1]).map(lambda row: row), ray.data.MaterializedDataset)
    assert not isinstance(lazy.materialize().limit(1), ray.data.MaterializedDataset)


def test_data_of_references() -> None:
    ray.init(num_cpus=1)
    frames = [ray.put(pd.DataFrame({"x": [i]})) for i in range(2)]
    assert ray.data.from_pandas_refs(frames).take_all() == [{"x": 0}, {"x": 1}]
    assert ray.data.from_numpy_refs(ray.put(np.arange(2))).take_all() == [{"data": 0}, {"data": 1}]
    assert ray.data.from_arrow_refs([ray.put(pa.table({"a": [1]}))]).schema().names == ["a"]
    ray.shutdown()


# ---------------------------------------------------------------- files, tensors, pairs


def test_files_are_chosen_by_their_extensions(tmp_path: Path) -> None:
    hr.range(3).write_json(tmp_path / "in")
    (part,) = (tmp_path / "in").glob("part-*.json")
    (tmp_path / "a.data").write_bytes(part.read_bytes())
    (tmp_path / "b.other").write_text("no JSON")
    assert ray.data.read_json(tmp_path, file_extensions=["data"]).count() == 3
    both = [str(tmp_path / "a.data"), str(tmp_path / "b.other")]
    assert ray.data.read_json(both, file_extensions=[".DATA"]).count() == 3
    with pytest.raises(FileNotFoundError, match=r"None of the 2 files .* ends in \.txt"):
        ray.data.read_json(both, file_extensions="txt").count()
    with pytest.raises(ArgumentError, match="file_extensions"):
        ray.data.read_json(both, file_extensions=[])


def test_paths_that_are_missing_may_be_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    paths = [tmp_path / "a.txt", tmp_path / "missing.txt"]
    assert ray.data.read_text(paths, ignore_missing_paths=True).take_all() == [{"text": "one"}]
    assert ray.data.read_text(paths=paths, ignore_missing_paths=True).count() == 1
    with pytest.raises(FileNotFoundError):
        ray.data.read_text(paths).take_all()
    with pytest.raises(FileNotFoundError):
        ray.data.read_text(paths[1:], ignore_missing_paths=True).take_all()


def test_folders_by_keys_are_said_as_ray_says_them(tmp_path: Path) -> None:
    from headrace.compat.ray.data.datasource import Partitioning

    hr.from_items([{"year": 2024, "x": 1}, {"year": 2025, "x": 2}]).write_parquet(
        tmp_path, partition_by=["year"]
    )
    years = ray.data.read_parquet(tmp_path, partitioning=Partitioning("hive", field_types={"year": int}))
    assert sorted(row["year"] for row in years.take_all()) == [2024, 2025]
    texts = ray.data.read_binary_files(tmp_path, partitioning=Partitioning("hive", field_types={"year": str}))
    assert {row["year"] for row in texts.take_all()} == {"2024", "2025"}
    with pytest.raises(hr.errors.ArgumentError, match="field_names="):
        Partitioning("dir")


def test_blocks_are_tables_or_frames() -> None:
    assert ray.data.from_blocks([pd.DataFrame({"x": [1]}), pd.DataFrame({"x": [2]})]).sum("x") == 3
    with pytest.raises(ArgumentError, match="not both"):
        ray.data.from_blocks([pd.DataFrame({"x": [1]}), pa.table({"x": [2]})])


def test_a_column_of_nothing_is_a_tensor_of_nan() -> None:
    torch = pytest.importorskip("torch")
    data = hr.from_arrow(pa.table({"none": pa.nulls(3), "n": [1, 2, 3]}))
    (batch,) = data.iter_torch_batches()
    assert torch.isnan(batch["none"]).all() and batch["n"].tolist() == [1, 2, 3]
    texts = hr.from_arrow(pa.table({"t": pa.array([None, "a"])}))
    with pytest.raises(ArgumentError, match="cannot become a tensor"):
        list(texts.iter_torch_batches(batch_size=1))


def test_dicts_with_other_keys_later_have_the_keys_of_all() -> None:
    def answers(batch: dict[str, Any]) -> Any:
        for n in batch["id"]:
            yield {
                "out": [{"a": 1, "deep": {"x": n}}]
                if n % 2 == 0
                else [{"a": 1.5, "why": "odd", "deep": {"y": "s"}}]
            }

    data = hr.range(4).map_batches(answers, batch_size=4)
    even = {"a": 1.0, "deep": {"x": 0, "y": None}, "why": None}
    odd = {"a": 1.5, "deep": {"x": None, "y": "s"}, "why": "odd"}
    assert data.take_all()[0]["out"] == even and data.take(2)[1]["out"] == odd
    table = data.to_arrow()
    assert pa.types.is_struct(table.schema.field("out").type) and table["out"][1].as_py() == odd
    again = data.map(lambda row: {"keys": sorted(row["out"])}).take_all()
    assert {tuple(row["keys"]) for row in again} <= {("a", "deep", "why"), ("a", "deep")}


def test_dicts_that_cannot_be_one_type_stay_as_they_are() -> None:
    def answers(batch: dict[str, Any]) -> Any:
        yield {"out": [{"a": 1}]}
        yield {"out": [{"a": "text"}]}
        yield {"out": [None]}

    rows = hr.range(1).map_batches(answers).take_all()
    assert [row["out"] for row in rows] == [{"a": 1}, {"a": "text"}, None]


def test_lines_of_json_may_be_arrays(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('["a", [1, 2], {"k": "]"}]\r\n\n["b", [3]]\n')
    data = hr.read_json(path)
    assert data.take_all() == [{"0": "a", "1": [1, 2], "2": {"k": "]"}}, {"0": "b", "1": [3], "2": None}]
    assert data.count() == 2 and data.filter(expr=hr.col("0") == "b").count() == 1
    for broken in ('["a"]\n["b"\n', '["a"]\n{"x": 1}\n'):
        path.write_text(broken)
        with pytest.raises(UnreadableFile, match="one array per line"):
            hr.read_json(path).take_all()


# ---------------------------------------------------------------- names that published programs use


def test_aggregates_that_are_approximate_in_ray_are_exact() -> None:
    from headrace.compat.ray.data.aggregate import ApproximateQuantile, ApproximateTopK

    rows = ray.data.from_items([{"x": float(x), "word": "aab"[x % 3]} for x in range(1, 6)])
    found = rows.aggregate(ApproximateQuantile("x", [0.1, 0.5, 0.9]), ApproximateTopK("word", k=2))
    assert found["approx_quantile(x)"] == [1, 3, 5]
    assert found["approx_topk(word)"] == [{"word": "a", "count": 3}, {"word": "b", "count": 2}]


def test_seeds_and_borders_of_blocks() -> None:
    rows = ray.data.range(8)
    seeded = rows.random_shuffle(seed=ray.data.RandomSeedConfig(seed=3)).take_all()
    assert seeded == rows.random_shuffle(seed=3).take_all() != rows.take_all()
    assert rows.sort("id", descending=True, boundaries=[4]).take(1) == [{"id": 7}]
    assert rows.random_sample(0.5, seed=ray.data.RandomSeedConfig(seed=1)).count() < 8


@pytest.mark.parametrize("form", ["Numpy", "Arrow", "Pandas"])
def test_collate_functions_say_which_batches_they_take(form: str) -> None:
    import headrace.compat.ray.data.collate_fn as collate_fn  # type: ignore[import-not-found]

    class Doubled(getattr(collate_fn, f"{form}BatchCollateFn")):  # type: ignore[misc]
        def __call__(self, batch: Any) -> Any:
            values = batch["id"]
            return [2 * x for x in (values.to_pylist() if form == "Arrow" else values.tolist())]

    assert list(ray.data.range(3).iter_torch_batches(batch_size=2, collate_fn=Doubled())) == [[0, 2], [4]]


def test_a_function_of_columns_may_be_a_class_that_is_made_with_arguments() -> None:
    from headrace.compat.ray.data.expressions import col, udf

    @udf()
    class Plus:
        def __init__(self, offset: int) -> None:
            self.offset = offset

        def __call__(self, values: pa.Array) -> pa.Array:
            return pa.array([x + self.offset for x in values.to_pylist()])

    assert ray.data.range(2).with_column("x", Plus(5)(col("id"))).take_all()[1] == {"id": 1, "x": 6}


def test_blocks_of_a_bundle_and_what_is_known_of_them() -> None:
    (bundle,) = ray.data.range(3).iter_internal_ref_bundles()
    ((ref, metadata),) = bundle.blocks
    assert ray.get(ref).num_rows == metadata.num_rows == 3
    ray.shutdown()


def test_a_function_of_the_name_of_a_module_stays_a_function() -> None:
    assert ray.util.placement_group([{"CPU": 1}]).wait(1)
    from headrace.compat.ray.util.placement_group import placement_group  # type: ignore[import-not-found]

    assert placement_group is ray.util.placement_group
    ray.shutdown()


def test_tensors_for_tensorflow_have_the_dtypes_that_are_asked_for() -> None:
    tf = pytest.importorskip("tensorflow")
    spec = tf.TensorSpec(shape=(None,), dtype=tf.float32)
    found = ray.data.range(2).to_tf("id", "id", batch_size=2, label_type_spec=spec)
    assert [part.dtype for part in next(iter(found))] == [tf.int64, tf.float32]


@ray.remote
class Echo:
    def back(self, value: Any) -> Any:
        return value


def test_functions_of_rows_may_be_async() -> None:
    async def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": 2 * row["id"]}

    class Twice:
        def __init__(self, step: int) -> None:
            self.step = step

        async def __call__(self, row: dict[str, Any]) -> Any:
            for more in range(2):
                yield {"id": row["id"] + self.step * more}

    async def is_big(row: dict[str, Any]) -> bool:
        return bool(row["id"] > 10)

    rows = ray.data.range(3)
    assert [row["id"] for row in rows.map(doubled).take_all()] == [0, 2, 4]
    found = rows.flat_map(Twice, fn_constructor_args=(5,), concurrency=1).take_all()
    assert [row["id"] for row in found] == [0, 5, 1, 6, 2, 7]
    assert rows.filter(is_big).take_all() == [] and rows.map(doubled).filter(is_big).count() == 0


def test_signals_are_actors() -> None:
    import headrace.compat.ray._common.test_utils as test_utils  # type: ignore[import-not-found]

    @ray.remote
    def waited(signal: Any) -> bool:
        ray.get(signal.wait.remote())
        return True

    ray.init(num_cpus=2)
    signal = test_utils.SignalActor.remote()
    calls = [waited.remote(signal) for _ in range(2)]
    while ray.get(signal.cur_num_waiters.remote()) < 2:
        pass
    ray.get(signal.send.remote())
    assert ray.get(calls) == [True, True]
    assert ray.cluster_resources()["object_store_memory"] > 0
    ray.shutdown()


# ---------------------------------------------------------------- what Ray's own tests ask for


def test_values_of_folders_are_text_as_with_ray(tmp_path: Path) -> None:
    data = pa.table({"x": [0, 0, 1], "y": ["a", "b", "a"], "z": [1, 2, 3]})
    pq.write_to_dataset(data, root_path=str(tmp_path / "p"), partition_cols=["x", "y"])
    found = ray.data.read_parquet(str(tmp_path / "p"))
    assert found.filter(lambda row: row["x"] == "0").count() == 2
    assert found.filter(expr=ray.data.expressions.col("x") == "1").take_all() == [
        {"z": 3, "x": "1", "y": "a"}
    ]
    assert ray.data.read_parquet(str(tmp_path / "p"), columns=["z", "x"]).columns() == ["z", "x"]
    (tmp_path / "c" / "day=01").mkdir(parents=True)
    (tmp_path / "c" / "day=01" / "a.csv").write_text("n\n1\n")
    (tmp_path / "c" / "day=01" / "a.json").write_text('{"n": 1}\n')
    for reader, suffix in ((ray.data.read_csv, "csv"), (ray.data.read_json, "json")):
        assert reader(str(tmp_path / "c"), file_extensions=[suffix]).take_all() == [{"n": 1, "day": "01"}]
        plain = reader(str(tmp_path / "c"), file_extensions=[suffix], partitioning=None)
        assert plain.take_all() == [{"n": 1}]
    numbers = ray.data.datasource.Partitioning("hive", field_types={"day": int})
    assert ray.data.read_csv(
        str(tmp_path / "c"), file_extensions=["csv"], partitioning=numbers
    ).take_all() == [{"n": 1, "day": 1}]
    assert hr.read_parquet(tmp_path / "p").filter(expr="x == 0").count() == 2  # the plain reader: numbers


def test_blocks_are_as_many_as_were_asked_for() -> None:
    rows = ray.data.range(20, override_num_blocks=10)
    assert rows.materialize().num_blocks() == 10
    with pytest.warns(UserWarning, match="min_rows_per_file"):  # files are as they were
        five = rows.map(lambda row: row).repartition(5).materialize()
    assert five.num_blocks() == 5
    assert [len(batch["id"]) for batch in five.iter_batches(batch_size=None)] == [4] * 5
    assert five.take_all() == rows.take_all()
    assert rows.materialize().num_blocks() == 10  # the dataset that five are made of is as it was
    sized = rows.repartition(target_num_rows_per_block=8)
    assert [len(batch["id"]) for batch in sized.iter_batches(batch_size=None)] == [8, 8, 4]
    counted = sized.map_batches(lambda batch: {"n": [len(batch["id"])]}, batch_size=None)
    assert [row["n"] for row in counted.take_all()] == [8, 8, 4]
    assert [len(batch["id"]) for batch in sized.materialize().iter_batches(batch_size=None)] == [8, 8, 4]
    items = ray.data.from_items([{"a": np.arange(n % 3)} for n in range(5)], override_num_blocks=9)
    assert items.num_blocks() == 5 and [len(row["a"]) for row in items.take_all()] == [0, 1, 2, 0, 1]
    assert ray.data.from_items([], override_num_blocks=3).materialize().count() == 0
    mixed = ray.data.from_items([{"a": object()}, {"a": object()}], override_num_blocks=2)
    assert mixed.num_blocks() == 2 and mixed.count() == 2


def test_rows_are_chosen_by_a_function_of_columns() -> None:
    import pyarrow.compute as pc

    @ray.data.expressions.udf()
    def is_long(texts: Any) -> Any:
        return pc.greater(pc.binary_length(texts), 1)

    col = ray.data.expressions.col
    rows = ray.data.from_items(["a", "bb", None])
    assert rows.filter(expr=is_long(col("item"))).take_all() == [{"item": "bb"}]
    padded = rows.with_column("p", col("item").str.pad(3, "*", "both")).with_column(
        "r", col("item").str.repeat(2)
    )
    assert padded.take(2)[1] == {"item": "bb", "p": "bb*", "r": "bbbb"}
    with pytest.raises(ArgumentError, match="it is left, right or both"):
        col("item").str.pad(3, "*", "top")


def test_a_preprocessor_that_has_learnt_nothing_says_so() -> None:
    from headrace.compat.ray.data.preprocessor import PreprocessorNotFittedException
    from headrace.compat.ray.data.preprocessors import OrdinalEncoder, StandardScaler

    rows = ray.data.from_items([{"a": "y"}, {"a": "x"}])
    for each in (OrdinalEncoder(["a"]), StandardScaler(["a"])):
        with pytest.raises(PreprocessorNotFittedException):
            each.transform(rows)
    with pytest.raises(ArgumentError, match="'a' has nulls"):
        OrdinalEncoder(["a"]).fit(ray.data.from_items([{"a": "y"}, {"a": None}]))
    assert OrdinalEncoder(["a"]).fit(rows).stats_ == {"unique_values(a)": {"x": 0, "y": 1}}


def test_errors_are_tried_again_by_the_context(tmp_path: Path) -> None:
    def once(batch: Any) -> Any:
        if not (tmp_path / "seen").exists():
            (tmp_path / "seen").touch()
            raise ConnectionError("busy")
        return batch

    context = ray.data.DataContext.get_current()
    before = context.copy()
    try:
        context.actor_task_retry_on_errors = [ConnectionError]
        assert ray.data.range(2).map_batches(once).count() == 2
    finally:
        ray.data.DataContext._set_current(before)
    assert ray.data.range(2).select_columns([]).take_all() == [{}, {}]


def test_an_actor_knows_its_name() -> None:
    @ray.remote
    class Named:
        def name(self) -> str | None:
            return ray.get_runtime_context().get_actor_id()  # type: ignore[no-any-return]

    async def both(actor: Any) -> Any:
        return await actor.name.remote().as_future()

    import asyncio

    ray.init(num_cpus=1)
    try:
        actor = Named.remote()
        name = actor._actor_id.hex()
        assert ray.get(actor.name.remote()) == name == asyncio.run(both(actor))
        assert repr(actor) == f"Actor(Named, {name})"
        assert ray.get_runtime_context().get_actor_id() is None
    finally:
        ray.shutdown()
    with pytest.raises(ArgumentError, match="num_cpus"):
        ray.remote(num_cpus=-1)(len)


def test_pairs_for_pytorch_are_features_and_label() -> None:
    torch = pytest.importorskip("torch")
    rows = ray.data.from_items([{"a": 1, "b": 2.5, "y": 10}, {"a": 3, "b": 4.5, "y": 20}])
    ((features, label),) = rows.to_torch(label_column="y", batch_size=2)
    assert features.tolist() == [[1.0, 2.5], [3.0, 4.5]] and label.tolist() == [[10], [20]]
    (first, second) = rows.iterator().to_torch(feature_columns=["a"], feature_column_dtypes=torch.float32)
    assert first[0].dtype == torch.float32 and second[0].tolist() == [[3.0]] and first[1] is None
    named = {"one": ["a"], "two": ["a", "b"]}
    how = {"batch_size": 2, "unsqueeze_label_tensor": False}
    ((found, flat),) = rows.to_torch(feature_columns=named, label_column="y", **how)
    assert found["one"].shape == (2, 1) and found["two"].shape == (2, 2) and flat.shape == (2,)
    vectors = ray.data.from_items([{"v": [1.0, 2.0]}, {"v": [3.0, 4.0]}])
    assert next(iter(vectors.to_torch(batch_size=2)))[0].shape == (2, 1, 2)


@pytest.mark.parametrize("size", [1.5, -1, 0.0, 0, 8, 9])
def test_a_test_set_is_a_part_of_the_rows(size: Any) -> None:
    with pytest.raises(ValueError):
        ray.data.range(8).train_test_split(size)


def test_text_of_frames_is_called_text() -> None:
    frame = pd.DataFrame({"s": ["a", "b"], "n": [1, 2]})
    rows = ray.data.from_pandas(frame)
    assert str(rows.schema()).split()[-4:] == ["s", "string", "n", "int64"]
    kept = rows.filter(lambda row: row["n"] > 1)
    for each in (kept, kept.materialize(), rows.select_columns(["s"])):
        assert each.schema().types[0] == pa.string() and "string" in str(each)
        assert "large_string" not in str(each)
    table = pa.table({"s": pa.array(["a"], pa.large_string())})
    assert ray.data.from_arrow(table).schema().types == [pa.large_string()]
    assert rows.schema().base_schema.field("s").type in (pa.string(), pa.large_string())
