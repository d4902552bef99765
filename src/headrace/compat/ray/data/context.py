"""Ray Data's global settings: what tunes its engine is taken, and has nothing to tune here."""

from __future__ import annotations

import enum
from enum import Enum
from typing import Any, ClassVar

from headrace.compat.ray.offered import Kept
from headrace.core.terminal import warn
from headrace.errors import ArgumentError

_WITHOUT_EFFECT: dict[str, Any] = {  # what programs read before they change it, or change, as Ray has it
    "checkpoint_config": None,
    "default_hash_shuffle_parallelism": 200,
    "enable_auto_log_stats": False,
    "enable_fallback_to_arrow_object_ext_type": None,
    "enable_operator_progress_bars": True,
    "enable_rich_progress_bars": False,
    "enable_tensor_extension_casting": True,
    "eager_free": False,
    "log_internal_stack_trace": False,
    "max_tasks_in_flight_per_actor": None,
    "min_parallelism": 200,
    "op_resource_reservation_enabled": True,
    "op_resource_reservation_ratio": 0.5,
    "override_object_store_memory_limit_fraction": None,
    "read_op_min_num_blocks": 200,
    "retried_io_errors": [],
    "scheduling_strategy": "SPREAD",
    "shuffle_strategy": None,
    "streaming_read_buffer_size": 32 << 20,
    "target_max_block_size": 128 << 20,
    "target_min_block_size": 1 << 20,
    "use_polars": False,
    "use_push_based_shuffle": False,
    "use_ray_tqdm": True,
    "use_streaming_executor": True,
    "verbose_stats_logs": False,
    "wait_for_min_actors_s": -1,
    "write_file_retry_on_errors": [],
}


class _Settings:
    """Values by name. Any name is kept, as in Ray; a warning says that one that nobody here knows has no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            warn(f"ray.data.{type(self).__name__}.{name} has no effect here.")
        self.__dict__[name] = value

    def copy(self, **changes: Any) -> Any:
        """Return another one with the same settings, and with changes."""
        made = type(self)()
        made.__dict__.update(vars(self) | changes)
        return made


class ExecutionResources(_Settings):
    """How much of the cluster a run of Ray may use. Here ``cpu`` is how many workers, and ``memory`` the limit."""

    def __init__(
        self, cpu: Any = None, gpu: Any = None, object_store_memory: Any = None, memory: Any = None
    ) -> None:
        self.__dict__.update(cpu=cpu, gpu=gpu, object_store_memory=object_store_memory, memory=memory)

    @classmethod
    def for_limits(cls, **limits: Any) -> ExecutionResources:
        """Return limits."""
        return cls(**limits)


class ExecutionOptions(_Settings):
    """Ray's options of an execution: the order is kept in any case, and ``resource_limits`` are a run's limits."""

    def __init__(self, **settings: Any) -> None:
        known = ("actor_locality_enabled", "locality_with_output", "preserve_order", "verbose_progress")
        limits = {"resource_limits": ExecutionResources(), "exclude_resources": ExecutionResources()}
        self.__dict__.update(dict.fromkeys(known, True) | limits)
        for name, value in settings.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "resource_limits" and not isinstance(value, ExecutionResources):
            raise ArgumentError(
                f"resource_limits={value!r}: it takes ray.data.ExecutionResources(cpu=…, memory=…)."
            )
        super().__setattr__(name, value)


class DataContext(_Settings):
    """Ray's settings for all datasets, for those that begin after it.

    ``enable_progress_bars = False`` is obeyed, and ``max_errored_blocks``: rows that fail are set aside, up to so
    many; -1: any number. ``actor_task_retry_on_errors`` are tried again: classes of errors, or True for any.
    ``execution_options.resource_limits`` says how many workers and how much memory a run has.

    >>> from headrace.compat import ray
    >>> ctx = ray.data.DataContext.get_current()
    >>> ctx.target_max_block_size = 1 << 20
    >>> ctx.execution_options.preserve_order = True
    """

    _current: ClassVar[DataContext | None] = None

    def __init__(self) -> None:
        own = {"enable_progress_bars": True, "max_errored_blocks": 0, "execution_options": ExecutionOptions()}
        own["actor_task_retry_on_errors"] = False
        never_called: dict[str, Any] = {
            "custom_execution_callback_classes": []
        }  # they get what Ray's executor knows
        self.__dict__.update({**_WITHOUT_EFFECT, **own, **never_called, "config": {}})

    def run_options(self) -> dict[str, Any]:
        """Return the options of a run that a dataset has which begins now."""
        now = vars(self)
        options: dict[str, Any] = {} if now["enable_progress_bars"] else {"progress": False}
        if now["max_errored_blocks"]:
            options["on_error"] = "reject"
            if now["max_errored_blocks"] > 0:
                options["max_errors"] = now["max_errored_blocks"]
        again = now["actor_task_retry_on_errors"]
        if again:
            options["retry_on"] = Exception if again is True else tuple(again)
        limits = now["execution_options"].resource_limits
        given = {"workers": limits.cpu and max(1, int(limits.cpu)), "memory_limit": limits.memory}
        return options | {name: value for name, value in given.items() if value}

    def set_config(self, key: str, value: Any) -> None:
        """Keep a value of your own."""
        vars(self)["config"][key] = value

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return a value that was kept."""
        return vars(self)["config"].get(key, default)

    @classmethod
    def _set_current(cls, context: DataContext) -> None:
        DataContext._current = context

    @classmethod
    def get_current(cls) -> DataContext:
        """Return the one that is in force."""
        if DataContext._current is None:
            DataContext._current = cls()
        return DataContext._current


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


class CheckpointConfig(Kept, id_column=None, checkpoint_path=None, delete_checkpoint_on_success=True):
    """Nothing is written to ``checkpoint_path``."""
