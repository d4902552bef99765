from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ResourcesUnavailable
from headrace.testing import SubmittingPredictorContract

ROWS, SIDE = 300, 32
LOCAL = {"engine": "local", "workers": 2, "progress": False}


def network(seed: int = 0) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layers = (nn.Flatten(), nn.Linear(SIDE * SIDE * 3, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers).eval()


class Scaled:
    """Images → floats of about 1, made in workers that have no device."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"path": batch["path"], "x": batch["image"].astype(np.float32) / 255}


class Where:
    """What the worker sees of the device."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        held = torch.ones(len(batch["id"]), device="cuda")
        return {
            "id": batch["id"],
            "count": [torch.cuda.device_count()] * len(held),
            "one": held.cpu().numpy(),
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = pytest.importorskip("PIL.Image")
    made = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for i in range(ROWS):
        image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(made / f"{i:04d}.png")
    return made


def expected(folder: Path) -> Any:
    import torch

    rows = hr.read_images(str(folder)).with_options(engine="inline").take_all()
    pixels = np.stack([row["image"] for row in rows]).astype(np.float32) / 255
    with torch.inference_mode():
        return network()(torch.from_numpy(pixels)).numpy()


@pytest.mark.parametrize("batch_size", [7, 64])
def test_a_model_on_the_device_says_what_it_says_on_a_cpu(
    folder: Path, tmp_path: Path, batch_size: int
) -> None:
    scaled = hr.read_images(str(folder), include_paths=True).map_batches(Scaled, num_cpus=1)
    found = scaled.predict(
        hr.TorchPredictor(network(), device="cuda"),
        inputs=["x"],
        keep=["path"],
        batch_size=batch_size,
        num_gpus=1,
    )
    rows = found.with_options(**LOCAL).take_all()

    assert [Path(row["path"]).name for row in rows] == [f"{i:04d}.png" for i in range(ROWS)]
    np.testing.assert_allclose(
        np.stack([row["prediction"] for row in rows]), expected(folder), rtol=1e-2, atol=1e-2
    )


class TestSubmitting(SubmittingPredictorContract):
    """Batches that a device computes by itself."""

    tolerance = 1e-2

    def make(self) -> Any:
        return hr.TorchPredictor(network(), device="cuda")

    def batch(self) -> Any:
        return {"x": np.random.default_rng(0).random((12, SIDE * SIDE * 3), np.float32)}

    def expected(self) -> Any:
        import torch

        with torch.inference_mode():
            return network()(torch.from_numpy(self.batch()["x"])).numpy()

    def bad_batches(self) -> Any:
        yield {"x": np.zeros((3, 5), np.float32)}, "takes 3072 features"


def test_images_are_decoded_in_other_workers_than_the_device_has(folder: Path) -> None:
    found = hr.read_images(str(folder), size=(SIDE, SIDE)).map_batches(
        lambda batch: {"n": batch["image"][:, 0, 0, 0]}, num_gpus=1
    )
    found = found.with_options(**LOCAL)
    assert "2 stages" in found.explain()
    assert found.count() == ROWS


def test_a_worker_that_declares_a_device_has_it() -> None:
    rows = hr.range(100).with_options(**LOCAL).map_batches(Where, num_gpus=1, concurrency=1).take_all()
    assert {row["one"] for row in rows} == {1.0}
    assert {row["count"] for row in rows} == {1}


def test_two_workers_share_a_device_by_halves() -> None:
    rows = hr.range(10_000).with_options(**LOCAL).map_batches(Where, num_gpus=0.5, concurrency=2).take_all()
    assert [row["id"] for row in rows] == list(range(10_000))


def test_more_devices_than_there_are_is_refused_before_anything_starts() -> None:
    import torch

    many = torch.cuda.device_count() + 1
    with pytest.raises(ResourcesUnavailable, match="lower num_gpus"):
        hr.range(10).with_options(**LOCAL).map_batches(Where, num_gpus=many).to_arrow()


def test_bfloat16_comes_back_as_float32() -> None:
    import torch

    model = hr.TorchPredictor(torch.nn.Linear(4, 2), device="cuda", dtype="bfloat16")
    rows = hr.from_numpy(np.ones((10, 4), np.float32)).with_options(**LOCAL)
    rows = rows.predict(model, num_gpus=1).take_all()
    assert rows[0]["prediction"].dtype == np.float32


def test_actors_and_calls_see_the_devices_that_they_were_given() -> None:
    class Model:
        def __init__(self, weights: Any) -> None:
            self.weights = weights.cuda()

        def predict(self, rows: Any) -> Any:
            return (rows.cuda() @ self.weights).cpu()

    def count() -> int:
        import torch

        return int(torch.ones(3, device="cuda").sum()) if torch.cuda.is_available() else 0

    import torch

    with hr.connect(workers=2) as executor:
        pool = executor.actor_pool(Model, executor.put(torch.eye(64)), size=2, num_gpus=0.5)
        found = list(
            pool.map(lambda actor, rows: actor.predict(rows), [torch.ones(4, 64) * i for i in range(6)])
        )
        assert [int(rows.sum()) for rows in found] == [256 * i for i in range(6)]
        del pool
        assert executor.submit(count).result() == 0
        assert executor.options(num_gpus=1).submit(count).result() == 3
    with hr.connect(workers=2) as executor, pytest.raises(ResourcesUnavailable):
        executor.options(num_gpus=1000).submit(count)
