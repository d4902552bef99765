"""Ray Data's global settings: those that tune its engine are taken, and have nothing to tune here."""

from __future__ import annotations

import enum
from enum import Enum
from typing import Any, ClassVar

from headrace.compat.ray.offered import not_offered

_HARMLESS: dict[str, Any] = {
    "accurate_map_phase_timing": False,
    "actor_init_max_retries": 3,
    "actor_init_retry_on_errors": False,
    "actor_prefetcher_enabled": False,
    "decoding_size_estimation": True,
    "checkpoint_config": None,
    "default_hash_shuffle_parallelism": 200,
    "default_map_logical_memory_enabled": False,
    "downstream_capacity_backpressure_ratio": 2.0,
    "enable_auto_log_stats": False,
    "enable_fallback_to_arrow_object_ext_type": None,
    "enable_get_object_locations_for_metrics": False,
    "enable_operator_progress_bars": True,
    "enable_pandas_block": True,
    "enable_per_node_metrics": False,
    "enable_progress_bar_name_truncation": True,
    "enable_progress_bars": True,
    "enable_rich_progress_bars": False,
    "enable_stats_summary_collection": False,
    "enable_tensor_extension_casting": True,
    "execution_no_progress_timeout_s": 1800,
    "isolate_read_workers": False,
    "large_args_threshold": 50 << 20,
    "log_internal_stack_trace": False,
    "max_consecutive_actor_init_deaths": 0,
    "max_tasks_in_flight_per_actor": None,
    "memory_usage_poll_interval_s": 1,
    "min_parallelism": 200,
    "op_resource_reservation_enabled": True,
    "op_resource_reservation_ratio": 0.5,
    "per_stage_map_timing": False,
    "pipeline_push_based_shuffle_reduce_tasks": True,
    "print_on_execution_start": True,
    "read_op_min_num_blocks": 200,
    "scheduling_strategy": "SPREAD",
    "scheduling_strategy_large_args": "DEFAULT",
    "streaming_read_buffer_size": 32 << 20,
    "target_max_block_size": 128 << 20,
    "target_min_block_size": 1 << 20,
    "trace_allocations": False,
    "use_arrow_tensor_v2": True,
    "use_datasource_v2": True,
    "use_polars": False,
    "use_polars_sort": False,
    "use_push_based_shuffle": False,
    "use_ray_tqdm": True,
    "verbose_stats_logs": False,
    "wait_for_min_actors_s": -1,
    "warn_on_driver_memory_usage_bytes": 2 << 30,
}
_OTHERS = (  # of other versions of Ray
    "use_streaming_executor", "optimize_fuse_stages", "optimize_fuse_read_stages", "optimize_fuse_shuffle_stages",
    "optimize_reorder_stages", "log_internal_stack_trace_to_stdout", "block_splitting_enabled", "eager_free",
    "use_runtime_metrics_scheduling", "max_hash_shuffle_aggregators", "enforce_schemas",
    "override_object_store_memory_limit_fraction", "op_resource_reservation_enabled", "issue_detectors_config",
    "iter_get_block_batch_size", "pandas_block_ignore_metadata", "arrow_fixed_shape_tensor_format",
    "raise_original_map_exception", "actor_task_retry_on_errors", "max_map_retries", "retried_map_errors",
    "downstream_capacity_backpressure_max_queued_bundles", "enable_dynamic_output_queue_size_backpressure",
    "_enable_read_files_fusion_override", "hash_shuffle_operator_actor_num_cpus_override",
    "enable_distributed_map_groups", "target_shuffle_max_block_size", "use_map_groups_distributed",
)  # fmt: skip
_LIMITS = "with_options(workers=…, memory_limit=…) says how much a run may use"
_SETTINGS = ("actor_locality_enabled", "locality_with_output", "preserve_order", "verbose_progress")


class _Settings:
    """Named values; who sets or asks for another name is told so."""

    kind: ClassVar[str]
    values: dict[str, Any]
    refused: ClassVar[dict[str, tuple[Any, str]]]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.values:
            return self.values[name]
        if name in self.refused:
            return self.refused[name][0]
        raise not_offered(f"{self.kind}.{name}", [*self.values, *self.refused])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.refused and value != self.refused[name][0]:
            raise not_offered(f"{self.kind}.{name} = {value!r}", why=self.refused[name][1])
        if name not in self.values and name not in self.refused:
            raise not_offered(f"{self.kind}.{name}", [*self.values, *self.refused])
        if name in self.values:
            self.values[name] = value


class ExecutionResources:
    """How much of the cluster a run of Ray may use. Here ``cpu`` is how many workers, and ``memory`` the limit."""

    def __init__(
        self, cpu: Any = None, gpu: Any = None, object_store_memory: Any = None, memory: Any = None
    ) -> None:
        self.cpu, self.gpu, self.object_store_memory, self.memory = cpu, gpu, object_store_memory, memory

    def copy(self, **changes: Any) -> ExecutionResources:
        """Return one with changes."""
        return ExecutionResources(**(vars(self) | changes))

    @classmethod
    def for_limits(cls, **limits: Any) -> ExecutionResources:
        """Return limits."""
        return cls(**limits)


class ExecutionOptions(_Settings):
    """Ray's options of an execution: the order is kept in any case, and progress is shown as ``progress=`` says."""

    kind = "ray.data.ExecutionOptions"
    refused: ClassVar[dict[str, tuple[Any, str]]] = {
        "label_selector": (None, _LIMITS),
    }

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "resource_limits" and not isinstance(value, ExecutionResources):
            raise not_offered(f"{self.kind}.{name} = {value!r}", why=_LIMITS)
        super().__setattr__(name, value)

    def __init__(self, **settings: Any) -> None:
        limits = {"resource_limits": ExecutionResources(), "exclude_resources": ExecutionResources()}
        object.__setattr__(self, "values", dict.fromkeys(_SETTINGS, True) | limits)
        for name, value in settings.items():
            setattr(self, name, value)


class DataContext(_Settings):
    """Ray's settings for all datasets; ``enable_progress_bars = False`` is obeyed by datasets that begin after it.

    >>> from headrace.compat import ray
    >>> ctx = ray.data.DataContext.get_current()
    >>> ctx.target_max_block_size = 1 << 20
    >>> ctx.execution_options.preserve_order = True
    """

    kind = "ray.data.DataContext"
    refused: ClassVar[dict[str, tuple[Any, str]]] = {}
    _current: ClassVar[DataContext | None] = None

    def __init__(self) -> None:
        own: dict[str, Any] = {
            **{"execution_options": ExecutionOptions(), "max_errored_blocks": 0, "config": {}},
            **{"retried_io_errors": [], "write_file_retry_on_errors": [], "shuffle_strategy": None},
            "custom_execution_callback_classes": [],  # they get what Ray's executor knows, and are never called
        }
        object.__setattr__(self, "values", {**dict.fromkeys(_OTHERS), **_HARMLESS, **own})

    def run_options(self) -> dict[str, Any]:
        """Return the options of a run that a dataset has which begins now.

        ``max_errored_blocks``: rows that fail are set aside, up to so many; -1: any number.
        """
        options: dict[str, Any] = {} if self.enable_progress_bars else {"progress": False}
        if self.max_errored_blocks:
            options["on_error"] = "reject"
            if self.max_errored_blocks > 0:
                options["max_errors"] = self.max_errored_blocks
        limits = self.execution_options.resource_limits
        given = {"workers": limits.cpu and max(1, int(limits.cpu)), "memory_limit": limits.memory}
        return options | {name: value for name, value in given.items() if value}

    def set_config(self, key: str, value: Any) -> None:
        """Keep a value of your own."""
        self.config[key] = value

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return a value that was kept."""
        return self.config.get(key, default)

    def copy(self) -> DataContext:
        """Return another one with the same settings."""
        made = DataContext()
        made.values.update(self.values)
        return made

    @classmethod
    def _set_current(cls, context: DataContext) -> None:
        DataContext._current = context

    @classmethod
    def get_current(cls) -> DataContext:
        """Return the one that is in force."""
        if cls._current is None:
            DataContext._current = cls()
        assert cls._current is not None
        return cls._current


class ShuffleStrategy(str, Enum):  # noqa: UP042 - as in Ray: str() gives the name
    """How Ray shuffles; here DuckDB does, so that all mean the same."""

    HASH_SHUFFLE = "hash_shuffle"
    SHUFFLE_V2 = "shuffle_v2"
    SORT_SHUFFLE_PULL_BASED = "sort_shuffle_pull_based"
    SORT_SHUFFLE_PUSH_BASED = "sort_shuffle_push_based"


DatasetContext = DataContext


# Ray's ``ray.data.checkpoint``: names without effect, as every run goes on where it was killed.


class CheckpointBackend(enum.Enum):
    """Where Ray keeps what it has done."""

    FILE_STORAGE = "FILE_STORAGE"
    CLOUD_OBJECT_STORAGE = "CLOUD_OBJECT_STORAGE"
    FILE_STORAGE_ROW = "FILE_STORAGE_ROW"
    CLOUD_OBJECT_STORAGE_ROW = "CLOUD_OBJECT_STORAGE_ROW"


class CheckpointConfig:
    """Keeps what it was made with; nothing is written to ``checkpoint_path``.

    >>> CheckpointConfig(id_column="id", checkpoint_path="/tmp/none").id_column
    'id'
    """

    id_column: str | None = None
    checkpoint_path: str | None = None
    delete_checkpoint_on_success = True

    def __init__(
        self, id_column: str | None = None, checkpoint_path: str | None = None, **given: Any
    ) -> None:
        self.__dict__.update(given, id_column=id_column, checkpoint_path=checkpoint_path)
