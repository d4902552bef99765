"""Where the time of workers went: every second once, each by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.core.events import RunFinished, RunStarted, StageDescribed, Worked, WorkerReady
from headrace.core.work import Ledger, Timings
from headrace.observers.run_parts import WorkSum
from headrace.observers.run_state import RunState
from headrace.observers.summary import all_parts, findings, stage_times, told
from observers.histories import described

STAGES = StageDescribed("f → predict(Net)", 2, ("f", "predict(Net)"))


def state_of(*calls: Timings, seconds: float = 4.0) -> RunState:
    state = RunState()
    about = described(elapsed=1.0)
    about = type(about)(**{**{name: getattr(about, name) for name in about.__struct_fields__}, "stages": (STAGES,),
                           "source": "Image"})  # fmt: skip
    state.add(about, 11.0)
    state.add(RunStarted("r", "/out", len(calls), 0, 0, 100, 2), 11.0)
    for worker in range(2):
        state.add(WorkerReady(worker, 1.5), 13.0)
    for i, timings in enumerate(calls):
        state.add(Worked(0, i % 2, i, 0, seconds, "done", 10, timings), 17.0)
    return state


def test_every_second_is_somewhere_once() -> None:
    timings = Timings(0.5, 1.5, 0.25, 0.0, 1.0, 0.25, (0.25, 1.0))
    state = state_of(timings, timings)
    state.add(RunFinished("r", "/out", Ledger(), Timings(), 0, 0, 10.0), 20.0)
    (stage,) = stage_times(state, 20.0)
    seconds = {part.name: part.seconds for part in stage.parts}
    assert stage.seconds == 20.0 and sum(seconds.values()) == pytest.approx(20.0)
    assert seconds == {
        "starting workers": 3.0,  # 1.5 s each: from the first second to ready, less loading
        "loading models": 3.0,
        "reading images": 1.0,
        "decoding images": 2.0,
        "f": 0.5,
        "predict(Net)": 2.0,
        "counting metrics": 0.5,
        "writing": 0.5,
        "other": pytest.approx(1.5),
        "idle": pytest.approx(6.0),
    }
    assert [part.name for part in all_parts([stage])][:3] == ["idle", "starting workers", "loading models"]
    assert stage.share("starting", "loading") == pytest.approx(0.3)


def test_what_overlaps_is_scaled_to_the_time_it_took() -> None:
    (stage,) = stage_times(state_of(Timings(4.0, 4.0, 0.0, 0.0, 0.0, 0.0, (4.0, 0.0))), 17.0)
    seconds = {part.name: part.seconds for part in stage.parts}
    assert seconds["reading images"] == seconds["f"] == 2.0
    assert sum(seconds.values()) == pytest.approx(stage.seconds)


def test_the_terminal_gets_the_same_figures() -> None:
    state = state_of(Timings(0.5, 1.0, 0.0, 0.0, 2.0, 0.0, (0.0, 1.0)))
    spent = findings(state, 7.0)["spent"]
    assert spent == tuple((part.name, round(part.share, 4)) for part in all_parts(stage_times(state, 17.0)))
    assert "14 % decoding images" in told(spent)


def test_sums_of_the_record_keep_each_step() -> None:
    one = WorkSum.of(Worked(0, 1, 2, 0, 3.0, "done", 5, Timings(each=(1.0,))), 10.0, 0.0)
    one.add(WorkSum.of(Worked(0, 1, 3, 0, 3.0, "done", 5, Timings(decode=0.5, each=(1.0, 2.0))), 14.0, 0.0))
    assert one.each == [2.0, 2.0] and one.decode == 0.5


def test_steps_and_decoding_are_measured_apart(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(4):
        image.new("RGB", (64, 64), (i, 0, 0)).save(folder / f"{i}.png")
    events: list[object] = []

    class Seen:
        def on_event(self, event: object) -> None:
            events.append(event)

    result = (
        hr.read_images(str(folder))
        .map_batches(lambda batch: {"mean": batch["image"].mean(axis=(1, 2, 3))})
        .filter(lambda row: row["mean"] >= 0)
        .with_options(engine="inline", progress=False, observers=[Seen()])
        .write_parquet(str(tmp_path / "out"))
    )
    worked = [event for event in events if isinstance(event, Worked)][-1]
    assert worked.timings.decode > 0 and len(worked.timings.each) == 2
    assert all(seconds > 0 for seconds in worked.timings.each)
    assert sum(worked.timings.each) == pytest.approx(worked.timings.steps, abs=1e-4)
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert "decoding images" in dict(finished.spent) and told(finished.spent) in result.summary
