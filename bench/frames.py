"""``python -m bench.frames``: what ``BatchPredictor`` adds to a loop by hand over a DataFrame in memory.

A million rows of ten float32 features go through a small network of PyTorch, 4,096 at a time. The loop by hand makes
one tensor of the frame and collects what the network gives; ``BatchPredictor.predict`` makes a DataFrame of it, too.
Both have the network in memory and the same threads: one, unless asked otherwise, as threads that wait for cores of
others make the figures dance. Their outputs must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench import given

FEATURES, BATCH = 10, 4096
LAYERS = {"small": (64, 64), "tiny": (64,)}  # hidden layers
BAR = 1.3  # of the loop's time, for the small network


def network(torch: Any, hidden: Sequence[int]) -> Any:
    torch.manual_seed(0)
    layers: list[Any] = []
    before = FEATURES
    for width in hidden:
        layers += [torch.nn.Linear(before, width), torch.nn.ReLU()]
        before = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(before, 1)).eval()


def by_hand(torch: Any, net: Any, frame: Any) -> Any:
    features = torch.tensor(frame.to_numpy(np.float32))
    parts = []
    with torch.inference_mode():
        for start in range(0, len(features), BATCH):
            parts.append(net(features[start : start + BATCH]))
    return torch.cat(parts).squeeze(1).numpy()


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    made = run()
    return time.perf_counter() - began, made


def measured(torch: Any, hidden: Sequence[int], frame: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the loop and of ours, round by round; who is first changes from round to round."""
    from headrace.compat.ray.train.batch_predictor import BatchPredictor
    from headrace.compat.ray.train.torch import TorchCheckpoint, TorchPredictor

    net = network(torch, hidden)
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(net), TorchPredictor)
    programs = [lambda: by_hand(torch, net, frame), lambda: predictor.predict(frame, batch_size=BATCH)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        made = {}
        for i in (0, 1) if turn % 2 else (1, 0):
            took, made[i] = timed(programs[i])
            if turn:  # the first one warms up
                seconds[i].append(took)
        if not np.array_equal(made[0], made[1]["predictions"].to_numpy()):
            raise SystemExit("the predictions differ from those of the loop")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.frames",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=given.count, default=25, help="timed rounds (default 25)")
    parser.add_argument(
        "--rows", type=given.count, default=1_000_000, help="rows of the frame (default 1,000,000)"
    )
    parser.add_argument(
        "--threads", type=given.some, default=1, help="of PyTorch (default 1; 0: its own choice)"
    )
    options = parser.parse_args(arguments)
    try:
        import pandas as pd
        import torch
    except ImportError as error:
        print(f"left out: {error.name} is not installed")
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    values = np.random.default_rng(0).standard_normal((options.rows, FEATURES), dtype=np.float32)
    frame = pd.DataFrame(values, columns=[f"f{i}" for i in range(FEATURES)])
    print(
        f"{options.rows:,} rows, {torch.get_num_threads()} threads; ms, median of {options.rounds} (fastest)"
    )
    print(f"{'network':<20}{'by hand':>16}{'ours':>16}{'ratio, paired':>24}")
    reached = True
    for name, hidden in LAYERS.items():
        hand, ours = measured(torch, hidden, frame, options.rounds)
        ratios = sorted(b / a for a, b in zip(hand, ours, strict=True))
        shape = "–".join(map(str, (FEATURES, *hidden, 1)))
        times = "".join(
            f"{f'{1e3 * statistics.median(s):.0f} ({1e3 * min(s):.0f})':>16}" for s in (hand, ours)
        )
        median = statistics.median(ratios)
        spread = f"{median:.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        print(f"{name + ', ' + shape:<20}{times}{spread:>24}")
        if name == "small":
            reached = median <= BAR
    print(f"the bar for the small network: {BAR}; {'reached' if reached else 'not reached'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
