"""The named index of a DataFrame: a column of the dataset, and an index again at the end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class IndexLevel:
    """A level of an index: the column that holds it, its name, and whether the frame had such a column besides."""

    column: str
    name: Hashable
    also_column: bool = False


def with_index_columns(frames: Any) -> tuple[Any, tuple[IndexLevel, ...]]:
    """Return frames whose named index is columns, before the others; and its levels. What has no name is left out."""
    if not isinstance(frames, (list, tuple)):
        return _with_index_columns(frames)
    made = [_with_index_columns(frame) for frame in frames]
    return [frame for frame, _ in made], made[0][1] if made else ()


def _with_index_columns(frame: Any) -> tuple[Any, tuple[IndexLevel, ...]]:
    names = list(getattr(getattr(frame, "index", None), "names", ()))
    if not hasattr(frame, "reset_index") or not hasattr(frame, "columns") or all(it is None for it in names):
        return frame, ()
    if None in names or len(set(map(str, names))) < len(names):
        raise ArgumentError(
            f"from_pandas: the levels of the index are named {', '.join(map(repr, names))}. Give each a name of its "
            "own, and they are kept; or drop the index: reset_index(drop=True)."
        )
    there = [str(name) for name in frame.columns]
    both = [name for name in names if str(name) in there]
    for name in both:
        level = frame.index.get_level_values(name).to_series().reset_index(drop=True)
        if not level.equals(frame.iloc[:, there.index(str(name))].reset_index(drop=True)):
            raise ArgumentError(
                f"from_pandas: the index is named {name!r}, and so is a column that holds something else. Rename one "
                "of them, or drop the index: reset_index(drop=True)."
            )
    moved = [name for name in names if name not in both]
    made = frame.reset_index(level=moved) if moved else frame
    columns = dict(zip(moved, map(str, made.columns), strict=False))
    return made, tuple(IndexLevel(columns.get(name, str(name)), name, name in both) for name in names)


def indexed(frame: Any, levels: Sequence[IndexLevel]) -> Any:
    """Make columns of a frame its index again; if one of them is not there any more, the others stay columns."""
    columns = [level.column for level in levels]
    if not columns or not set(columns) <= set(frame.columns):
        return frame
    made = frame.set_index(columns, drop=False).drop(
        columns=[level.column for level in levels if not level.also_column]
    )
    made.index.names = [level.name for level in levels]
    return made
