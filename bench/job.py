"""What is timed: ``python -m bench.job CONTENDER JOB DATA OUT``.

It imports nothing but the one contender, so that each pays for its own imports only.
"""

import importlib
import sys

if __name__ == "__main__":
    contender, job, data, out = sys.argv[1:]
    importlib.import_module(f"bench.contenders.{contender}").main(job, data, out)
