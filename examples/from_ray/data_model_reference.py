# The calls are those of ray-project/ray, release/nightly_tests/dataset/batch_inference_mock_image_pipeline.py.
import copy
import tempfile

import torch
from PIL import Image

from headrace.compat import ray
from headrace.compat.ray.data import ActorPoolStrategy, DataContext

folder, out = tempfile.mkdtemp(), tempfile.mkdtemp()
for number in range(2):
    Image.new("RGB", (16, 16), (90 * number, 0, 0)).save(f"{folder}/{number}.png")


def with_scale(row):
    row["image"] = row["image"][::1]
    row["applied_scale"] = 1
    return row


def patches(row):
    image = row.pop("image")
    made = []
    for x in range(0, 16, 8):
        patch = copy.deepcopy(row)
        patch["patch_x"] = x
        patch["patch"] = image[x : x + 8, :8, :]
        made.append(patch)
    return made


class ProcessPatches:
    def __init__(self, transform):
        self._transform = transform

    def __call__(self, batch):
        batch["patch"] = self._transform(torch.as_tensor(batch["patch"]).permute(0, 3, 1, 2))
        return batch


class EmbedPatches:
    def __init__(self, model, device):
        self._model = ray.get(model)
        self._model.eval()
        self._model.to(device)
        self._device = device

    def __call__(self, batch):
        with torch.inference_mode():
            output = self._model(torch.as_tensor(batch.pop("patch"), device=self._device))
            batch["embedding"] = output.cpu().numpy()
            return batch


model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 4))
model_ref = ray.put(model)
ctx = DataContext.get_current()
ctx.enable_fallback_to_arrow_object_ext_type = True
ctx.execution_options.actor_locality_enabled = True
(
    ray.data.read_images(folder)
    .filter(lambda row: row["image"].size != 0)
    .map(with_scale)
    .flat_map(patches)
    .map_batches(ProcessPatches(lambda patch: patch.float() / 255))
    .map_batches(
        EmbedPatches,
        batch_size=3,
        compute=ActorPoolStrategy(min_size=1, max_size=4),
        fn_constructor_kwargs={"model": model_ref, "device": "cpu"},
    )
    .write_parquet(out)
)
rows = ray.data.read_parquet(out).take_all()
assert len(rows) == 4 and rows[0]["embedding"].shape == (4,)
