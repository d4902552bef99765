# The calls are those of ray-project/ray, python/ray/data/datasource/datasource.py.
import pyarrow as pa

from headrace.compat import ray
from headrace.compat.ray.data.block import BlockMetadata
from headrace.compat.ray.data.datasource import Datasource, ReadTask


class SquaresDatasource(Datasource):
    def __init__(self, n):
        self.n = n

    def estimate_inmemory_data_size(self):
        return 8 * self.n

    def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        tasks = []
        for start in range(0, self.n, 10):
            numbers = range(start, min(start + 10, self.n))
            metadata = BlockMetadata(num_rows=len(numbers), size_bytes=80, input_files=None, exec_stats=None)
            tasks.append(
                ReadTask(lambda numbers=numbers: [pa.table({"square": [n * n for n in numbers]})], metadata)
            )
        return tasks


ds = ray.data.read_datasource(SquaresDatasource(25), override_num_blocks=3)
assert ds.count() == 25
assert ds.take_all()[-1] == {"square": 24 * 24}
assert ds.sum("square") == sum(n * n for n in range(25))
