"""What Ray Data has and Headrace has not, and why: its verbs, its functions, its arguments. Data only.

A name that is not offered is answered by ``NotOffered`` with the reason given here; an argument is taken
without effect where leaving it out changes nothing that its user asked for, and refused with its reason else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from headrace.core.arguments import Translated, Unsupported
from headrace.options import RunOptions

# ---------------------------------------------------------------- verbs of a dataset

_ORDER = "rows stay in the order of the input and are never gathered by value, so that a killed run can go on"
_SPLIT = f"a dataset is one stream: {_ORDER}. Give each part its own input files or filter, and each its own output"
_BLOCKS = "blocks are no unit that anybody sees here"
_REFS = "there is no object store behind a dataset"
_DATABASE = "outputs are folders of files, which a kill cannot tear. Write Parquet, and load that"
_FORMAT = "there is no writer for this format. Write Parquet, and convert that"

NO_VERBS = {
    "aggregate": "groups and aggregations of one's own need other engines. sum, min, max, mean, std and unique are "
    "there; for more write Parquet and ask DuckDB or Polars, or fold over iter_batches.",
    "context": "there are no global settings. with_options says how this dataset's plan runs.",
    "copy": "a dataset never changes, so there is no need for a copy of it.",
    "deserialize_lineage": "a dataset is pickled as it is: cloudpickle.loads reads it.",
    "get_dataset_id": "a run is known by its output folder, and result.run names it.",
    "get_internal_block_refs": f"{_REFS}. iter_batches(batch_format='pyarrow') gives the rows.",
    "get_stats_summary": "stats() gives the last run in words, and a Result's ledger the numbers.",
    "groupby": f"groups need a shuffle, and {_ORDER}. Write Parquet and group with DuckDB or Polars, or group what "
    "is inside one batch in map_batches.",
    "has_serializable_lineage": "a dataset is pickled as it is: cloudpickle.dumps writes any that can run.",
    "iter_internal_ref_bundles": f"{_REFS}. iter_batches(batch_format='pyarrow') gives the rows.",
    "iter_jax_batches": "iter_batches gives arrays, and jax.device_put moves one to a device.",
    "iterator": "datasets have iter_batches() and iter_rows(); those of headrace.compat.ray have iterator(), too.",
    "join": f"a join needs a shuffle, and {_ORDER}. Join with DuckDB or Polars before; or, if one side fits into "
    "memory, look it up in map_batches with a class that loads it in its constructor.",
    "map_batches_internal": "map_batches is the public name, and what is done with batches is said by its arguments.",
    "mix": f"datasets are not interleaved: {_ORDER}. union puts one behind the other.",
    "name": "a run is known by its output folder, and result.run names it.",
    "num_blocks": f"{_BLOCKS}. explain() says how many shards a run has, and batch_size= what a function gets.",
    "random_shuffle": f"there is no shuffle: {_ORDER}. A model that predicts does not need one; shuffle before, or "
    "what is read from the output.",
    "randomize_block_order": f"{_BLOCKS}, and {_ORDER}. Give read_* a shuffled list of paths.",
    "serialize_lineage": "a dataset is pickled as it is: cloudpickle.dumps writes it.",
    "set_name": "a run is known by its output folder, and result.run names it.",
    "sort": f"a sort needs a shuffle, and {_ORDER}. Sort the input before or the output after, with DuckDB or "
    "Polars.",
    "split": f"{_SPLIT}.",
    "split_at_indices": f"{_SPLIT}.",
    "split_proportionately": f"{_SPLIT}.",
    "streaming_split": f"{_SPLIT}. Feeding several trainers at a time is not what Headrace is for.",
    "streaming_train_test_split": "train_test_split(0.2, seed=1) is lazy, and divides by a hash of file and row.",
    "summary": "sum, min, max, mean and std of columns are there; for more ask DuckDB or Polars.",
    "to_arrow_refs": f"{_REFS}. to_arrow() gives one table.",
    "to_dask": "there is no adapter. Write Parquet, and dask.dataframe.read_parquet reads it.",
    "to_mars": "there is no adapter. to_pandas() gives a DataFrame; or write Parquet, which it reads.",
    "to_modin": "there is no adapter. to_pandas() gives a DataFrame; or write Parquet, which it reads.",
    "to_numpy_refs": f"{_REFS}. take_batch() or iter_batches() give arrays.",
    "to_pandas_refs": f"{_REFS}. to_pandas() gives one DataFrame, iter_batches(batch_format='pandas') several.",
    "to_random_access_dataset": "rows are not served by key. Write Parquet, and look keys up with DuckDB.",
    "to_spark": "there is no adapter. Write Parquet, and spark.read.parquet reads it.",
    "with_columns": "with_column(name, expression) adds one column; say it once for each.",
    "write_bigquery": f"{_DATABASE}.",
    "write_clickhouse": f"{_DATABASE}.",
    "write_datasink": "Ray's datasinks commit by other rules. A sink of your own fills the port "
    "headrace.core.ports.Sink.",
    "write_kafka": f"{_DATABASE}.",
    "write_lance": f"{_FORMAT}: lance.write_dataset takes what pyarrow.dataset reads of the folder.",
    "write_mongo": f"{_DATABASE}.",
    "write_orc": f"{_FORMAT}: pyarrow.orc.write_table takes what pyarrow.parquet reads.",
    "write_snowflake": f"{_DATABASE}.",
    "write_tfrecords": f"{_FORMAT}.",
    "write_turbopuffer": f"{_DATABASE}.",
}

_LAZY = "a dataset is a description, and only some verbs read it"
FAMILIAR_VERBS = {
    "apply": "map has a function of one row, map_batches one of many rows as arrays (or batch_format='pandas').",
    "assign": "with_column(name, expression) or add_column(name, function of a batch) adds a column.",
    "batch": "map_batches(fn, batch_size=…) works in batches, iter_batches(batch_size=…) yields them.",
    "collect": "take_all gives rows, to_pandas, to_arrow and to_polars tables.",
    "column_names": "columns() gives them, and schema() their types.",
    "drop": "drop_columns leaves columns out, filter rows.",
    "dtypes": "schema() gives columns and their types.",
    "features": "schema() gives columns and their types.",
    "head": "take(5) gives the first rows, show(5) prints them, limit(5).to_pandas() makes a frame of them.",
    "iloc": "take(n) gives the first rows, filter chooses rows, select_columns columns.",
    "iterrows": "iter_rows() yields rows as dicts.",
    "loc": "filter chooses rows, select_columns columns.",
    "num_rows": "count() counts them.",
    "rename": "rename_columns({'old': 'new'}) does it.",
    "rename_column": "rename_columns({'old': 'new'}) does it.",
    "remove_columns": "drop_columns does it.",
    "save_to_disk": "write_parquet(folder) writes it.",
    "select": "select_columns chooses columns, filter rows.",
    "shape": f"{_LAZY}: count() counts rows, columns() names columns.",
    "sample": "random_sample(fraction) gives the same rows each time; limit(n) the first ones.",
    "tail": "rows come from the front: take(n). For the last ones, filter by what is in the row.",
    "to_csv": "write_csv(folder) writes it.",
    "to_dict": "take_all() gives a list of dicts, to_arrow().to_pydict() a dict of columns.",
    "to_json": "write_json(folder) writes it.",
    "to_list": "take_all() gives a list of dicts.",
    "to_numpy": "take_batch(n) gives a dict of arrays, iter_batches() many.",
    "to_parquet": "write_parquet(folder) writes it.",
    "values": "take_batch(n) gives a dict of arrays, iter_batches() many.",
}
"""Of pandas, Polars and Hugging Face's datasets."""

# ---------------------------------------------------------------- functions of the module

_SERVER = (
    "Headrace reads files and what is in memory. Export the table to Parquet, or fetch it as Arrow for "
    "from_arrow"
)
_NO_READER = "there is no reader for this format. Convert it to Parquet, or give from_arrow what"
_NO_REFS = f"{_REFS}. Get the values first"

_ONE = (
    "for one dict of columns: from_arrow(pyarrow.table(columns)), or from_pandas(pandas.DataFrame(columns))"
)
FAMILIAR_FUNCTIONS = {
    "DataFrame": "from_pandas takes one, and read_* makes a dataset of files.",
    "TensorflowCheckpoint": "KerasCheckpoint is its name.",
    "TensorflowPredictor": "KerasPredictor is its name.",
    "data": "the functions of ray.data are here themselves: hr.read_parquet(…), hr.from_items(…), ….",
    "from_dict": f"{_ONE}. from_items takes a list of dicts, one per row.",
    "from_dicts": "from_items takes a list of dicts, one per row.",
    "from_generator": "from_items(generator) takes what fits into memory.",
    "from_list": "from_items takes a list of values, or of dicts, one per row.",
    "from_pydict": f"{_ONE}.",
    "from_pylist": "from_items takes a list of dicts, one per row.",
    "from_records": "from_items takes a list of dicts, one per row.",
    "from_tensor_slices": "from_numpy takes arrays, from_arrow and from_pandas tables of columns.",
    "init": "nothing is to be started: a dataset starts its workers itself, and connect() is for calls of functions.",
    "load_dataset": "from_huggingface takes what datasets.load_dataset(…) returns.",
    "pipeline": "predict takes the folder of a model, or TransformersPredictor(folder, task=…).",
    "read_excel": "from_pandas(pandas.read_excel(path)) takes what fits into memory; else save it as CSV.",
    "read_feather": "from_arrow(pyarrow.feather.read_table(path)) takes it.",
    "read_pickle": "from_pandas(pandas.read_pickle(path)) takes a frame that you trust.",
    "read_table": "read_csv(path, delimiter=…) reads text with columns, read_parquet Parquet.",
    "scan_csv": "read_csv is lazy.",
    "scan_parquet": "read_parquet is lazy.",
}
"""Of other libraries: pandas, Polars, Hugging Face, ``tf.data``."""

NO_FUNCTIONS = {
    "DataContext": "there are no global settings. with_options says how one dataset's plan runs; programs for Ray "
    "Data "
    "find theirs in headrace.compat.ray.data.",
    "DatasetContext": "there are no global settings. with_options says how one dataset's plan runs.",
    "ExecutionOptions": "with_options says how a plan runs: workers=, memory_limit=, ....",
    "from_blocks": "blocks are no unit here. from_arrow and from_pandas take a list of tables or DataFrames.",
    "from_arrow_refs": f"{_NO_REFS}: from_arrow(ray.get(refs)).",
    "from_dask": "there is no adapter. from_pandas(ddf.compute()) takes it if it fits into memory, else write "
    "Parquet.",
    "from_mars": "there is no adapter. from_pandas(df.to_pandas().fetch()) takes it, else write Parquet.",
    "from_modin": "there is no adapter. from_pandas(df.modin.to_pandas()) takes it.",
    "from_numpy_refs": f"{_NO_REFS}: from_numpy(ray.get(refs)).",
    "from_pandas_refs": f"{_NO_REFS}: from_pandas(ray.get(refs)).",
    "from_tf": "from_items(list(dataset.as_numpy_iterator())) takes what fits into memory.",
    "read_bigquery": f"{_SERVER}.",
    "read_clickhouse": f"{_SERVER}.",
    "read_databricks_tables": f"{_SERVER}.",
    "read_datasource": "Ray's datasources cut their input by other rules. Dataset.from_source takes whatever "
    "fills the "
    "port headrace.core.ports.Source.",
    "read_delta_sharing_tables": f"{_SERVER}.",
    "read_hudi": f"{_NO_READER} its own library reads.",
    "read_kafka": f"{_SERVER}.",
    "read_lance": f"{_NO_READER} lance.dataset(path).to_table() reads.",
    "read_lerobot": "there is no reader for it. Its tables are Parquet, for read_parquet.",
    "read_mcap": f"{_NO_READER} its own library reads.",
    "read_mongo": f"{_SERVER}.",
    "read_snowflake": f"{_SERVER}.",
    "read_tfrecords": f"{_NO_READER} its own library reads.",
    "read_unity_catalog": f"{_SERVER}.",
    "read_videos": "there is no decoder for video. read_binary_files(paths, "
    "include_paths=True).flat_map(frames) gives "
    "each file to a function of yours.",
    "read_zarr": f"{_NO_READER} its own library reads; from_numpy takes its arrays.",
}


def reason_for_function(name: str) -> str:
    """Say why there is no such function or verb, and what to use instead; "" where nothing is known of the name."""
    tables = (NO_FUNCTIONS, FAMILIAR_FUNCTIONS, NO_VERBS, FAMILIAR_VERBS)
    return next((table[name] for table in tables if name in table), "")


# ---------------------------------------------------------------- arguments

_PLACED = (
    "a step says what its workers need by num_cpus=, num_gpus= and memory=, and for a Ray cluster by "
    "ray_remote_args={...}"
)
_LEFT = "Leave it out"


def _unset(reason: str) -> Unsupported:
    return Unsupported(reason, (None, False, 0, (), [], {}))


_TPUS = _unset("there are no workers with TPUs here.")
_NOWHERE = {
    "accelerator_type": _unset(f"{_PLACED}. {_LEFT}."),
    "fallback_strategy": _unset(f"{_PLACED}. {_LEFT}."),
    "label_selector": _unset(f"{_PLACED}. {_LEFT}."),
    "max_calls": _unset("a worker lives as long as its stage. What leaks has to be let go in the function."),
    "num_tpus": _TPUS,
    "resources": _unset(f"{_PLACED}. How many there are is said by concurrency=. {_LEFT}."),
    "runtime_env": _unset(
        "workers start with this process's environment, folder and sys.path: set what they need before. On a Ray "
        "cluster, ray_remote_args={'runtime_env': ...} says it to a step, engine=hr.Ray(remote_args=...) to all."
    ),
    "scheduling_strategy": _unset(f"{_PLACED}. {_LEFT}."),
}
_ANY = "it has no effect on what is computed"

STEPS: dict[str, Unsupported] = {
    **_NOWHERE,
    "max_concurrency": Unsupported("a worker gives a function one row after the other", None),
    "max_restarts": Unsupported(
        "a worker that dies is replaced; with_options(max_attempts=...) says how often.", None
    ),
    "max_retries": Unsupported(
        "with_options(retry_on=TimeoutError, max_retries=3) says which errors pass, and how often to try.",
        (None,),
    ),
    "max_task_retries": Unsupported("as max_restarts.", None),
    "ray_remote_args_fn": _unset(f"{_PLACED}, before it starts."),
    "retry_exceptions": Unsupported(
        "with_options(retry_on=TimeoutError) says which errors of a function pass.", (None, False)
    ),
}
"""Of verbs that run functions."""

MAP_BATCHES: dict[str, Unsupported] = {
    **STEPS,
    "udf_modifying_row_count": Unsupported(_ANY, None),
}

PREDICT: dict[str, Unsupported] = {
    **MAP_BATCHES,
    "max_concurrency": Unsupported("max_in_flight= says how many batches a worker has at a time.", (None, 1)),
    "zero_copy_batch": Unsupported(
        "a batch is a read-only view of memory that others use, too. Copy in the function what it writes to: "
        "batch['x'] = batch['x'].copy().",
        (None, True),
    ),
    "feature_columns": Unsupported("inputs= names the columns that the model gets."),
    "keep_columns": Unsupported("keep= names the columns that stay; default: all."),
    "output_column": Unsupported("output= names the column of the result."),
    "output_column_name": Unsupported("output= names the column of the result."),
}

COLUMNS: dict[str, Unsupported] = {
    **_NOWHERE,
    "compute": Unsupported(_ANY, None),
    "concurrency": Unsupported(_ANY, None),
    "memory": Unsupported(_ANY, None),
    "num_cpus": Unsupported(_ANY, None),
    "num_gpus": _unset("choosing columns computes nothing; a GPU is for the step that uses it."),
    "ray_remote_args": _unset(f"{_PLACED}."),
}
"""Of verbs on columns, which need no workers of their own."""

BLOCKS: dict[str, Unsupported] = {
    "concurrency": Unsupported(_ANY, None),
    "override_num_blocks": Unsupported(_ANY, None),
    "parallelism": Unsupported(_ANY, None),
}
"""Of functions that make datasets: how many pieces there are is settled by size."""

SPLIT_IN_TWO: dict[str, Unsupported] = {
    "shuffle": Unsupported("rows are chosen by a hash, so that each side has some from all over", None),
    "stratify": _unset(
        "no value's share is looked at. Filter and split once for each value; of many rows, a hash comes close to it."
    ),
}
"""Of ``train_test_split``."""

REPARTITION: dict[str, Unsupported] = {
    "keys": _unset(f"{_ORDER}. Filter and write once for each value."),
    "shuffle": Unsupported(f"there is no shuffle: {_ORDER}.", (None, False)),
    "sort": Unsupported(f"there is no sort: {_ORDER}.", (None, False)),
    "strict": Unsupported(_ANY, None),
}
"""Of ``repartition``, which has no effect at all."""

_UNPACKED = tuple({"compression": name} for name in ("gzip", "bz2", "zstd", "lz4", "detect", "infer", None))
_OPENED = "files are opened by Headrace, plain or unpacked by their content."


@dataclass(frozen=True, slots=True)
class _FileSystem(Unsupported):
    """Local ones, of pyarrow and of fsspec, say nothing new."""

    def takes(self, value: Any) -> bool:
        return value is None or type(value).__name__ == "LocalFileSystem"


LOCAL_READ = Unsupported("it is read here, in any case", None)

READ: dict[str, Unsupported] = {
    **{name: each for name, each in _NOWHERE.items() if name != "max_calls"},
    **BLOCKS,
    "arrow_open_file_args": _unset(_OPENED),
    "arrow_open_stream_args": Unsupported(_OPENED, (None, {}, *_UNPACKED)),
    "arrow_parquet_args": _unset("columns= chooses columns, and filter(expr=...) rows."),
    "catalog": _unset("Headrace reads files and objects. Give their paths or addresses."),
    "file_extensions": Unsupported("say it in the path: folder/**/*.parquet."),
    "filesystem": _FileSystem(
        "an address says which store it is (s3://bucket/key), and storage_options= what else it needs to know."
    ),
    "filter": _unset("the verb filter(expr=pyarrow.compute.field('x') > 3) chooses rows."),
    "ignore_missing_paths": Unsupported(
        "a path with nothing behind it is an error. Leave those paths out of the list.", (None, False)
    ),
    "include_paths": Unsupported("the readers of files have it; this one gives no path.", (None, False)),
    "include_row_hash": _unset("rows have no hash. read_rejected tells file and row of those that fail."),
    "max_calls": _unset("the workers that read live as long as the run."),
    "memory": Unsupported(_ANY, None),
    "meta_provider": _unset("files are listed by Headrace. Give a list of paths."),
    "num_cpus": Unsupported(_ANY, None),
    "num_gpus": _unset("reading needs no GPU; say it to the step that uses one."),
    "partition_filter": Unsupported(
        "choose by the path: folder/year=2024/**, or filter(expr=...) by the column."
    ),
    "partitioning": Unsupported(
        "columns of folder names are for read_parquet, read_csv and read_json; here add them from include_paths=True."
    ),
    "ray_remote_args": _unset(f"{_PLACED}; reading belongs to the step behind it."),
    "shuffle": Unsupported(
        "files are read in the order of their names. Give a shuffled list of paths, if need be."
    ),
    "skip_paths": _unset("leave those paths out: give a list, or a pattern that does not match them."),
    "tensor_column_schema": _unset(
        "bytes become arrays in map_batches: numpy.frombuffer(b''.join(batch['x']), dtype).reshape(-1, *shape)."
    ),
}
"""Of functions that read files."""

_HERE = ("filter", "include_paths", "partitioning")
_READ_AT_A_TIME = Unsupported("how much is read at a time is settled by size", None)
READ_PARQUET: dict[str, Unsupported] = {
    **{name: each for name, each in READ.items() if name not in _HERE},
    **dict.fromkeys(("batch_size", "buffer_size", "pre_buffer", "use_threads"), _READ_AT_A_TIME),
    "dataset_kwargs": _unset("columns=, filter=, schema= and partitioning= say what is read."),
}

READ_NUMPY: dict[str, Unsupported] = {
    **READ,
    "allow_pickle": _unset(
        "pickles may run code. Load files that you trust in a function: read_binary_files(paths).map_batches(load)."
    ),
    "mmap_mode": _unset("files are read piece by piece."),
    "fix_imports": Unsupported("it is for pickles, which are not read", None),
    "encoding": Unsupported("it is for pickles, which are not read", None),
    "max_header_size": _unset("headers are as long as numpy writes them."),
}

_SAMPLES = Unsupported("members are chosen by suffixes=, and renamed by rename_columns.", (None,))
READ_WEBDATASET: dict[str, Unsupported] = {
    **READ,
    "fileselect": _SAMPLES,
    "filerename": _SAMPLES,
    "verbose_open": Unsupported("files are named where something is wrong with them", None),
    "expand_json": Unsupported(
        "read_webdataset(...).map(lambda row: {**row, **row['json']}) does it.", (None, False)
    ),
}

READ_SQL: dict[str, Unsupported] = {
    **READ,
    "sql": Unsupported("query= is its name, and uri= says which database it asks."),
    "connection_factory": Unsupported(
        "workers connect by an address, uri='postgresql://host/name', by which a run is recognised, too."
    ),
    "sql_params": _unset("write the values into the query."),
    "shard_keys": _unset("partition_column= is the column whose ranges are read at the same time."),
    "shard_hash_fn": Unsupported("rows are told apart by ranges of partition_column=", None),
}

READ_DELTA: dict[str, Unsupported] = {name: each for name, each in READ.items() if name != "filter"}

READ_ICEBERG: dict[str, Unsupported] = {
    **{name: each for name, each in READ.items() if name != "catalog"},
    "scan_kwargs": _unset("snapshot_id=, as_of=, row_filter= and selected_fields= say what is read."),
}

READ_JSON: dict[str, Unsupported] = {
    **READ,
    "lines": Unsupported("one object stands on each line, in any case", None),
}

ITERATE: dict[str, Unsupported] = {
    "prefetch_batches": Unsupported("workers run ahead of the reader by a few blocks, in any case", None),
}
"""Of verbs that bring batches here."""

_SPEC = Unsupported(
    "dtypes and shapes are taken from the schema; add_column or map_batches can change them before."
)

TO_TF: dict[str, Unsupported] = {
    **ITERATE,
    "additional_type_spec": _SPEC,
    "feature_type_spec": _SPEC,
    "label_type_spec": _SPEC,
}

SCHEMA: dict[str, Unsupported] = {"fetch_if_missing": Unsupported("it is always found out", None)}

_OPTION = Unsupported("it is an option of the whole run. Say it before: .with_options(…).", ())
WRITE: dict[str, Unsupported] = {
    **{
        field.name: _OPTION
        for field in fields(RunOptions)
        if field.name not in ("mode", "on_change", "incremental", "refresh", "durability")
    },
    "arrow_open_stream_args": _unset("files are opened by Headrace."),
    "arrow_parquet_args_fn": _unset("compression= and compression_level= are what there is to choose."),
    "arrow_csv_args_fn": _unset("delimiter=, header= and compression= are what there is to choose."),
    "pandas_json_args_fn": _unset("compression= is what there is to choose."),
    "catalog": _unset("outputs are local folders."),
    "concurrency": Unsupported(_ANY, None),
    "filename_provider": Unsupported(
        "a file is named by shard and run, which is how a killed run is recognised."
    ),
    "filesystem": _FileSystem(
        "outputs are local folders. Write here, and copy the folder when _SUCCESS is in it."
    ),
    "min_bytes_per_file": _unset("min_rows_per_file= says about how many rows a file has."),
    "max_rows_per_file": _unset("with_options(shard_rows=...) says about how many rows a file has."),
    "min_rows_per_file": _unset("with_options(shard_rows=...) says about how many rows a file has."),
    "num_rows_per_file": Translated(
        "min_rows_per_file= says it.", (None,), lambda rows: {"min_rows_per_file": rows}
    ),
    "partition_cols": _unset("write_parquet, write_csv and write_json divide rows into folders by values."),
    "ray_remote_args": _unset("writing belongs to the last step's workers."),
    "row_group_size": _unset("row groups are cut by size."),
    "try_create_dir": Unsupported("the folder is made if it is not there", None),
}

WRITE_SQL: dict[str, Unsupported] = {
    **WRITE,
    "sql": Unsupported("table= is the name of the table; the statement is ours."),
    "connection_factory": Unsupported("the database is given by its address, uri='postgresql://host/name'."),
}
"""Of verbs that write files."""

WRITE_DELTA: dict[str, Unsupported] = {
    **WRITE,
    "partition_cols": _unset("partition_by= names them."),
    "catalog": _unset("a table is given by its folder or its address."),
    "name": _unset("give a table its name and description by the engine that looks after it."),
    "description": _unset("give a table its name and description by the engine that looks after it."),
}

WRITE_ICEBERG: dict[str, Unsupported] = {
    **{name: each for name, each in WRITE.items() if name != "catalog"},
    "snapshot_properties": _unset("the snapshot has the name of the run; others are not set."),
    "overwrite_filter": _unset("mode='overwrite' replaces all rows."),
    "upsert_kwargs": _unset("rows are not matched by a key."),
    "overwrite_kwargs": _unset("mode='overwrite' replaces all rows."),
}

WRITE_WEBDATASET: dict[str, Unsupported] = {
    **WRITE,
    "encoder": Unsupported("pack values in map; columns of bytes are members as they are.", (None, True)),
}

POOL: dict[str, Unsupported] = {
    "enable_true_multi_threading": Unsupported(
        "max_in_flight= says how many batches a worker has at a time, in threads.", (None, False)
    ),
    "initial_size": Unsupported("a pool starts with what there is to do", None),
    "max_concurrent_calls_per_actor": Unsupported(
        "max_in_flight= says how many batches a worker has at a time.", (None, 1)
    ),
}
"""Of ``ActorPoolStrategy``."""
