"""What each machine of a fleet runs: the same program, with one output that all of them see.

    python job.py INPUT OUTPUT

INPUT is a folder of Parquet files with a column ``x``; both may be addresses such as ``s3://bucket/in``.
"""

import sys

import headrace as hr


def model(batch):  # stands for your model
    return batch["x"] * 2.0


if __name__ == "__main__":
    source, output = sys.argv[1:]
    result = (
        hr.read_parquet(source)
        .predict(model, inputs=["x"], output="score")
        .with_options(fleet=True)
        .write_parquet(output)
    )
    print(f"{result.rows:,} rows in {result.path}")
