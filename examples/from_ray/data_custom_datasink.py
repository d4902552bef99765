# The calls are those of ray-project/ray, doc/source/data/doc_code/custom_datasource_example.py.
import io
import os
import tempfile

import numpy as np
from PIL import Image

from headrace.compat import ray
from headrace.compat.ray.data.datasource import RowBasedFileDatasink


class ImageDatasink(RowBasedFileDatasink):
    def __init__(self, path, column, file_format):
        super().__init__(path, file_format=file_format)
        self.column = column
        self.file_format = file_format

    def write_row_to_file(self, row, file):
        buffer = io.BytesIO()
        Image.fromarray(row[self.column]).save(buffer, format=self.file_format)
        file.write(buffer.getvalue())


folder = tempfile.mkdtemp()
ds = ray.data.from_numpy(np.zeros((4, 6, 6, 3), np.uint8)).rename_columns({"data": "image"})
ds.write_datasink(ImageDatasink(f"{folder}/results", column="image", file_format="png"))
assert len([name for name in os.listdir(f"{folder}/results") if name.endswith(".png")]) == 4
