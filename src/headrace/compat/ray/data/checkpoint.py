"""Ray's ``ray.data.checkpoint``: names without effect, as every run goes on where it was killed."""

from __future__ import annotations

import enum
from typing import Any


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
