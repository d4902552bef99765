"""Arguments of Ray Data's verbs and functions that mean nothing here, and why. Data only.

One is taken without effect where leaving it out changes nothing that its user asked for, and refused with its reason
else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.core.arguments import Translated, Unsupported
from headrace.core.asked import Kind, refusals
from headrace.core.human import short_repr
from headrace.errors import UnknownArgument
from headrace.options import RunOptions

ORDER = "rows stay in the order of the input, so that a killed run can go on"

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
    "max_calls": _unset("a worker lives as long as its stage. Free what leaks in the function itself."),
    "num_tpus": _TPUS,
    "resources": _unset(f"{_PLACED}. concurrency= sets how many there are. {_LEFT}."),
    "runtime_env": _unset(
        "workers start with this process's environment, folder and sys.path: set what they need before. On a Ray "
        "cluster, ray_remote_args={'runtime_env': ...} sets it for a step, engine=hr.Ray(remote_args=...) for all."
    ),
    "scheduling_strategy": _unset(f"{_PLACED}. {_LEFT}."),
}
_IDLE = Unsupported("it has no effect on what is computed", None)


def _idle(*names: str) -> dict[str, Unsupported]:
    """Return arguments that are taken with any value, as nothing depends on them."""
    return dict.fromkeys(names, _IDLE)


def _but(table: Mapping[str, Unsupported], *names: str) -> dict[str, Unsupported]:
    """Return a table without arguments that a verb has itself."""
    return {name: each for name, each in table.items() if name not in names}


STEPS: dict[str, Unsupported] = {
    **_NOWHERE,
    "max_concurrency": Unsupported("a worker gives a function one row after the other", None),
    "max_restarts": Unsupported(
        "a worker that dies is replaced; with_options(max_attempts=...) says how often.", None
    ),
    "max_retries": Unsupported(
        "with_options(retry_on=TimeoutError, max_retries=3) says which errors are temporary, and how often to try.",
        (None,),
    ),
    "max_task_retries": Unsupported("as max_restarts.", None),
    "ray_remote_args_fn": _unset(f"{_PLACED}, before it starts."),
    "retry_exceptions": Unsupported(
        "with_options(retry_on=TimeoutError) says which errors of a function are temporary.", (None, False)
    ),
}
"""Of verbs that run functions."""

MAP_BATCHES = {**STEPS, **_idle("udf_modifying_row_count")}

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
    **dict.fromkeys(
        ("output_column", "output_column_name"), Unsupported("output= names the column of the result.")
    ),
}

COLUMNS: dict[str, Unsupported] = {
    **_NOWHERE,
    **_idle("compute", "concurrency", "memory", "num_cpus"),
    "num_gpus": _unset("choosing columns computes nothing; a GPU is for the step that uses it."),
    "ray_remote_args": _unset(f"{_PLACED}."),
}
"""Of verbs on columns, which need no workers of their own."""

BLOCKS = _idle("concurrency", "override_num_blocks", "parallelism")
"""Of functions that make datasets: how many pieces there are is settled by size."""

SPLIT_IN_TWO: dict[str, Unsupported] = {
    "shuffle": Unsupported("rows are chosen by a hash, so each side has rows from the whole input", None),
}
"""Of ``train_test_split``."""

REPARTITION = _idle("sort", "strict")
"""Of ``repartition``."""

JOIN: dict[str, Unsupported] = {
    **_idle("aggregator_ray_remote_args", "partition_size_hint"),
    "validate_schemas": Unsupported("keys are always compared by name and type", None),
}
"""Of ``join``."""

SORT: dict[str, Unsupported] = {
    "boundaries": _unset(
        "there are no blocks whose borders could be set. min_rows_per_file= of write_* cuts files."
    ),
}
"""Of ``sort``."""

SHUFFLE = {**_NOWHERE, **_idle("memory", "num_blocks", "num_cpus", "num_gpus")}
"""Of ``random_shuffle``."""

SPLIT = _idle("locality_hints")
"""Of ``split``."""

_UNPACKED = tuple({"compression": name} for name in ("gzip", "bz2", "zstd", "lz4", "detect", "infer", None))
_OPENED = "files are opened by Headrace, plain or unpacked by their content."


@dataclass(frozen=True, slots=True)
class _FileSystem(Translated):
    """Local ones, of pyarrow and of fsspec, say nothing new; those of stores say what ``storage_options`` does."""

    def takes(self, value: Any) -> bool:
        return value is None or type(value).__name__ == "LocalFileSystem"


def _options_of_store(filesystem: Any) -> Mapping[str, Any]:
    kind = type(filesystem)
    if kind.__name__ not in ("S3FileSystem", "GcsFileSystem") or not kind.__module__.startswith("pyarrow."):
        raise UnknownArgument(
            f"filesystem={short_repr(filesystem)}: an address names the store (s3://bucket/key), and "
            "storage_options= has its options."
        )
    said = filesystem.__reduce__()[1][0]
    if said.get("access_key") or said.get("access_token"):
        raise UnknownArgument(
            f"filesystem={kind.__name__}(…) has credentials in it, and they would be stored with the plan. Leave "
            "them out, and set them in the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS)."
        )
    endpoint = said.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{said.get('scheme') or 'https'}://{endpoint}"
    found = {"region": said.get("region"), "anonymous": said.get("anonymous"), "endpoint": endpoint}
    options = {name: value for name, value in found.items() if value}
    return {"storage_options": options} if options else {}


_FILE_SYSTEM = _FileSystem("", (None,), _options_of_store)
LOCAL_READ = Unsupported("it is read here, in any case", None)

READ: dict[str, Unsupported] = {
    **_NOWHERE,
    **BLOCKS,
    **_idle("memory", "num_cpus"),
    "arrow_open_file_args": _unset(_OPENED),
    "arrow_open_stream_args": Unsupported(_OPENED, (None, {}, *_UNPACKED)),
    "arrow_parquet_args": _unset("columns= chooses columns, and filter(expr=...) rows."),
    "catalog": _unset("Headrace reads files and objects. Give their paths or addresses."),
    "file_extensions": Unsupported("say it in the path: folder/**/*.parquet."),
    "filesystem": _FILE_SYSTEM,
    "filter": _unset("the verb filter(expr=pyarrow.compute.field('x') > 3) chooses rows."),
    "ignore_missing_paths": Unsupported(
        "a path where there is nothing is an error. Leave such paths out of the list.", (None, False)
    ),
    "include_paths": Unsupported("the readers of files have it; this one gives no path.", (None, False)),
    "include_row_hash": _unset("rows have no hash. read_rejected tells file and row of those that fail."),
    "max_calls": _unset("the workers that read live as long as the run."),
    "meta_provider": _unset("files are listed by Headrace. Give a list of paths."),
    "num_gpus": _unset("reading needs no GPU; give it to the step that uses one."),
    "partition_filter": Unsupported(
        "choose by the path: folder/year=2024/**, or filter(expr=...) by the column."
    ),
    "partitioning": Unsupported(
        "columns of folder names are for read_parquet, read_csv and read_json; here add them from include_paths=True."
    ),
    "ray_remote_args": _unset(f"{_PLACED}; reading belongs to the step after it."),
    "shuffle": Unsupported(
        "files are read in the order of their names. Give a shuffled list of paths, if need be."
    ),
    "skip_paths": _unset("leave those paths out: give a list, or a pattern that does not match them."),
    "tensor_column_schema": _unset(
        "bytes become arrays in map_batches: numpy.frombuffer(b''.join(batch['x']), dtype).reshape(-1, *shape)."
    ),
}
"""Of functions that read files."""

_READ_AT_A_TIME = Unsupported("how much is read at a time is settled by size", None)
READ_PARQUET: dict[str, Unsupported] = {
    **_but(READ, "filter", "include_paths", "partitioning"),
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

_TF_SCHEMA = _unset("schema= says it, as a schema of pyarrow: pa.schema({'ids': pa.list_(pa.int64())}).")
READ_TFRECORDS: dict[str, Unsupported] = {**READ, "tf_schema": _TF_SCHEMA}

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

READ_DELTA = _but(READ, "filter")

READ_LANCE: dict[str, Unsupported] = {
    **_but(READ, "filter"),
    "scanner_options": _unset("columns= and filter= say what is read; batches are cut as steps want them."),
}

READ_ICEBERG: dict[str, Unsupported] = {
    **_but(READ, "catalog"),
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
    "dtypes and shapes are taken from the schema; with_column or map_batches can change them before."
)
TO_TF = {
    **ITERATE,
    **dict.fromkeys(("additional_type_spec", "feature_type_spec", "label_type_spec"), _SPEC),
}

SCHEMA: dict[str, Unsupported] = {"fetch_if_missing": Unsupported("it is always detected", None)}

_OPTION = Unsupported("it is an option of the whole run. Set it before: .with_options(…).", ())
WRITE: dict[str, Unsupported] = {
    **{
        field.name: _OPTION
        for field in fields(RunOptions)
        if field.name not in ("mode", "on_change", "incremental", "refresh", "fix", "key", "durability")
    },
    "arrow_open_stream_args": _unset("files are opened by Headrace."),
    "arrow_parquet_args_fn": _unset("compression= and compression_level= are what there is to choose."),
    "arrow_csv_args_fn": _unset("delimiter=, header= and compression= are what there is to choose."),
    "pandas_json_args_fn": _unset("compression= is what there is to choose."),
    "catalog": _unset("outputs are folders and prefixes in a store. Give the path or the address."),
    **_idle("concurrency"),
    "filename_provider": Unsupported(
        "a file is named by shard and run, which is how a killed run is recognised."
    ),
    "filesystem": _FILE_SYSTEM,
    "min_bytes_per_file": _unset("min_rows_per_file= says about how many rows a file has."),
    "max_rows_per_file": _unset("with_options(shard_rows=...) says about how many rows a file has."),
    "min_rows_per_file": _unset("with_options(shard_rows=...) says about how many rows a file has."),
    **dict.fromkeys(
        ("num_rows_per_file", "min_rows_per_write"),  # names of older versions
        Translated("min_rows_per_file= says it.", (None,), lambda rows: {"min_rows_per_file": rows}),
    ),
    "partition_cols": _unset("write_parquet, write_csv and write_json divide rows into folders by values."),
    "ray_remote_args": _unset("writing belongs to the last step's workers."),
    "row_group_size": _unset("row groups are cut by size."),
    "try_create_dir": Unsupported("the folder is made if it is not there", None),
}


def _refused(kind: Kind) -> dict[str, Unsupported]:
    return {name: _unset(reason) for name, reason in refusals(kind).items()}


WRITE_SQL: dict[str, Unsupported] = {
    **WRITE,
    **_refused("database"),
    "sql": Unsupported("table= is the name of the table; the statement is ours."),
    "connection_factory": Unsupported("the database is given by its address, uri='postgresql://host/name'."),
}
"""Of verbs that write files."""

WRITE_DELTA: dict[str, Unsupported] = {
    **WRITE,
    "partition_cols": _unset("partition_by= names them."),
    "catalog": _unset("a table is given by its folder or its address."),
    **dict.fromkeys(
        ("name", "description"),
        _unset("give a table its name and description by the engine that looks after it."),
    ),
}

WRITE_ICEBERG: dict[str, Unsupported] = {
    **_but(WRITE, "catalog"),
    **_refused("iceberg"),
    "snapshot_properties": _unset("the snapshot has the name of the run; others are not set."),
    **dict.fromkeys(("overwrite_filter", "overwrite_kwargs"), _unset("mode='overwrite' replaces all rows.")),
    "upsert_kwargs": _unset("rows are not matched by a key."),
}

_NAMESPACE = _unset("a table is given by its folder or its address.")
WRITE_LANCE: dict[str, Unsupported] = {
    **_but(WRITE, "catalog"),
    **_refused("lance"),
    "data_storage_version": _unset(
        "files have the version of the table: make it by lance.write_dataset first."
    ),
    "table_id": _NAMESPACE,
    "namespace_impl": _NAMESPACE,
    "namespace_properties": _NAMESPACE,
}

WRITE_TFRECORDS: dict[str, Unsupported] = {**WRITE, "tf_schema": _TF_SCHEMA}

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
