"""Times → Arrow: exact to the last digit, or refused."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.layout import ConversionError, exact_times, flat_times, with_holes


def instants(values: Sequence[Any]) -> pa.Array:
    """Make a column of datetimes: Python's, numpy's, those of pandas; the finest unit among them holds for all.

    A zone is that of the first; the others are the same instants in it.
    """
    kinds = set(map(type, values))
    zones = [getattr(value, "tzinfo", None) for value in values if value is not None]
    if any(zones) and not all(zones):
        raise ConversionError("some of its datetimes have a time zone, and others have none")
    if not any(zones) and kinds <= {datetime.datetime, type(None)}:
        return flat_times(np.array(values, "datetime64[us]"))
    made = flat_times(_joined([_instant(value) for value in values], "datetime64"))
    if not any(zones):
        return made
    try:
        zone = pa.lib.tzinfo_to_string(zones[0])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConversionError(f"the time zone {zones[0]!r} has no name for Arrow ({error})") from error
    return made.view(pa.timestamp(made.type.unit, zone))


def durations(values: Sequence[Any]) -> pa.Array:
    """Make a column of durations: Python's, numpy's, those of pandas; the finest unit among them holds for all."""
    if set(map(type, values)) <= {datetime.timedelta, type(None)}:
        return flat_times(np.array(values, "timedelta64[us]"))
    return flat_times(_joined([_duration(value) for value in values], "timedelta64"))


def dates(values: Sequence[datetime.date | None]) -> pa.Array:
    """Make a column of days."""
    return flat_times(np.array(values, "datetime64[D]"))


def clock_times(values: Sequence[datetime.time | None]) -> pa.Array:
    """Make a column of times of day."""
    if any(value is not None and value.tzinfo is not None for value in values):
        raise ConversionError("its times of day have a time zone, which no Arrow type keeps")
    micros = [0 if value is None else _micros(value) for value in values]
    holes = np.array([value is None for value in values], np.bool_)
    return with_holes(pa.time64("us"), np.array(micros, np.int64), holes)


def _micros(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _instant(value: Any) -> Any:
    if value is None:
        return np.datetime64("NaT")
    if isinstance(value, np.datetime64):
        return value
    if hasattr(value, "asm8"):  # of pandas: in its own unit, and in UTC if it has a zone
        return value.asm8
    if value.tzinfo is not None:
        try:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        except OverflowError as error:
            raise ConversionError("one of its datetimes lies outside the years 1 to 9999 in UTC") from error
    return np.datetime64(value, "us")


def _duration(value: Any) -> Any:
    if value is None:
        return np.timedelta64("NaT")
    if isinstance(value, np.timedelta64):
        return value
    if hasattr(value, "asm8"):
        return value.asm8
    return np.timedelta64(value, "us")


def _joined(values: Sequence[Any], kind: str) -> np.ndarray[Any, Any]:
    units = {value.dtype for value in values} - {np.dtype(kind)}
    if not units:
        return np.array(values, kind)
    try:
        unit = np.result_type(*units)
    except TypeError as error:
        raise ConversionError("its durations mix months or years with other units") from error
    if len(units) == 1:
        return np.array(values, unit)
    return np.array([exact_times(np.asarray(value, value.dtype), unit) for value in values], unit)
