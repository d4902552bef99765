"""The hand-written loop, by someone who knows that dictionaries are wasted on float columns.

ParquetWriter tries a dictionary on every column first, and for floats that hardly repeat that
costs more than all the rest of the job.
"""

from bench.contenders import hand


def main(job: str, data: str, out: str) -> None:
    hand.main(job, data, out, dictionary=False)
