"""A predictor that computes by itself, and those that the contract has to catch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from headrace.errors import BadInput
from headrace.testing import SubmittingPredictorContract

ROWS = np.arange(24.0).reshape(12, 2)


def summed(batch: Any) -> Any:
    if batch["x"].shape[1:] != (2,):
        raise BadInput(f"it takes 2 numbers per row, not {batch['x'].shape[1:]}")
    return batch["x"].sum(1)


class Aside:
    """Sums pairs in a thread of its own, as a device would."""

    batch_format = "numpy"
    label = "Aside"
    _pool: ThreadPoolExecutor | None = None

    def identity(self) -> Any:
        return "aside"

    def weights(self) -> str:
        return "it has none"

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def load(self) -> None:
        self._pool = ThreadPoolExecutor(1)

    def predict(self, batch: Any) -> Any:
        return self.collect(self.submit(batch))

    def submit(self, batch: Any) -> Any:
        assert self._pool is not None
        return self._pool.submit(summed, batch)

    def collect(self, handle: Any) -> Any:
        return handle.result()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


class TestAside(SubmittingPredictorContract):
    def make(self) -> Any:
        return Aside()

    def batch(self) -> Any:
        return {"x": ROWS}

    def expected(self) -> Any:
        return ROWS.sum(1)

    def bad_batches(self) -> Any:
        yield {"x": np.zeros((3, 5))}, "takes 2 numbers"


class Queued(Aside):
    """Mistakes the next result for that of the handle."""

    def load(self) -> None:
        super().load()
        self.line: deque[Any] = deque()

    def submit(self, batch: Any) -> Any:
        self.line.append(super().submit(batch))
        return None

    def collect(self, handle: Any) -> Any:
        return super().collect(self.line.popleft())


class Reusing(Aside):
    """Gives every result in the same memory."""

    def load(self) -> None:
        super().load()
        self.space = np.zeros(12)

    def collect(self, handle: Any) -> Any:
        made = super().collect(handle)
        self.space[: len(made)] = made
        return self.space[: len(made)]


class Offended(Queued):
    """After an error, what was submitted before is lost."""

    def submit(self, batch: Any) -> Any:
        if batch["x"].shape[1:] != (2,):
            self.line.clear()
            raise BadInput("it takes 2 numbers per row")
        return super().submit(batch)

    def collect(self, handle: Any) -> Any:
        return super().collect(handle) if self.line else np.zeros(12)


class Ended(Aside):
    """Cannot be loaded again when it was closed with work to do."""

    spent = False

    def submit(self, batch: Any) -> Any:
        self.spent = True
        return super().submit(batch)

    def load(self) -> None:
        assert not self.spent
        super().load()


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (Queued, TestAside.test_a_handle_stands_for_its_batch_whenever_it_is_collected),
        (Queued, TestAside.test_a_handle_may_be_forgotten),
        (Reusing, TestAside.test_several_in_flight_come_out_as_predict_gives_them),
        (Offended, TestAside.test_bad_batches_spoil_no_other_in_flight),
        (Ended, TestAside.test_close_waits_for_nobody_to_collect),
    ],
)
def test_the_contract_catches(kind: Callable[[], Any], promise: Callable[..., None]) -> None:
    predictor = kind()
    predictor.load()
    with pytest.raises(AssertionError):
        promise(TestAside(), predictor)
    predictor.close()


def test_the_contract_catches_half_a_pair() -> None:
    class Half(TestAside):
        def make(self) -> Any:
            half = Aside()
            half.collect = None  # type: ignore[method-assign, assignment]
            return half

    with pytest.raises(AssertionError):
        Half().test_what_submits_is_tested_for_it()
