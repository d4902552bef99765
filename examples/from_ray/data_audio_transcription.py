# The calls are those of ray-project/ray, multimodal_inference_benchmarks/audio_transcription/ray_data_main.py.
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.compat import ray

folder = tempfile.mkdtemp()
audio = [{"bytes": bytes([number] * (number + 3)), "path": f"{number}.flac"} for number in range(8)]
pq.write_table(pa.table({"audio": audio, "id": list(range(8))}), f"{folder}/in.parquet")
MEMORY = 100_000_000


def resample(item):
    audio = item.pop("audio")
    item["arr"] = np.frombuffer(audio["bytes"], np.uint8).astype(np.float32)
    return item


def features(batch):
    array = batch.pop("arr")
    batch["input_features"] = [np.resize(each, 16) for each in array.tolist()]
    return batch


class Transcriber:
    def __call__(self, batch):
        spectrograms = np.array(batch.pop("input_features").tolist())
        batch["token_ids"] = spectrograms.astype(int)[:, :4]
        return batch


def decoder(batch):
    texts = [" ".join(map(str, each)) for each in batch.pop("token_ids")]
    batch["transcription"] = texts
    batch["transcription_length"] = np.array([len(text) for text in texts])
    return batch


ray.data.DataContext.get_current().isolate_read_workers = True
ray.data.DataContext.get_current().default_map_logical_memory_enabled = True
ds = ray.data.read_parquet(f"{folder}/in.parquet")
ds = ds.map(resample, memory=MEMORY)
ds = ds.map_batches(features, batch_size="auto", memory=MEMORY)
ds = ds.map_batches(Transcriber, batch_size=4)
ds = ds.map_batches(decoder, batch_size="auto")
ds.write_parquet(f"{folder}/out")
assert ray.data.read_parquet(f"{folder}/out").sum("transcription_length") == 8 * 7
