"""What grows faster than what it is divided by is found; readings of several runs become one file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from bench import given, scaling
from bench.scaling import SIMULATED, Axis, Size


def grown(axis: str, *each: tuple[int, float, float]) -> list[Size]:
    return [Size(axis, size, 1.0, cpu_s, peak_mib, 0, 0.5) for size, cpu_s, peak_mib in each]


def axis(name: str, *, memory: bool = False) -> Axis:
    return Axis(name, "", (), lambda cache, size, into: cache, memory=memory)


def test_more_than_a_straight_line_is_missed() -> None:
    line = grown("files", (1, 1.0, 70), (100, 2.0, 70), (1_000, 11.0, 70))
    assert scaling.verdicts(axis("files"), line) == []
    steeper = grown("files", (1, 1.0, 70), (100, 2.0, 70), (1_000, 21.0, 70))
    assert scaling.verdicts(axis("files"), steeper) == ["files: 1,000 cost 1.98 × as much per unit as 100"]
    noise = grown(SIMULATED, (1, 5.0, 70), (10, 5.1, 70), (100, 6.4, 71), (1_000, 21.0, 75))
    assert scaling.verdicts(axis(SIMULATED, memory=True), noise) == []
    scanned = grown(SIMULATED, (1, 5.0, 70), (100, 7.0, 70), (1_000, 60.0, 90))
    found = scaling.verdicts(axis(SIMULATED, memory=True), scanned)
    assert [each.split(":")[0] for each in found] == [SIMULATED, SIMULATED] and "90 MiB" in found[1]
    two = grown("workers", (1, 5.0, 400), (2, 8.0, 500))
    assert scaling.verdicts(axis("workers"), two) == ["workers: two took 1.60 × the CPU seconds of one"]


def test_merged_readings_replace_those_of_their_axis_only(tmp_path: Path) -> None:
    options = argparse.Namespace(json=tmp_path / "s.json", merge=False, axes=["rows", SIMULATED])
    old = [*grown("rows", (1, 1.0, 1)), *grown(SIMULATED, (1, 1.0, 1))]
    scaling.save(old, ["rows: old", f"{SIMULATED}: old"], options)
    options.merge, options.axes = True, ["workers", SIMULATED]
    scaling.save([*grown("workers", (2, 2.0, 2)), *grown(SIMULATED, (10, 2.0, 2))], ["workers: new"], options)
    made = json.loads(options.json.read_text())
    assert [(each["axis"], each["size"]) for each in made["sizes"]] == [
        ("rows", 1),
        ("workers", 2),
        (SIMULATED, 10),
    ]
    assert made["missed"] == ["workers: new", "rows: old"]


@pytest.mark.parametrize(
    ("text", "read"), [("0", given.count), ("1.5", given.count), ("-1", given.some), ("nan", given.amount)]
)
def test_numbers_that_make_no_sense_are_refused(text: str, read: object) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)  # type: ignore[operator]
    assert given.count("1_000") == 1_000 and given.some("0") == 0 and given.share("0.5") == 0.5
