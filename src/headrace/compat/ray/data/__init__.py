"""Ray's ``ray.data``: the verbs of ``headrace.Dataset``."""

from __future__ import annotations

import functools
from typing import Any

import headrace
from headrace.compat.ray.data import datatype as datatype
from headrace.compat.ray.data import expressions as expressions
from headrace.compat.ray.data import preprocessors as preprocessors
from headrace.compat.ray.data.context import DataContext
from headrace.compat.ray.data.context import ExecutionOptions as ExecutionOptions
from headrace.compat.ray.offered import names_of_headrace
from headrace.core.arguments import known_arguments, unframed

_STRATEGIES = ("ActorPoolStrategy", "TaskPoolStrategy")
_READERS = tuple(name for name in headrace.__all__ if name.startswith(("read_", "from_", "range")))

__all__ = sorted(("DataContext", "Dataset", "ExecutionOptions", "expressions", *_STRATEGIES, *_READERS))


class Dataset(headrace.Dataset):
    """A dataset of Headrace, with the one verb that only programs for Ray Data need."""

    __slots__ = ()

    @known_arguments
    def iterator(self) -> Dataset:
        """Return this dataset: in Ray Data, another object iterates.

        >>> from headrace.compat import ray
        >>> [batch["id"].tolist() for batch in ray.data.range(3).iterator().iter_batches(batch_size=2)]
        [[0, 1], [2]]
        """
        return self


@functools.cache
def _adapted(found: Any) -> Any:
    """Return a reader of Headrace as one that makes datasets of this module; all else as it is."""
    if isinstance(found, type):
        return found

    @functools.wraps(found)
    def reader(*args: Any, **kwargs: Any) -> Dataset:
        made = found(*args, **kwargs)
        quiet = {} if DataContext.get_current().enable_progress_bars else {"progress": False}
        return Dataset(made._plan, made._options.updated(quiet))

    return unframed(reader)


__getattr__ = names_of_headrace("ray.data", __all__, _adapted)
