"""Small calls of an executor per second, of this tree and of another one, in turns.

python -m bench.calls --other ../before --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

ONE_ROUND = """
import time
import headrace as hr


def same(x):
    return x


class Actor:
    def same(self, x):
        return x


def timed(make, count):
    begun = time.perf_counter()
    assert sum(future.result() for future in [make(i) for i in range(count)]) == count * (count - 1) // 2
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    with hr.connect(workers=2) as executor:
        [future.result() for future in [executor.submit(same, i) for i in range(200)]]
        actor = executor.actor(Actor)
        actor.same(0).result()
        for make in (lambda i: executor.submit(abs, i), lambda i: executor.submit(same, i), actor.same):
            cpu = time.process_time()
            print(timed(make, 8000), 8000 / (time.process_time() - cpu))
"""


def round_of(tree: Path) -> list[float]:
    """Return calls per second, and per second of the driver's CPU: of a builtin, of a function, of a method."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    ended = subprocess.run(
        [sys.executable, "-c", ONE_ROUND], env=environment, capture_output=True, text=True, check=True
    )
    return [float(number) for number in ended.stdout.split()]


def main() -> None:
    """Measure both trees in turns, so that whatever else the machine does meets both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, default=HERE, help="the tree to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    ours, others = [], []
    for _ in range(chosen.rounds):
        others.append(round_of(chosen.other))
        ours.append(round_of(HERE))
    kinds = ("of a builtin", "of the program's own function", "of a method of one actor")
    for i, what in enumerate(each for kind in kinds for each in (kind, "  per second of the driver's CPU")):
        mine, other = (statistics.median(each[i] for each in found) for found in (ours, others))
        ratio = statistics.median(a[i] / b[i] for a, b in zip(ours, others, strict=True))
        print(f"{what}: {mine:,.0f}/s here, {other:,.0f}/s there, {ratio:.2f} times as many")


if __name__ == "__main__":
    main()
