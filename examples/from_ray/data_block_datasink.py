# The calls are those of ray-project/ray, python/ray/data/datasource/file_datasink.py.
import os
import tempfile

from headrace.compat import ray
from headrace.compat.ray.data.block import BlockAccessor
from headrace.compat.ray.data.datasource import BlockBasedFileDatasink


class CSVDatasink(BlockBasedFileDatasink):
    def __init__(self, path, **options):
        super().__init__(path, file_format="csv", **options)

    def write_block_to_file(self, block, file):
        from pyarrow import csv

        csv.write_csv(block.to_arrow() if isinstance(block, BlockAccessor) else block, file)


folder = tempfile.mkdtemp()
ray.data.range(10).write_datasink(CSVDatasink(f"{folder}/out"))
texts = [
    open(os.path.join(folder, "out", name)).read()
    for name in os.listdir(f"{folder}/out")
    if name.endswith("csv")
]
assert sum(len(text.split()) - 1 for text in texts) == 10
