"""Batches that are submitted and collected: by the processor, and by a device that is only played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.errors import BadInput, BadReturn, StepError
from headrace.predictors.torch import predictor as adapter
from headrace.predictors.torch.predictor import TorchPredictor
from headrace.predictors.torch.values import Transfers, transfers_to
from headrace.testing import SubmittingPredictorContract

ROWS = np.arange(24, dtype=np.float32).reshape(12, 2)


class Again(nn.Module):
    """Gives its results in the same memory each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("out", torch.zeros(64, 2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        made = self.out[: len(x)]
        made.copy_(self.layer(x))
        return {"made": made, "half": made.to(torch.bfloat16)}


class Played:
    """A device whose results are there only when it was waited for."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._due: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        self.steps.append(f"send {tuple(tensor.shape)} {tensor.dtype}")
        return tensor.clone()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        here = torch.full_like(tensor, -1)
        self._due.append((here, tensor.clone()))
        return here

    def mark(self) -> Any:
        due, self._due = self._due, []
        self.steps.append("mark")
        return Passing(self, due)


class Passing:
    def __init__(self, device: Played, due: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.device = device
        self.due = due

    def synchronize(self) -> None:
        self.device.steps.append("wait")
        with torch.inference_mode():
            for here, there in self.due:
                here.copy_(there)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    device = Played()
    monkeypatch.setattr(adapter, "transfers_to", lambda _: device)
    return device


def expected(model: nn.Module, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        made: np.ndarray[Any, Any] = model.layer(torch.from_numpy(rows)).numpy()  # type: ignore[operator]
    return made


def test_on_the_processor_collecting_computes() -> None:
    model = Again()
    predictor = TorchPredictor(model, device="cpu")
    predictor.load()
    assert predictor.in_flight == 1
    handles = [predictor.submit({"x": ROWS[i : i + 4]}) for i in (0, 4, 8)]
    for i, handle in zip((0, 4, 8), handles, strict=True):
        made = predictor.collect(handle)
        np.testing.assert_allclose(made["made"], expected(model, ROWS[i : i + 4]), rtol=1e-6)
    predictor.close()


def test_results_are_read_when_they_are_there(played: Played) -> None:
    model = Again()
    predictor = TorchPredictor(model, device="cpu")
    predictor.load()
    assert predictor.in_flight == 2
    one, two = predictor.submit({"x": ROWS[:8]}), predictor.submit({"x": ROWS[8:]})
    for handle, rows in ((one, ROWS[:8]), (two, ROWS[8:])):
        made = predictor.collect(handle)
        np.testing.assert_allclose(made["made"], expected(model, rows), rtol=1e-6)
        assert made["half"].dtype == np.float32
    assert played.steps == [
        "send (8, 2) torch.float32", "mark", "send (4, 2) torch.float32", "mark", "wait", "wait",
    ]  # fmt: skip
    np.testing.assert_allclose(predictor.predict({"x": ROWS})["made"], expected(model, ROWS), rtol=1e-6)
    predictor.close()
    assert predictor.in_flight == 1


def test_inputs_are_sent_in_the_modules_dtype(played: Played) -> None:
    predictor = TorchPredictor(nn.Linear(2, 1), device="cpu", dtype="bfloat16")
    predictor.load()
    predictor.predict({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    predictor.predict({"x": ROWS.astype(np.float64)})
    assert played.steps[0] == played.steps[3] == "send (12, 2) torch.bfloat16"


@pytest.mark.parametrize("played_too", [False, True])
def test_errors_are_the_same_either_way(played_too: bool, request: pytest.FixtureRequest) -> None:
    if played_too:
        request.getfixturevalue("played")
    predictor = TorchPredictor(nn.Linear(2, 1), device="cpu")
    predictor.load()
    with pytest.raises(BadInput, match="takes 2 features"):
        predictor.collect(predictor.submit({"x": np.zeros((3, 5), np.float32)}))

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return [x]

    predictor = TorchPredictor(Odd(), device="cpu")
    predictor.load()
    with pytest.raises(BadReturn, match="the model returned a list of Tensor"):
        predictor.collect(predictor.submit({"x": ROWS}))


def pairs() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 1)


@pytest.mark.usefixtures("played")
class TestThere(SubmittingPredictorContract):
    """What the contract says, with results that are there only when they were waited for."""

    tolerance = 1e-5

    def make(self) -> Any:
        return TorchPredictor(pairs(), device="cpu")

    def batch(self) -> Any:
        return {"x": ROWS}

    def expected(self) -> Any:
        with torch.no_grad():
            return pairs()(torch.from_numpy(ROWS)).numpy()

    def bad_batches(self) -> Any:
        yield {"x": np.zeros((3, 5), np.float32)}, "takes 2 features"


@pytest.mark.parametrize("most", [None, 1, 3])
def test_a_run_keeps_batches_with_the_device(played: Played, most: int | None) -> None:
    model = Again()
    data = hr.from_arrow(pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(np.tile(ROWS, (5, 1)))}))
    done = data.with_options(engine="inline", progress=False).predict(model, batch_size=7, max_in_flight=most)
    made = done.to_arrow()
    np.testing.assert_allclose(
        np.array(made.column("made").to_pylist()), expected(model, np.tile(ROWS, (5, 1))), rtol=1e-5
    )
    ends = "".join(step[0] for step in played.steps)
    assert ends.startswith({None: "smsmwsmw", 1: "smwsmw", 3: "smsmsmwsmw"}[most])
    assert ends.count("s") == ends.count("w") == 9


def test_a_look_sends_whole_batches_and_few_of_them(played: Played) -> None:
    data = hr.from_numpy(np.tile(ROWS, (50, 1))).with_options(engine="inline", progress=False)
    assert len(data.predict(nn.Linear(2, 1), batch_size=32, max_in_flight=2).take(40)) == 40
    sent = [step for step in played.steps if step[0] == "s"]
    assert sent == ["send (32, 2) torch.float32"] * 2, "two hold the 40 rows"


def test_memory_that_does_not_suffice_on_the_device(played: Played) -> None:
    send = played.to_device

    def tight(tensor: torch.Tensor) -> torch.Tensor:
        if len(tensor) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return send(tensor)

    played.to_device = tight  # type: ignore[method-assign]
    data = hr.from_numpy(ROWS).with_options(engine="inline", progress=False)
    assert data.predict(nn.Linear(2, 1), batch_size=8).to_arrow().num_rows == 12
    assert [step for step in played.steps if step[0] == "s"] == ["send (4, 2) torch.float32"] * 3


def test_what_the_device_finds_later_names_the_batch(played: Played) -> None:
    def mark() -> Any:
        played.steps.append("mark")
        return Broken(len(played.steps) > 3)

    class Broken:
        def __init__(self, breaks: bool) -> None:
            self.breaks = breaks

        def synchronize(self) -> None:
            if self.breaks:
                raise RuntimeError("CUDA error: device-side assert triggered")

    played.mark = mark  # type: ignore[method-assign]
    data = hr.from_numpy(ROWS).with_options(engine="inline", progress=False)
    with pytest.raises(StepError, match=r"device-side assert triggered. It was working on .* 4 to 7"):
        data.predict(nn.Linear(2, 1), batch_size=4).to_arrow()


# ---------------------------------------------------------------- the copies themselves


class Noting:
    """Stands for a tensor, a stream or an event, and notes what is asked of it, and on which stream."""

    def __init__(self, name: str, notes: list[str], on: list[str]) -> None:
        self.name, self.notes, self.on = name, notes, on
        self.device = torch.device("cuda", 0)
        self.shape, self.dtype = (3, 2), torch.float32

    def _note(self, what: str) -> Noting:
        self.notes.append(f"{what} on {self.on[-1]}")
        return self

    def pin_memory(self) -> Noting:
        return self._note("pin")

    def to(self, device: Any, non_blocking: bool = False) -> Noting:
        return self._note(f"to {device.type}{' at once' if non_blocking else ''}")

    def wait_stream(self, other: Noting) -> None:
        self._note(f"{self.name} waits for {other.name}")

    def record_stream(self, stream: Noting) -> None:
        self._note(f"in use by {stream.name}")

    def record(self, stream: Noting) -> None:
        self._note(f"event in {stream.name}")

    def detach(self) -> Noting:
        return self

    resolve_conj = resolve_neg = detach

    def copy_(self, other: Noting, non_blocking: bool = False) -> Noting:
        return self._note(f"{self.name} from {other.name}{' at once' if non_blocking else ''}")


def test_the_order_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    on = ["computing"]

    def made(name: str) -> Noting:
        return Noting(name, notes, on)

    @contextmanager
    def stream(which: Noting) -> Iterator[None]:
        on.append(which.name)
        yield
        on.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made("sending"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made(on[-1]))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: made("event"))
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: made(f"pinned {shape} {pin_memory}"))
    transfers = transfers_to(torch.device("cuda", 0))
    assert isinstance(transfers, Transfers)
    transfers.to_device(made("input"))
    transfers.to_host(made("result"))
    transfers.mark()
    assert notes == [
        "pin on computing",
        "to cuda at once on sending",
        "computing waits for sending on computing",
        "in use by computing on computing",
        "pinned (3, 2) True from result at once on computing",
        "event in computing on computing",
    ]


def test_results_that_are_here_already_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    given = torch.ones(3)
    here = Transfers(torch.device("cuda")).to_host(given)
    given.zero_()
    assert here.tolist() == [1.0, 1.0, 1.0]


def test_only_cuda_has_streams() -> None:
    assert transfers_to(torch.device("cpu")) is None
    assert transfers_to(torch.device("mps")) is None
