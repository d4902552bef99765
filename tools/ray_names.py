"""Every public name of Ray Data 2.60, Ray Core's tasks and actors, and Ray AIR's predictors, and what becomes of it.

The last part of docs/coming-from-ray.md is made of this, and of what Headrace answers when it is asked for a name.
It has the names that differ and those that are not here:

    python tools/ray_names.py

writes it again. tests/docs/test_ray_names_page.py holds the names against Ray, where it is installed, and the page
against the code.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-ray.md"
BEGIN, END = "<!-- names: begin -->\n", "<!-- names: end -->\n"

RAY = {
    "ray": """
        ActorClassID ActorID ClientBuilder DynamicObjectRefGenerator FunctionID JobID Language
        LoggingConfig NodeID ObjectID ObjectRef ObjectRefGenerator PlacementGroupID SCRIPT_MODE TaskID
        UniqueID WORKER_MODE WorkerID available_resources cancel client cluster_resources cpp_function
        get get_actor get_gpu_ids get_runtime_context init is_initialized java_actor_class java_function
        kill method nodes put remote shutdown timeline wait
    """,
    "ray.data": """
        ActorPoolStrategy BlockBasedFileDatasink Catalog CatalogAccessMode ClickHouseTableSettings
        DataContext DataIterator DatabricksUnityCatalog Dataset DatasetContext DatasetIterator
        DatasetSummary Datasink Datasource ExecutionOptions ExecutionResources FileShuffleConfig
        KafkaAuthConfig MixStoppingCondition NodeIdStr Preprocessor RandomSeedConfig ReadTask
        ReaderFormat ResolvedSource RowBasedFileDatasink SaveMode Schema SinkMode TaskPoolStrategy
        from_arrow from_arrow_refs from_blocks from_daft from_dask from_huggingface from_items from_mars
        from_modin from_numpy from_numpy_refs from_pandas from_pandas_refs from_spark from_tf from_torch
        list_stats_summaries range range_tensor read_audio read_avro read_bigquery read_binary_files
        read_clickhouse read_csv read_databricks_tables read_datasource read_delta
        read_delta_sharing_tables read_hudi read_iceberg read_images read_json read_kafka read_lance
        read_lerobot read_mcap read_mongo read_numpy read_orc read_parquet read_snowflake read_sql
        read_text read_tfrecords read_unity_catalog read_videos read_webdataset read_zarr
    """,
    "ray.data.Dataset": """
        add_column aggregate columns context copy count deserialize_lineage drop_columns explain filter
        flat_map get_dataset_id get_internal_block_refs get_stats_summary groupby
        has_serializable_lineage input_files iter_batches iter_internal_ref_bundles iter_jax_batches
        iter_rows iter_tf_batches iter_torch_batches iterator join limit map map_batches
        map_batches_internal materialize max mean min mix name num_blocks random_sample random_shuffle
        randomize_block_order rename_columns repartition schema select_columns serialize_lineage
        set_name show size_bytes sort split split_at_indices split_proportionately stats std
        streaming_split streaming_train_test_split sum summary take take_all take_batch to_arrow_refs
        to_daft to_dask to_mars to_modin to_numpy_refs to_pandas to_pandas_refs to_random_access_dataset
        to_spark to_tf train_test_split union unique with_column with_columns write_bigquery
        write_clickhouse write_csv write_datasink write_delta write_iceberg write_images write_json
        write_kafka write_lance write_mongo write_numpy write_orc write_parquet write_snowflake
        write_sql write_tfrecords write_turbopuffer write_webdataset zip
    """,
    "ray.data.DataIterator": """
        get_context iter_batches iter_jax_batches iter_rows iter_tf_batches iter_torch_batches
        materialize schema stats to_tf to_torch
    """,
    "ray.data.grouped_data.GroupedData": """
        aggregate count map_groups max mean min std sum with_column
    """,
    "ray.data.preprocessors": """
        Categorizer Chain Concatenator CountVectorizer CustomKBinsDiscretizer FeatureHasher
        HashingVectorizer LabelEncoder MaxAbsScaler MinMaxScaler MultiHotEncoder Normalizer
        OneHotEncoder OrdinalEncoder PowerTransformer RobustScaler SimpleImputer StandardScaler
        Tokenizer TorchVisionPreprocessor UniformKBinsDiscretizer
    """,
    "ray.remote of a function": """
        accelerator_type enable_task_events fallback_strategy label_selector max_calls max_retries memory name
        num_cpus num_gpus num_returns object_store_memory placement_group placement_group_bundle_index
        placement_group_capture_child_tasks resources retry_exceptions runtime_env scheduling_strategy
    """,
    "ray.remote of a class": """
        accelerator_type allow_out_of_order_execution concurrency_groups enable_task_events
        enable_tensor_transport fallback_strategy get_if_exists label_selector lifetime max_concurrency
        max_pending_calls max_restarts max_task_retries memory name namespace num_cpus num_gpus
        object_store_memory placement_group placement_group_bundle_index placement_group_capture_child_tasks
        resources runtime_env scheduling_strategy
    """,
    "ray.util": """
        ActorPool as_completed collective connect deregister_serializer disable_log_once_globally
        disconnect enable_periodic_logging get_current_placement_group get_node_instance_id
        get_node_ip_address get_placement_group inspect_serializability list_named_actors log_once
        map_unordered placement_group placement_group_table register_serializer remove_placement_group
    """,
    "ray.util.ActorPool": """
        get_next get_next_unordered has_free has_next map map_unordered pop_idle push submit
    """,
    "ray.ObjectRef": """
        as_future binary call_site from_binary from_hex from_random future hex is_nil job_id nil
        owner_address redis_shard_hash size task_id tensor_transport
    """,
    "ray.exceptions": """
        ActorAlreadyExistsError ActorDiedError ActorHandleNotFoundError ActorPlacementGroupRemoved
        ActorUnavailableError ActorUnschedulableError AsyncioActorExit AuthenticationError
        CrossLanguageError GetTimeoutError LocalRayletDiedError NodeDiedError ObjectFetchTimedOutError
        ObjectFreedError ObjectLostError ObjectReconstructionFailedError ObjectRefStreamEndOfStreamError
        ObjectStoreFullError OufOfBandObjectRefSerializationException OutOfDiskError OutOfMemoryError
        OwnerDiedError PendingCallsLimitExceeded PlasmaObjectNotAvailable RayActorError
        RayCgraphCapacityExceeded RayChannelError RayChannelTimeoutError RayDirectTransportError
        RayError RaySystemError RayTaskError ReferenceCountingAssertionError RpcError
        RuntimeEnvSetupError StreamingGeneratorReplayInconsistentError TaskCancelledError
        TaskPlacementGroupRemoved TaskUnschedulableError UnserializableException UserCodeException
        WorkerCrashedError
    """,
}
"""By their owner in Ray 2.60, a module or a class."""

AIR = {
    "ray.train.batch_predictor.BatchPredictor": """
        from_checkpoint from_pandas_udf get_preprocessor predict predict_pipelined set_preprocessor
    """,
    "ray.train.predictor.Predictor": """
        from_checkpoint from_pandas_udf get_preprocessor predict preferred_batch_format set_preprocessor
    """,
    "ray.train": """
        batch_predictor.BatchPredictor huggingface.HuggingFaceCheckpoint huggingface.HuggingFacePredictor
        huggingface.TransformersCheckpoint huggingface.TransformersPredictor lightgbm.LightGBMCheckpoint
        lightgbm.LightGBMPredictor predictor.Predictor rl.RLCheckpoint rl.RLPredictor
        sklearn.SklearnCheckpoint sklearn.SklearnPredictor tensorflow.TensorflowCheckpoint
        tensorflow.TensorflowPredictor torch.TorchCheckpoint torch.TorchPredictor
        xgboost.XGBoostCheckpoint xgboost.XGBoostPredictor
    """,
    "ray.air.checkpoint.Checkpoint": """
        as_directory from_bytes from_dict from_directory from_uri get_preprocessor set_preprocessor to_bytes
        to_dict to_directory to_uri uri
    """,
}
"""Of Ray AIR, up to Ray 2.6; Ray 2.60 has these names no longer."""

OWNERS = {  # whom of ours to ask, where it is not the thing of the same name
    "ray.data.DataIterator": "ray.data.Dataset",
    "ray.ObjectRef": "headrace.CallFuture",
}

TITLES = {
    "ray.data": "Functions and classes of `ray.data`",
    "ray.data.Dataset": "Methods of `Dataset`",
    "ray.data.DataIterator": "Methods of `DataIterator`, which `dataset.iterator()` gives",
    "ray.data.grouped_data.GroupedData": "Methods of `GroupedData`",
    "ray.data.preprocessors": "`ray.data.preprocessors`",
    "ray": "`ray`: tasks and actors",
    "ray.remote of a function": "Options of tasks, `@ray.remote(…)` and `.options(…)`",
    "ray.remote of a class": "Options of actors, beside those of tasks",
    "ray.util": "`ray.util`",
    "ray.util.ActorPool": "Methods of `ActorPool`",
    "ray.ObjectRef": "Methods of `ObjectRef`",
    "ray.exceptions": "`ray.exceptions`",
    "ray.train": "`ray.train`, of Ray AIR: checkpoints and predictors",
    "ray.train.batch_predictor.BatchPredictor": "Methods of `BatchPredictor`",
    "ray.train.predictor.Predictor": "Methods of `Predictor`, for classes of your own",
    "ray.air.checkpoint.Checkpoint": "Methods of `ray.air.Checkpoint`",
}


LISTED = ("ray.data", "ray.data.Dataset", "ray.train.batch_predictor.BatchPredictor")
"""Owners whose absent names the page lists; the others' raise an error that says what to use."""

_ENVIRONMENT = "here; `env_vars`, `working_dir`, `py_modules`, and `pip` for what is installed"
_ANY_PLACE = "taken, without effect: there is one machine"
_COUNTED = "here; counted as `ray.init(resources=)` says"

DIFFERENT = {
    "ray.data.DataIterator": {
        "to_torch": "here; yields dicts of tensors, with `headrace.compat` pairs as Ray does"
    },
    "ray.data.Dataset": {
        "streaming_split": "here; as `split`",
        "randomize_block_order": "here; as `random_shuffle`",
        "name set_name context copy": "here; without effect",
        "repartition": "`keys=` gathers rows, `shuffle=True` shuffles them; else without effect, with a warning",
        "random_shuffle": "here; by a hash of the row's number and the seed: the same order each time",
        "groupby": "here; groups come sorted by their keys",
        "split split_at_indices split_proportionately": "here; each part reads the dataset",
        "zip": "here; datasets with steps are made first; a row that fails in one ends the run",
        "show": "here; prints a table, with `headrace.compat` dicts as Ray does",
        "write_delta write_iceberg write_lance": "here; one commit for the whole run",
        "write_sql": "here; `table` and the address of the database, `uri`, instead of a statement",
    },
    "ray.data": {
        "from_spark": "here; what fits into memory, by Arrow",
        "read_tfrecords": "here; without TensorFlow; `schema=` of pyarrow instead of `tf_schema`",
        "read_videos": "here, `hr.read_video`; frames stand upright, and `fps=` takes fractions",
        "read_delta read_iceberg read_lance": "here; one version, which a run that goes on keeps",
        "read_sql": "here; `query` and the address of the database, `uri`, instead of a function that connects",
    },
    "ray": {
        "init": "here; one machine: `address` is `auto` or left out. `num_gpus` and `resources` are counted; "
        "`env_vars` of `runtime_env` are set in the program, too",
        "cancel": "here; a task is interrupted where it runs Python code; a method that is not `async` goes on",
        "get_runtime_context": "here; names of task, actor, process and machine, devices, `is_canceled()`",
        "remote": "here; [options](#ray-core-sharding-by-hand) that ask for what is not here are refused",
    },
    "ray.remote of a function": {
        "runtime_env": _ENVIRONMENT,
        "scheduling_strategy": _ANY_PLACE,
        "resources": _COUNTED,
    },
    "ray.util": {
        "placement_group placement_group_table get_placement_group remove_placement_group": "here; nothing is "
        "reserved, as a call is admitted by what it needs itself",
        "register_serializer": "here; of what this process sends",
    },
    "ray.remote of a class": {
        "runtime_env": _ENVIRONMENT,
        "scheduling_strategy": _ANY_PLACE,
        "resources": _COUNTED,
        "lifetime": "here; a detached actor ends with the program, too",
    },
    "ray.train": {
        "tensorflow.TensorflowCheckpoint tensorflow.TensorflowPredictor": "here; Keras models",
        "lightgbm.LightGBMCheckpoint": "here; takes boosters: of an estimator, `estimator.booster_`",
        "xgboost.XGBoostCheckpoint": "here; takes boosters and estimators",
        "torch.TorchPredictor": "here; a module may take and return a dict; classes derived from it (`call_model`) "
        "are refused",
        "huggingface.HuggingFaceCheckpoint huggingface.HuggingFacePredictor huggingface.TransformersCheckpoint "
        "huggingface.TransformersPredictor": "here; the model tells the task where `task=` is not given; nothing is "
        "downloaded",
    },
    "ray.train.batch_predictor.BatchPredictor": {
        "predict": "here; also takes a DataFrame, and gives one with its index back",
    },
}
"""What is here with a difference; several names have one text."""

_NO_IDS = "references are values, and nothing has an id to look up"
_INTERNAL = "a part of Ray's own machinery"
_CLUSTER = "there is one machine, and no store or network between its tasks that could fail in this way"
_PORT = "sources, formats and tables of your own fill the ports in `headrace.core.source_ports` and `…target_ports`"
_ONE_MACHINE = "there is one machine; a call asks for what it needs by `num_cpus`, `num_gpus` and `memory`"
_PLACED = "fallback_strategy"
_DICTS = "values are held by name: `from_dict` and `to_dict`; a model is saved in its library's own format"

ABSENT = {
    "ray.data": {
        "BlockBasedFileDatasink RowBasedFileDatasink ReadTask": "it is in `ray.data.datasource`",
        "SinkMode ReaderFormat": _PORT,
        "Catalog CatalogAccessMode DatabricksUnityCatalog ClickHouseTableSettings KafkaAuthConfig ResolvedSource": (
            "files are read by their paths; tables of servers are exported to Parquet"
        ),
        "DatasetIterator": "what `iter_batches` returns can be iterated over again, and `iterator()` "
        "gives the dataset",
        "DatasetSummary list_stats_summaries": "`stats()` of a dataset, and a `Result`'s ledger, have the numbers",
        "RandomSeedConfig MixStoppingCondition": "rows stay in the order of the input",
        "NodeIdStr": _INTERNAL,
        "Preprocessor": "it is in `ray.data.preprocessor`",
        "SaveMode": "`mode=` takes the words themselves",
        "Schema": "`schema()` gives a `pyarrow.Schema`",
    },
    "ray.data.DataIterator": {
        "get_context": "`with_options` says how one dataset's plan runs",
    },
    "ray.data.grouped_data.GroupedData": {
        "with_column": "`map_groups` gives each group with its new column back"
    },
    "ray": {
        "ActorClassID ActorID FunctionID JobID NodeID ObjectID PlacementGroupID TaskID UniqueID WorkerID": _NO_IDS,
        "ClientBuilder client": "all runs on this machine, without a cluster to join",
        "Language cpp_function java_actor_class java_function": "workers run Python",
        "LoggingConfig": "Python's `logging` is set up by the program",
        "SCRIPT_MODE WORKER_MODE": _INTERNAL,
    },
    "ray.util": {
        "collective": "workers do not speak with one another",
        "connect disconnect": "all runs on this machine, without a cluster to join",
        "disable_log_once_globally enable_periodic_logging log_once": "Python's `logging` does it",
        "get_node_instance_id": "there is one machine",
    },
    "ray.remote of a function": {_PLACED: _ONE_MACHINE},
    "ray.remote of a class": {
        _PLACED: _ONE_MACHINE,
        "allow_out_of_order_execution": "calls of an actor begin in their order",
        "enable_tensor_transport": "tensors travel by shared memory, or are copied",
    },
    "ray.ObjectRef": {
        "*": _NO_IDS,
        "as_future": "`await` the reference, or wrap its `future()`",
    },
    "ray.exceptions": {
        "*": _CLUSTER,
        "RuntimeEnvSetupError": "a `runtime_env` that cannot be had is refused before the call",
        "ActorAlreadyExistsError ActorHandleNotFoundError": "a name that is taken, or nobody has, is a `ValueError`",
        "CrossLanguageError": "workers run Python",
        "AsyncioActorExit": "`ray.kill` ends an actor",
        "PendingCallsLimitExceeded": "calls wait without limit",
        "UserCodeException": "what a task raised is a `RayTaskError` and of its own class; `cause` is the error",
    },
    "ray.train": {
        "rl.RLCheckpoint rl.RLPredictor": "a policy is a class of yours with `__call__(batch)`, for `predict`",
    },
    "ray.train.predictor.Predictor": {
        "from_pandas_udf": "`BatchPredictor.from_pandas_udf(fn)` does it",
    },
    "ray.train.batch_predictor.BatchPredictor": {"predict_pipelined": "`predict` streams datasets and files"},
    "ray.air.checkpoint.Checkpoint": {"*": _DICTS},
}
"""Why others are not here, for names that do not say it themselves; ``*`` is for all others of an owner."""


def names(owner: str) -> list[str]:
    """Return the names of an owner, in plain order."""
    return sorted({**RAY, **AIR}[owner].split())


def fate(owner: str, name: str) -> tuple[bool, str]:
    """Say whether a name is offered, and its text: a difference, or the reason why not."""
    absent = ABSENT.get(owner, {})
    try:
        if owner.startswith("ray.remote of"):
            taken = _option(owner, name)
            return True, _text(DIFFERENT.get(owner, {}), name) or taken
        asked = _ours(owner)
        for part in name.split("."):
            asked = getattr(asked, part)
    except (AttributeError, ImportError) as error:
        return False, _text(absent, name) or _reason(str(error)) or absent.get("*", "")
    return True, _text(DIFFERENT.get(owner, {}), name) or "here"


def _option(owner: str, name: str) -> str:
    """Give an option a value that no option has; what is not offered answers ``AttributeError``."""
    from headrace.compat import ray
    from headrace.compat.ray.offered import OPTIONS
    from headrace.errors import HeadraceError

    class Actor:
        pass

    try:
        ray.remote(**{name: object()})(Actor if owner.endswith("class") else lambda: None)
    except HeadraceError as error:
        if isinstance(error, AttributeError):
            raise
        return "here"
    return "taken, without effect" if name in OPTIONS and OPTIONS[name].harmless is None else "here"


def _text(texts: dict[str, str], name: str) -> str:
    return next((text for several, text in texts.items() if name in several.split()), "")


def _ours(owner: str) -> Any:
    """Return what is asked for the names of an owner; None where there is nothing like it, which has none of them."""
    path = re.sub(r"^ray\b", "headrace.compat.ray", OWNERS.get(owner, owner))
    if path.endswith(".Dataset"):
        return importlib.import_module("headrace.compat.ray.data").range(1)  # an object says why
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, last = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), last)
        except ImportError:
            return None


def _reason(message: str) -> str:
    """Return what an error says behind the name that it is about."""
    found = re.match(r"(?:Headrace has no [\w.]+|[^:]+? is not offered here): (.*)", message)
    text = found[1] if found else ""
    return re.sub(r"\.?( docs/\S+ says what to do instead)?\.?$", "", text)


def render() -> str:
    """Return the part of the page, between its marks: what differs, and what is not here."""
    parts, different = [], list[str]()
    for owner, title in TITLES.items():
        told = different if owner == "ray.remote of a class" else []  # by the section before, on tasks
        rows: dict[tuple[bool, str], list[str]] = {}
        for name in names(owner):
            rows.setdefault(fate(owner, name), []).append(f"`{name}`")
        absent = [name for (offered, _), several in rows.items() if not offered for name in several]
        different = [
            f"- {', '.join(several)}: {text.removeprefix('here; ')}"
            for (offered, text), several in sorted(rows.items(), key=lambda each: each[1])
            if offered and text != "here"
        ]
        absent = sorted(absent) if owner in LISTED else []
        for start in range(0, len(absent), 20):  # a list of more names is no sentence any more
            different.append(f"- {'Nor' if start else 'Not here'}: {', '.join(absent[start : start + 20])}")
        shown = [line for line in different if line not in told]
        if shown:
            parts.append("\n".join([f"### {title}", "", *shown, ""]))
    return "\n".join(parts)


def written(page: str) -> str:
    """Return a page with that part anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
