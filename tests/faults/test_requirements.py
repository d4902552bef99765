"""An output in a folder that is to meet requirements: asked, refused, published, discarded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core import failpoints
from headrace.errors import (
    ArgumentError,
    NothingMatched,
    OutputExists,
    PlanChanged,
    PlanError,
    RequirementNotMet,
)

from .invariants import check, rows_of, stamps
from .job import Job, write_input


def gated(job: Job, least: int, **options: Any) -> hr.Result:
    """Run a job whose output must have so many rows."""
    data = job.dataset(engine="inline").require(rows=hr.at_least(least))
    return data.write_parquet(job.output, **options)


def test_a_run_that_meets_them_is_as_any_other(job: Job) -> None:
    result = gated(job, 800)
    assert result.rows == 800 and "required: rows is 800 (asked: at least 800)" in result.summary
    check(Path(job.output), job.expected(), lambda: gated(job, 800))


def test_other_requirements_ask_again_and_compute_nothing(job: Job) -> None:
    with pytest.raises(RequirementNotMet, match="rows is 800") as raised:
        gated(job, 801)
    assert raised.value.output == job.output and [each.met for each in raised.value.figures] == [False]
    with pytest.raises(RequirementNotMet):
        gated(job, 802)
    failpoints.activate({"attempt.started": "EIO"})
    try:
        assert gated(job, 800).resumed
    finally:
        failpoints.activate({})
    check(Path(job.output), job.expected(), lambda: gated(job, 800))


def test_a_run_that_is_asked_again_has_the_time_that_it_took(job: Job) -> None:
    found = []
    for _ in range(2):
        with pytest.raises(RequirementNotMet) as raised:
            job.dataset(engine="inline").require(seconds=hr.at_most(0)).write_parquet(job.output)
        found += [each.found for each in raised.value.figures]
    assert found[0] == found[1]


def test_without_them_it_is_published(job: Job) -> None:
    with pytest.raises(RequirementNotMet):
        gated(job, 801)
    assert job.here().resumed
    check(Path(job.output), job.expected(), job.here)


def test_the_old_output_stays_until_the_new_one_is_published(job: Job) -> None:
    job.here()
    before, new = stamps(Path(job.output)), replace(job, factor=5)
    with pytest.raises(RequirementNotMet):
        gated(new, 801, mode="overwrite")
    assert stamps(Path(job.output)) == before and hr.verify(job.output).good
    assert "not published" in hr.verify(job.output).note
    with pytest.raises(OutputExists, match="Decide about it first"):
        job.here()
    for because in ("", " ", None):
        with pytest.raises(ArgumentError, match="say in a few words why"):
            hr.publish(job.output, because=because)  # type: ignore[arg-type]
    assert stamps(Path(job.output)) == before
    for because in ("why not \ud800", "again"):
        assert hr.publish(job.output, because=because).rows == 800
    check(Path(job.output), new.expected(), new.here)


def test_a_discarded_one_leaves_the_old_output(job: Job) -> None:
    job.here()
    before, new = stamps(Path(job.output)), replace(job, factor=5)
    with pytest.raises(RequirementNotMet):
        gated(new, 801, mode="overwrite")
    for point in ("recover.opened", "journal.append", "journal.synced"):
        failpoints.activate({point: "EIO"})
        try:
            with pytest.raises((OSError, hr.errors.HeadraceError)):
                hr.discard(job.output)
        finally:
            failpoints.activate({})
    hr.discard(job.output, because="bad")
    hr.discard(job.output, because="bad")
    assert not list(Path(job.output).glob("_headrace/*/staging/*"))
    assert job.here().resumed and stamps(Path(job.output)) == before
    check(Path(job.output), job.expected(), job.here)
    with pytest.raises(PlanError, match="nothing was dropped"):
        hr.discard(job.output)


@pytest.mark.parametrize(
    "point", ["swap.recorded", "swap.removed", "swap.pointed", "finish.success", "finish.closed"]
)
def test_what_was_decided_stays_decided(job: Job, point: str) -> None:
    """A run that was about to be published is so, whatever is required by the next driver."""
    with pytest.raises(RequirementNotMet):
        gated(job, 801)
    failpoints.activate({point: "EIO"})
    try:
        with pytest.raises((OSError, hr.errors.HeadraceError)):
            hr.publish(job.output, because="why not")
    finally:
        failpoints.activate({})
    assert gated(job, 801).rows == 800
    check(Path(job.output), job.expected(), lambda: gated(job, 801))


def test_a_further_run(job: Job, tmp_path: Path) -> None:
    """The figures are those of all rows; readers have the old ones until it is published."""
    source = tmp_path / "in"
    source.mkdir()
    job = replace(job, source=str(source))
    write_input(source, 0, range(100))
    assert gated(job, 100, incremental=True).rows == 100
    before = rows_of(Path(job.output))
    write_input(source, 1, range(100, 150))
    for least in (151, 152):
        with pytest.raises(RequirementNotMet, match="rows is 150"):
            gated(job, least, incremental=True)
        assert rows_of(Path(job.output)) == before and hr.verify(job.output).good
    hr.discard(job.output)
    assert rows_of(Path(job.output)) == before and hr.verify(job.output).good
    assert gated(job, 150, incremental=True).rows == 150
    check(Path(job.output), job.expected(), lambda: gated(job, 150, incremental=True))


def test_rows_that_were_made_again(job: Job) -> None:
    """With refresh="changed", the old rows stay until the new ones are as required."""
    job.here(incremental=True)
    before, new = stamps(Path(job.output)), replace(job, factor=5)
    with pytest.raises(RequirementNotMet):
        gated(new, 801, incremental=True, refresh="changed")
    assert stamps(Path(job.output)) == before and hr.verify(job.output).good
    hr.publish(job.output, because="why not")
    assert rows_of(Path(job.output)) == new.expected() and hr.verify(job.output).good


def test_what_was_seen_cannot_be_hidden(job: Job) -> None:
    with pytest.raises(hr.errors.HeadraceError):
        job.here({"attempt.started": "EIO@4"})
    seen = rows_of(Path(job.output))
    with pytest.raises(PlanChanged, match="comes too late"):
        gated(job, 1)
    assert rows_of(Path(job.output)) == seen
    with pytest.raises(RequirementNotMet):
        gated(job, 801, mode="overwrite")
    assert gated(job, 1, mode="overwrite").rows == 800
    check(Path(job.output), job.expected(), job.here)


def test_what_is_no_output_is_left_alone(tmp_path: Path) -> None:
    for decide in (partial(hr.publish, because="why not"), hr.discard):
        with pytest.raises(NothingMatched):
            decide(tmp_path / "nothing")
        (tmp_path / "others").mkdir(exist_ok=True)
        with pytest.raises(NothingMatched, match="not an output"):
            decide(tmp_path / "others")
    assert [path.name for path in tmp_path.rglob("*")] == ["others"]


def test_other_code_is_refused_as_ever(job: Job) -> None:
    with pytest.raises(RequirementNotMet):
        gated(job, 801)
    with pytest.raises(PlanChanged, match="another plan"):
        gated(replace(job, limit=5), 1)
    hr.discard(job.output)
    assert gated(replace(job, limit=5), 1).rows == 5


def test_a_published_output_is_asked_too(job: Job) -> None:
    job.here()
    with pytest.raises(RequirementNotMet, match="was published before"):
        gated(job, 801)
    check(Path(job.output), job.expected(), job.here)


def test_parts_that_are_gone_are_made_again(job: Job) -> None:
    with pytest.raises(RequirementNotMet):
        gated(job, 801)
    next(Path(job.output).glob("_headrace/*/staging/*")).unlink()
    with pytest.raises(PlanError, match="are gone"):
        hr.publish(job.output, because="why not")
    with pytest.raises(PlanError, match="is not complete"):
        hr.publish(job.output, because="why not")
    assert gated(job, 800).rows == 800
    check(Path(job.output), job.expected(), lambda: gated(job, 800))


def test_rejected_rows_can_be_looked_at_before(job: Job) -> None:
    job = replace(job, bad=100)
    data = job.dataset(engine="inline").require(rejected=hr.at_most(0))
    with pytest.raises(RequirementNotMet, match="8 of 800 rows"):
        data.write_parquet(job.output)
    waiting = hr.read_rejected(job.output).to_arrow()
    assert waiting.column("id").to_pylist() == [i * 100 + 7 for i in range(8)]
    assert not (Path(job.output) / "_rejected").exists()
    hr.publish(job.output, because="they are few")
    assert hr.read_rejected(job.output).to_arrow().equals(waiting)


@pytest.mark.annex
def test_the_record_says_who_decided_and_why(job: Job) -> None:
    with pytest.raises(RequirementNotMet):
        gated(job, 801)
    result = hr.publish(job.output, because="the shop was closed")
    page = Path(result.report).read_text()
    assert "the shop was closed" in page and "at least 801" in page
    assert '"verdict":"published"' in Path(result.report).with_name("events.jsonl").read_text()
    assert gated(job, 801).rows == 800  # as it was decided
    with pytest.raises(RequirementNotMet):
        gated(job, 802)
    with pytest.raises(RequirementNotMet, match="as required now"):
        job.dataset(engine="inline").require(rejected=hr.at_least(1), rows=hr.at_least(801)).write_parquet(
            job.output
        )
    more = job.dataset(engine="inline").require(rejected=hr.at_most(1), rows=hr.at_least(801))
    assert more.write_parquet(job.output).rows == 800  # what was accepted, beside what is met


# ------------------------------------------------------------ figures, and what is none


def small(out: Path, **metrics: Any) -> Callable[..., hr.Result]:
    data = hr.from_items([{"g": "a.b", "x": 1.0}, {"g": "c", "x": math.inf}])
    data = data.with_options(engine="inline", progress=False).accumulate(**metrics)

    def write(asked: dict[str, Any]) -> hr.Result:
        return data.require(asked).write_parquet(str(out))

    return write


def test_names_with_dots_are_found(tmp_path: Path) -> None:
    metrics = {"by": hr.By("g", hr.MinMax("x")), "a.b": hr.Count(), "a": hr.MinMax("x")}
    write = small(tmp_path / "out", **metrics)
    assert write({"by.a.b.max": hr.at_most(1), "a.b": hr.between(2, 2), "a.min": hr.at_most(1)}).rows == 2
    with pytest.raises(RequirementNotMet, match=r"has no 'a\.x'.* Did you mean 'a\.b'"):
        write({"by.a.x": hr.at_most(1)})


def test_an_infinite_figure_is_told(tmp_path: Path) -> None:
    write = small(tmp_path / "out", x=hr.MinMax("x"))
    for _ in range(2):
        assert "required: x.max is infinite (asked: at least 1)" in write({"x.max": hr.at_least(1)}).summary


@pytest.mark.parametrize("given", [None, "0.9", True, math.nan, 10**400, 1j])
def test_what_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="it takes a number"):
        hr.at_least(given)
    for asked in ("rows>=1", [("rows", hr.at_least(1))]):
        with pytest.raises(ArgumentError, match="figures are a dict"):
            hr.range(1).require(asked)  # type: ignore[arg-type]


def test_where_no_run_has_begun(tmp_path: Path) -> None:
    (tmp_path / "out" / "_headrace").mkdir(parents=True)
    with pytest.raises(NothingMatched, match="No run has begun"):
        hr.publish(tmp_path / "out", because="why not")
    (tmp_path / "file").touch()
    with pytest.raises(NothingMatched, match="is a file"):
        hr.discard(tmp_path / "file")
    with pytest.raises(ArgumentError, match="because=3"):
        hr.discard(tmp_path / "out", because=3)  # type: ignore[arg-type]
