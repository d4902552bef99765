"""A package that brings a source and a metric of its own, used by a program that only imports it."""

import sys
from pathlib import Path

PACKAGE = '''
import pyarrow as pa
from headrace.core.source_ports import Location
from headrace.core.work import Split
from headrace.sources.file_source import FileSource
from headrace.sources.schemas import select


class LengthSource(FileSource):
    """Each line of a text file, as its length."""

    suffixes = (".txt",)

    def describe(self):
        return {"kind": "lengths", "paths": list(self.paths)}

    def schema(self):
        return pa.schema([("length", pa.int64())])

    def inspect(self, files):
        return [len(open(file.path).readlines()) for file in files]

    def splits(self):
        return [Split(i, 0, rows, rows, rows * 8, 0) for i, rows in enumerate(self.refreshed())]

    def read_rows(self, split, columns, batch_rows, bad):
        names = select(self.schema(), columns).names if columns is not None else ["length"]
        lengths = [len(line.rstrip()) for line in open(self.file(split.file).path)]
        yield pa.record_batch({"length": pa.array(lengths, pa.int64())}).select(names)

    def locate(self, split, row):
        return Location(self.file(split.file).path, row)


def read_lengths(path):
    from headrace import Dataset
    return Dataset.from_source(LengthSource(path))
'''

if __name__ == "__main__":
    Path("acme").mkdir()
    Path("acme/__init__.py").write_text(PACKAGE)
    sys.path.insert(0, ".")
    from acme import read_lengths

    import headrace as hr

    Path("poem.txt").write_text("one\nthree\nfifteen\n")
    lines = read_lengths("poem.txt").accumulate(lengths=hr.MinMax("length"))
    result = lines.write_parquet("lengths/")
    assert result.metrics["lengths"] == {"min": 3, "max": 7}
    assert [row["length"] for row in hr.read_parquet("lengths/").take_all()] == [3, 5, 7]
